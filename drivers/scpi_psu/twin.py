"""A simulated bench supply that speaks the SCPI of the real one, so the real driver runs on it unchanged.

It drives one resistive load and settles at once: constant voltage until the current limit is reached, constant
current beyond. `fault` makes it misbehave the way supplies do.
"""

from typing import Literal

import attrs

MAX_V = 30.0
MAX_A = 5.0
OVERLOAD = "9.9E37"
NO_ERROR = '0,"No error"'


@attrs.define
class PsuTwin:
    """State in plain fields. `errors` is the error queue, oldest first."""

    identity: str = "mhsd,PSU-1,SIM,1"
    voltage_v: float = 0.0
    current_a: float = 1.0
    enabled: bool = False
    load_ohm: float = 10.0
    resolution_v: float = 0.0
    errors: list[str] = attrs.Factory(list)
    fault: Literal["", "mute", "overload", "refuse", "stuck"] = ""

    def answer(self, line: str) -> str | None:
        """The reply to one line; None for a command, and for everything while it is mute."""
        if self.fault == "mute":
            return None
        head, _, argument = line.partition(" ")
        if head.endswith("?"):
            return self._query(head)
        self._command(head, argument)
        return None

    def _query(self, head: str) -> str | None:
        volts, amps = self.measure()
        overloaded = self.fault == "overload"
        if head == "SYST:ERR?":
            return self.errors.pop(0) if self.errors else NO_ERROR
        reply = {
            "*IDN?": self.identity,
            "VOLT?": f"{self.voltage_v:.6E}",
            "CURR?": f"{self.current_a:.6E}",
            "OUTP?": str(int(self.enabled)),
            "MEAS:VOLT?": OVERLOAD if overloaded else f"{volts:.6E}",
            "MEAS:CURR?": OVERLOAD if overloaded else f"{amps:.6E}",
        }.get(head)
        if reply is None:
            self.errors.append('-113,"Undefined header"')
        return reply

    def _command(self, head: str, argument: str) -> None:
        if self.fault == "stuck":
            return
        if self.fault == "refuse":
            self.errors.append('-221,"Settings conflict"')
        elif head == "OUTP" and argument in ("ON", "OFF"):
            self.enabled = argument == "ON"
        elif head in ("VOLT", "CURR"):
            self._set(head, argument)
        else:
            self.errors.append('-113,"Undefined header"')

    def _set(self, head: str, argument: str) -> None:
        try:
            value = float(argument)
        except ValueError:
            self.errors.append('-104,"Data type error"')
            return
        if not 0 <= value <= (MAX_V if head == "VOLT" else MAX_A):
            self.errors.append('-222,"Data out of range"')
        elif head == "VOLT":
            self.voltage_v = self._rounded(value)
        else:
            self.current_a = value

    def _rounded(self, volts: float) -> float:
        return round(volts / self.resolution_v) * self.resolution_v if self.resolution_v else volts

    def measure(self) -> tuple[float, float]:
        """Voltage and current at the terminals."""
        if not self.enabled:
            return 0.0, 0.0
        volts = min(self.voltage_v, self.current_a * self.load_ohm)
        return volts, volts / self.load_ohm
