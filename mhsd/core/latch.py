"""The safety state: which devices are latched, since when, and what is still being stopped.

It changes only in synchronous blocks, so no lock is needed. Persisting it is the store's work; the order is
always: latch here first, act, then write.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import attrs


@attrs.frozen
class Latch:
    """One engaged latch. `epoch` grows with every stop, so that a reset notices a stop that came meanwhile.

    `stopped_mono_s` is when its newest stop came in; one from before a restart is older than any request.
    """

    reason: str
    engaged_at: str
    epoch: int
    stopped_mono_s: float


class SafetyState:
    """The e-stop latches of one endpoint, by device id."""

    def __init__(self) -> None:
        self._latches: dict[str, Latch] = {}
        self._stopping: dict[str, int] = {}
        self._releasing: set[str] = set()
        self._epoch = 0

    def latched(self, device_id: str) -> bool:
        return device_id in self._latches

    def latch_of(self, device_id: str) -> Latch | None:
        return self._latches.get(device_id)

    def epoch_of(self, device_id: str) -> int:
        latch = self._latches.get(device_id)
        return latch.epoch if latch is not None else 0

    def engage(
        self,
        device_ids: Iterable[str],
        reason: str,
        engaged_at: str,
        stopped_mono_s: float = float("-inf"),
    ) -> None:
        """From the return of this call on, admission refuses every mutation of these devices."""
        self._epoch += 1
        for device_id in device_ids:
            self._releasing.discard(device_id)
            first = self._latches.get(device_id)
            # The first fault is kept: a second stop changes the epoch, not the reason.
            self._latches[device_id] = (
                Latch(reason, engaged_at, self._epoch, stopped_mono_s)
                if first is None
                else attrs.evolve(first, epoch=self._epoch, stopped_mono_s=stopped_mono_s)
            )

    def clear(self, device_id: str, epoch: int) -> bool:
        """Release the latch unless a newer stop engaged it again; True when it is released."""
        if self.epoch_of(device_id) != epoch:
            return False
        self._latches.pop(device_id, None)
        self._releasing.discard(device_id)
        return True

    def release_begins(self, device_id: str) -> None:
        """From now on the latch file is written without this latch, whoever writes it; `clear` is the last step."""
        self._releasing.add(device_id)

    def release_fails(self, device_id: str) -> None:
        """The latch stays; the file has to be written again."""
        self._releasing.discard(device_id)

    def stop_begins(self, device_id: str) -> None:
        self._stopping[device_id] = self._stopping.get(device_id, 0) + 1

    def stop_ends(self, device_id: str) -> None:
        self._stopping[device_id] -= 1

    def stop_pending(self, device_id: str) -> bool:
        """Whether the stop path of this device is still running."""
        return self._stopping.get(device_id, 0) > 0

    def snapshot(self) -> Mapping[str, Any]:
        """What the latch file holds: `{device_id: {reason, engaged_at}}`."""
        return {
            name: {"reason": latch.reason, "engaged_at": latch.engaged_at}
            for name, latch in self._latches.items()
            if name not in self._releasing
        }
