"""The driver of the test bench: a few variables."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import trio

from mhsd.driver import Call, Command, Driver, Outcome, Reading, Settings


class Bench(Driver):
    """`/test/bench`, the same on either backend."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.enabled = {"left": False, "right": False}
        self.motion: dict[str, Any] = {"speed_mm_s": 1, "position_mm": 0}
        self.points: list[dict[str, Any]] = []
        self.reads = 0
        self.readable = trio.Event()
        self.readable.set()
        self.released = trio.Event()

    async def read(self, resource_ids: Sequence[str]) -> Reading:
        await self.readable.wait()
        self.reads += 1
        state: dict[str, dict[str, Any]] = {
            name: {"enabled": enabled, "reads": self.reads} for name, enabled in self.enabled.items()
        }
        state["axis"] = {"motion": dict(self.motion), "points": list(self.points)}
        return Reading({name: state[name] for name in resource_ids})

    async def halt(self, reason: str) -> bool:
        self.end_commands()
        self.enabled = {"left": False, "right": False}
        return True

    async def switch(self, call: Call) -> Outcome:
        self.enabled[call.resource] = call.input["enabled"]
        return Outcome({"enabled": self.enabled[call.resource]})

    async def configure(self, call: Call) -> Outcome:
        self.motion.update(call.input.get("motion", {}))
        self.points = call.input.get("points", self.points)
        return Outcome({"applied": call.input})

    async def identify(self, call: Call) -> Outcome:
        return Outcome({"model": "bench", "serial": "secret-4711"})

    async def seldom(self, call: Call) -> Outcome:
        return Outcome({})

    async def overrun(self, call: Call) -> Outcome:
        self.motion["position_mm"] += 1
        await trio.sleep_forever()
        raise AssertionError("never reached")

    async def stubborn(self, call: Call) -> Outcome:
        """Goes on although it is cancelled, until `release`."""
        self.released = trio.Event()
        try:
            self.motion["position_mm"] += 1
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await self.released.wait()
        raise AssertionError("never reached")

    async def release(self, call: Call) -> Outcome:
        self.released.set()
        return Outcome({})

    async def let_reads(self, call: Call) -> Outcome:
        if call.input["hang"]:
            self.readable = trio.Event()
        else:
            self.readable.set()
        return Outcome({})

    commands: ClassVar[Mapping[str, Command]] = {
        "cap.electrical.output.v1": switch,
        "cap.device.configure.v1": configure,
        "x-cap.test.identify.v1": identify,
        "x-cap.test.seldom.v1": seldom,
        "x-cap.test.overrun.v1": overrun,
        "x-cap.test.stubborn.v1": stubborn,
        "x-cap.test.release.v1": release,
        "x-cap.test.reads.v1": let_reads,
    }
