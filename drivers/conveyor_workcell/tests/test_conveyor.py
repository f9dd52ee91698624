"""The conveyor fixture as its table describes it, on Trio's test clock."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from mhsd.driver import (
    Busy,
    Call,
    Cancelled,
    Driver,
    DriverFailed,
    Outcome,
    OutcomeUnknown,
    device_state_hash,
)
from mhsd.driver.loader import load_target
from mhsd.wire.schema import compile_schema

ULID = "01J8ZQ3V6Y7M2N4P6R8S0T2V4Y"
RESOURCES = ("world", "belt", "valve")
Invoke = Callable[..., Awaitable[Outcome]]


@pytest.fixture
def device() -> Any:
    return load_target("conveyor-workcell", backend="fake", options={})


@pytest.fixture
def conveyor(device: Any) -> Driver:
    driver: Driver = device.driver
    return driver


class Log(list[tuple[float | None, int | None, str | None]]):
    """The progress of a call."""

    def __call__(
        self, percent: float | None = None, ticks: int | None = None, message: str | None = None
    ) -> None:
        self.append((percent, ticks, message))


def call(capability_id: str, progress: Any = None, **given: Any) -> Call:
    return Call(capability_id, "", given, ULID, 120000, Log() if progress is None else progress)


CONVEY = "cap.motion.convey.v1"
PURGE = "cap.actuation.purge.v1"
VALVE = "cap.actuation.valve.v1"
STEP = "cap.world.step.v1"
CONFIGURE = "cap.device.configure.v1"
DOOR = "x-cap.sim.door.v1"
FAULT = "x-cap.sim.fault.v1"


async def state(conveyor: Driver) -> Any:
    return (await conveyor.read(RESOURCES)).resources


async def test_it_starts_at_rest_with_the_door_closed(conveyor: Driver) -> None:
    reading = await conveyor.read(RESOURCES)
    assert reading.resources == {
        "world": {"tick": 0, "door": "closed", "estop": "released"},
        "belt": {"speed_mm_s": 0.0, "position_mm": 0.0, "running": False},
        "valve": {"open": False},
    }
    assert reading.interlocks == {"door_closed": "closed"}


async def test_a_read_shows_only_the_resources_that_were_asked_for(conveyor: Driver) -> None:
    assert set((await conveyor.read(["valve"])).resources) == {"valve"}


async def test_states_and_outputs_fit_the_schemas_of_the_manifest(device: Any, autojump_clock: Any) -> None:
    inputs: dict[str, dict[str, Any]] = {
        STEP: {"ticks": 10},
        VALVE: {"open": True},
        PURGE: {"duration_ms": 50},
        CONVEY: {"distance_mm": 3, "speed_mm_s": 100},
        CONFIGURE: {"speed_mm_s": 250},
        DOOR: {"closed": True},
        FAULT: {"kind": "busy", "times": 1},
    }
    for capability_id, given in inputs.items():
        binding = device.manifest.bindings_of(capability_id)[0]
        assert binding.input.errors(given) == []
        outcome = await device.driver.invoke(call(capability_id, **given))
        assert binding.capability.output.errors(dict(outcome.output)) == []
    reading = await device.driver.read(RESOURCES)
    for resource in device.manifest.resources.values():
        shown = dict(reading.resources[resource.resource_id])
        assert compile_schema(resource.state_schema).errors(shown) == []


async def test_a_step_advances_the_tick_and_nothing_else_and_names_the_state_that_was_reached(
    conveyor: Driver,
) -> None:
    before = await state(conveyor)
    outcome = await conveyor.invoke(call(STEP, ticks=77))
    after = await state(conveyor)
    assert after == {**before, "world": {**before["world"], "tick": 77}}
    assert outcome.output == {"tick": 77, "state_hash": device_state_hash(after, {})}


async def test_the_same_commands_give_the_same_state(autojump_clock: Any) -> None:
    hashes = set()
    for _ in range(2):
        driver = load_target("conveyor-workcell", backend="fake", options={}).driver
        for given in (
            (STEP, {"ticks": 5}),
            (CONVEY, {"distance_mm": 33.3, "speed_mm_s": 77}),
            (STEP, {"ticks": 1}),
        ):
            outcome = await driver.invoke(call(given[0], **given[1]))
        hashes.add(outcome.output["state_hash"])
    assert len(hashes) == 1


async def test_convey_ends_at_exactly_the_distance_and_takes_its_time(
    conveyor: Driver, autojump_clock: Any
) -> None:
    began = trio.current_time()
    outcome = await conveyor.invoke(call(CONVEY, distance_mm=333.3, speed_mm_s=100))
    assert trio.current_time() - began == pytest.approx(3.333)
    assert outcome.output == {"position_mm": 333.3}
    second = await conveyor.invoke(call(CONVEY, distance_mm=1, speed_mm_s=7))
    assert second.output == {"position_mm": 334.3}
    assert (await state(conveyor))["belt"] == {"speed_mm_s": 0.0, "position_mm": 334.3, "running": False}
    assert not conveyor.telemetry_flows("belt")


async def test_convey_reports_progress_that_never_falls_and_ends_at_100(
    conveyor: Driver, autojump_clock: Any
) -> None:
    progress = Log()
    await conveyor.invoke(call(CONVEY, progress, distance_mm=100, speed_mm_s=90))
    percents = [percent for percent, _, _ in progress]
    assert percents == sorted(percents)
    assert len(percents) == 56
    assert progress[-1] == (100.0, 1111, "100 of 100 mm")


async def test_the_belt_runs_while_it_conveys_and_keeps_its_configured_speed(
    conveyor: Driver, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    assert (await conveyor.invoke(call(CONFIGURE, speed_mm_s=400))).output == {"applied": {"speed_mm_s": 400}}
    nursery.start_soon(conveyor.invoke, call(CONVEY, distance_mm=100, speed_mm_s=50))
    await trio.sleep(1.01)
    assert (await state(conveyor))["belt"] == {"speed_mm_s": 400, "position_mm": 50.0, "running": True}
    assert conveyor.telemetry_flows("belt")


async def test_a_cancelled_convey_stands_at_the_last_step_it_reached(
    conveyor: Driver, autojump_clock: Any
) -> None:
    with trio.move_on_after(1.01) as scope:
        await conveyor.invoke(call(CONVEY, distance_mm=1000, speed_mm_s=100))
    assert scope.cancelled_caught
    stood = await state(conveyor)
    assert stood["belt"] == {"speed_mm_s": 0.0, "position_mm": 100.0, "running": False}
    await trio.sleep(5)
    assert await state(conveyor) == stood


async def test_a_second_motion_is_refused_as_busy(
    conveyor: Driver, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    nursery.start_soon(conveyor.invoke, call(CONVEY, distance_mm=100, speed_mm_s=100))
    await trio.sleep(0.1)
    with pytest.raises(Busy):
        await conveyor.invoke(call(PURGE, duration_ms=100))


async def test_a_valve_opens_and_closes(conveyor: Driver) -> None:
    for position in (True, False):
        assert (await conveyor.invoke(call(VALVE, open=position))).output == {"open": position}
        assert (await state(conveyor))["valve"] == {"open": position}


async def test_a_purge_holds_the_valve_open_for_its_time_and_closes_it(
    conveyor: Driver, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    progress = Log()
    outcomes: list[Any] = []

    async def purge() -> None:
        outcomes.append(await conveyor.invoke(call(PURGE, progress, duration_ms=1005)))
        outcomes.append(trio.current_time())

    began = trio.current_time()
    nursery.start_soon(purge)
    await trio.sleep(1.0)
    assert (await state(conveyor))["valve"] == {"open": True}
    await trio.sleep(1.0)
    assert outcomes[0].output == {"open": False, "duration_ms": 1005}
    assert outcomes[1] - began == pytest.approx(1.005)
    assert (await state(conveyor))["valve"] == {"open": False}
    assert progress[-1] == (100.0, 1005, "1005 of 1005 ms")


async def test_a_cancelled_purge_closes_the_valve(conveyor: Driver, autojump_clock: Any) -> None:
    with trio.move_on_after(0.5):
        await conveyor.invoke(call(PURGE, duration_ms=5000))
    assert (await state(conveyor))["valve"] == {"open": False}


MOTIONS = {CONVEY: {"distance_mm": 1000, "speed_mm_s": 100}, PURGE: {"duration_ms": 9000}}


async def end_of(conveyor: Driver, capability_id: str, ends: list[BaseException]) -> None:
    try:
        await conveyor.invoke(call(capability_id, **MOTIONS[capability_id]))
    except (DriverFailed, Cancelled) as end:
        ends.append(end)


@pytest.mark.parametrize("capability_id", MOTIONS)
async def test_opening_the_door_ends_a_motion_at_once_as_an_open_interlock(
    conveyor: Driver, nursery: trio.Nursery, autojump_clock: Any, capability_id: str
) -> None:
    ends: list[BaseException] = []
    nursery.start_soon(end_of, conveyor, capability_id, ends)
    await trio.sleep(0.5)
    assert (await conveyor.invoke(call(DOOR, closed=False))).output == {"closed": False}
    # Before any other task has run, everything stands still.
    reading = await conveyor.read(RESOURCES)
    assert reading.interlocks == {"door_closed": "open"}
    assert reading.resources["world"]["door"] == "open"
    assert not reading.resources["belt"]["running"]
    assert not reading.resources["valve"]["open"]
    await trio.sleep(1)
    assert isinstance(ends[0], DriverFailed)
    assert ends[0].mhs_code == "MHS.SAFETY.INTERLOCK_OPEN"
    assert (await conveyor.read(RESOURCES)).resources == reading.resources


async def test_closing_the_door_again_lets_the_ended_motion_stay_ended(
    conveyor: Driver, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    ends: list[BaseException] = []
    nursery.start_soon(end_of, conveyor, CONVEY, ends)
    await trio.sleep(0.5)
    await conveyor.invoke(call(DOOR, closed=False))
    await conveyor.invoke(call(DOOR, closed=True))
    await trio.sleep(1)
    assert isinstance(ends[0], DriverFailed)
    assert (await state(conveyor))["belt"]["position_mm"] < 60


@pytest.mark.parametrize("capability_id", [*MOTIONS, VALVE])
async def test_nothing_moves_behind_an_open_door(conveyor: Driver, capability_id: str) -> None:
    await conveyor.invoke(call(DOOR, closed=False))
    before = await state(conveyor)
    with pytest.raises(DriverFailed) as caught:
        await conveyor.invoke(call(capability_id, **MOTIONS.get(capability_id, {"open": True})))
    assert caught.value.mhs_code == "MHS.SAFETY.INTERLOCK_OPEN"
    assert await state(conveyor) == before


@pytest.mark.parametrize("capability_id", MOTIONS)
async def test_a_stop_in_a_motion_stands_still_before_it_returns_and_ends_it_as_cancelled(
    conveyor: Driver, nursery: trio.Nursery, autojump_clock: Any, capability_id: str
) -> None:
    ends: list[BaseException] = []
    nursery.start_soon(end_of, conveyor, capability_id, ends)
    await trio.sleep(0.5)
    assert await conveyor.estop("test") is True
    stopped = await state(conveyor)
    assert stopped["world"]["estop"] == "engaged"
    assert not stopped["belt"]["running"]
    assert not stopped["valve"]["open"]
    await trio.sleep(2)
    assert isinstance(ends[0], Cancelled)
    assert await state(conveyor) == stopped


@pytest.mark.parametrize("_", range(8))  # Which of the two tasks runs first is chance.
async def test_a_stop_at_the_very_instant_of_a_step_moves_nothing_afterwards(
    conveyor: Driver, nursery: trio.Nursery, autojump_clock: Any, _: int
) -> None:
    """The motion's task may be woken already when the stop runs, at the same instant of the clock."""
    positions: list[float] = []

    async def stop_at(at_s: float) -> None:
        await trio.sleep_until(began + at_s)
        await conveyor.halt("test")
        positions.append((await state(conveyor))["belt"]["position_mm"])

    began = trio.current_time()
    ends: list[BaseException] = []
    nursery.start_soon(end_of, conveyor, CONVEY, ends)
    nursery.start_soon(stop_at, 0.5)
    await trio.sleep(2)
    assert isinstance(ends[0], Cancelled)
    assert (await state(conveyor))["belt"]["position_mm"] == positions[0]


async def test_the_safe_state_closes_a_valve_that_was_left_open(conveyor: Driver) -> None:
    await conveyor.invoke(call(VALVE, open=True))
    assert await conveyor.halt("test") is True
    after = await state(conveyor)
    assert after["valve"] == {"open": False}
    assert after["world"]["estop"] == "released"


async def test_a_reset_releases_the_stop_and_moves_nothing(conveyor: Driver, autojump_clock: Any) -> None:
    await conveyor.estop("test")
    with pytest.raises(DriverFailed) as caught:
        await conveyor.invoke(call(CONVEY, distance_mm=1, speed_mm_s=1))
    assert caught.value.mhs_code == "MHS.SAFETY.ESTOP_LATCHED"
    before = await state(conveyor)
    await conveyor.reset()
    assert await state(conveyor) == {**before, "world": {**before["world"], "estop": "released"}}
    assert (await conveyor.invoke(call(CONVEY, distance_mm=1, speed_mm_s=10))).output == {"position_mm": 1.0}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("busy", Busy), ("fail", DriverFailed), ("outcome_unknown", OutcomeUnknown), ("raise", RuntimeError)],
)
async def test_a_fault_ends_the_next_calls_without_an_effect_and_is_then_spent(
    conveyor: Driver, kind: str, expected: type[Exception]
) -> None:
    answer = await conveyor.invoke(call(FAULT, kind=kind, times=2))
    assert answer.output == {"kind": kind, "times": 2}
    before = await state(conveyor)
    for _ in range(2):
        with pytest.raises(expected):
            await conveyor.invoke(call(STEP, ticks=1))
    assert await state(conveyor) == before
    assert (await conveyor.invoke(call(STEP, ticks=1))).output["tick"] == 1


async def test_a_failing_fault_has_its_native_code_and_a_busy_one_its_retry_time(conveyor: Driver) -> None:
    await conveyor.invoke(call(FAULT, kind="fail", times=1))
    with pytest.raises(DriverFailed) as failed:
        await conveyor.invoke(call(STEP, ticks=1))
    assert (failed.value.mhs_code, failed.value.native_code) == ("MHS.DEVICE.FAULT", "SIM_FAULT")
    await conveyor.invoke(call(FAULT, kind="busy", times=1))
    with pytest.raises(Busy) as busy:
        await conveyor.invoke(call(STEP, ticks=1))
    assert busy.value.retry_after_ms > 0


async def test_a_malformed_output_breaks_the_schema_and_the_effect_has_happened(device: Any) -> None:
    await device.driver.invoke(call(FAULT, kind="bad_output", times=1))
    outcome = await device.driver.invoke(call(STEP, ticks=3))
    step = device.manifest.bindings_of(STEP)[0]
    assert step.capability.output.errors(dict(outcome.output)) != []
    assert (await state(device.driver))["world"]["tick"] == 3


async def test_a_hanging_call_ends_by_a_stop_and_by_a_cancellation(
    conveyor: Driver, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    await conveyor.invoke(call(FAULT, kind="hang", times=2))
    ends: list[BaseException] = []
    nursery.start_soon(end_of, conveyor, CONVEY, ends)
    await trio.sleep(3600)
    assert ends == []
    assert await conveyor.halt("test") is True
    await trio.testing.wait_all_tasks_blocked()
    assert isinstance(ends[0], Cancelled)
    with trio.move_on_after(60) as scope:
        await conveyor.invoke(call(STEP, ticks=1))
    assert scope.cancelled_caught
    assert (await conveyor.invoke(call(STEP, ticks=1))).output["tick"] == 1


async def test_a_fault_counts_neither_reads_nor_simulation_controls_and_a_new_one_replaces_it(
    conveyor: Driver,
) -> None:
    await conveyor.invoke(call(FAULT, kind="fail", times=100))
    await conveyor.invoke(call(FAULT, kind="busy", times=1))
    await conveyor.invoke(call(DOOR, closed=True))
    await state(conveyor)
    with pytest.raises(Busy):
        await conveyor.invoke(call(STEP, ticks=1))
    assert (await conveyor.invoke(call(STEP, ticks=1))).output["tick"] == 1


# Restoring.


async def test_a_restored_cell_goes_on_as_the_former_one_did(conveyor: Driver, autojump_clock: Any) -> None:
    """[PROTO-035]"""
    await conveyor.invoke(call(STEP, ticks=5))
    await conveyor.invoke(call(CONVEY, distance_mm=12.5, speed_mm_s=100))
    await conveyor.invoke(call(CONFIGURE, speed_mm_s=250))
    taken = await state(conveyor)
    await conveyor.invoke(call(STEP, ticks=5))
    await conveyor.invoke(call(VALVE, open=True))
    await conveyor.invoke(call(CONVEY, distance_mm=1, speed_mm_s=100))
    await conveyor.invoke(call(DOOR, closed=False))
    await conveyor.restore(taken)
    assert await state(conveyor) == taken
    assert (await conveyor.read([])).interlocks == {"door_closed": "closed"}
    await conveyor.invoke(call(STEP, ticks=1))
    await conveyor.invoke(call(CONVEY, distance_mm=1, speed_mm_s=100))
    after = await state(conveyor)
    assert (after["world"]["tick"], after["belt"]["position_mm"]) == (6, 13.5)


async def test_a_motion_is_not_restored(conveyor: Driver) -> None:
    """[PROTO-035]"""
    taken = await state(conveyor)
    await conveyor.restore({**taken, "belt": {**taken["belt"], "running": True}})
    assert await state(conveyor) == taken


async def test_a_restored_emergency_stop_is_the_cell_s_own(conveyor: Driver) -> None:
    """[PROTO-035]"""
    await conveyor.estop("test")
    engaged = await state(conveyor)
    await conveyor.reset()
    await conveyor.restore(engaged)
    with pytest.raises(DriverFailed) as failed:
        await conveyor.invoke(call(VALVE, open=True))
    assert failed.value.mhs_code == "MHS.SAFETY.ESTOP_LATCHED"
