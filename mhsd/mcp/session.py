"""The MCP side of one connection, without input or output: what a line asks for, and the one line that answers it.

Decides about framing, the handshake, ids, and who may still be answered: every request gets one response at most,
and progress only before it. What a request does is for `calls` and `resources`; when it runs is for `host`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from mhsd.base.errors import Fault
from mhsd.wire.json_text import bytes_exceeded, decode, decode_lenient

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""The revisions that this server speaks; whoever asks for another one is offered the last [TPT-045]."""

MAX_FRAME_BYTES = 4 << 20
"""The longest line in either direction, which is what common MCP clients take [TPT-047]."""

LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

ESTOP_TOOL = "mhs__estop"
_ESTOP_BYTES = ESTOP_TOOL.encode()

_REQUIRED: Mapping[str, str | None] = {
    "initialize": None,
    "ping": None,
    "logging/setLevel": "level",
    "tools/list": None,
    "tools/call": "name",
    "resources/list": None,
    "resources/templates/list": None,
    "resources/read": "uri",
}
"""The methods that are served, and the text that the params of each must have."""

_MOST_ITEMS = 40_000  # Twice what an endpoint takes; parsing more would hold up everybody else.
_MOST_LEVELS = 128
_NAME_LENGTH = 128


@attrs.define(eq=False)
class Call:
    """A request that somebody has to serve; answered by `McpSession.result` or `.error`, once."""

    id: str | int
    method: str
    params: dict[str, Any]
    progress_token: str | int | None = None
    is_urgent: bool = False
    """It is served beside what is in flight: an e-stop waits for nobody [CORE-079, CORE-132]."""
    is_cancelled: bool = attrs.field(default=False, init=False)
    _progress: float | None = attrs.field(default=None, init=False)

    @property
    def meta(self) -> dict[str, Any]:
        """`_meta` of the params, or an empty dict."""
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}

    def advances(self, progress: float) -> bool:
        """Note a progress that is to be sent; False for one that does not exceed the last."""
        if self._progress is not None and progress <= self._progress:
            return False
        self._progress = progress
        return True


@attrs.frozen
class Reply:
    """A line to be written at once; None for nothing."""

    data: bytes | None
    stops: tuple[Call, ...] = ()
    """E-stops of a message that is refused or not answered: they are carried out, and nothing is said of them."""


@attrs.frozen
class Cancellation:
    """The client no longer wants this call, which is still open."""

    call: Call


Received = Reply | Call | Cancellation | None


class McpSession:
    """One connection's handshake and open calls."""

    def __init__(self) -> None:
        self.version: str | None = None
        """The negotiated revision; None before initialize."""
        self.client_name = "unknown"
        self.log_level = "info"
        """The least level that the client wants to hear."""
        self._open: dict[str | int, Call] = {}

    # Reading

    def receive(self, line: bytes) -> Received:
        """What one line asks for; never raises. A malformed line is answered once and changes nothing [TPT-004].

        Only a stop is never refused: one that stands in a batch, in bad JSON, in a bad request or under an id that is
        in use is carried out all the same [CORE-076].
        """
        sizes = {"max_bytes": MAX_FRAME_BYTES, "max_depth": _MOST_LEVELS, "max_items": _MOST_ITEMS}
        mentions_stop = _ESTOP_BYTES in line
        try:
            value = decode(line, **sizes)
        except Fault as fault:
            code = PARSE_ERROR if fault.mhs_code == "MHS.PROTOCOL.PARSE_ERROR" else INVALID_REQUEST
            understood = decode_lenient(line, **sizes)
            stops = _stops(understood) if mentions_stop else ()
            message = f"{fault.message} The e-stop in it is carried out." if stops else fault.message
            return Reply(_error(self._id_in(understood, line), code, message, fault.data()), stops)
        received = self._received(value)
        if mentions_stop and not isinstance(received, Call):
            return Reply(received.data if isinstance(received, Reply) else None, _stops(value))
        return received

    def _received(self, value: Any) -> Received:
        if type(value) is not dict:
            what = "batches are not served" if type(value) is list else "a message must be a JSON-RPC object"
            return Reply(_error(None, INVALID_REQUEST, what))
        method = value.get("method")
        if "method" not in value and ("result" in value or "error" in value):
            return None  # A response: nothing was asked, and answering one would start a quarrel.
        request_id = value.get("id")
        is_notification = "id" not in value
        if not is_notification and type(request_id) is not str and type(request_id) is not int:
            return Reply(_error(None, INVALID_REQUEST, "id must be a string or an integer"))
        if not is_notification and request_id in self._open:
            # Its answer is on its way; one more with the same id would be taken for it.
            return Reply(_error(None, INVALID_REQUEST, f"the id {str(request_id)[:128]!r} is in use"))
        if value.get("jsonrpc") != "2.0" or type(method) is not str:
            return Reply(_error(request_id, INVALID_REQUEST, 'a request has jsonrpc "2.0" and a method'))
        params = value.get("params")
        if is_notification:
            return self._notified(method, params)
        assert request_id is not None
        return self._asked(request_id, method, {} if params is None else params)

    def _id_in(self, understood: Any, line: bytes) -> str | int | None:
        """The id of a request in bad JSON, whose sender waits for an answer to it: some hosts write half of a
        surrogate pair into an argument. None where it cannot be told for certain."""
        if type(understood) is not dict or "method" not in understood:
            return None
        request_id = understood.get("id")
        if type(request_id) not in (str, int) or request_id in self._open:
            return None
        # Of two ids neither is certain, and a text that had to be mended is another one.
        return request_id if line.count(b'"id"') == 1 and _encode(request_id).encode() in line else None

    @staticmethod
    def too_long() -> Reply:
        """The answer to a line over MAX_FRAME_BYTES, which was not parsed."""
        fault = bytes_exceeded(MAX_FRAME_BYTES)
        return Reply(_error(None, INVALID_REQUEST, fault.message, fault.data()))

    def _notified(self, method: str, params: Any) -> Cancellation | None:
        """Nothing is answered to a notification; the only one that does anything is a cancellation."""
        if method != "notifications/cancelled" or type(params) is not dict:
            return None
        request_id = params.get("requestId")
        if not isinstance(request_id, str | int) or isinstance(request_id, bool):
            return None
        call = self._open.get(request_id)
        if call is None or call.is_cancelled or call.method == "initialize":
            return None
        call.is_cancelled = True
        return Cancellation(call)

    def _asked(self, request_id: str | int, method: str, params: Any) -> Reply | Call:
        refusal = self._refusal(request_id, method, params)
        if refusal is not None:
            return Reply(refusal)
        if method == "ping":
            return Reply(_result(request_id, {}))
        token = params.get("_meta", {}).get("progressToken") if type(params.get("_meta")) is dict else None
        call = Call(
            request_id,
            method,
            params,
            progress_token=token if type(token) in (str, int) else None,
            is_urgent=_is_estop(method, params),
        )
        if method == "initialize":
            self._initialize(params)
        self._open[request_id] = call
        return call

    def _refusal(self, request_id: str | int, method: str, params: Any) -> bytes | None:
        if method not in _REQUIRED:
            return _error(request_id, METHOD_NOT_FOUND, f"there is no method {method[:128]}")
        if type(params) is not dict:
            return _error(request_id, INVALID_PARAMS, "params must be an object")
        if self.version is None and method not in ("initialize", "ping") and not _is_estop(method, params):
            return _error(request_id, INVALID_REQUEST, "the first request must be initialize")
        required = _REQUIRED[method]
        if required is not None and type(params.get(required)) is not str:
            return _error(request_id, INVALID_PARAMS, f"{method} needs {required}, a string")
        if method == "logging/setLevel" and params["level"] not in LOG_LEVELS:
            return _error(request_id, INVALID_PARAMS, f"level must be one of {', '.join(LOG_LEVELS)}")
        return None

    def _initialize(self, params: Mapping[str, Any]) -> None:
        """Agree on a revision: the one that is asked for where it is known, else the latest [TPT-045]."""
        asked = params.get("protocolVersion")
        is_first = self.version is None
        self.version = asked if asked in VERSIONS else VERSIONS[-1]
        info = params.get("clientInfo")
        name = info.get("name") if isinstance(info, dict) else None
        if isinstance(name, str) and is_first:
            # Sessions are bound to whoever opened them, so that nobody gets another name on the way.
            self.client_name = _clean(name) or self.client_name

    # Answering

    @property
    def open_calls(self) -> tuple[Call, ...]:
        """The calls that have no response yet."""
        return tuple(self._open.values())

    def result(self, call: Call, result: Mapping[str, Any]) -> bytes | None:
        """The response; None for a call that has had its own. One over the frame limit is an error instead."""
        if not self.close(call):
            return None
        data = _result(call.id, result)
        if len(data) > MAX_FRAME_BYTES:
            fault = bytes_exceeded(MAX_FRAME_BYTES)
            return _error(call.id, INTERNAL_ERROR, "the result is too long for a message", fault.data())
        return data

    def error(
        self, call: Call, code: int, message: str, data: Mapping[str, Any] | None = None
    ) -> bytes | None:
        """The error response; None for a call that has had its response."""
        return _error(call.id, code, message, data) if self.close(call) else None

    def close(self, call: Call) -> bool:
        """Nothing more is sent for this call; False where that was so already."""
        if self._open.get(call.id) is not call:
            return False
        del self._open[call.id]
        return True

    def progress(
        self, call: Call, progress: float, total: float | None = None, message: str | None = None
    ) -> bytes | None:
        """A progress notification: only where a token asked for it, strictly increasing, and never after the
        response [TPT-040]. None where there is none to be sent."""
        if call.progress_token is None or self._open.get(call.id) is not call or not call.advances(progress):
            return None
        params: dict[str, Any] = {"progressToken": call.progress_token, "progress": progress}
        if total is not None:
            params["total"] = total
        if message is not None and self.version != VERSIONS[0]:
            params["message"] = message
        return notification("notifications/progress", params)

    def log(self, level: str, data: Any) -> bytes | None:
        """A log notification, where the client wants to hear this level."""
        if self.version is None or LOG_LEVELS.index(level) < LOG_LEVELS.index(self.log_level):
            return None
        return notification("notifications/message", {"level": level, "logger": "mhsd", "data": data})


def notification(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    """One line that is not answered."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    return _line(message if params is None else {**message, "params": params})


def _stops(value: Any) -> tuple[Call, ...]:
    """The e-stops in a value that is no good request, as calls that no answer belongs to."""
    messages = value if isinstance(value, list) else [value]
    return tuple(
        Call("", "tools/call", message["params"], is_urgent=True)
        for message in messages
        if isinstance(message, dict)
        and isinstance(message.get("params"), dict)
        and _is_estop(message.get("method"), message["params"])
    )


def _is_estop(method: Any, params: Mapping[str, Any]) -> bool:
    return method == "tools/call" and params.get("name") == ESTOP_TOOL


def _clean(name: str) -> str:
    """A client's name as it may stand in a principal's id."""
    return "".join(character for character in name if character.isprintable()).strip()[:_NAME_LENGTH]


def _result(request_id: str | int, result: Mapping[str, Any]) -> bytes:
    return _line({"jsonrpc": "2.0", "id": request_id, "result": result})


def _error(
    request_id: str | int | None, code: int, message: str, data: Mapping[str, Any] | None = None
) -> bytes:
    error: dict[str, Any] = {"code": code, "message": message}
    return _line(
        {"jsonrpc": "2.0", "id": request_id, "error": error if data is None else {**error, "data": data}}
    )


_encode: Callable[[Any], str] = json.JSONEncoder(
    # ASCII, because line splitters of other languages break lines at U+2028 and U+0085 too.
    ensure_ascii=True,
    check_circular=False,
    allow_nan=False,
    separators=(",", ":"),
).encode


def _line(message: Mapping[str, Any]) -> bytes:
    return _encode(message).encode("ascii") + b"\n"
