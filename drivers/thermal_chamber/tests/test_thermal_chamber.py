"""The thermal chamber as its table describes it: the plant by itself, and the driver on Trio's test clock."""

import importlib
import math
from typing import Any

import pytest
import trio
import trio.testing

from mhsd.driver import Call, Cancelled, Driver, DriverFailed, Outcome
from mhsd.driver.loader import load_target
from mhsd.wire.schema import compile_schema

ULID = "01J8ZQ3V6Y7M2N4P6R8S0T2V4Y"
CONFIGURE = "cap.device.configure.v1"
RAMP = "cap.thermal.ramp.v1"
LID = "x-cap.sim.lid.v1"
SPEED = "x-cap.sim.speed.v1"


@pytest.fixture
def device() -> Any:
    return load_target("thermal-chamber", backend="fake", options={})


@pytest.fixture
def chamber(device: Any) -> Driver:
    driver: Driver = device.driver
    return driver


@pytest.fixture
def sim(chamber: Driver) -> Any:
    """The module of the plant."""
    return importlib.import_module(type(chamber).__module__.replace(".driver", ".sim"))


class Log(list[tuple[float | None, str | None]]):
    """The progress of a call."""

    def __call__(
        self, percent: float | None = None, ticks: int | None = None, message: str | None = None
    ) -> None:
        self.append((percent, message))


def call(capability_id: str, progress: Any = None, **given: Any) -> Call:
    return Call(capability_id, "chamber", given, ULID, 120000, Log() if progress is None else progress)


async def shown(chamber: Driver) -> Any:
    return (await chamber.read(["chamber"])).resources["chamber"]


# The plant.


def test_at_rest_nothing_happens(sim: Any) -> None:
    plant = sim.Plant()
    plant.pass_time(1e6)
    assert (plant.temperature_cel, plant.setpoint_cel, plant.drive) == (20.0, 20.0, 0.0)


def test_undriven_it_drifts_to_ambient_by_its_time_constant(sim: Any) -> None:
    plant = sim.Plant(temperature_cel=120.0)
    plant.pass_time(600)
    assert plant.temperature_cel == pytest.approx(20 + 100 / math.e)
    assert plant.drive == 0.0


@pytest.mark.parametrize("setpoint_cel", [150.0, 60.0, 21.0, 20.0, 19.0, -40.0, 200.0, -60.0])
@pytest.mark.parametrize("start_cel", [20.0, 140.0, -35.0])
def test_any_span_in_one_step_is_the_same_as_in_many_small_ones(
    sim: Any, setpoint_cel: float, start_cel: float
) -> None:
    """The equation of the plant, integrated step by step, agrees with the closed form."""
    for span_s in (3.0, 60.0, 400.0):
        whole = sim.Plant(temperature_cel=start_cel, setpoint_cel=setpoint_cel, driven=True)
        small = sim.Plant(temperature_cel=start_cel, setpoint_cel=setpoint_cel, driven=True)
        whole.pass_time(span_s)
        steps = 20_000
        for _ in range(steps):
            slope = (sim.AMBIENT_CEL + sim.SPAN_CEL * small.drive - small.temperature_cel) / sim.UNDRIVEN_S
            small.temperature_cel += slope * span_s / steps
        assert whole.temperature_cel == pytest.approx(small.temperature_cel, abs=0.02)


def test_it_arrives_at_its_setpoint_and_stays_with_the_drive_that_holds_it(sim: Any) -> None:
    plant = sim.Plant(setpoint_cel=115.0, driven=True)
    assert plant.drive == 1.0, "it starts with all it has"
    plant.pass_time(3600)
    assert plant.temperature_cel == pytest.approx(115, abs=1e-6)
    assert plant.drive == pytest.approx(0.5)
    plant.setpoint_cel = -40.0
    assert plant.drive == -1.0
    plant.pass_time(7200)
    assert plant.temperature_cel == pytest.approx(-40, abs=1e-6)
    assert plant.drive == pytest.approx(-60 / 190)


# What it shows.


async def test_it_starts_at_rest_with_the_lid_closed(chamber: Driver) -> None:
    reading = await chamber.read(["chamber"])
    assert reading.resources == {
        "chamber": {
            "temperature_cel": 20.0,
            "setpoint_cel": 20.0,
            "duty": 0.0,
            "ramping": False,
            "lid": "closed",
        }
    }
    assert reading.interlocks == {"lid_closed": "closed"}


async def test_states_and_outputs_fit_the_schemas_of_the_manifest(device: Any, autojump_clock: Any) -> None:
    inputs: list[tuple[str, dict[str, Any]]] = [
        (SPEED, {"factor": 1000}),
        (CONFIGURE, {"setpoint_cel": 80.5}),
        (RAMP, {"target_cel": -40, "rate_cel_min": 600}),
        (LID, {"closed": False}),
    ]
    schema = compile_schema(device.manifest.resources["chamber"].state_schema)
    for capability_id, given in inputs:
        binding = device.manifest.bindings_of(capability_id)[0]
        assert binding.input.errors(given) == []
        outcome = await device.driver.invoke(call(capability_id, **given))
        assert binding.capability.output.errors(dict(outcome.output)) == []
        await trio.sleep(0.2)
        assert schema.errors(await shown(device.driver)) == []


def test_what_moves_by_itself_does_not_count_in_the_hash(device: Any) -> None:
    assert device.manifest.resources["chamber"].hash_exclusions == ("/temperature_cel", "/duty")


async def test_it_runs_in_real_time_and_faster_when_told(chamber: Driver, autojump_clock: Any) -> None:
    await chamber.invoke(call(CONFIGURE, setpoint_cel=100))
    await trio.sleep(10)
    after_10_s = (await shown(chamber))["temperature_cel"]
    assert after_10_s == pytest.approx(20 + 190 * (1 - math.exp(-10 / 600)), abs=1e-3)
    await chamber.invoke(call(SPEED, factor=100))
    await trio.sleep(0.1)
    after_20_s = (await shown(chamber))["temperature_cel"]
    assert after_20_s == pytest.approx(20 + 190 * (1 - math.exp(-20 / 600)), abs=1e-3)
    await trio.sleep(36)
    state = await shown(chamber)
    assert state["temperature_cel"] == pytest.approx(100, abs=1e-3)
    assert state["duty"] == pytest.approx(80 / 190, abs=1e-3)


# Ramps.


async def test_a_ramp_takes_its_time_and_ends_exactly_at_its_target(
    chamber: Driver, autojump_clock: Any
) -> None:
    began = trio.current_time()
    progress = Log()
    outcome = await chamber.invoke(call(RAMP, progress, target_cel=50, rate_cel_min=60))
    assert trio.current_time() - began == pytest.approx(30, abs=0.01)
    state = await shown(chamber)
    assert outcome.output == {"setpoint_cel": 50, "temperature_cel": state["temperature_cel"]}
    assert (state["setpoint_cel"], state["ramping"]) == (50, False)
    assert 20 < state["temperature_cel"] < 50, "the temperature lags"
    percents = [percent for percent, _ in progress]
    assert percents == sorted(p for p in percents if p is not None)
    assert (len(percents), percents[-1]) == (300, 100)


async def test_a_ramp_moves_the_setpoint_from_where_it_stands(chamber: Driver, autojump_clock: Any) -> None:
    await chamber.invoke(call(CONFIGURE, setpoint_cel=80))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(chamber.invoke, call(RAMP, target_cel=20, rate_cel_min=60))
        await trio.sleep(30.05)
        state = await shown(chamber)
        assert state["setpoint_cel"] == pytest.approx(50, abs=0.1)
        assert state["ramping"] is True
    assert (await shown(chamber))["setpoint_cel"] == 20


async def test_the_speed_holds_for_a_ramp_under_way(chamber: Driver, autojump_clock: Any) -> None:
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(chamber.invoke, call(RAMP, target_cel=80, rate_cel_min=60))
        await trio.sleep(30)
        await chamber.invoke(call(SPEED, factor=10))
    assert trio.current_time() - began == pytest.approx(33, abs=0.2)
    assert (await shown(chamber))["setpoint_cel"] == 80


async def test_a_ramp_to_where_the_setpoint_is_ends_at_once(chamber: Driver, autojump_clock: Any) -> None:
    began = trio.current_time()
    outcome = await chamber.invoke(call(RAMP, target_cel=20, rate_cel_min=1))
    assert (outcome.output["setpoint_cel"], trio.current_time()) == (20, began)


async def test_the_slowest_ramp_over_the_whole_range_fits_in_its_duration(device: Any) -> None:
    binding = device.manifest.bindings_of(RAMP)[0]
    limits, rate = binding.limits["target_cel"], binding.input_schema["properties"]["rate_cel_min"]["minimum"]
    assert 60_000 * (limits.maximum - limits.minimum) / rate <= binding.max_duration_ms


# Ending early.


async def ramping(chamber: Driver, nursery: trio.Nursery) -> list[BaseException | Outcome]:
    """A ramp that has gone on for 10 s; its end comes into the list."""
    ends: list[BaseException | Outcome] = []

    async def run() -> None:
        try:
            ends.append(await chamber.invoke(call(RAMP, target_cel=100, rate_cel_min=60)))
        except (DriverFailed, Cancelled) as error:
            ends.append(error)

    nursery.start_soon(run)
    await trio.sleep(10.05)
    assert (await shown(chamber))["ramping"] is True
    return ends


@pytest.mark.parametrize("stop", ["halt", "estop"])
async def test_a_stop_is_the_safe_state_at_once_and_ends_the_ramp(
    chamber: Driver, autojump_clock: Any, stop: str
) -> None:
    """[SAFE-002]"""
    async with trio.open_nursery() as nursery:
        ends = await ramping(chamber, nursery)
        began = trio.current_time()
        assert await {"halt": chamber.halt, "estop": chamber.estop}[stop]("test") is True
        assert trio.current_time() == began
        state = await shown(chamber)
        assert (state["setpoint_cel"], state["duty"], state["ramping"]) == (20, 0, False)
        assert state["temperature_cel"] > 20, "what is hot stays hot for a while"
    assert isinstance(ends[0], Cancelled)
    await trio.sleep(20_000)
    assert await shown(chamber) == {**state, "temperature_cel": 20.0}


async def test_opening_the_lid_is_the_safe_state_and_closing_it_starts_nothing(
    chamber: Driver, autojump_clock: Any
) -> None:
    async with trio.open_nursery() as nursery:
        ends = await ramping(chamber, nursery)
        await chamber.invoke(call(LID, closed=False))
        reading = await chamber.read(["chamber"])
        state = reading.resources["chamber"]
        assert reading.interlocks == {"lid_closed": "open"}
        assert (state["setpoint_cel"], state["duty"], state["ramping"], state["lid"]) == (
            20,
            0,
            False,
            "open",
        )
        # Closed again before the ramp's next step: the ramp is over all the same.
        await chamber.invoke(call(LID, closed=True))
    assert isinstance(ends[0], DriverFailed)
    assert ends[0].mhs_code == "MHS.SAFETY.INTERLOCK_OPEN"
    state = await shown(chamber)
    assert (state["setpoint_cel"], state["duty"], state["lid"]) == (20, 0, "closed")


@pytest.mark.parametrize(
    ("capability_id", "given"),
    [(CONFIGURE, {"setpoint_cel": 50}), (RAMP, {"target_cel": 50, "rate_cel_min": 600})],
)
async def test_nothing_drives_behind_an_open_lid(
    chamber: Driver, capability_id: str, given: dict[str, Any]
) -> None:
    await chamber.invoke(call(LID, closed=False))
    with pytest.raises(DriverFailed) as failed:
        await chamber.invoke(call(capability_id, **given))
    assert failed.value.mhs_code == "MHS.SAFETY.INTERLOCK_OPEN"
    assert (await shown(chamber))["setpoint_cel"] == 20


# Restoring.


def about(state: Any) -> Any:
    """A state, but for what rounding does to what is measured."""
    return {
        **state,
        "temperature_cel": pytest.approx(state["temperature_cel"], abs=0.002),
        "duty": pytest.approx(state["duty"], abs=0.0002),
    }


@pytest.mark.parametrize(
    ("commands", "after_s"),
    [
        ([], 0),
        ([(CONFIGURE, {"setpoint_cel": 90})], 40),
        ([(CONFIGURE, {"setpoint_cel": 90}), (CONFIGURE, {"setpoint_cel": 20})], 40),
        ([(CONFIGURE, {"setpoint_cel": 90}), (LID, {"closed": False})], 40),
    ],
)
async def test_a_restored_chamber_goes_on_as_the_former_one_did(
    chamber: Driver, autojump_clock: Any, commands: list[tuple[str, dict[str, Any]]], after_s: float
) -> None:
    """[PROTO-035]"""
    for capability_id, given in commands:
        await chamber.invoke(call(capability_id, **given))
        await trio.sleep(after_s)
    taken = await shown(chamber)
    await trio.sleep(25)
    later = await shown(chamber)
    await chamber.invoke(call(LID, closed=True))
    await chamber.invoke(call(CONFIGURE, setpoint_cel=-30))
    await trio.sleep(500)
    await chamber.restore({"chamber": taken})
    assert await shown(chamber) == about(taken)
    await trio.sleep(25)
    assert await shown(chamber) == about(later)


async def test_a_ramp_is_not_restored_nor_a_drive_behind_an_open_lid(
    chamber: Driver, autojump_clock: Any
) -> None:
    """[PROTO-035]"""
    state = await shown(chamber)
    await chamber.restore({"chamber": {**state, "ramping": True}})
    assert (await shown(chamber))["ramping"] is False
    await chamber.restore({"chamber": {**state, "lid": "open", "setpoint_cel": 90, "duty": 1}})
    await trio.sleep(60)
    state = await shown(chamber)
    assert (state["lid"], state["duty"], state["temperature_cel"]) == ("open", 0, 20)
