"""A bench supply over SCPI: the driver directory to copy for an instrument that speaks in lines.

The items are the whole of the wire protocol. Units, limits and effects stand in manifest.toml; error queue,
read-back, time-outs and the stop's own connection are the work of `mhsd.driver.scpi`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import trio

from mhsd.driver import (
    Call,
    Command,
    Driver,
    Measurement,
    Outcome,
    Reading,
    ScpiLink,
    Setpoint,
    Settings,
    Switch,
    tcp_connect,
    twin_connect,
)

from .twin import PsuTwin

RAMP_STEP_S = 0.05


class Psu(Driver):
    """`scpi-psu`: one resource, output."""

    voltage = Setpoint(get="VOLT?", set="VOLT {:.7G}", verify=0.001)
    current = Setpoint(get="CURR?", set="CURR {:.7G}", verify=0.001)
    enabled = Switch(get="OUTP?", on="OUTP ON", off="OUTP OFF")
    measured_v = Measurement(get="MEAS:VOLT?")
    measured_a = Measurement(get="MEAS:CURR?")

    safe = ((enabled, False), (voltage, 0.0))

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        options = settings.options
        self.twin = PsuTwin()
        self.nursery: trio.Nursery | None = None
        fake = settings.backend == "fake"
        self.link = ScpiLink(
            self.connect_twin if fake else tcp_connect(options["link"]),
            name=settings.path,
            idn="." if fake else options["idn"],
            timeout_s=options["timeout_s"],
            confirm="error_queue" if fake else options["confirm"],
        )

    async def connect_twin(self) -> trio.SocketStream:
        if self.nursery is None:
            raise OSError("the device was not opened")
        return await twin_connect(self.nursery, self.twin.answer)

    async def open(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        await self.link.open()

    async def aclose(self) -> None:
        await self.link.aclose()

    async def read(self, resource_ids: Sequence[str]) -> Reading:
        return Reading({name: await self.output_state() for name in resource_ids})

    async def output_state(self) -> dict[str, Any]:
        volts, amps = await self.link.get(self.measured_v), await self.link.get(self.measured_a)
        return {
            "voltage_v": await self.link.get(self.voltage),
            "current_a": await self.link.get(self.current),
            "enabled": await self.link.get(self.enabled),
            "measured_v": volts.value,
            "measured_v_quality": volts.quality,
            "measured_a": amps.value,
            "measured_a_quality": amps.quality,
        }

    async def halt(self, reason: str) -> bool:
        """Output off, then 0 V, over a connection of the stop's own."""
        self.end_commands()
        return await self.link.stop(self.safe)

    # --- commands ---------------------------------------------------------------------------------

    async def configure(self, call: Call) -> Outcome:
        """The current limit first: a higher voltage never meets the old, higher limit."""
        applied: dict[str, float] = {}
        for field, item in (("current_a", self.current), ("voltage_v", self.voltage)):
            if field in call.input:
                applied[field] = await self.link.set(item, call.input[field])
        return Outcome({"applied": applied})

    async def switch(self, call: Call) -> Outcome:
        return Outcome({"enabled": await self.link.set(self.enabled, call.input["enabled"])})

    async def ramp(self, call: Call) -> Outcome:
        """Steps of 50 ms, counted from the start and not from the read-back: a supply that rounds gets there."""
        start_v, target_v = await self.link.get(self.voltage), call.input["to_v"]
        step_v = call.input["rate_v_s"] * RAMP_STEP_S
        steps = max(1, math.ceil(round(abs(target_v - start_v) / step_v, 6)))
        for step in range(1, steps):
            at_v = start_v + math.copysign(step * step_v, target_v - start_v)
            await self.link.tell(self.voltage, at_v)
            call.progress(round(100 * step / steps, 1), None, f"{at_v:.3f} of {target_v:g} V")
            await trio.sleep(RAMP_STEP_S)
        reached_v = await self.link.set(self.voltage, target_v)
        call.progress(100, None, f"{reached_v:.3f} V")
        return Outcome({"voltage_v": reached_v})

    async def sample(self, call: Call) -> Outcome:
        output: dict[str, Any] = {}
        for field, item in (("voltage_v", self.measured_v), ("current_a", self.measured_a)):
            found = await self.link.get(item)
            output[field] = found.value
            if found.value is None:
                output[f"{field}_quality"] = found.quality
        return Outcome(output)

    commands: ClassVar[Mapping[str, Command]] = {
        "cap.device.configure.v1": configure,
        "cap.electrical.output.v1": switch,
        "cap.electrical.ramp.v1": ramp,
        "cap.measure.sample.v1": sample,
    }
