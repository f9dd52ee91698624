"""The events of one session over HTTP: reads the stream, resumes it after a break, gives up when the budget is spent.

A break is mended by a new connection with Last-Event-ID [TPT-018, TPT-061], after growing pauses [TPT-064]; what the
endpoint sends twice or has dropped meanwhile is for the subscriptions to sort out. What it refuses ends the stream at
once. The pauses are those of the client's budget, not the `retry:` of the stream, which is the same for everybody.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from mhsd.aclient.transport import EventsWanted
from mhsd.client.backoff import Backoff
from mhsd.client.errors import MHSError, no_more_events
from mhsd.client.sse import SseParser, SseTooLong, event_of
from mhsd.client.sse_source import QUIET_S, STEADY_S, may_ask_again
from mhsd.client.transport import Lost, NotSent

Take = Callable[[dict[str, Any]], None]


class EventStream(Protocol):
    """One connection."""

    async def read(self) -> bytes:
        """The next bytes; b"" at the end, Lost where the connection broke."""

    async def aclose(self) -> None:
        """Closes it at once."""


Open = Callable[[str, str | None], Awaitable[EventStream]]
"""Opens a connection for this session that goes on after this Last-Event-ID; NotSent, Lost or MHSError."""


async def stream_events(open_stream: Open, take: Take, wanted: EventsWanted, backoff: Backoff) -> None:
    """Hands on the events of a session until it is cancelled; MHSError when they cannot be had any more."""
    was_open = False
    while True:
        at_least_s = 0.0
        try:
            stream = await open_stream(wanted.session_id, wanted.last_event_id)
            was_open = True
            await _read_one(stream, take, backoff)
            problem = no_more_events("the endpoint closed the stream")
        except (NotSent, Lost, SseTooLong) as broken:
            problem = no_more_events(str(broken))
        except MHSError as refusal:
            if not may_ask_again(refusal, was_open=was_open):
                raise
            problem, at_least_s = refusal, refusal.retry_after_s or 0.0
        pause_s = backoff.pause_s(at_least_s)
        if pause_s is None:
            raise problem
        await trio.sleep(pause_s)


async def _read_one(stream: EventStream, take: Take, backoff: Backoff) -> None:
    """One connection, to its end."""
    opened_mono_s = trio.current_time()
    parser = SseParser()
    try:
        while piece := await _piece(stream):
            for message in parser.feed(piece):
                event = event_of(message)
                if event is not None:
                    take(event)
                    backoff.reset()
    finally:
        await stream.aclose()
        if trio.current_time() - opened_mono_s > STEADY_S:
            backoff.reset()


async def _piece(stream: EventStream) -> bytes:
    with trio.move_on_after(QUIET_S):
        return await stream.read()
    raise Lost(f"no event and no comment came for {QUIET_S:g} s")
