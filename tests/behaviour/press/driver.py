"""The driver of a press that misbehaves as it is told.

`x-cap.test.conduct.v1` says how its stop, its reset, its reads and its interlocks behave from then on;
`x-cap.test.release.v1` lets go of what is being held.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import trio

from mhsd.driver import Call, Command, Driver, DriverFailed, Outcome, Reading, Settings, TerminalStop


class Press(Driver):
    """`/test/press`."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.state: dict[str, Any] = {
            "position_mm": 0,
            "holding": False,
            "resetting": False,
            "stopped": False,
            "halts": 0,
        }
        self.conduct = {
            "stop": "confirm",
            "reset": "obey",
            "read": "answer",
            "gate": "closed",
            "cover": "closed",
        }
        self.released = trio.Event()

    async def read(self, resource_ids: Sequence[str]) -> Reading:
        if self.conduct["read"] == "hang" and resource_ids:
            await trio.sleep_forever()
        shown = {"gate_closed": self.conduct["gate"], "cover_closed": self.conduct["cover"]}
        interlocks = {name: state for name, state in shown.items() if state != "unreadable"}
        return Reading({name: dict(self.state) for name in resource_ids}, interlocks)

    async def halt(self, reason: str) -> bool:
        self.end_commands()
        self.state["halts"] += 1
        await self.misbehave("stop")
        return self.conduct["stop"] in ("confirm", "wait")

    async def estop(self, reason: str) -> bool:
        self.state["stopped"] = True
        return await self.halt(reason)

    async def reset(self) -> None:
        self.state["resetting"] = True
        try:
            await self.misbehave("reset")
        finally:
            self.state["resetting"] = False
        self.state["stopped"] = False

    async def misbehave(self, part: str) -> None:
        conduct = self.conduct[part]
        if conduct == "raise":
            raise RuntimeError("the press breaks")
        if conduct == "fail":
            raise DriverFailed("MHS.DEVICE.FAULT", "the press refuses", "E17")
        if conduct == "hang":
            await trio.sleep_forever()
        if conduct == "wait":
            await self.hold_on()
        if conduct == "terminal":
            raise TerminalStop("the relay of the press is latched on site", safe_state_achieved=True)

    async def hold_on(self) -> None:
        self.released = trio.Event()
        await self.released.wait()

    # --- commands ---------------------------------------------------------------------------------

    async def nudge(self, call: Call) -> Outcome:
        self.state["position_mm"] += 1
        return Outcome({"position_mm": self.state["position_mm"]})

    async def hold(self, call: Call) -> Outcome:
        """Holds until it is released, or cancelled where it was not told to ignore that."""
        self.state["holding"] = True
        try:
            with trio.CancelScope(shield=call.input["stubborn"]):
                await self.hold_on()
            self.state["position_mm"] += 1
        finally:
            self.state["holding"] = False
        return Outcome({"position_mm": self.state["position_mm"]})

    async def release(self, call: Call) -> Outcome:
        self.released.set()
        return Outcome({})

    async def behave(self, call: Call) -> Outcome:
        self.conduct.update(call.input)
        return Outcome({})

    commands: ClassVar[Mapping[str, Command]] = {
        "x-cap.test.nudge.v1": nudge,
        "x-cap.test.hold.v1": hold,
        "x-cap.test.release.v1": release,
        "x-cap.test.conduct.v1": behave,
    }
