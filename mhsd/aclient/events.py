"""The subscriptions of a client: which of them an event is for, and what a reader of one gets [TPT-063, EVT-008].

A transport hands in events as they come and never waits for a reader. A reader that is slow costs a bounded amount of
memory and finds a gap in place of what it missed; nothing else is held up by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Self

import trio

from mhsd.base.clock import Clock, rfc3339
from mhsd.client.continuity import Backlog, resources_of, state_event
from mhsd.client.documents import Event
from mhsd.client.errors import MHSError
from mhsd.client.requests import first_seq, member

MOST_EARLY = 1024
"""Events that are kept of subscriptions whose grant has not arrived yet: it may come by another connection."""

End = Callable[["AsyncSubscription"], Awaitable[dict[str, Any]]]
"""Ends a subscription at the endpoint."""

Read = Callable[[str, str], Awaitable[dict[str, Any]]]
"""Reads the resource of this id on the device of this id."""


class AsyncSubscription:
    """One subscription: an asynchronous iterator of events, and a context manager that ends it.

    One task reads it. A `gap` event, which `is_gap` tells, means that events are missing in its place: the state is
    unknown until it is read again, which `reconcile` does. Where the client itself has made it, its payload says
    `"client": true`.
    """

    def __init__(self, granted: Mapping[str, Any], end: End, read: Read) -> None:
        self.subscription_id = member(granted, "subscription_id")
        self.granted = dict(granted)
        """The endpoint's answer to mhs.subscribe."""
        self._end = end
        self._read = read
        self._kept = Backlog(first_seq(granted))
        self._arrived = trio.Event()
        self._problem: Exception | None = None
        self._is_over = False

    def __repr__(self) -> str:
        return f"<AsyncSubscription {self.subscription_id}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        try:
            await self._end(self)
        except MHSError:
            if problem is None:
                raise

    async def close(self) -> dict[str, Any]:
        """Ends it. Returns `{seq_end, delivered, dropped}`; {} when it was over already."""
        return await self._end(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """The next event. MHSError when the connection could not be mended or the session is over; ends after
        `close`. What arrived before is given out first."""
        await trio.lowlevel.checkpoint()
        event = await self._next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def get(self, timeout_s: float | None = None) -> Event | None:
        """The next event; None when none came within `timeout_s`, or the subscription is over. Raises what the iterator
        does."""
        await trio.lowlevel.checkpoint()
        if timeout_s is None:
            return await self._next()
        with trio.move_on_after(timeout_s):
            return await self._next()
        return None

    def events(self, timeout_s: float | None = None) -> AsyncIterator[Event]:
        """Events as they come, until nothing has come for `timeout_s` or the subscription is over."""
        return _Until(self, timeout_s)

    @property
    def state_is_unknown(self) -> bool:
        """Whether a gap was taken and the state has not been read since [EVT-007, EVT-008]."""
        return self._kept.state_is_unknown

    async def reconcile(self) -> list[Event]:
        """Reads everything whose state or telemetry this subscription brings: a state event of each, with
        `"client": true`, the number of the newest event that was taken, and `revision` as read [EVT-007].

        For the time after a gap, and for a subscription that takes the place of one that ended. Events that still come
        with a lower revision are older than what was read.
        """
        with self._kept.reconciled() as taken:
            return [
                Event(state_event(self.subscription_id, taken, *which, await self._read(*which)))
                for which in resources_of(self.granted)
            ]

    async def _next(self) -> Event | None:
        while (event := self._kept.pop()) is None:
            if self._problem is not None:
                raise self._problem
            if self._is_over:
                return None
            self._arrived = trio.Event()
            await self._arrived.wait()
        return Event(event)

    # What the transports' side calls.

    @property
    def last_event_id(self) -> str:
        """What names the newest event that has arrived, for Last-Event-ID [TPT-018]."""
        return f"{self.subscription_id}:{self._kept.newest}"

    def put(self, event: Mapping[str, Any]) -> None:
        """An event has arrived; one without a number is none."""
        try:
            self._kept.put(event)
        except ValueError:
            return
        self._arrived.set()

    def interrupt(self) -> None:
        """What was on its way when the connection broke is lost, and how much that is only the next event tells."""
        near = {"subscription_id": self.subscription_id, "ts": rfc3339(Clock().now())}
        self._kept.interrupt(near)
        self._arrived.set()

    def finish(self, problem: Exception | None = None) -> None:
        """No more events will come, and why."""
        if not self._is_over:
            self._is_over, self._problem = True, problem
            self._arrived.set()

    @property
    def over(self) -> bool:
        """Whether no more events will come than those that have arrived."""
        return self._is_over


class _Until:
    """The events of a subscription until none comes for a while."""

    def __init__(self, subscription: AsyncSubscription, timeout_s: float | None) -> None:
        self._subscription = subscription
        self._timeout_s = timeout_s

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = await self._subscription.get(self._timeout_s)
        if event is None:
            raise StopAsyncIteration
        return event


class EventHub:
    """Sorts the events of all connections of a client to their subscriptions."""

    def __init__(self) -> None:
        self._subscriptions: dict[str, AsyncSubscription] = {}
        self._early: deque[Mapping[str, Any]] = deque(maxlen=MOST_EARLY)
        self.taken = 0
        """How many events have come."""

    def take(self, params: object) -> None:
        """The params of one `mhs.event`."""
        if not isinstance(params, dict):
            return
        self.taken += 1
        subscription = self._subscriptions.get(str(params.get("subscription_id")))
        if subscription is None:
            self._early.append(params)
        else:
            subscription.put(params)

    def add(self, subscription: AsyncSubscription) -> None:
        """A subscription was granted; what came of it before the grant is given to it."""
        self._subscriptions[subscription.subscription_id] = subscription
        early, self._early = self._early, deque(maxlen=MOST_EARLY)
        for params in early:
            self.take(params)

    def remove(self, subscription: AsyncSubscription) -> None:
        """It is over."""
        self._subscriptions.pop(subscription.subscription_id, None)
