"""Who may have a stream of events, and how many of them at a time [TPT-017].

Subscriptions are opened by a message; their events leave the endpoint here where no connection of messages carries
them, as with Server-Sent Events.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import trio

from mhsd.base.errors import Fault
from mhsd.core.quota import Places, RateLimiter
from mhsd.protocol.peer import Peer
from mhsd.services.endpoint import Endpoint
from mhsd.services.subscriptions import EventStream

RETRY_MS = 3000
"""After so long a principal with too many streams may try again."""


class EventStreams:
    """The streams of one endpoint, over all of its fronts."""

    def __init__(self, endpoint: Endpoint, rate: RateLimiter) -> None:
        self._endpoint = endpoint
        self._rate = rate
        self._places = Places(endpoint.limits.max_sse_streams)

    @contextmanager
    def open(
        self, peer: Peer, session_id: str, *, only: str | None, after: Mapping[str, int]
    ) -> Iterator[EventStream]:
        """The events of a session of this peer while the block lasts; a Fault where it may not have them.

        `only` names the one subscription that is wanted, `after` the last seq that is known of a subscription.
        """
        principal_id = peer.principal.id
        session = self._endpoint.sessions.find(session_id, principal_id)
        wait_s = None if peer.rate_exempt else self._rate.take(principal_id, 1, trio.current_time())
        if wait_s is not None:
            raise rate_exceeded(f"{self._endpoint.limits.max_rate_per_s} requests", wait_s)
        events = self._endpoint.subscriptions.stream(session, only=only, after=after)
        try:
            if not self._places.take(principal_id):
                raise Fault(
                    "MHS.LIMIT.CONNECTION_LIMIT",
                    f"one principal may hold {self._places.limit} event streams at a time",
                    details={"max_sse_streams": self._places.limit, "retry_after_ms": RETRY_MS},
                )
            try:
                yield events
            finally:
                self._places.leave(principal_id)
        finally:
            events.close()


def rate_exceeded(served: str, wait_s: float) -> Fault:
    """What a principal is told that sends faster than it may [TPT-020]."""
    return Fault(
        "MHS.LIMIT.RATE_EXCEEDED",
        f"at most {served} a second are served to one principal",
        details={"retry_after_ms": max(1, math.ceil(wait_s * 1000))},
    )
