"""One call, without the sending: what is written, how long is waited, what the answer or its loss means. Pure.

Both clients are made of this: `mhsd.client` for programs that wait, `mhsd.aclient` for Trio.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from mhsd import MHS_VERSION, __version__
from mhsd.client.errors import AnswerLost, MHSError, TransportError, TransportOver, error, from_answer
from mhsd.client.transport import Answer, Lost, NotSent, Over

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

UNREAD = frozenset({"MHS.LIMIT.RATE_EXCEEDED", "MHS.LIMIT.CONNECTION_LIMIT"})
"""How a request is refused that the endpoint has not looked into, so that it may be sent again."""

BEFORE_HELLO = frozenset({"mhs.hello", "mhs.safety.estop", "mhs.safety.status"})
"""What a connection takes before its hello."""

ANSWER_GRACE_S = 5.0
"""The transport waits this much longer than the deadline that the endpoint was given."""

DEFAULT_TIMEOUT_S = 30.0
LONGEST_TIMEOUT_S = 86400
DEFAULT_MAX_REQUEST_BYTES = 1024 * 1024
DEFAULT_MAX_DEADLINE_MS = 600_000
_MOST = 10**12
"""No endpoint means a limit above this one, and clocks and sockets take no more milliseconds."""


class Agreed(NamedTuple):
    """What hello said that binds every later call."""

    max_request_bytes: int = DEFAULT_MAX_REQUEST_BYTES
    max_deadline_ms: int = DEFAULT_MAX_DEADLINE_MS

    @classmethod
    def of(cls, hello: Mapping[str, Any]) -> "Agreed":
        """The endpoint's limits, with the usual ones for what it leaves out."""
        return cls(
            int(limit(hello, "max_request_bytes", DEFAULT_MAX_REQUEST_BYTES)),
            int(limit(hello, "max_command_deadline_ms", DEFAULT_MAX_DEADLINE_MS)),
        )


def limit(hello: Mapping[str, Any], name: str, default: float) -> float:
    """One of `hello.limits`; `default` where the endpoint names no usable one."""
    limits = hello.get("limits")
    found = limits.get(name) if isinstance(limits, dict) else None
    return found if isinstance(found, int | float) and 0 < found <= _MOST else default


def check_timeout(timeout_s: float) -> None:
    """ValueError for a time that a client cannot wait [TPT-056]."""
    if not 0 < timeout_s <= LONGEST_TIMEOUT_S:
        raise ValueError(f"timeout_s is a number of seconds above 0, at most {LONGEST_TIMEOUT_S}")


def hello_params(name: str) -> dict[str, Any]:
    """The parameters of mhs.hello of a client of this name [PROTO-013]."""
    return {
        "client": {"name": name, "version": __version__},
        "protocol_versions": [MHS_VERSION],
        "features": [],
    }


def check_version(hello: Mapping[str, Any]) -> None:
    """Refuses an endpoint that speaks another major version [PROTO-013]."""
    version = hello.get("mhs_version")
    if not isinstance(version, str) or version.split(".")[0] != MHS_VERSION.split(".")[0]:
        raise error(
            "MHS.PROTOCOL.VERSION_UNSUPPORTED",
            f"the endpoint speaks MHS {version}, this client {MHS_VERSION}",
            "Use a client and an endpoint of the same major version.",
        )


def time_of(hello: Mapping[str, Any]) -> float | None:
    """The endpoint's wall time when it answered hello; None where it did not say."""
    told = hello.get("time")
    now = told.get("now") if isinstance(told, dict) else None
    return moment_s(now, "time") if isinstance(now, str) else None


def moment_s(timestamp: str, name: str) -> float:
    """A timestamp of the endpoint in seconds of wall time; ProtocolError for one that is none."""
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except (ValueError, OverflowError):
        raise error("MHS.PROTOCOL.INVALID_REQUEST", f"the endpoint's {name} is no time") from None


class Budget(NamedTuple):
    """The parameters as they are sent, and how long the transport waits for the answer."""

    params: dict[str, Any]
    wait_s: float


def budget(method: str, params: Mapping[str, Any] | None, deadline_s: float, agreed: Agreed) -> Budget:
    """`deadline_s` becomes `deadline_ms` where the method has one, at most what the endpoint allows [TPT-056]."""
    sent = dict(params or {})
    if method not in DEADLINED:
        return Budget(sent, deadline_s)
    sent.setdefault("deadline_ms", max(1, min(round(deadline_s * 1000), agreed.max_deadline_ms)))
    asked_ms = sent["deadline_ms"]
    # More than the endpoint allows is refused at once.
    waited_s = min(asked_ms, agreed.max_deadline_ms) / 1000 if isinstance(asked_ms, int) else deadline_s
    return Budget(sent, waited_s + ANSWER_GRACE_S)


def request_body(request_id: str, method: str, params: Mapping[str, Any], max_bytes: int) -> bytes:
    """The bytes of a request; MHSError for what cannot be written or is longer than the endpoint takes [TPT-006]."""
    request = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
    try:
        body = json.dumps(request, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError:
        raise error(
            "MHS.PROTOCOL.INVALID_PARAMS",
            "what was to be sent holds text that is not Unicode; nothing was sent",
            "Write it in UTF-8, and every surrogate escape as a pair.",
        ) from None
    if len(body) > max_bytes:
        raise error(
            "MHS.LIMIT.PAYLOAD_TOO_LARGE",
            f"the request has {len(body)} bytes, the endpoint takes {max_bytes}; nothing was sent",
            "Send a smaller input.",
        )
    return body


def result_of(answer: Answer, method: str) -> dict[str, Any] | MHSError:
    """The result, an object for all methods, or the refusal that came in its place."""
    if "error" in answer.body:
        return from_answer(answer.body["error"], answer.http_status)
    result = answer.body["result"]
    if not isinstance(result, dict):
        raise error("MHS.PROTOCOL.INVALID_REQUEST", f"the endpoint's result of {method} is no object")
    return result


def pause_s(refusal: MHSError, answer: Answer) -> float | None:
    """How long the endpoint asks to wait after it refused a request unread; None: do not repeat it."""
    if refusal.mhs_code not in UNREAD:
        return None
    asked_s = refusal.retry_after_s
    return answer.retry_after_s if asked_s is None else max(0.001, asked_s)


def too_many() -> MHSError:
    """The error of a call that the client's own pace would make too late."""
    return error(
        "MHS.LIMIT.RATE_EXCEEDED",
        "so many calls of this client wait for their turn that this one would be too late; nothing was sent",
        "Send fewer, or give the call a longer deadline.",
    )


def unsent(problem: NotSent) -> MHSError:
    """The error of a request that never left."""
    kind = TransportOver if isinstance(problem, Over) else TransportError
    return kind(
        "MHS.TRANSPORT.UNAVAILABLE",
        f"{problem}; nothing was sent",
        remediation=problem.advice or "Check that mhsd runs at this address, then repeat the command.",
    )


def may_ask_again(method: str, problem: Lost) -> bool:
    """Whether a request whose answer was lost is sent once more: a question whose connection broke [TPT-062]."""
    return method not in EFFECTFUL and not problem.timed_out


def lost(method: str, problem: Lost) -> AnswerLost:
    """The error of a request whose answer did not come, as bad as the method makes it [TPT-062]."""
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
        remediation="It may be asked again.",
    )
