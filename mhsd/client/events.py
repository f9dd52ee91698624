"""Subscriptions as the code API holds them: events in order, gaps said, nothing without bound.

Threads of the transport bring the events, any thread takes them. What a slow program does not take in time becomes a
gap that says so.
"""

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from mhsd.client.continuity import MOST_KEPT, Backlog, resources_of, state_event
from mhsd.client.documents import Event
from mhsd.client.errors import MHSError
from mhsd.client.requests import first_seq, member
from mhsd.client.transport import Source, Transport

Read = Callable[[str, str], dict[str, Any]]
"""Reads the resource of this id on the device of this id."""


class Subscription:
    """One subscription; a context manager that ends it, and an iterator of its events."""

    def __init__(
        self, granted: Mapping[str, Any], close: Callable[["Subscription"], dict[str, Any]], read: Read
    ) -> None:
        self.subscription_id = member(granted, "subscription_id")
        self.granted = dict(granted)
        self._close = close
        self._read = read
        self._backlog = Backlog(first_seq(granted))
        self._changed = threading.Condition()
        self._problem: MHSError | None = None
        self._over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Subscription {self.subscription_id}>"

    def __iter__(self) -> Iterator[Event]:
        return self.events()

    @property
    def over(self) -> bool:
        """Whether no further event will come, those that are kept aside."""
        return self._over

    def get(self, timeout_s: float | None = None) -> Event | None:
        """The next event; None when none came within `timeout_s`, or the subscription is over.

        A gap is an event too (`is_gap`): after it the state is unknown until `reconcile` reads it. MHSError when the
        connection could not be mended or the session has ended by itself.
        """
        until_mono_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while (event := self._backlog.pop()) is None and not self._over:
                left_s = None if until_mono_s is None else until_mono_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return None
                self._changed.wait(left_s)
        if event is not None:
            return Event(event)
        if self._problem is not None:
            raise self._problem
        return None

    def events(self, timeout_s: float | None = None) -> Iterator[Event]:
        """Events as they come, until nothing has come for `timeout_s` or the subscription is over."""
        while (event := self.get(timeout_s)) is not None:
            yield event

    @property
    def state_is_unknown(self) -> bool:
        """Whether a gap was taken and the state has not been read since [EVT-007, EVT-008]."""
        return self._backlog.state_is_unknown

    def reconcile(self) -> list[Event]:
        """Reads everything whose state or telemetry this subscription brings: a state event of each, with
        `"client": true`, the number of the newest event that was taken, and `revision` as read [EVT-007].

        For the time after a gap, and for a subscription that takes the place of one that ended. Events that still come
        with a lower revision are older than what was read.
        """
        with self._backlog.reconciled() as taken:
            return [
                Event(state_event(self.subscription_id, taken, *which, self._read(*which)))
                for which in resources_of(self.granted)
            ]

    def close(self) -> dict[str, Any]:
        """Ends it. Returns `{seq_end, delivered, dropped}`; {} when it is over already."""
        return self._close(self)

    # What follows is for the feed.

    def put(self, event: Mapping[str, Any]) -> None:
        """An event has arrived; ValueError for one without a number."""
        with self._changed:
            self._backlog.put(event)
            self._changed.notify_all()

    def finish(self, problem: MHSError | None = None) -> bool:
        """No further event will come. True unless it was over already."""
        with self._changed:
            if self._over:
                return False
            self._over, self._problem = True, problem
            self._changed.notify_all()
            return True


class Feed:
    """The subscriptions of one session, and the one source of their events, open while there are any."""

    def __init__(
        self, transport: Transport, session_id: str, on_break: Callable[[str], None] | None = None
    ) -> None:
        """`on_break` is told, in the thread of the source, why a connection broke that is being mended."""
        self._transport = transport
        self._session_id = session_id
        self._on_break = on_break
        self._subscriptions: dict[str, Subscription] = {}
        self._early: collections.deque[Mapping[str, Any]] = collections.deque(maxlen=MOST_KEPT)
        self._source: Source | None = None
        self._ending = False
        # A source that cannot even begin fails in the thread that has just asked for it.
        self._lock = threading.RLock()

    def opened(
        self, granted: Mapping[str, Any], unsubscribe: Callable[[str], dict[str, Any]], read: Read
    ) -> Subscription:
        """The subscription that the endpoint has granted; `unsubscribe` ends it there, once, `read` reads in its
        session."""

        def close(subscription: Subscription) -> dict[str, Any]:
            if not self._forget(subscription):
                return {}
            alive = subscription.finish()
            try:
                return unsubscribe(subscription.subscription_id)
            except MHSError:
                if alive:
                    raise
                return {}  # What ended it was told by `get`, and ends this too.

        subscription = Subscription(granted, close, read)
        with self._lock:
            self._subscriptions[subscription.subscription_id] = subscription
            early, self._early = self._early, collections.deque(maxlen=MOST_KEPT)
            for event in early:
                self._give(event)
            if self._source is None:
                self._source = self._transport.events(self._session_id, self)
        return subscription

    def _forget(self, subscription: Subscription) -> bool:
        with self._lock:
            if self._subscriptions.pop(subscription.subscription_id, None) is None:
                return False
            source = None if self._subscriptions else self._source
            if source is not None:
                self._source = None
        if source is not None:
            source.end()
        return True

    def deliver(self, event: Mapping[str, Any]) -> None:
        """An event has arrived, in the thread of the source; what is no event of this protocol is left out."""
        with self._lock:
            self._give(event)

    def _give(self, event: Mapping[str, Any]) -> None:
        subscription = self._subscriptions.get(str(event.get("subscription_id")))
        if subscription is None:
            # The thread that subscribes may not have come back with the answer yet.
            self._early.append(event)
            return
        with contextlib.suppress(ValueError):
            subscription.put(event)

    def interrupted(self, why: str) -> None:
        """The source's connection broke. What gets lost by it becomes a gap when the next event is there."""
        if self._on_break is not None:
            self._on_break(why)

    def fail(self, problem: MHSError) -> None:
        """The source has given up: every subscription ends with this error."""
        with self._lock:
            subscriptions = list(self._subscriptions.values())
            ending = self._ending
        for subscription in subscriptions:
            subscription.finish(None if ending else problem)

    def expect_end(self) -> None:
        """The session is being closed: that its stream ends then is no failure."""
        self._ending = True

    def end(self) -> None:
        """The session is closed, and its subscriptions with it."""
        with self._lock:
            subscriptions, self._subscriptions = list(self._subscriptions.values()), {}
            source, self._source = self._source, None
        for subscription in subscriptions:
            subscription.finish()
        if source is not None:
            source.end()
