"""One subscription and the consumers that read it [EVT-001, EVT-006; MHS-002 section 8].

A consumer has a cursor for each subscription that it reads: what it takes, and what it has lost, is its own affair
and changes nothing for the others. Nothing here waits but a consumer for its own events.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import trio

from mhsd.core.eventlog import Cursor, EventLog, Gap, seq_value
from mhsd.core.events import (
    LEVELS,
    EventFilter,
    Selection,
    backpressure_tail,
    event_head,
    event_message,
    gap_tail,
)
from mhsd.core.pacing import Pacer
from mhsd.core.sessions import Session
from mhsd.wire.elements import EventsFilter
from mhsd.wire.params import SubscribeParams

if TYPE_CHECKING:
    from mhsd.services.subscriptions import Subscriptions


@attrs.frozen
class Delivery:
    """One notification for one consumer: the whole JSON-RPC message in one line, without its end."""

    subscription_id: str
    seq: int
    message: bytes


class Subscription:
    """One subscription: what it wants, and its log."""

    def __init__(
        self,
        owner: Subscriptions,
        session: Session,
        subscription_id: str,
        selections: Mapping[Selection, None],
        params: SubscribeParams,
        events: EventLog,
    ) -> None:
        self.subscription_id = subscription_id
        self.session = session
        self.selections = tuple(selections)
        self.wanted = _filter_of(params.filter)
        self.rate_hz = params.rate_hz
        self.log = events
        self.head = event_head(subscription_id)
        self.ended = False
        self._owner = owner
        self._pacer = Pacer(params.rate_hz) if params.rate_hz is not None else None
        self.is_scheduled = False
        self.readers: dict[EventStream, Cursor] = {}
        self.connection: EventStream | None = None
        """The connection that its events go to; None for those that only SSE streams read."""
        self.left_seq: int | None = None
        """The last seq that was read on the connection that is gone."""

    @property
    def principal_id(self) -> str:
        return self.session.principal_id

    # What the feeds call.

    def send(self, tail: bytes, key: Hashable = None, *, last: bool = False) -> None:
        """Take one event. With a `key` it may be thinned out to `rate_hz`; the `last` one of a key never is."""
        if self._pacer is not None and key is not None:
            if last:
                self._pacer.forget(key)
            elif not self._pacer.offer(key, tail, trio.current_time()):
                self._schedule()
                return
        self._publish(tail)

    def send_due(self, now_mono_s: float) -> None:
        """Send what was held back and may go now."""
        self.is_scheduled = False
        if self._pacer is not None and not self.ended:
            for tail in self._pacer.due(now_mono_s):
                self._publish(tail)
            self._schedule()

    def _schedule(self) -> None:
        assert self._pacer is not None
        due_mono_s = self._pacer.next_mono_s()
        if due_mono_s is not None and not self.is_scheduled:
            self.is_scheduled = True
            self._owner.call_at(due_mono_s, self)

    def _publish(self, tail: bytes) -> None:
        self.log.append(tail)
        for reader in self.readers:
            reader.has_news(self)

    # What the consumers call.

    def take(self, cursor: Cursor, max_bytes: int) -> list[Delivery]:
        """What comes next for this consumer, with the gap in its place."""
        wall = self._owner.wall
        if not self.ended and self.log.note_lag(cursor, lambda dropped: backpressure_tail(dropped, wall())):
            for reader in self.readers:
                reader.has_news(self)
        deliveries = []
        for item in self.log.read(cursor, max_bytes):
            seq, tail = (item.last, gap_tail(item, wall())) if isinstance(item, Gap) else item
            deliveries.append(Delivery(self.subscription_id, seq, event_message(self.head, seq, tail)))
        return deliveries

    def grant(self) -> dict[str, Any]:
        """The result of `mhs.subscribe` [EVT-001, EVT-003]."""
        return {
            "subscription_id": self.subscription_id,
            "seq_start": seq_value(self.log.first_seq),
            "streams": [selection.wire() for selection in self.selections],
            "expires_at": self.session.expires_at,
        }


class EventStream:
    """One consumer. Its cursors say what it has taken of each subscription; nothing waits for it."""

    def __init__(self, owner: Subscriptions, session: Session | None, only: str | None = None) -> None:
        self._owner = owner
        self.session = session
        """Whose subscriptions it reads: an SSE stream those of one session, a connection (None) those made on it."""
        self.only = only
        self.cursors: dict[Subscription, Cursor] = {}
        self._fresh: dict[Subscription, None] = {}
        """Subscriptions that may have more than was taken, the next to be read first."""
        self._is_over = False
        self._closed = False
        self.is_queued = False
        self._parked = trio.lowlevel.ParkingLot()

    @property
    def ended(self) -> bool:
        """No further event will come: take what there still is, then close."""
        return self._is_over

    @property
    def has_more(self) -> bool:
        """Whether `take` has something to give."""
        return bool(self._fresh)

    async def wait(self) -> None:
        """Return when there is something to take, or when the stream has ended."""
        while not self._fresh and not self._is_over:
            await self._parked.park()
        await trio.lowlevel.checkpoint()

    def take(self, max_bytes: int = 65536) -> list[Delivery]:
        """Events and gaps, of each subscription in order, until about `max_bytes`; at least one where there is any."""
        taken: list[Delivery] = []
        while self._fresh and max_bytes > 0:
            subscription = next(iter(self._fresh))
            del self._fresh[subscription]
            cursor = self.cursors[subscription]
            deliveries = subscription.take(cursor, max_bytes)
            taken += deliveries
            max_bytes -= sum(len(delivery.message) for delivery in deliveries)
            if subscription.log.has_more(cursor):
                # It goes to the end of the line, so that a busy one does not starve the others.
                self._fresh[subscription] = None
            elif subscription.ended:
                self.detach(subscription)
        return taken

    def close(self) -> None:
        """The consumer is gone; subscriptions of a connection stay for whoever uses their session next [TPT-061]."""
        self._closed = True
        self.end()
        for subscription, cursor in list(self.cursors.items()):
            if subscription.connection is self:
                subscription.left_seq = cursor.next_seq - 1
            self.detach(subscription)
        self._owner.forget(self)

    # What the subscriptions call.

    def attach(self, subscription: Subscription, cursor: Cursor) -> None:
        """Read this subscription too, from the cursor on."""
        self.cursors[subscription] = cursor
        subscription.readers[self] = cursor
        if subscription.log.has_more(cursor):
            self.has_news(subscription)

    def detach(self, subscription: Subscription) -> None:
        """Read this subscription no more."""
        self.cursors.pop(subscription, None)
        subscription.readers.pop(self, None)
        self._fresh.pop(subscription, None)

    def has_news(self, subscription: Subscription) -> None:
        """There is more to take; whoever waits is woken soon."""
        self._fresh[subscription] = None
        if self._parked and not self.is_queued:
            self._owner.wake(self)

    def end(self) -> None:
        """No further event will come."""
        self._is_over = True
        self._parked.unpark_all()

    def wake(self) -> None:
        """Let go whoever waits; called in its turn."""
        self.is_queued = False
        self._parked.unpark_all()

    @property
    def closed(self) -> bool:
        return self._closed


def _filter_of(params: EventsFilter | None) -> EventFilter:
    if params is None:
        return EventFilter()
    return EventFilter(
        kinds=frozenset(params.kinds) if params.kinds is not None else None,
        min_level=LEVELS[params.min_level] if params.min_level is not None else None,
        operation_id=params.operation_id,
        command_id=params.command_id,
    )
