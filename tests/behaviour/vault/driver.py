"""The driver of a vault that keeps one number, and takes back a former one as it is told.

`x-cap.test.temper.v1` says how its restores and reads behave from then on; `x-cap.test.let.v1` ends what waits.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import trio

from mhsd.driver import (
    Busy,
    Call,
    Command,
    Driver,
    DriverFailed,
    LinkDown,
    Outcome,
    OutcomeUnknown,
    Reading,
    Settings,
)


class Vault(Driver):
    """`/test/vault`."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.state: dict[str, Any] = {"value": 0, "restores": 0, "halts": 0}
        self.temper = "obey"
        self.let = trio.Event()

    async def read(self, resource_ids: Sequence[str]) -> Reading:
        if resource_ids and self.temper == "hang_in_read":
            await trio.sleep_forever()
        if resource_ids and self.temper == "blind":
            raise DriverFailed("MHS.DEVICE.FAULT", "the vault shows nothing")
        return Reading({name: dict(self.state) for name in resource_ids})

    async def halt(self, reason: str) -> bool:
        self.end_commands()
        self.state["halts"] += 1
        return True

    async def restore(self, resources: Mapping[str, Mapping[str, Any]]) -> None:
        self.state["restores"] += 1
        value = resources["cell"]["value"]
        temper = self.temper
        if temper == "wait":
            self.let = trio.Event()
            await self.let.wait()
        if temper in self.refusals:
            raise self.refusals[temper]
        if temper != "ignore":
            self.state["value"] = value
        if temper.startswith("spoil"):
            self.state["value"] += self.state["restores"]
        if temper in ("spoil_once", "spoil_and_fail", "spoil_and_raise"):
            self.temper = "obey"
        if temper == "spoil_and_fail":
            raise DriverFailed("MHS.DEVICE.FAULT", "the vault sticks", "E5")
        if temper == "spoil_and_raise":
            raise RuntimeError("the vault breaks")
        if temper == "go_blind":
            self.temper = "blind"

    refusals: ClassVar[Mapping[str, Exception]] = {
        "busy": Busy(100, "the vault is busy"),
        "link_down": LinkDown("the vault is not there"),
        "unknown": OutcomeUnknown("no word from the vault"),
        "fail": DriverFailed("MHS.DEVICE.FAULT", "the vault refuses", "E4"),
        "raise": RuntimeError("the vault breaks"),
    }

    # --- commands ---------------------------------------------------------------------------------

    async def configure(self, call: Call) -> Outcome:
        self.state["value"] = call.input["value"]
        return Outcome({"applied": call.input})

    async def behave(self, call: Call) -> Outcome:
        self.temper = call.input["temper"]
        return Outcome({})

    async def let_go(self, call: Call) -> Outcome:
        self.let.set()
        return Outcome({})

    commands: ClassVar[Mapping[str, Command]] = {
        "cap.device.configure.v1": configure,
        "x-cap.test.temper.v1": behave,
        "x-cap.test.let.v1": let_go,
    }
