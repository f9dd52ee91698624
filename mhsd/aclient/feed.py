"""The events of one session: one source for all of its subscriptions, open while there are any."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import trio

from mhsd.aclient.events import AsyncSubscription, End, Read
from mhsd.client.errors import MHSError

if TYPE_CHECKING:
    from mhsd.aclient.client import AsyncClient


class Feed:
    """The subscriptions of one session. `over` is told why no more events can come."""

    def __init__(
        self,
        client: AsyncClient,
        session_id: str,
        *,
        touch: Callable[[], Awaitable[object]],
        over: Callable[[MHSError], None],
    ) -> None:
        self.session_id = session_id
        self.touch = touch
        """Uses the session on the connection that there is now, so that its events come that way."""
        self._client = client
        self._over = over
        self._subscriptions: dict[AsyncSubscription, None] = {}
        self._running: trio.CancelScope | None = None

    def add(self, granted: Mapping[str, Any], end: End, read: Read) -> AsyncSubscription:
        """The subscription that the endpoint has granted; `end` ends it there, `read` reads in its session."""
        subscription = AsyncSubscription(granted, end, read)
        self._subscriptions[subscription] = None
        self._client.hub.add(subscription)
        if self._running is None:
            self._running = trio.CancelScope()
            self._client.nursery.start_soon(self._run, self._running)
        return subscription

    def remove(self, subscription: AsyncSubscription) -> bool:
        """It is wanted no more; False when it had been removed already."""
        if subscription not in self._subscriptions:
            return False
        del self._subscriptions[subscription]
        self._client.hub.remove(subscription)
        if not self._subscriptions:
            self._stop()
        return True

    def end(self, problem: MHSError | None = None) -> None:
        """No more events come for any of them."""
        self._stop()
        for subscription in self._subscriptions:
            subscription.finish(problem)

    def _stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            self._running = None

    async def _run(self, scope: trio.CancelScope) -> None:
        with scope:
            try:
                await self._client.transport.bring_events(self)
            except MHSError as problem:
                self._over(problem)

    # What the transports call.

    def interrupt(self) -> None:
        """Events that were on their way are lost, nobody knows how many."""
        for subscription in self._subscriptions:
            subscription.interrupt()

    @property
    def last_event_id(self) -> str | None:
        """For Last-Event-ID: where one of the subscriptions stands [TPT-018].

        The endpoint starts the others at the oldest event that it has; what had arrived before is left out.
        """
        return next((subscription.last_event_id for subscription in self._subscriptions), None)
