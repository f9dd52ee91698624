"""The slot of a device: one mutation runs at a time, short ones queue, first in first out [MHSD-4, Concurrency]."""

from collections import deque

import attrs
import trio

from mhsd.base.errors import Fault
from mhsd.core.admission import Attempt
from mhsd.core.operations import Operation

QUEUE_PLACES = 64
RETRY_AFTER_MS = 250


@attrs.define(eq=False)
class Place:
    """A place in the queue. It ends by `granted` (the slot is now held) or by `refused`."""

    attempt: Attempt
    decided: trio.Event = attrs.Factory(trio.Event)
    granted: bool = False
    refused: Fault | None = None


class Slot:
    """Who may mutate the device now. Every method is synchronous, so what it says holds until the next checkpoint."""

    def __init__(self) -> None:
        self._holder: Attempt | None = None
        self._operation: Operation | None = None
        self._held = False
        self._queue: deque[Place] = deque()

    @property
    def free(self) -> bool:
        return self._holder is None and not self._held

    def held_by(self, attempt: Attempt) -> bool:
        """Whether the attempt has the slot."""
        return self._holder is attempt

    def hold(self) -> bool:
        """Take a free slot for the endpoint itself, which then has to `let_go`; commands queue meanwhile."""
        if not self.free:
            return False
        self._held = True
        return True

    def let_go(self) -> None:
        self._held = False
        self._grant_next()

    @property
    def operation(self) -> Operation | None:
        """What was dispatched by the holder, until its driver call has returned."""
        return self._operation

    def refusal(self, attempt: Attempt) -> Fault | None:
        """MHS.DEVICE.BUSY when the attempt can neither take the slot nor queue for it."""
        if self.free or self._holder is attempt:
            return None
        awaited = self._operation is None or self._operation.awaited
        # Before its dispatch a holder is still waited for, but a long-running one will keep the slot.
        binding = self._holder.binding if self._holder is not None else None
        short = self._held or (binding is not None and not binding.long_running)
        if awaited and short and len(self._queue) < QUEUE_PLACES:
            return None
        why = "its queue is full" if awaited and short else "another operation runs on it"
        return Fault(
            "MHS.DEVICE.BUSY",
            f"{attempt.device_id} is busy: {why}",
            details={"retry_after_ms": RETRY_AFTER_MS},
        )

    def take_or_queue(self, attempt: Attempt) -> Place | None:
        """Hold the slot (None) or get a place in its queue. `refusal()` must have said nothing against it."""
        if self.free:
            self._holder = attempt
            return None
        place = Place(attempt)
        self._queue.append(place)
        return place

    def dispatched(self, attempt: Attempt, operation: Operation) -> None:
        """The holder's command is in the driver now."""
        if self._holder is attempt:
            self._operation = operation

    def release(self, attempt: Attempt) -> None:
        """Give the slot to the next in the queue. Does nothing for an attempt that does not hold it."""
        if self._holder is not attempt:
            return
        self._holder = self._operation = None
        self._grant_next()

    def _grant_next(self) -> None:
        if self._queue:
            place = self._queue.popleft()
            self._holder = place.attempt
            place.granted = True
            place.decided.set()

    def leave(self, place: Place) -> None:
        """Give up a place, or the slot when it was granted at the same instant."""
        if place.granted:
            self.release(place.attempt)
        elif place in self._queue:
            self._queue.remove(place)

    def refuse_queue(self, fault: Fault, session_id: str | None = None) -> None:
        """Answer everything that queues (of one session, when named) with a refusal, at once."""
        kept: deque[Place] = deque()
        for place in self._queue:
            if session_id is None or place.attempt.session.session_id == session_id:
                place.refused = fault
                place.decided.set()
            else:
                kept.append(place)
        self._queue = kept
