"""One connection that carries whole messages both ways: answers are told apart by id, events go to the hub.

stdio and WebSocket are both such connections. One task reads and one writes, so that a call which is cancelled never
leaves half a message behind, and an e-stop goes ahead of everything that waits to be written.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import attrs
import trio

from mhsd.aclient.events import EventHub
from mhsd.aclient.streams import GONE, text_of
from mhsd.client.transport import Answer, Lost, NotSent, is_answer


class Channel(Protocol):
    """What a link is made of."""

    async def send(self, message: bytes) -> None:
        """Sends one whole message; one of GONE where nobody takes it."""

    async def receive(self) -> bytes | None:
        """The next whole message, None at the end; BadMessage for what is none."""

    async def aclose(self) -> None:
        """Closes it, in bounded time."""


class BadMessage(Exception):
    """The other end does not speak this protocol; the link is of no more use."""


@attrs.define(eq=False)
class _Call:
    """A request on its way. `answer` stays None when the link breaks."""

    body: bytes
    was_written: bool = False
    done: trio.Event = attrs.field(factory=trio.Event)
    answer: dict[str, Any] | None = None


class Link:
    """Carries the calls of any number of tasks over one channel [TPT-057]."""

    def __init__(self, channel: Channel, hub: EventHub, url: str) -> None:
        self._channel = channel
        self._hub = hub
        self._url = url
        self._calls: dict[str, _Call] = {}
        self._urgent: deque[_Call] = deque()
        self._to_write: deque[_Call] = deque()
        self._writing = trio.lowlevel.ParkingLot()
        self.why_broken: str | None = None
        self.broken = trio.Event()
        """Set when nothing more can be sent or will come."""

    async def run(self, *, look: Callable[[object], None] = lambda message: None) -> None:
        """Reads and writes until the link breaks. `look` is shown every message that is no answer and no event."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                try:
                    while (message := await self._channel.receive()) is not None:
                        self._take(message, look)
                    self.fail(f"{self._url} has closed the connection")
                except BadMessage as problem:
                    self.fail(str(problem))
                except GONE as problem:
                    self.fail(f"the connection to {self._url} broke: {text_of(problem)}")
                nursery.cancel_scope.cancel()
        finally:
            self.fail("the client is closed")

    def fail(self, why: str) -> None:
        """Ends every call that is open; later ones are not sent. The first reason counts."""
        if self.why_broken is None:
            self.why_broken = why
            self.broken.set()
            for call in self._calls.values():
                call.done.set()

    async def exchange(
        self, request_id: str, body: bytes, timeout_s: float, *, urgent: bool = False
    ) -> Answer:
        """One request and its answer within `timeout_s`; NotSent where it did not leave, else Lost."""
        if self.why_broken is not None:
            raise NotSent(self.why_broken)
        call = self._calls[request_id] = _Call(body)
        queue = self._urgent if urgent else self._to_write
        queue.append(call)
        self._writing.unpark_all()
        try:
            with trio.move_on_after(timeout_s):
                await call.done.wait()
        finally:
            del self._calls[request_id]
            if not call.was_written:
                queue.remove(call)  # Nobody waits for it any more, and nothing of it has left.
        if call.answer is not None:
            return Answer(call.answer)
        if not call.was_written:
            raise NotSent(self.why_broken or f"{self._url} takes no requests")
        if self.why_broken is not None:
            raise Lost(self.why_broken)
        raise Lost(f"{self._url} did not answer within {timeout_s:g} s", timed_out=True)

    async def _write(self) -> None:
        while True:
            while not self._urgent and not self._to_write:
                await self._writing.park()
            call = (self._urgent or self._to_write).popleft()
            call.was_written = True
            try:
                await self._channel.send(call.body)
            except GONE as problem:
                self.fail(f"the connection to {self._url} broke: {text_of(problem)}")
                return

    def _take(self, message: bytes, look: Callable[[object], None]) -> None:
        try:
            value: Any = json.loads(message)
        except (ValueError, RecursionError):
            look(message)
            return
        if isinstance(value, dict) and value.get("method") == "mhs.event":
            self._hub.take(value.get("params"))
        elif not self._answer(value):
            look(value)

    def _answer(self, value: Any) -> bool:
        request_id = value.get("id") if isinstance(value, dict) else None
        if request_id is None and len(self._calls) == 1:
            # An error that could not name its request answers the only one that is open.
            request_id = next(iter(self._calls))
        if not isinstance(request_id, str) or not is_answer(value, request_id) or _is_of_a_double(value):
            return False
        call = self._calls.get(request_id)
        if call is None or call.answer is not None:
            return False  # The first answer counts.
        call.answer = value
        call.done.set()
        return True

    async def aclose(self) -> None:
        """Closes the channel; whoever still waits is told."""
        self.fail("the client is closed")
        await self._channel.aclose()


def _is_of_a_double(value: dict[str, Any]) -> bool:
    """Whether an error says that its id was used before. This client uses none twice, so the network has doubled the
    request, and the answer to the first copy is still to come."""
    problem = value.get("error")
    data = problem.get("data") if isinstance(problem, dict) else None
    details = data.get("details") if isinstance(data, dict) else None
    return isinstance(details, dict) and details.get("reason") == "duplicate_id"
