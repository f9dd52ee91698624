"""How fast a client sends, so that the endpoint has no reason to refuse: token buckets from hello.limits [MHSD-7-04].

A rule and no clock: the caller says what time it is, in monotonic seconds, and does the waiting.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mhsd.client.calls import limit

UNPACED = frozenset(
    {
        "mhs.safety.estop",
        "mhs.operations.cancel",
        "mhs.session.heartbeat",
        "mhs.session.close",
    }
)
"""The methods that the endpoint does not count (rate `exempt` in spec/methods.toml, which a test compares)."""

STATUS = "mhs.safety.status"
"""The method with a bucket of its own."""

_USUAL: Mapping[str, float] = {"max_rate_per_s": 50, "rate_burst": 100, "max_status_rate_per_s": 20}
_SHARE = 0.9
"""How much of what is allowed is used: requests bunch up on their way, and a clock runs slower."""

_UNASKED = 8
"""Requests that are sent before the endpoint is asked for its limits, where nothing else needs its hello."""


class _Bucket:
    def __init__(self, rate_per_s: float, burst: float) -> None:
        self._rate_per_s = rate_per_s
        self._burst = max(1.0, burst)
        self._tokens = self._burst
        self._filled_mono_s: float | None = None

    def spend(self, count: int) -> None:
        self._tokens = max(0.0, self._tokens - count)

    def give_back(self) -> None:
        self._tokens = min(self._burst, self._tokens + 1)

    def reserve(self, now_mono_s: float, at_most_s: float) -> float | None:
        filled_mono_s = self._filled_mono_s
        elapsed_s = 0.0 if filled_mono_s is None else max(0.0, now_mono_s - filled_mono_s)
        self._filled_mono_s = now_mono_s
        self._tokens = min(self._burst, self._tokens + elapsed_s * self._rate_per_s)
        wait_s = max(0.0, 1.0 - self._tokens) / self._rate_per_s
        if wait_s > at_most_s:
            return None
        self._tokens -= 1
        return wait_s


class Pace:
    """The requests of one client to one endpoint. Whoever uses it from several threads holds a lock around it."""

    def __init__(self) -> None:
        self._sent = 0
        self._agreed: list[float] | None = None
        self._buckets = self._of(list(_USUAL.values()))

    @staticmethod
    def _of(limits: Sequence[float]) -> tuple[_Bucket, _Bucket]:
        rate, burst, status = (each * _SHARE for each in limits)
        return _Bucket(rate, burst), _Bucket(status, status)

    @property
    def wants_hello(self) -> bool:
        """Whether enough has been sent that the endpoint's own limits matter."""
        return self._agreed is None and self._sent >= _UNASKED

    def agree(self, hello: Mapping[str, Any]) -> None:
        """From now on by these limits; what was sent before them counts, and after a reconnect nothing changes."""
        told = [limit(hello, name, usual) for name, usual in _USUAL.items()]
        if told != self._agreed:
            self._agreed = told
            self._buckets = self._of(told)
            self._buckets[0].spend(self._sent)

    def reserve(self, method: str, now_mono_s: float, at_most_s: float) -> float | None:
        """A place for one request: how long to wait before it is sent; None, and no place, where that is too long.

        Places are given in the order in which they are asked for. An e-stop never waits.
        """
        if method in UNPACED:
            return 0.0
        if method == STATUS:
            return self._buckets[1].reserve(now_mono_s, at_most_s)
        self._sent += 1
        return self._buckets[0].reserve(now_mono_s, at_most_s)

    def give_back(self, method: str) -> None:
        """The request of a place that was waited for is not sent: the next one has it."""
        if method not in UNPACED:
            self._buckets[method == STATUS].give_back()
