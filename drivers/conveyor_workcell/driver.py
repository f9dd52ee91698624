"""The reference fixture: a simulated conveyor with a valve behind a guarded door.

Everything is in this process. Moving takes real time, in steps of 20 ms that stand on a fixed grid: a motion
that runs through ends at exactly start + distance, and one that is cut short ends at exactly the last step.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import attrs
import trio

from mhsd.driver import (
    Busy,
    Call,
    Command,
    Driver,
    DriverFailed,
    Outcome,
    OutcomeUnknown,
    Reading,
    Settings,
    device_state_hash,
)

STEPS_PER_S = 50
BUSY_RETRY_MS = 100


@attrs.define
class World:
    """The simulated cell; one tick is 1 ms of simulated time."""

    tick: int = 0
    door: str = "closed"
    estop: str = "released"


@attrs.define
class Belt:
    speed_mm_s: float = 0.0
    position_mm: float = 0.0
    running: bool = False


@attrs.define
class Valve:
    open: bool = False


@attrs.define
class Fault:
    """How the next `times` native calls end."""

    kind: str = ""
    times: int = 0


@attrs.define(eq=False)
class Motion:
    """A convey or purge under way; `stand_still` ends what it moves. Cut short, it moves no further."""

    stand_still: Callable[[], None]
    cut_short: bool = False


class Conveyor(Driver):
    """`conveyor-workcell`: resources world, belt and valve, interlock door_closed."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.world = World()
        self.belt = Belt()
        self.valve = Valve()
        self.fault = Fault()
        self.motion: Motion | None = None

    def state(self) -> dict[str, dict[str, Any]]:
        """The whole state as it stands now."""
        return {
            "world": attrs.asdict(self.world),
            "belt": attrs.asdict(self.belt),
            "valve": attrs.asdict(self.valve),
        }

    async def read(self, resource_ids: Sequence[str]) -> Reading:
        state = self.state()
        return Reading({name: state[name] for name in resource_ids}, {"door_closed": self.world.door})

    def telemetry_flows(self, resource_id: str) -> bool:
        """The belt shows telemetry while it runs."""
        return self.belt.running

    async def halt(self, reason: str) -> bool:
        """Belt stopped, valve closed, at once; nothing is waited for."""
        self.end_commands()
        self._cut_short()
        self.valve.open = False
        return True

    async def estop(self, reason: str) -> bool:
        """The safe state, with the cell's emergency stop engaged."""
        self.world.estop = "engaged"
        return await self.halt(reason)

    async def reset(self) -> None:
        self.world.estop = "released"

    async def restore(self, resources: Mapping[str, Mapping[str, Any]]) -> None:
        """Everything takes its former value, but a belt that ran stands still: a motion cannot be restored."""
        self._cut_short()
        self.world = World(**resources["world"])
        self.belt = Belt(**{**resources["belt"], "running": False})
        self.valve = Valve(**resources["valve"])

    async def perform(self, call: Call) -> Outcome:
        """The command, unless an injected fault makes it end another way."""
        kind = self._take_fault(call)
        if kind == "busy":
            raise Busy(BUSY_RETRY_MS, "simulated fault: the device is busy")
        if kind == "fail":
            raise DriverFailed(
                "MHS.DEVICE.FAULT", "simulated fault: the device reports an error", "SIM_FAULT"
            )
        if kind == "outcome_unknown":
            raise OutcomeUnknown("simulated fault: the command was sent and not confirmed")
        if kind == "raise":
            raise RuntimeError("simulated fault: the driver breaks")
        if kind == "hang":
            await trio.sleep_forever()
        outcome = await super().perform(call)
        return Outcome({"malformed": True}) if kind == "bad_output" else outcome

    def _take_fault(self, call: Call) -> str | None:
        if self.fault.times == 0 or call.capability_id.startswith("x-cap.sim."):
            return None
        self.fault.times -= 1
        return self.fault.kind

    # --- commands ---------------------------------------------------------------------------------

    async def step(self, call: Call) -> Outcome:
        self.world.tick += call.input["ticks"]
        return Outcome({"tick": self.world.tick, "state_hash": device_state_hash(self.state(), {})})

    async def set_valve(self, call: Call) -> Outcome:
        self._require_cell_ready()
        self.valve.open = call.input["open"]
        return Outcome({"open": self.valve.open})

    async def purge(self, call: Call) -> Outcome:
        """The valve stays open for the whole time and is closed afterwards, however it ends."""
        duration_ms: int = call.input["duration_ms"]

        def close() -> None:
            self.valve.open = False

        def show(step: int, steps: int) -> None:
            done_ms = min(step * 1000 // STEPS_PER_S, duration_ms)
            call.progress(round(100 * step / steps, 1), done_ms, f"{done_ms} of {duration_ms} ms")

        self._require_cell_ready()
        self.valve.open = True
        await self._run(Motion(close), duration_ms / 1000, show)
        return Outcome({"open": self.valve.open, "duration_ms": duration_ms})

    async def convey(self, call: Call) -> Outcome:
        """The motion has the speed of its input; the configured speed stays as it is."""
        distance_mm, speed_mm_s = call.input["distance_mm"], call.input["speed_mm_s"]
        start_mm, duration_s = self.belt.position_mm, distance_mm / speed_mm_s

        def stand() -> None:
            self.belt.running = False

        def move(step: int, steps: int) -> None:
            moved_mm = distance_mm if step == steps else speed_mm_s * step / STEPS_PER_S
            self.belt.position_mm = start_mm + moved_mm
            done_ms = min(step * 1000 // STEPS_PER_S, int(1000 * duration_s))
            call.progress(round(100 * step / steps, 1), done_ms, f"{moved_mm:g} of {distance_mm:g} mm")

        self._require_cell_ready()
        self.belt.running = True
        await self._run(Motion(stand), duration_s, move)
        return Outcome({"position_mm": self.belt.position_mm})

    async def configure(self, call: Call) -> Outcome:
        self.belt.speed_mm_s = call.input["speed_mm_s"]
        return Outcome({"applied": {"speed_mm_s": self.belt.speed_mm_s}})

    async def move_door(self, call: Call) -> Outcome:
        closed: bool = call.input["closed"]
        self.world.door = "closed" if closed else "open"
        if not closed:
            self._cut_short()
        return Outcome({"closed": closed})

    async def inject_fault(self, call: Call) -> Outcome:
        self.fault = Fault(call.input["kind"], call.input["times"])
        return Outcome({"kind": self.fault.kind, "times": self.fault.times})

    commands: ClassVar[Mapping[str, Command]] = {
        "cap.world.step.v1": step,
        "cap.actuation.valve.v1": set_valve,
        "cap.actuation.purge.v1": purge,
        "cap.motion.convey.v1": convey,
        "cap.device.configure.v1": configure,
        "x-cap.sim.door.v1": move_door,
        "x-cap.sim.fault.v1": inject_fault,
    }

    # --- motion -----------------------------------------------------------------------------------

    def _require_cell_ready(self) -> None:
        """The cell's own guards, as the wiring of a real one: nothing moves behind an open door.

        The endpoint has checked the same; the door may have opened since.
        """
        if self.world.estop == "engaged":
            raise DriverFailed("MHS.SAFETY.ESTOP_LATCHED", "the cell's emergency stop is engaged")
        if self.world.door == "open":
            raise DriverFailed("MHS.SAFETY.INTERLOCK_OPEN", "the door of the cell is open")
        if self.motion is not None:
            raise Busy(BUSY_RETRY_MS, "the cell is moving")

    async def _run(self, motion: Motion, duration_s: float, show: Callable[[int, int], None]) -> None:
        """Let time pass in steps, `show` each as it is reached, and stand still whatever ends it."""
        self.motion = motion
        began = trio.current_time()
        steps = math.ceil(round(duration_s * STEPS_PER_S, 6))
        try:
            for step in range(1, steps + 1):
                await trio.sleep_until(began + min(step / STEPS_PER_S, duration_s))
                # A stop cancels the sleep, so what can have cut the motion short is the door.
                if motion.cut_short:
                    raise DriverFailed("MHS.SAFETY.INTERLOCK_OPEN", "the door was opened during the motion")
                show(step, steps)
        finally:
            if self.motion is motion:
                self._cut_short()

    def _cut_short(self) -> None:
        """End the motion under way, if any, at this instant; its own task finds out afterwards."""
        if self.motion is not None:
            self.motion.cut_short = True
            self.motion.stand_still()
            self.motion = None
