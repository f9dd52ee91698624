"""How a client comes back to an endpoint that it has lost: growing, jittered, capped pauses and an end. Pure [TPT-064].

Both clients use it: `mhsd.client` sleeps in a thread, `mhsd.aclient` in a task.
"""

import random
from collections.abc import Callable

FIRST_S = 0.2
LONGEST_S = 10.0
ATTEMPTS = 10
"""About a minute in all; longer is a matter for a person, who looks at the device first."""


class Backoff:
    """The pauses before each new attempt; `reset` when one has succeeded."""

    def __init__(
        self,
        *,
        first_s: float = FIRST_S,
        longest_s: float = LONGEST_S,
        attempts: int = ATTEMPTS,
        spread: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._attempts = attempts
        self._spread = spread
        self._made = 0

    def pause_s(self, at_least_s: float = 0.0) -> float | None:
        """Seconds to wait before the next attempt; None when the budget of attempts is spent.

        `at_least_s` is what the endpoint itself asked for. The jitter keeps the clients of one endpoint from
        coming back at the same instant.
        """
        if self._made >= self._attempts:
            return None
        full_s = min(self._longest_s, self._first_s * 2.0**self._made)
        self._made += 1
        return max(at_least_s, full_s * self._spread(0.5, 1.0))

    def reset(self) -> None:
        """The endpoint is there again: the whole budget is available once more."""
        self._made = 0
