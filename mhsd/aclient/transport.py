"""What a Trio transport does: carries requests to one endpoint and brings their answers.

A transport is used by any number of tasks at once. It decides when a connection is opened anew; what may be sent a
second time is for the client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from mhsd.client.transport import Answer

ALONE_S = 1.0
"""How long a connection of its own may take to come about for what is urgent, where there is another that it could
take."""

Send = Callable[[str, bytes, float], Awaitable[Answer]]
"""Sends one request on one certain connection: its id, its body, and for how many seconds the answer is waited for."""

Greet = Callable[[Send], Awaitable[None]]
"""Says hello on a connection, before anything else goes over it."""


class EventsWanted(Protocol):
    """The session whose events are to be brought."""

    @property
    def session_id(self) -> str:
        """Its id."""

    @property
    def last_event_id(self) -> str | None:
        """Where to go on after a connection has broken."""

    @property
    def touch(self) -> Callable[[], Awaitable[object]]:
        """Uses the session on the connection that there is now, so that its events come that way."""

    def interrupt(self) -> None:
        """What was on its way is lost, and cannot be had again."""


class AsyncTransport(Protocol):
    """One way to one endpoint."""

    name: str
    """What `client_info.transport` says."""
    url: str
    """The endpoint, as messages name it."""
    paced: bool
    """Whether the endpoint counts the requests that come this way."""

    async def greet(self, greet: Greet) -> None:
        """Says hello now, and from then on at the beginning of every connection that needs one."""

    async def exchange(
        self, request_id: str, body: bytes, timeout_s: float, *, urgent: bool = False
    ) -> Answer:
        """Sends `body` and waits for the answer; NotSent or Lost. What is urgent waits for nothing else."""

    async def bring_events(self, wanted: EventsWanted) -> None:
        """Runs until it is cancelled, while events of the session come in; MHSError when they cannot be had."""

    async def aclose(self) -> None:
        """Gives back what the transport holds, in bounded time; later calls raise NotSent."""
