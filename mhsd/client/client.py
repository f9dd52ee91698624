"""The client: calls one endpoint's methods and turns what goes wrong into MHSError.

Decides how long to wait, what may be sent again, and which exception tells the caller the truth. How bytes
travel is for the transports; sessions and receipts are in session.py.
"""

import json
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Self

from mhsd import MHS_VERSION, __version__
from mhsd.base.ids import Ids
from mhsd.client.endpoint import HttpEndpoint, StdioEndpoint, parse_endpoint
from mhsd.client.errors import AnswerLost, MHSError, error, from_answer
from mhsd.client.http import HttpTransport, Tls
from mhsd.client.stdio import StdioTransport
from mhsd.client.transport import Answer, Lost, NotSent, Transport

DEADLINED = frozenset(
    {
        "mhs.resource.read",
        "mhs.resource.write",
        "mhs.command",
        "mhs.operations.get",
        "mhs.operations.cancel",
        "mhs.subscribe",
        "mhs.snapshot",
        "mhs.restore",
        "mhs.safety.status",
        "mhs.safety.reset",
        "mhs.composition.run",
    }
)
"""The methods that need `deadline_ms` (flag D of spec/methods.toml, which a test compares)."""

EFFECTFUL = frozenset(
    {
        "mhs.resource.write",
        "mhs.command",
        "mhs.restore",
        "mhs.safety.estop",
        "mhs.safety.reset",
        "mhs.safety.permit",
        "mhs.operations.cancel",
        "mhs.session.open",
        "mhs.session.close",
        "mhs.composition.run",
    }
)
"""The methods that change something: never sent a second time after their answer was lost [PROTO-041]."""

_BEFORE_HELLO = frozenset({"mhs.hello", "mhs.safety.estop", "mhs.safety.status"})

ANSWER_GRACE_S = 5.0
"""The transport waits this much longer than the deadline that the endpoint was given."""

DEFAULT_TIMEOUT_S = 30.0
DEFAULT_MAX_REQUEST_BYTES = 1024 * 1024
DEFAULT_MAX_DEADLINE_MS = 600_000


class Client:
    """One endpoint and one caller; safe to use from several threads [TPT-057]. A context manager."""

    def __init__(
        self,
        transport: Transport,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        name: str = "mhsd-client",
    ) -> None:
        self.transport = transport
        self.timeout_s = timeout_s
        self.name = name
        self._ids = Ids()
        self._ids_lock = threading.Lock()
        self._hello: dict[str, Any] | None = None
        self._hello_mono_s = 0.0
        self._hello_lock = threading.Lock()
        self._max_request_bytes = DEFAULT_MAX_REQUEST_BYTES
        self._max_deadline_ms = DEFAULT_MAX_DEADLINE_MS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the transport; on stdio this ends the endpoint, and ChildFailed says if it ended badly."""
        self.transport.close()

    def ulid(self) -> str:
        """A new ULID, for a command_id."""
        with self._ids_lock:
            return self._ids.ulid()

    def hello(self) -> dict[str, Any]:
        """The endpoint's answer to mhs.hello, asked once [PROTO-013]; refuses another major version."""
        with self._hello_lock:
            if self._hello is None:
                params = {
                    "client": {"name": self.name, "version": __version__},
                    "protocol_versions": [MHS_VERSION],
                    "features": [],
                }
                answered = self._call("mhs.hello", params, self.timeout_s)
                self._hello = self._checked(answered)
                self._hello_mono_s = time.monotonic()
            return self._hello

    def endpoint_time_s(self) -> float:
        """The endpoint's wall time now, from its hello; clocks of two machines may differ by hours."""
        told = self.hello().get("time")
        now = told.get("now") if isinstance(told, dict) else None
        if not isinstance(now, str):
            return time.time()
        return datetime.fromisoformat(now).timestamp() + time.monotonic() - self._hello_mono_s

    def _checked(self, answered: dict[str, Any]) -> dict[str, Any]:
        version = answered.get("mhs_version")
        if not isinstance(version, str) or version.split(".")[0] != MHS_VERSION.split(".")[0]:
            raise error(
                "MHS.PROTOCOL.VERSION_UNSUPPORTED",
                f"the endpoint speaks MHS {version}, this client {MHS_VERSION}",
                "Use a client and an endpoint of the same major version.",
            )
        self._max_request_bytes = _limit(answered, "max_request_bytes", DEFAULT_MAX_REQUEST_BYTES)
        self._max_deadline_ms = _limit(answered, "max_command_deadline_ms", DEFAULT_MAX_DEADLINE_MS)
        return answered

    def call(
        self, method: str, params: Mapping[str, Any] | None = None, *, deadline_s: float | None = None
    ) -> dict[str, Any]:
        """The result of one method, an object for all of them; MHSError when there is none.

        `deadline_s` (the client's timeout_s unless given) becomes `deadline_ms` where the method has one, at
        most what the endpoint allows; the transport waits a little longer. Nothing is sent twice, except what
        the endpoint's rate limit refused unread: that is repeated after the time it asked for, within the
        deadline.
        """
        if self.transport.needs_hello and method not in _BEFORE_HELLO:
            self.hello()
        wait_s = self.timeout_s if deadline_s is None else deadline_s
        sent = dict(params or {})
        if method in DEADLINED:
            sent.setdefault("deadline_ms", max(1, min(round(wait_s * 1000), self._max_deadline_ms)))
            wait_s += ANSWER_GRACE_S
        return self._call(method, sent, wait_s)

    def _call(self, method: str, params: Mapping[str, Any], wait_s: float) -> dict[str, Any]:
        until_mono_s = time.monotonic() + wait_s
        while True:
            answer = self._exchange(method, params, max(0.001, until_mono_s - time.monotonic()))
            if "error" not in answer.body:
                return _object(answer.body["result"], method)
            refusal = from_answer(answer.body["error"], answer.http_status)
            pause_s = _pause_s(refusal, answer)
            if pause_s is None or time.monotonic() + pause_s >= until_mono_s:
                raise refusal
            time.sleep(pause_s)

    def _exchange(self, method: str, params: Mapping[str, Any], wait_s: float) -> Answer:
        request_id = self.ulid()
        request = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        try:
            body = json.dumps(request, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except UnicodeEncodeError:
            raise error(
                "MHS.PROTOCOL.INVALID_PARAMS",
                "what was to be sent holds text that is not Unicode; nothing was sent",
                "Write it in UTF-8, and every surrogate escape as a pair.",
            ) from None
        if len(body) > self._max_request_bytes:
            raise error(
                "MHS.LIMIT.PAYLOAD_TOO_LARGE",
                f"the request has {len(body)} bytes, the endpoint takes {self._max_request_bytes}; "
                "nothing was sent",
                "Send a smaller input.",
            )
        try:
            return self.transport.exchange(request_id, body, wait_s)
        except NotSent as problem:
            raise error(
                "MHS.TRANSPORT.UNAVAILABLE",
                f"{problem}; nothing was sent",
                "Check that mhsd runs at this address, then repeat the command.",
            ) from None
        except Lost as problem:
            raise _lost(method, problem) from None


def _limit(hello: Mapping[str, Any], name: str, default: int) -> int:
    limits = hello.get("limits")
    limit = limits.get(name) if isinstance(limits, dict) else None
    return limit if isinstance(limit, int) and limit > 0 else default


def _object(result: object, method: str) -> dict[str, Any]:
    if not isinstance(result, dict):
        raise error("MHS.PROTOCOL.INVALID_REQUEST", f"the endpoint's result of {method} is no object")
    return result


def _lost(method: str, problem: Lost) -> AnswerLost:
    mhs_code = "MHS.OUTCOME.TIMEOUT" if problem.timed_out else "MHS.OUTCOME.UNKNOWN"
    if method in EFFECTFUL:
        return AnswerLost(
            mhs_code,
            f"{problem}; whether {method} was carried out is not known",
            remediation="Look at the device's state before you send anything again.",
        )
    return AnswerLost(
        mhs_code,
        f"{problem}; {method} changes nothing",
        remediation="Repeat the command.",
        retryable=True,
    )


def _pause_s(refusal: MHSError, answer: Answer) -> float | None:
    """How long the endpoint asks to wait after it refused a request unread; None: do not repeat it."""
    if refusal.mhs_code != "MHS.LIMIT.RATE_EXCEEDED":
        return None
    retry_after_ms = refusal.details.get("retry_after_ms")
    if isinstance(retry_after_ms, int | float) and not isinstance(retry_after_ms, bool):
        return max(0.001, retry_after_ms / 1000)
    return answer.retry_after_s


def connect(
    endpoint: str,
    *,
    token: str | None = None,
    tls: Tls | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    name: str = "mhsd-client",
) -> Client:
    """A client of `endpoint` (`http(s)://…`, `mhs://…` or `stdio:COMMAND`).

    BadEndpoint for an unsupported form, AuthError for plain HTTP to another machine, TransportError when a
    stdio command does not start. HTTP connects at the first call.
    """
    place = parse_endpoint(endpoint)
    if isinstance(place, HttpEndpoint):
        return Client(HttpTransport(place, token=token, tls=tls), timeout_s=timeout_s, name=name)
    return Client(_child(place), timeout_s=timeout_s, name=name)


def _child(place: StdioEndpoint) -> StdioTransport:
    try:
        return StdioTransport(place)
    except NotSent as problem:
        raise error(
            "MHS.TRANSPORT.UNAVAILABLE", str(problem), "Check the command after stdio: for spelling."
        ) from None
