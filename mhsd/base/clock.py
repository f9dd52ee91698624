"""The two clocks and the one way in which a time is written.

Wall time is for people and receipts, monotonic time for budgets; nothing else reads a clock.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import attrs


@attrs.frozen
class Clock:
    """`now()` is wall time in seconds since 1970, `mono()` seconds that never run backwards.

    A test, or a host on Trio's clock, hands in its own functions.
    """

    now: Callable[[], float] = time.time
    mono: Callable[[], float] = time.monotonic


def rfc3339(seconds: float) -> str:
    """Wall `seconds` as RFC 3339 in UTC with milliseconds, as `2026-10-20T07:45:00.000Z`.

    Smaller parts are cut off, so no time is written that is still to come.
    """
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z"
