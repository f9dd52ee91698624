"""A connection that orders its messages: stdio and WebSocket [CORE-076, EVT-006, EVT-010, PROTO-004].

Stops are entered as they are read. Everything else is entered one by one, in the order in which it came, under the
gate that the endpoint's connections share; a peer that does not read its answers stops new messages from being
entered, but not from being read ahead for a while, so that a stop is found and served although a hundred commands
wait in front of it. Events go out only while next to nothing else does, so that no answer waits behind them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable

import attrs
import trio

from mhsd.bindings.outgoing import Outgoing, WriteNow
from mhsd.protocol.answers import Exchange
from mhsd.protocol.dispatch import Dispatch
from mhsd.protocol.peer import Peer
from mhsd.services.subscriptions import EventStream
from mhsd.wire.framing import mentions_stop

log = logging.getLogger("mhsd.conversation")

_MOST_STOP_ANSWERS = 4096
_SLICE_S = 0.001
_EVENT_BYTES = 65536
_NEARLY_EMPTY_BYTES = 16384


@attrs.frozen
class Bounds:
    """What one connection may cost."""

    unanswered: int = 256
    """Messages that have been entered and whose answer is not yet written."""
    read_ahead_bytes: int = 4 << 20
    """How much is read beyond that, in search of stops."""
    outgoing_bytes: int = 4 << 20
    """How much may wait to be written before no more messages are entered."""


STANDARD = Bounds()


class Conversation:
    """The messages of one peer, from their bytes to the bytes of their answers."""

    def __init__(
        self,
        door: Dispatch,
        peer: Peer,
        send: trio.abc.SendStream,
        *,
        frame: Callable[[bytes], bytes],
        write_now: WriteNow | None = None,
        bounds: Bounds = STANDARD,
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        self._door = door
        self._peer = peer
        self._frame = frame
        self._bounds = bounds
        self._on_gone = on_gone
        self.outgoing = Outgoing(send, write_now=write_now, on_progress=self._note_progress)
        self._backlog: deque[tuple[bytes, float]] = deque()
        """Messages that wait for their turn, and when they were read."""
        self._backlog_bytes = 0
        self._in_flight = 0
        self._ending = False
        self._changed = trio.lowlevel.ParkingLot()
        """Whoever waits for messages, for fewer of them or for the end."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Enter and answer what is taken in from `started` on, and deliver events, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            nursery.start_soon(self.outgoing.run)
            nursery.start_soon(self._enter_backlog)
            if self._peer.events is not None:
                nursery.start_soon(self._deliver, self._peer.events)

    # Taking in

    def _is_idle(self) -> bool:
        return not self._backlog and self._has_room() and not self._door.gate.borrowed_tokens

    def take_in(self, message: bytes, *, is_alone: bool = False) -> None:
        """Serve a stop; keep anything else for its turn.

        A message that `is_alone`, as most are, and finds nobody who waits is entered at once: nobody else can run
        while it is; the gate is for those who have to wait in between.
        """
        if mentions_stop(message):
            self.answer_to(self._door.begin(message, self._peer))
            return
        at_once = is_alone and self._is_idle()
        self._backlog.append((message, trio.current_time()))
        self._backlog_bytes += len(message)
        if at_once:
            self._enter_next()
        else:
            self._changed.unpark_all()

    @property
    def is_full(self) -> bool:
        """Whether as much is read ahead as may be."""
        return self._backlog_bytes > self._bounds.read_ahead_bytes

    async def keep_up(self) -> None:
        """Wait while it is full."""
        while self.is_full:
            await self._changed.park()

    async def entered(self) -> None:
        """Wait until what was taken in has been entered, or the peer is gone."""
        while self._backlog:
            await self._changed.park()

    # Entering

    def _has_room(self) -> bool:
        return (
            self._in_flight + self.outgoing.count < self._bounds.unanswered
            and self.outgoing.size < self._bounds.outgoing_bytes
        )

    async def _enter_backlog(self) -> None:
        while True:
            while not self._backlog or not self._has_room():
                await self._changed.park()
            async with self._door.gate:
                # One message at least, and short ones as many as others do not notice.
                until_mono_s = trio.current_time() + _SLICE_S
                while self._backlog and self._has_room():
                    self._enter_next()
                    if trio.current_time() > until_mono_s:
                        break
            self._changed.unpark_all()

    def _enter_next(self) -> None:
        message, read_mono_s = self._backlog.popleft()
        self._backlog_bytes -= len(message)
        self.answer_to(self._door.begin(message, self._peer, read_mono_s))

    # Answering

    def answer_to(self, entered: Exchange | Awaitable[Exchange]) -> None:
        """Write the answer, now or when it is there."""
        if isinstance(entered, Exchange):
            self._answer(entered)
        else:
            self._in_flight += 1
            self._nursery.start_soon(self._await, entered)

    async def _await(self, entered: Awaitable[Exchange]) -> None:
        try:
            exchange = await entered
        except Exception:
            # A defect behind one message must end neither the others nor the connection.
            log.exception("a message was not answered")
        else:
            self._answer(exchange)
        finally:
            self._in_flight -= 1
            self._note_room()

    def _answer(self, exchange: Exchange) -> None:
        if exchange.body is None:
            return
        if self.outgoing.count >= _MOST_STOP_ANSWERS:
            log.error("an answer was dropped: the peer sends stops and reads no answers")
            return
        self.outgoing.put(self._frame(exchange.body))

    async def answered(self) -> None:
        """Wait until every answer is written, and every event that there is, or the peer is gone."""
        self._ending = True
        while not self.outgoing.gone and self._has_work():
            await self._changed.park()

    def _has_work(self) -> bool:
        events = self._peer.events
        is_heard = events is None or not events.has_more
        return bool(self._in_flight or self.outgoing.count or self._backlog) or not is_heard

    def _note_room(self) -> None:
        """Wake who may wait for fewer unanswered messages; mostly nobody does, and waking costs a step each."""
        if self._backlog or self._ending:
            self._changed.unpark_all()

    def _note_progress(self) -> None:
        if self.outgoing.gone:
            self._backlog.clear()
            self._backlog_bytes = 0
            self._changed.unpark_all()
            self._on_gone()
        else:
            self._note_room()

    # Events

    async def _deliver(self, events: EventStream) -> None:
        """Hand events over while the peer takes them; what does not fit stays where it is bounded [EVT-006]."""
        while not events.ended or events.has_more:
            await events.wait()
            await self.outgoing.room(_NEARLY_EMPTY_BYTES)
            taken = events.take(_EVENT_BYTES)
            if taken:
                self.outgoing.put(b"".join(self._frame(delivery.message) for delivery in taken))
            self._note_room()
