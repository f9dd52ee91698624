"""A maximum rate that loses no last value: the trailing edge of `rate_hz` [EVT-002]."""

from collections.abc import Hashable
from typing import Any


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
