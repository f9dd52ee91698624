"""How many requests a principal may send, and how many streams it may hold [TPT-017, TPT-020].

A bucket of tokens is a rule and no clock: the caller says what time it is, in monotonic seconds.
"""

from __future__ import annotations

import attrs

_SWEEP_AT = 1024


@attrs.define
class _Bucket:
    tokens: float
    filled_mono_s: float


@attrs.define
class RateLimiter:
    """`rate` requests a second, and `burst` at once, for each principal by itself."""

    rate: float
    burst: float
    _buckets: dict[str, _Bucket] = attrs.field(factory=dict, init=False, repr=False)

    def take(self, principal_id: str, n: int, now: float) -> float | None:
        """Spend `n` requests of this principal; None when they fit, else the seconds until they would.

        All `n` or nothing is spent, so a batch over the rate is refused whole and costs its sender nothing.
        More than `burst` never fit; the answer is then the time that so many requests take one by one.
        """
        bucket = self._buckets.get(principal_id)
        if bucket is None:
            if len(self._buckets) >= _SWEEP_AT:
                self._sweep(now)
            bucket = self._buckets[principal_id] = _Bucket(self.burst, now)
        elapsed_s = max(0.0, now - bucket.filled_mono_s)
        bucket.tokens = min(self.burst, bucket.tokens + elapsed_s * self.rate)
        bucket.filled_mono_s = now
        if n <= bucket.tokens:
            bucket.tokens -= n
            return None
        return ((n - bucket.tokens) if n <= self.burst else n) / self.rate

    def _sweep(self, now: float) -> None:
        """Forget full buckets: a new one is the same, and tokens come and go."""
        full_after_s = self.burst / self.rate
        for principal_id, bucket in list(self._buckets.items()):
            if now - bucket.filled_mono_s >= full_after_s:
                del self._buckets[principal_id]


@attrs.define
class Places:
    """At most `limit` of something at a time for each principal by itself."""

    limit: int
    _taken: dict[str, int] = attrs.field(factory=dict, init=False, repr=False)

    def take(self, principal_id: str) -> bool:
        """Take a place, to be given back by `leave`; False where the principal has all of its places."""
        taken = self._taken.get(principal_id, 0)
        if taken >= self.limit:
            return False
        self._taken[principal_id] = taken + 1
        return True

    def leave(self, principal_id: str) -> None:
        """Give a place back."""
        self._taken[principal_id] -= 1
        if not self._taken[principal_id]:
            del self._taken[principal_id]
