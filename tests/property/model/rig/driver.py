"""The driver of the rig: a command's input says how long it takes and how it ends, and a watcher sees every call.

The rig itself is the `Body`; it is handed from one driver to the next when the endpoint is restarted, as a real
device would stay where it is.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import trio

from mhsd.driver import (
    Busy,
    Call,
    Cancelled,
    Command,
    Driver,
    DriverFailed,
    LinkDown,
    Outcome,
    OutcomeUnknown,
    Reading,
    Settings,
)

SLOW_S = 0.7


class Body:
    """The rig, and how its link behaves: `conduct` by part (read, stop, reset)."""

    def __init__(self) -> None:
        self.position = 0
        self.speed = 0
        self.calls = 0
        self.stopped = False
        self.gate = "closed"
        self.conduct = {"read": "ok", "stop": "ok", "reset": "ok"}

    def shown(self) -> tuple[int, int, bool]:
        """What counts as the state."""
        return self.position, self.speed, self.stopped


class Watcher(Protocol):
    """Sees everything that reaches the rig, at the instant at which it does."""

    def began(self, call: Call) -> Any: ...
    def moved(self, command_id: str) -> None: ...
    def ended(self, token: Any, how: str) -> None: ...
    def read(self, gate: str) -> None: ...
    def stopping(self, change: int) -> None: ...


class Blind:
    def began(self, call: Call) -> Any:
        return None

    def moved(self, command_id: str) -> None:
        pass

    def ended(self, token: Any, how: str) -> None:
        pass

    def read(self, gate: str) -> None:
        pass

    def stopping(self, change: int) -> None:
        pass


class Rig(Driver):
    """`/test/rig`."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.body = Body()
        self.watcher: Watcher = Blind()

    async def read(self, resource_ids: Sequence[str]) -> Reading:
        body = self.body
        await self._behave("read")
        if body.conduct["read"] == "gap":
            return Reading({}, {})
        states: dict[str, dict[str, Any]] = {
            "axis": {"position": body.position, "speed": body.speed, "calls": body.calls},
            "panel": {"stopped": body.stopped},
        }
        self.watcher.read(body.gate)
        interlocks = {} if body.gate == "unreadable" else {"gate_closed": body.gate}
        return Reading({name: states[name] for name in resource_ids}, interlocks)

    async def halt(self, reason: str) -> bool:
        self.end_commands()
        self.watcher.stopping(1)
        try:
            await self._behave("stop")
        finally:
            self.watcher.stopping(-1)
        return self.body.conduct["stop"] != "deny"

    async def estop(self, reason: str) -> bool:
        self.body.stopped = True
        return await self.halt(reason)

    async def reset(self) -> None:
        if self.body.conduct["reset"] == "half":
            self.body.stopped = False
        await self._behave("reset")
        self.body.stopped = False

    async def _behave(self, part: str) -> None:
        """As the rig was told to: `slow`, `hang`, `fail`, `raise`."""
        conduct = self.body.conduct[part]
        if conduct == "slow":
            await trio.sleep(SLOW_S)
        elif conduct in ("hang", "half"):
            await trio.sleep_forever()
        elif conduct == "fail":
            raise DriverFailed("MHS.DEVICE.FAULT", "the rig does not answer", "E7")
        elif conduct == "raise":
            raise RuntimeError("the rig breaks")

    # --- commands ---------------------------------------------------------------------------------

    async def perform(self, call: Call) -> Outcome:
        token = self.watcher.began(call)
        self.body.calls += 1
        how = "ended early"
        try:
            outcome = await super().perform(call)
            how = "returned"
        except Exception as error:
            how = type(error).__name__
            raise
        finally:
            self.watcher.ended(token, how)
        return outcome

    async def drive(self, call: Call) -> Outcome:
        """Moves in two halves, so that a command can be caught in the middle."""
        how, takes_s = call.input["how"], call.input["takes_ms"] / 1000
        amount = call.input["amount"]
        moves = call.capability_id not in ("x-cap.rig.measure.v1", "x-cap.rig.sample.v1")
        if how == "busy":
            raise Busy(10, "the rig is busy")
        if how == "link_down":
            raise LinkDown("the rig cannot be reached")
        with trio.CancelScope(shield=how in ("stubborn", "deaf")):
            await trio.sleep(takes_s / 2)
            if how == "busy_late":
                raise Busy(10, "the rig is busy after all")
            if moves:
                self.body.position += amount
                self.watcher.moved(call.command_id)
            call.progress(50)
            await trio.sleep(takes_s / 2)
        if how == "deaf":
            await trio.lowlevel.checkpoint()
        return await self._end(how)

    async def _end(self, how: str) -> Outcome:
        if how == "hang":
            await trio.sleep_forever()
        if how == "fail":
            raise DriverFailed("MHS.DEVICE.FAULT", "the rig reports an error", "E1")
        if how == "interlock":
            raise DriverFailed("MHS.SAFETY.INTERLOCK_OPEN", "the rig's own guard is open")
        if how == "raise":
            raise RuntimeError("the rig breaks")
        if how == "unknown":
            raise OutcomeUnknown("sent and not confirmed")
        if how == "ended":
            raise Cancelled(True)
        if how == "ended_unsafe":
            raise Cancelled(False)
        return Outcome({"wrong": 1} if how == "bad_output" else {"position": self.body.position})

    async def configure(self, call: Call) -> Outcome:
        self.body.speed = call.input["speed"]
        self.watcher.moved(call.command_id)
        return Outcome({"applied": {"speed": self.body.speed}})

    commands: ClassVar[Mapping[str, Command]] = {
        "x-cap.rig.move.v1": drive,
        "x-cap.rig.travel.v1": drive,
        "x-cap.rig.fire.v1": drive,
        "x-cap.rig.measure.v1": drive,
        "x-cap.rig.sample.v1": drive,
        "x-cap.rig.toggle.v1": drive,
        "cap.device.configure.v1": configure,
    }
