"""The latch in any order of stops and resets: no reset ever undoes a stop that it did not see."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from mhsd.core.latch import SafetyState

DEVICES = ("belt", "oven", "psu")


class AnyOrder(RuleBasedStateMachine):
    """Resets look at a device, stops come and go, and the resets finish whenever they like."""

    looks: Bundle[tuple[str, int, int]] = Bundle("looks")

    def __init__(self) -> None:
        super().__init__()
        self.safety = SafetyState()
        self.reasons: dict[str, str] = {}
        self.stops = dict.fromkeys(DEVICES, 0)
        self.clearings = dict.fromkeys(DEVICES, 0)
        self.count = 0

    @rule(devices=st.sets(st.sampled_from(DEVICES), min_size=1))
    def stop(self, devices: set[str]) -> None:
        self.count += 1
        reason = f"stop {self.count}"
        self.safety.engage(devices, reason, f"at {self.count}")
        for device in devices:
            self.stops[device] += 1
            self.reasons.setdefault(device, reason)

    @rule(target=looks, device=st.sampled_from(DEVICES))
    def look(self, device: str) -> tuple[str, int, int]:
        return device, self.safety.epoch_of(device), self.stops[device]

    @rule(look=consumes(looks))
    def clear(self, look: tuple[str, int, int]) -> None:
        device, epoch, stops_seen = look
        latched_before = self.safety.latched(device)
        cleared = self.safety.clear(device, epoch)
        if cleared:
            # Nothing that was latched is released by a reset that looked before the last stop.
            assert not latched_before or self.stops[device] == stops_seen
            self.reasons.pop(device, None)
        else:
            assert self.safety.latched(device) == latched_before

    @invariant()
    def each_latch_has_the_reason_of_the_stop_that_engaged_it_first(self) -> None:
        held = {device: latch["reason"] for device, latch in self.safety.snapshot().items()}
        assert held == self.reasons
        for device in DEVICES:
            assert self.safety.latched(device) == (device in self.reasons)


AnyOrder.TestCase.settings = settings(stateful_step_count=30)
TestAnyOrder: Any = AnyOrder.TestCase
