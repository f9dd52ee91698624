"""A simulated climate chamber, in real time or faster: a lid, a setpoint, and a temperature that follows it.

The plant is in `sim.py`. It needs no task of its own: whoever looks first lets the time pass that went by.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import trio

from mhsd.driver import Call, Command, Driver, DriverFailed, Outcome, Reading, Settings

from .sim import AMBIENT_CEL, Plant

STEP_S = 0.1
"""Real time between two steps of a ramp; what the setpoint moves in one grows with the speed."""


class ThermalChamber(Driver):
    """`thermal-chamber`: resource chamber, interlock lid_closed."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.plant = Plant()
        self.lid = "closed"
        self.ramping: object | None = None
        """What stands for the ramp under way; a ramp that is not this any more is over."""
        self.speed = 1
        self.simulated_s = 0.0
        self._looked_mono_s: float | None = None

    def pass_time(self) -> None:
        """Let the time pass in the plant that went by since the last look."""
        now_mono_s = trio.current_time()
        if self._looked_mono_s is not None:
            passed_s = (now_mono_s - self._looked_mono_s) * self.speed
            self.simulated_s += passed_s
            self.plant.pass_time(passed_s)
        self._looked_mono_s = now_mono_s

    def state(self) -> dict[str, Any]:
        self.pass_time()
        return {
            "temperature_cel": round(self.plant.temperature_cel, 3),
            "setpoint_cel": self.plant.setpoint_cel,
            "duty": round(abs(self.plant.drive), 4),
            "ramping": self.ramping is not None,
            "lid": self.lid,
        }

    async def open(self, nursery: trio.Nursery) -> None:
        self.pass_time()

    async def read(self, resource_ids: Sequence[str]) -> Reading:
        return Reading({name: self.state() for name in resource_ids}, {"lid_closed": self.lid})

    async def halt(self, reason: str) -> bool:
        """Drive off, setpoint at ambient, at once; the temperature drifts there by itself."""
        self.end_commands()
        self.make_safe()
        return True

    def make_safe(self) -> None:
        self.pass_time()
        self.plant.rest()
        self.ramping = None

    async def restore(self, resources: Mapping[str, Mapping[str, Any]]) -> None:
        """Everything takes its former value, but a ramp is not taken up again.

        Whether the drive was on shows in the state: only at rest are the setpoint at ambient and the duty 0.
        """
        state = resources["chamber"]
        self.make_safe()
        self.lid = state["lid"]
        at_rest = state["setpoint_cel"] == AMBIENT_CEL and state["duty"] == 0
        self.plant = Plant(
            temperature_cel=state["temperature_cel"],
            setpoint_cel=state["setpoint_cel"],
            driven=self.lid == "closed" and not at_rest,
        )

    # --- commands ---------------------------------------------------------------------------------

    async def configure(self, call: Call) -> Outcome:
        self._require_closed_lid()
        self._aim(call.input["setpoint_cel"])
        return Outcome({"applied": {"setpoint_cel": self.plant.setpoint_cel}})

    async def ramp(self, call: Call) -> Outcome:
        """The setpoint moves from where it stands to the target; the temperature follows as it can."""
        self._require_closed_lid()
        start_cel, target_cel = self.plant.setpoint_cel, call.input["target_cel"]
        duration_s = 60 * abs(target_cel - start_cel) / call.input["rate_cel_min"]
        ramp = self.ramping = object()
        self._aim(start_cel)
        began_s = self.simulated_s
        try:
            while self.simulated_s - began_s < duration_s:
                left_s = began_s + duration_s - self.simulated_s
                # The millisecond makes the last step the last, whatever is lost in rounding.
                await trio.sleep(min(STEP_S, left_s / self.speed + 0.001))
                if self.ramping is not ramp:
                    # A stop cancels the sleep, so what can have ended the ramp is the lid.
                    raise DriverFailed("MHS.SAFETY.INTERLOCK_OPEN", "the lid was opened during the ramp")
                self.pass_time()
                done = min(1.0, (self.simulated_s - began_s) / duration_s)
                self.plant.setpoint_cel = start_cel + (target_cel - start_cel) * done
                call.progress(round(100 * done, 1), message=f"setpoint {self.plant.setpoint_cel:.1f} Cel")
            self.plant.setpoint_cel = target_cel
        finally:
            if self.ramping is ramp:
                self.ramping = None
        return Outcome({"setpoint_cel": target_cel, "temperature_cel": self.state()["temperature_cel"]})

    async def move_lid(self, call: Call) -> Outcome:
        """An open lid cuts the drive, as its switch does in a real chamber; closing it starts nothing again."""
        closed: bool = call.input["closed"]
        if not closed:
            self.make_safe()
        self.lid = "closed" if closed else "open"
        return Outcome({"closed": closed})

    async def set_speed(self, call: Call) -> Outcome:
        self.pass_time()
        self.speed = call.input["factor"]
        return Outcome({"factor": self.speed})

    commands: ClassVar[Mapping[str, Command]] = {
        "cap.device.configure.v1": configure,
        "cap.thermal.ramp.v1": ramp,
        "x-cap.sim.lid.v1": move_lid,
        "x-cap.sim.speed.v1": set_speed,
    }

    def _aim(self, setpoint_cel: float) -> None:
        self.pass_time()
        self.plant.setpoint_cel, self.plant.driven = setpoint_cel, True

    def _require_closed_lid(self) -> None:
        """The chamber's own guard. The endpoint has checked the same; the lid may have opened since."""
        if self.lid == "open":
            raise DriverFailed("MHS.SAFETY.INTERLOCK_OPEN", "the lid of the chamber is open")
