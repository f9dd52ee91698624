"""What a transport does: carries one JSON-RPC request to the endpoint and brings its answer.

How a failure becomes an MHS code depends on the method, so the transports say only which of the two it was.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from mhsd.client.errors import MHSError

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""A longer answer is not read: no result of the protocol comes near it."""


class NotSent(Exception):
    """The endpoint cannot have seen the request: no connection, or nothing was written to it."""

    def __init__(self, message: str, *, advice: str | None = None) -> None:
        super().__init__(message)
        self.advice = advice
        """What to do, where more is known than that there is no connection."""


class Over(NotSent):
    """Nor can any later request be sent: the client is closed, or the child that it started has ended."""


class Lost(Exception):
    """The request left and no usable answer came; whether it was carried out is not known."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class Answer(NamedTuple):
    """A JSON-RPC response; over HTTP with its status and what `Retry-After` said."""

    body: dict[str, Any]
    http_status: int | None = None
    retry_after_s: float | None = None


class Sink(Protocol):
    """Takes the events of a session, in a thread of the transport."""

    def deliver(self, event: Mapping[str, Any]) -> None:
        """The params of one mhs.event."""

    def interrupted(self, why: str) -> None:
        """The connection broke, and another one is tried."""

    def fail(self, problem: MHSError) -> None:
        """No more can be brought, and this is why."""


class Source(Protocol):
    """Brings the events of one session to a sink until it is ended."""

    def end(self) -> None:
        """Nothing more is brought."""


class Transport(Protocol):
    """One way to one endpoint, usable from several threads at a time [TPT-057]."""

    name: str
    url: str
    needs_hello: bool
    paced: bool
    """Whether the endpoint counts the requests that come this way."""

    def exchange(self, request_id: str, body: bytes, timeout_s: float) -> Answer:
        """Sends `body` and waits for the answer with `request_id`; raises NotSent or Lost."""

    def events(self, session_id: str, sink: Sink) -> Source:
        """Brings the events of a session to `sink`, from its first subscription on."""

    def close(self) -> None:
        """Gives back what the transport holds; later calls raise NotSent."""


def is_answer(value: object, request_id: str) -> bool:
    """Whether `value` is the JSON-RPC response to `request_id`, or an error that could not name one."""
    if not isinstance(value, dict) or ("result" in value) == ("error" in value):
        return False
    answered = value.get("id")
    return answered == request_id or (answered is None and "error" in value)
