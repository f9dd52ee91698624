"""Subscriptions of an endpoint, and the consumers that read them [EVT-001 to EVT-009, CORE-184].

A subscription belongs to its session. It keeps its newest events in a log of its own; a consumer is an SSE stream,
which reads all subscriptions of its session, or a connection, which reads those that were made on it. Sources publish
synchronously and never wait: a consumer that reads too slowly finds a gap.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import Any

import attrs
import trio

from mhsd.base.clock import Clock, rfc3339
from mhsd.base.errors import Fault
from mhsd.base.ids import Ids
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
from mhsd.services.device_host import DeviceHost
from mhsd.services.feed import Feed
from mhsd.services.selection import select
from mhsd.services.served_device import ServedDevice
from mhsd.wire.params import EventsFilter, SubscribeParams

MOST_WOKEN = 8
"""Consumers that are woken in one turn of the loop, so that a crowd of them holds up nobody else."""

SEQS_OF_ONE = 10**9
"""Each subscription of a session has a range of seqs of its own, so that none is used twice [EVT-001]."""


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
        owner: "Subscriptions",
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
        self._is_scheduled = False
        self.readers: dict[EventStream, Cursor] = {}
        self.connection: EventStream | None = None
        """The connection that its events go to; None for those that only SSE streams read."""
        self.left: Cursor | None = None
        """Where the connection that is gone has stopped reading."""

    @property
    def principal_id(self) -> str:
        return self.session.principal_id

    @property
    def feeds(self) -> list[Feed]:
        """The feeds of all devices of the session: safety events come of those that no stream is of, too."""
        return [self._owner.devices[device_id].host.feed for device_id in self.session.device_ids]

    async def begin(self, patience_s: float) -> None:
        """Read the states that changes count from; what cannot be read in time, is taken as it is read first."""
        with trio.move_on_after(patience_s):
            async with trio.open_nursery() as nursery:
                for device_id in self.session.device_ids:
                    nursery.start_soon(self._begin_with, self._owner.devices[device_id].host)

    async def _begin_with(self, host: DeviceHost) -> None:
        mine = [each for each in self.selections if each.device_id == host.device_id]
        names = host.feed.unknown_states(
            [each.resource_id for each in mine if each.stream == "state" and each.resource_id is not None]
        )
        if names or any(each.stream == "events" for each in mine):
            revision = host.revision
            with suppress(Fault):
                reading = await host.read(names)
                # A command that has ended meanwhile has told of its change itself.
                if host.revision == revision:
                    host.feed.begin({name: reading.resources[name] for name in names}, revision)

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
        self._is_scheduled = False
        if self._pacer is not None and not self.ended:
            for tail in self._pacer.due(now_mono_s):
                self._publish(tail)
            self._schedule()

    def _schedule(self) -> None:
        assert self._pacer is not None
        due_mono_s = self._pacer.next_mono_s()
        if due_mono_s is not None and not self._is_scheduled:
            self._is_scheduled = True
            self._owner.call_at(due_mono_s, self)

    def _publish(self, tail: bytes) -> None:
        if self.ended:
            return
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

    def __init__(self, owner: "Subscriptions", session: Session | None, only: str | None = None) -> None:
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
                subscription.left = cursor
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


class _OfSession:
    """What there is for one session."""

    def __init__(self) -> None:
        self.subscriptions: dict[str, Subscription] = {}
        self.streams: dict[EventStream, None] = {}
        self.used_seq = 0
        """No seq of the session is above this."""


class Subscriptions:
    """All subscriptions of one endpoint. `run` wakes consumers and sends what `rate_hz` has held back."""

    def __init__(
        self,
        devices: Mapping[str, ServedDevice],
        *,
        max_subscriptions: int,
        max_events: int,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self.devices = devices
        self._max_subscriptions = max_subscriptions
        self._max_events = max_events
        self._clock = clock
        self._ids = ids
        self._sessions: dict[str, _OfSession] = {}
        self._connections: dict[EventStream, None] = {}
        self._orphans: set[str] = set()
        """Sessions with subscriptions whose connection is gone."""
        self._to_wake: deque[EventStream] = deque()
        self._waking = trio.lowlevel.ParkingLot()
        self._due: list[tuple[float, int, Subscription]] = []
        self._turns = itertools.count()
        self._sooner = trio.Event()
        self._is_over = False

    def wall(self) -> str:
        return rfc3339(self._clock.now())

    # Opening and closing.

    def open(
        self, session: Session, params: SubscribeParams, connection: EventStream | None = None
    ) -> Subscription:
        """A new subscription, whose events are kept from now on; a Fault for what cannot be had [EVT-001, EVT-009].

        On a `connection` they are held back until `release`: the reply to the request comes first.
        """
        manifests = {name: self.devices[name].host.manifest for name in session.device_ids}
        selections = select(params.streams, manifests)
        mine = self._sessions.setdefault(session.session_id, _OfSession())
        if len(mine.subscriptions) >= self._max_subscriptions:
            raise Fault(
                "MHS.LIMIT.SUBSCRIPTION_LIMIT",
                f"the session has {len(mine.subscriptions)} subscriptions, as many as are allowed",
                details={"max_subscriptions": self._max_subscriptions},
            )
        first_seq = 1 + -(-mine.used_seq // SEQS_OF_ONE) * SEQS_OF_ONE
        mine.used_seq = first_seq
        subscription = Subscription(
            self,
            session,
            self._ids.subscription_id(),
            selections,
            params,
            EventLog(first_seq, self._max_events),
        )
        subscription.connection = connection
        mine.subscriptions[subscription.subscription_id] = subscription
        for device_id, feed in zip(session.device_ids, subscription.feeds, strict=True):
            feed.join(subscription, [each for each in selections if each.device_id == device_id])
        for stream in mine.streams:
            if stream.only is None:
                stream.attach(subscription, subscription.log.cursor())
        return subscription

    def release(self, subscription: Subscription) -> None:
        """The reply to `mhs.subscribe` is on its way: events may follow it on the connection."""
        connection = subscription.connection
        if connection is None or subscription.ended:
            return
        if connection.closed:
            subscription.left = subscription.log.cursor()
            self._orphans.add(subscription.session.session_id)
        else:
            connection.attach(subscription, subscription.log.cursor())

    def close(self, session: Session, subscription_id: str) -> dict[str, Any]:
        """End one; nothing of it is delivered from now on, and what nobody has taken counts as dropped [EVT-004]."""
        subscription = self._of(session, subscription_id)
        mine = self._sessions[session.session_id]
        self._end(mine, subscription)
        for stream in list(subscription.readers):
            stream.detach(subscription)
        for stream in list(mine.streams):
            if stream.only == subscription_id:
                stream.end()
        events = subscription.log
        return {
            "seq_end": seq_value(events.next_seq - 1),
            "delivered": events.delivered,
            "dropped": events.dropped,
        }

    def _of(self, session: Session, subscription_id: str) -> Subscription:
        mine = self._sessions.get(session.session_id)
        subscription = mine.subscriptions.get(subscription_id) if mine is not None else None
        if subscription is None:
            raise Fault(
                "MHS.RESOURCE.UNKNOWN",
                "the session has no such subscription",
                details={"field": "subscription_id", "reason": "subscription_unknown"},
                remediation="Use a subscription_id that mhs.subscribe has answered in this session.",
            )
        return subscription

    def _end(self, mine: _OfSession, subscription: Subscription) -> None:
        subscription.ended = True
        del mine.subscriptions[subscription.subscription_id]
        mine.used_seq = max(mine.used_seq, subscription.log.next_seq - 1)
        for feed in subscription.feeds:
            feed.leave(subscription)

    def end_session(self, session: Session, *, discard: bool = False) -> None:
        """The session is over, and its subscriptions with it [EVT-003, CORE-085]. What was kept can still be taken.

        With `discard` connections get nothing more of it: the client has closed the session itself.
        """
        self._orphans.discard(session.session_id)
        mine = self._sessions.pop(session.session_id, None)
        if mine is None:
            return
        for subscription in list(mine.subscriptions.values()):
            self._end(mine, subscription)
            for stream, cursor in list(subscription.readers.items()):
                if (discard and stream.session is None) or not subscription.log.has_more(cursor):
                    stream.detach(subscription)
        for stream in mine.streams:
            stream.end()

    def end_all(self) -> None:
        """The endpoint shuts down: every consumer ends after what it can still take."""
        self._is_over = True
        for stream in (*self._connections, *(each for of in self._sessions.values() for each in of.streams)):
            stream.end()

    # Consumers.

    def stream(
        self, session: Session, *, only: str | None = None, after: Mapping[str, int] | None = None
    ) -> EventStream:
        """An SSE stream of a session: all its subscriptions, or `only` one; a Fault where it has no such [TPT-017].

        `after` has the last seq that was received, by subscription; what is not named there comes from its seq_start
        on [TPT-018].
        """
        chosen = [self._of(session, only)] if only is not None else None
        mine = self._sessions.setdefault(session.session_id, _OfSession())
        stream = EventStream(self, session, only)
        mine.streams[stream] = None
        for subscription in chosen if chosen is not None else mine.subscriptions.values():
            last_seq = (after or {}).get(subscription.subscription_id)
            stream.attach(subscription, subscription.log.cursor(last_seq))
        if self._is_over:
            stream.end()
        return stream

    def connection(self) -> EventStream:
        """A consumer for a connection; it reads the subscriptions that are made on it."""
        stream = EventStream(self, None)
        self._connections[stream] = None
        if self._is_over:
            stream.end()
        return stream

    def forget(self, stream: EventStream) -> None:
        """The consumer is gone."""
        self._connections.pop(stream, None)
        if stream.session is not None:
            mine = self._sessions.get(stream.session.session_id)
            if mine is not None:
                mine.streams.pop(stream, None)
            return
        for session_id, mine in self._sessions.items():
            if any(each.connection is stream for each in mine.subscriptions.values()):
                self._orphans.add(session_id)

    def adopt(self, session: Session, connection: EventStream) -> None:
        """The session is used on this connection: subscriptions whose connection is gone go on here [TPT-061]."""
        if session.session_id not in self._orphans or connection.closed:
            return
        self._orphans.discard(session.session_id)
        for subscription in self._sessions[session.session_id].subscriptions.values():
            if subscription.left is not None:
                subscription.connection = connection
                connection.attach(subscription, subscription.left)
                subscription.left = None

    # The task.

    def wake(self, stream: EventStream) -> None:
        """Wake a consumer soon."""
        stream.is_queued = True
        self._to_wake.append(stream)
        self._waking.unpark_all()

    def call_at(self, due_mono_s: float, subscription: Subscription) -> None:
        """Call `send_due` of the subscription then."""
        heapq.heappush(self._due, (due_mono_s, next(self._turns), subscription))
        if self._due[0][2] is subscription:
            self._sooner.set()

    async def run(self) -> None:
        """Wake consumers and send what was held back, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._wake_consumers)
            nursery.start_soon(self._send_due)

    async def _wake_consumers(self) -> None:
        while True:
            while not self._to_wake:
                await self._waking.park()
            for _ in range(min(MOST_WOKEN, len(self._to_wake))):
                self._to_wake.popleft().wake()
            await trio.lowlevel.checkpoint()

    async def _send_due(self) -> None:
        while True:
            with trio.move_on_at(self._due[0][0] if self._due else float("inf")):
                await self._sooner.wait()
            self._sooner = trio.Event()
            now_mono_s = trio.current_time()
            while self._due and self._due[0][0] <= now_mono_s:
                heapq.heappop(self._due)[2].send_due(now_mono_s)


def _filter_of(params: EventsFilter | None) -> EventFilter:
    if params is None:
        return EventFilter()
    return EventFilter(
        kinds=frozenset(params.kinds) if params.kinds is not None else None,
        min_level=LEVELS[params.min_level] if params.min_level is not None else None,
        operation_id=params.operation_id,
        command_id=params.command_id,
    )
