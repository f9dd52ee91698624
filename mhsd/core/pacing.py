"""How often: a maximum rate that loses no last value, and the highest of the rates that are wanted [EVT-002]."""

from collections import Counter
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Pacer:
    """Lets one item a key and interval through; of what comes faster, the latest follows when the interval is over.

    Keys are paced separately, so that one resource never takes the place of another.
    """

    def __init__(self, rate_hz: float) -> None:
        self._interval_s = 1 / rate_hz
        self._free_mono_s: dict[Hashable, float] = {}
        self._waiting: dict[Hashable, Any] = {}

    def offer(self, key: Hashable, item: Any, now_mono_s: float) -> bool:
        """Whether the item may go now; else it waits, in the place of an older one of its key."""
        if now_mono_s >= self._free_mono_s.get(key, float("-inf")):
            self._free_mono_s[key] = now_mono_s + self._interval_s
            self._waiting.pop(key, None)
            return True
        self._waiting[key] = item
        return False

    def next_mono_s(self) -> float | None:
        """When the next waiting item may go; None where none waits."""
        return min((self._free_mono_s[key] for key in self._waiting), default=None)

    def due(self, now_mono_s: float) -> list[Any]:
        """The waiting items whose interval is over, to be sent now."""
        keys = [key for key in self._waiting if now_mono_s >= self._free_mono_s[key]]
        for key in keys:
            self._free_mono_s[key] = now_mono_s + self._interval_s
        return [self._waiting.pop(key) for key in keys]

    def forget(self, key: Hashable) -> None:
        """The key is over: what waits of it is superseded by its last item, which was not paced."""
        self._free_mono_s.pop(key, None)
        self._waiting.pop(key, None)


class Demand(Generic[Key]):
    """How often each key is wanted. What it costs to ask does not grow with the number of those who want the same."""

    def __init__(self) -> None:
        self._wanted: dict[Key, Counter[float]] = {}

    def add(self, key: Key, rate_hz: float) -> None:
        """One more wants it so often."""
        self._wanted.setdefault(key, Counter())[rate_hz] += 1

    def remove(self, key: Key, rate_hz: float) -> None:
        """One of those who were added with this rate wants it no more."""
        rates = self._wanted[key]
        rates[rate_hz] -= 1
        if not rates[rate_hz]:
            del rates[rate_hz]
        if not rates:
            del self._wanted[key]

    def __contains__(self, key: Key) -> bool:
        """Whether anybody wants it."""
        return key in self._wanted

    def rates(self) -> dict[Key, float]:
        """The highest rate that each key is wanted at."""
        return {key: max(rates) for key, rates in self._wanted.items()}
