"""Subscriptions of an endpoint, and the consumers that read them [EVT-001 to EVT-009, CORE-184].

A subscription belongs to its session. It keeps its newest events in a log of its own; a consumer is an SSE stream,
which reads all subscriptions of its session, or a connection, which reads those that were made on it. Sources publish
synchronously and never wait: a consumer that reads too slowly finds a gap.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import trio

from mhsd.base.clock import Clock, rfc3339
from mhsd.base.errors import Fault
from mhsd.base.ids import Ids
from mhsd.core.eventlog import EventLog, seq_value
from mhsd.core.events import Selection
from mhsd.core.sessions import Session
from mhsd.services.consumers import Delivery, EventStream, Subscription
from mhsd.services.device_host import DeviceHost
from mhsd.services.feed import Feed
from mhsd.services.selection import select
from mhsd.services.served_device import ServedDevice
from mhsd.wire.params import SubscribeParams

__all__ = ["Delivery", "EventStream", "Subscription", "Subscriptions"]

MOST_WOKEN = 8
"""Consumers that are woken in one turn of the loop, so that a crowd of them holds up nobody else."""

SEQS_OF_ONE = 10**9
"""Each subscription of a session has a range of seqs of its own, so that none is used twice [EVT-001]."""


class _OfSession:
    """What there is for one session."""

    def __init__(self) -> None:
        self.subscriptions: dict[str, Subscription] = {}
        self.streams: dict[EventStream, None] = {}
        self.used_on: EventStream | None = None
        """The connection that the session was used on last."""
        self.used_seq = 0
        """No seq of the session is above this."""


class Subscriptions:
    """All subscriptions of one endpoint; two tasks wake consumers and send what `rate_hz` has held back."""

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
        self._ended_due = 0
        """How many of them have ended."""
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
        named = session.device_ids if params.device_id is None else [params.device_id]
        manifests = {name: self.devices[name].host.manifest for name in named}
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
        for device_id, feed in zip(session.device_ids, self._feeds(session), strict=True):
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
            subscription.left_seq = subscription.log.first_seq - 1
            self._orphans.add(subscription.session.session_id)
        else:
            connection.attach(subscription, subscription.log.cursor())

    async def begin(self, subscription: Subscription, patience_s: float) -> None:
        """Read the states that changes count from; what cannot be read in time, is taken as it is read first."""
        with trio.move_on_after(patience_s):
            async with trio.open_nursery() as nursery:
                for device_id in subscription.session.device_ids:
                    mine = [each for each in subscription.selections if each.device_id == device_id]
                    nursery.start_soon(self._begin_on, self.devices[device_id].host, mine)

    @staticmethod
    async def _begin_on(host: DeviceHost, mine: list[Selection]) -> None:
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

    def _feeds(self, session: Session) -> list[Feed]:
        """The feeds of all devices of a session: safety events come of those that no stream is of, too."""
        return [self.devices[device_id].host.feed for device_id in session.device_ids]

    def _end(self, mine: _OfSession, subscription: Subscription) -> None:
        subscription.ended = True
        del mine.subscriptions[subscription.subscription_id]
        mine.used_seq = max(mine.used_seq, subscription.log.next_seq - 1)
        if subscription.is_scheduled:
            self._ended_due += 1
            if 2 * self._ended_due > len(self._due):
                # Their turns may be far away, and they would be kept until then with all their events.
                self._due = [entry for entry in self._due if not entry[2].ended]
                heapq.heapify(self._due)
                self._ended_due = 0
        for feed in self._feeds(subscription.session):
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
            if mine.used_on is stream:
                mine.used_on = None
            if any(each.connection is stream for each in mine.subscriptions.values()):
                self._orphans.add(session_id)
                if mine.used_on is not None:
                    self._hand_over(session_id, mine.used_on)

    def adopt(self, session: Session, connection: EventStream) -> None:
        """The session is used on this connection: subscriptions whose connection is gone go on here [TPT-061].

        One whose connection is only found to be gone later, as after the network has failed, goes on here then.
        """
        mine = self._sessions.get(session.session_id)
        if mine is None or connection.closed:
            return
        mine.used_on = connection
        if session.session_id in self._orphans:
            self._hand_over(session.session_id, connection)

    def _hand_over(self, session_id: str, connection: EventStream) -> None:
        self._orphans.discard(session_id)
        for subscription in self._sessions[session_id].subscriptions.values():
            if subscription.left_seq is not None:
                subscription.connection = connection
                connection.attach(subscription, subscription.log.cursor(subscription.left_seq))
                subscription.left_seq = None

    # The tasks.

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

    def start(self, nursery: trio.Nursery) -> None:
        """Wake consumers and send what was held back, until the nursery is cancelled."""
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
                subscription = heapq.heappop(self._due)[2]
                self._ended_due -= subscription.ended
                subscription.send_due(now_mono_s)
