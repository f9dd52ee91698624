"""The overseer of a device: it ends what runs longer than it may, and gives up on what does not come back."""

from collections.abc import Callable, Iterable

import trio

from mhsd.core.operations import Operation


class Overseer:
    """Watches max_duration_ms and the stop grace of every execution of one device [PROTO-011; MHSD-4].

    `overdue` is called with an operation that ran past its limit: to be ended, or, once it was told to end and its
    stop grace passed, to be given up.
    """

    def __init__(
        self,
        live: Callable[[], Iterable[Operation]],
        overdue: Callable[[Operation], None],
        stop_grace_s: float,
    ) -> None:
        self._live = live
        self._overdue = overdue
        self._stop_grace_s = stop_grace_s
        self._due_mono_s = float("inf")
        self._nudge = trio.Event()

    def expect(self, due_mono_s: float) -> None:
        """Look again at this time, at the latest. Costs nothing when an earlier look is due anyway."""
        if due_mono_s < self._due_mono_s:
            self._due_mono_s = due_mono_s
            self._nudge.set()

    def ending(self) -> None:
        """An operation was told to end now."""
        self.expect(trio.current_time() + self._stop_grace_s)

    async def run(self) -> None:
        while True:
            with trio.move_on_at(self._due_mono_s):
                await self._nudge.wait()
            self._nudge = trio.Event()
            if trio.current_time() >= self._due_mono_s:
                self._look()

    def _look(self) -> None:
        """See what is overdue, and when the next look is due. Between looks the operations come and go unseen."""
        now_mono_s = trio.current_time()
        self._due_mono_s = float("inf")
        for operation in list(self._live()):
            if self._due_of(operation) <= now_mono_s:
                self._overdue(operation)
            self._due_mono_s = min(self._due_mono_s, self._due_of(operation))

    def _due_of(self, operation: Operation) -> float:
        if operation.native_returned or operation.concluded:
            return float("inf")
        if operation.ending_mono_s is not None:
            return operation.ending_mono_s + self._stop_grace_s
        return operation.due_mono_s if operation.due_mono_s is not None else float("inf")
