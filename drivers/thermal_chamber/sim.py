"""A first-order plant: one temperature, driven towards a setpoint by a heater and a chiller of limited power.

Time is passed in, so that nothing here waits and any span can pass in one step, exactly: between two changes of the
setpoint the temperature is an exponential, or two where the drive leaves its limit on the way.
"""

import math

import attrs

AMBIENT_CEL = 20.0
"""The room: where the temperature goes when nothing drives it, and the setpoint of the safe state."""

SPAN_CEL = 190.0
"""How far from ambient full drive brings the chamber in the end."""

DUTY_PER_CEL = 0.05
"""How much of the full drive one degree of difference to the setpoint calls for."""

UNDRIVEN_S = 600.0
HOLDING_S = UNDRIVEN_S / (1 + SPAN_CEL * DUTY_PER_CEL)
"""Time constants: by itself or under a constant drive, and where the controller follows the difference."""


@attrs.define
class Plant:
    """The chamber's air and its controller."""

    temperature_cel: float = AMBIENT_CEL
    setpoint_cel: float = AMBIENT_CEL
    driven: bool = False

    @property
    def drive(self) -> float:
        """From -1, full cooling, to 1, full heating: what holds the setpoint, and a share of the difference to it."""
        if not self.driven:
            return 0.0
        wanted = self._holding + DUTY_PER_CEL * (self.setpoint_cel - self.temperature_cel)
        return max(-1.0, min(1.0, wanted))

    def rest(self) -> None:
        """The safe state: nothing drives it, and the setpoint is ambient."""
        self.setpoint_cel, self.driven = AMBIENT_CEL, False

    def pass_time(self, seconds: float) -> None:
        """Let simulated time pass with the setpoint as it is."""
        if not self.driven:
            self._approach(AMBIENT_CEL, seconds, UNDRIVEN_S)
            return
        seconds -= self._pass_full_drive(seconds)
        self._approach(self.setpoint_cel, seconds, HOLDING_S)

    @property
    def _holding(self) -> float:
        return (self.setpoint_cel - AMBIENT_CEL) / SPAN_CEL

    def _pass_full_drive(self, seconds: float) -> float:
        """Let as much of the time pass as the drive is at its limit, and say how much that was."""
        coldest = self.setpoint_cel - (1 - self._holding) / DUTY_PER_CEL
        hottest = self.setpoint_cel + (1 + self._holding) / DUTY_PER_CEL
        if coldest <= self.temperature_cel <= hottest:
            return 0.0
        edge, end = (coldest, SPAN_CEL) if self.temperature_cel < coldest else (hottest, -SPAN_CEL)
        end += AMBIENT_CEL
        needed_s = UNDRIVEN_S * math.log((end - self.temperature_cel) / (end - edge))
        if seconds < needed_s:
            self._approach(end, seconds, UNDRIVEN_S)
            return seconds
        self.temperature_cel = edge
        return needed_s

    def _approach(self, end_cel: float, seconds: float, constant_s: float) -> None:
        self.temperature_cel = end_cel + (self.temperature_cel - end_cel) * math.exp(-seconds / constant_s)
