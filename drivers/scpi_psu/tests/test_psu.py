"""The bench supply's driver on its twin: in process, and over TCP with every kind of trouble."""

from typing import Any

import pytest
import trio
import trio.testing

from mhsd.driver import Call, Cancelled, Driver, DriverFailed, LinkDown, OutcomeUnknown
from mhsd.driver.loader import load_target
from mhsd.wire.schema import compile_schema

CONFIGURE = "cap.device.configure.v1"
OUTPUT = "cap.electrical.output.v1"
RAMP = "cap.electrical.ramp.v1"
SAMPLE = "cap.measure.sample.v1"


class Log(list[float | None]):
    def __call__(
        self, percent: float | None = None, ticks: int | None = None, message: str | None = None
    ) -> None:
        self.append(percent)


def call(capability_id: str, progress: Any = None, **given: Any) -> Call:
    log = Log() if progress is None else progress
    return Call(capability_id, "output", given, "01J8ZQ3V6Y7M2N4P6R8S0T2V4Y", 600000, log)


async def asked(supply: Any, line: str) -> None:
    """Returns when the supply has received the line on its first connection."""
    with trio.fail_after(30):
        while (1, line) not in supply.seen:
            await trio.testing.wait_all_tasks_blocked(0.001)


async def state(driver: Driver) -> Any:
    return (await driver.read(["output"])).resources["output"]


@pytest.fixture
async def fake(nursery: trio.Nursery) -> Any:
    device = load_target("scpi-psu", backend="fake", options={})
    await device.driver.open(nursery)
    return device


# --- in process, on the twin ----------------------------------------------------------------------


async def test_it_starts_off_at_0_v_and_its_state_fits_the_schema(fake: Any) -> None:
    shown = await state(fake.driver)
    assert shown == {
        "voltage_v": 0.0,
        "current_a": 1.0,
        "enabled": False,
        "measured_v": 0.0,
        "measured_v_quality": "good",
        "measured_a": 0.0,
        "measured_a_quality": "good",
    }
    assert compile_schema(fake.manifest.resources["output"].state_schema).errors(shown) == []


async def test_every_output_fits_its_class(fake: Any, autojump_clock: Any) -> None:
    commands: tuple[tuple[str, dict[str, Any]], ...] = (
        (CONFIGURE, {"voltage_v": 5, "current_a": 2}),
        (OUTPUT, {"enabled": True}),
        (RAMP, {"to_v": 6, "rate_v_s": 10}),
        (SAMPLE, {}),
    )
    for capability_id, given in commands:
        binding = fake.manifest.binding(capability_id, "output")
        assert binding.input.errors(given) == []
        outcome = await fake.driver.invoke(call(capability_id, **given))
        assert binding.capability.output.errors(dict(outcome.output)) == []
    fake.driver.twin.fault = "overload"
    outcome = await fake.driver.invoke(call(SAMPLE))
    assert fake.manifest.binding(SAMPLE, "output").capability.output.errors(dict(outcome.output)) == []


async def test_what_is_configured_is_read_back_and_the_current_limit_is_set_first(fake: Any) -> None:
    outcome = await fake.driver.invoke(call(CONFIGURE, voltage_v=12.5, current_a=0.5))
    assert list(outcome.output["applied"].items()) == [("current_a", 0.5), ("voltage_v", 12.5)]
    shown = await state(fake.driver)
    assert (shown["voltage_v"], shown["current_a"]) == (12.5, 0.5)


async def test_a_sample_of_an_enabled_output_is_what_the_load_draws(fake: Any) -> None:
    await fake.driver.invoke(call(CONFIGURE, voltage_v=5))
    await fake.driver.invoke(call(OUTPUT, enabled=True))
    assert (await fake.driver.invoke(call(SAMPLE))).output == {"voltage_v": 5.0, "current_a": 0.5}


async def test_an_overloaded_meter_is_null_with_its_quality_in_state_and_sample(fake: Any) -> None:
    fake.driver.twin.fault = "overload"
    shown = await state(fake.driver)
    assert (shown["measured_v"], shown["measured_v_quality"]) == (None, "overrange")
    assert (shown["measured_a"], shown["measured_a_quality"]) == (None, "overrange")
    assert compile_schema(fake.manifest.resources["output"].state_schema).errors(shown) == []
    assert (await fake.driver.invoke(call(SAMPLE))).output == {
        "voltage_v": None,
        "voltage_v_quality": "overrange",
        "current_a": None,
        "current_a_quality": "overrange",
    }


def test_what_is_measured_moves_no_revision() -> None:
    manifest = load_target("scpi-psu", backend="fake", options={}).manifest
    resource = manifest.resources["output"]
    moving = {f"/{name}" for name in resource.state_schema["properties"] if name.startswith("measured_")}
    assert set(resource.hash_exclusions) == moving


async def test_a_ramp_goes_in_steps_of_50_ms_not_faster_than_its_rate(fake: Any, autojump_clock: Any) -> None:
    await fake.driver.invoke(call(CONFIGURE, voltage_v=10))
    twin, progress, began = fake.driver.twin, Log(), trio.current_time()
    seen: list[tuple[float, float]] = []

    def note(percent: float | None = None, ticks: int | None = None, message: str | None = None) -> None:
        progress(percent)
        seen.append((trio.current_time() - began, twin.voltage_v))

    outcome = await fake.driver.invoke(call(RAMP, note, to_v=8, rate_v_s=2))
    assert outcome.output == {"voltage_v": 8.0}
    assert trio.current_time() - began == pytest.approx(0.95)
    assert progress == sorted(progress)
    assert progress[-1] == 100
    assert all(10 - volts <= 2 * (at_s + 0.0501) for at_s, volts in seen)
    assert [volts for _, volts in seen] == sorted((volts for _, volts in seen), reverse=True)


async def test_a_ramp_ends_on_a_supply_that_rounds(fake: Any, autojump_clock: Any) -> None:
    fake.driver.twin.resolution_v = 0.05
    outcome = await fake.driver.invoke(call(RAMP, to_v=1, rate_v_s=0.3))
    assert outcome.output["voltage_v"] == pytest.approx(1.0)


async def test_a_ramp_to_where_it_stands_is_one_step(fake: Any) -> None:
    progress = Log()
    assert (await fake.driver.invoke(call(RAMP, progress, to_v=0, rate_v_s=1))).output == {"voltage_v": 0.0}
    assert progress == [100]


async def test_a_cancelled_ramp_sends_nothing_more(fake: Any, autojump_clock: Any) -> None:
    with trio.move_on_after(1.01) as scope:
        await fake.driver.invoke(call(RAMP, to_v=30, rate_v_s=1))
    assert scope.cancelled_caught
    stood_v = fake.driver.twin.voltage_v
    assert 0 < stood_v < 2
    await trio.sleep(10)
    assert fake.driver.twin.voltage_v == stood_v


async def test_a_stop_ends_a_ramp_and_leaves_output_off_and_0_v(
    fake: Any, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    await fake.driver.invoke(call(OUTPUT, enabled=True))
    ends: list[str] = []

    async def ramp() -> None:
        with pytest.raises(Cancelled):
            await fake.driver.invoke(call(RAMP, to_v=30, rate_v_s=1))
        ends.append("cancelled")

    nursery.start_soon(ramp)
    await trio.sleep(1)
    assert await fake.driver.estop("test") is True
    await trio.sleep(10)
    assert ends == ["cancelled"]
    assert (fake.driver.twin.enabled, fake.driver.twin.voltage_v) == (False, 0.0)


async def test_the_twin_runs_whatever_identity_the_real_supply_has_to_have(nursery: trio.Nursery) -> None:
    device = load_target("scpi-psu", backend="fake", options={"idn": "ACME,"})
    await device.driver.open(nursery)
    assert (await state(device.driver))["enabled"] is False


@pytest.mark.parametrize(
    ("line", "code"),
    [("VOLT 31", "-222"), ("CURR nan", "-222"), ("VOLT five", "-104"), ("OUTP 2", "-113"), ("DANCE", "-113")],
)
def test_the_twin_refuses_in_its_error_queue_and_changes_nothing(line: str, code: str) -> None:
    driver: Any = load_target("scpi-psu", backend="fake", options={}).driver
    twin, before = driver.twin, (driver.twin.voltage_v, driver.twin.current_a, driver.twin.enabled)
    assert twin.answer(line) is None
    assert twin.answer("SYST:ERR?").startswith(f"{code},")
    assert twin.answer("SYST:ERR?") == '0,"No error"'
    assert (twin.voltage_v, twin.current_a, twin.enabled) == before


async def test_a_stop_of_a_device_that_was_never_opened_is_not_confirmed(autojump_clock: Any) -> None:
    assert await load_target("scpi-psu", backend="fake", options={}).driver.halt("test") is False


# --- over TCP -------------------------------------------------------------------------------------


async def test_over_tcp_it_sets_reads_back_and_switches(open_supply: Any) -> None:
    supply, device = await open_supply()
    await device.driver.invoke(call(CONFIGURE, voltage_v=7.25))
    await device.driver.invoke(call(OUTPUT, enabled=True))
    shown = await state(device.driver)
    assert (shown["voltage_v"], shown["enabled"], shown["measured_v"]) == (7.25, True, 7.25)
    assert supply.connections == 1


async def test_a_refusal_is_failed_with_the_supplys_code_and_shows_what_is_really_set(
    open_supply: Any,
) -> None:
    supply, device = await open_supply()
    supply.twin.fault = "refuse"
    with pytest.raises(DriverFailed) as caught:
        await device.driver.invoke(call(CONFIGURE, voltage_v=5))
    assert caught.value.native_code == "-221"
    assert "Settings conflict" in caught.value.message
    assert (await state(device.driver))["voltage_v"] == 0.0


async def test_a_supply_that_says_nothing_and_does_nothing_is_failed_by_the_read_back(
    open_supply: Any,
) -> None:
    supply, device = await open_supply()
    supply.twin.fault = "stuck"
    with pytest.raises(DriverFailed, match="reads back 0"):
        await device.driver.invoke(call(CONFIGURE, voltage_v=5))
    with pytest.raises(DriverFailed, match="reads back False"):
        await device.driver.invoke(call(OUTPUT, enabled=True))
    assert await device.driver.halt("test") is True


async def test_a_mute_supply_leaves_a_command_unknown_and_a_stop_unconfirmed(
    open_supply: Any, clock: Any
) -> None:
    supply, device = await open_supply()
    supply.twin.fault = "mute"
    with pytest.raises(OutcomeUnknown):
        await device.driver.invoke(call(OUTPUT, enabled=True))
    with pytest.raises(LinkDown):
        await device.driver.invoke(call(OUTPUT, enabled=True))
    assert await device.driver.halt("test") is False
    assert supply.seen.count((1, "OUTP ON")) == 1


async def test_a_late_answer_is_not_taken_for_the_next(open_supply: Any, clock: Any) -> None:
    supply, device = await open_supply(timeout_s=0.3)
    await device.driver.invoke(call(CONFIGURE, voltage_v=5))
    supply.trouble["MEAS:VOLT?"] = 0.8
    with pytest.raises(OutcomeUnknown):
        await device.driver.invoke(call(SAMPLE))
    supply.trouble.clear()
    await trio.sleep(2)
    assert (await state(device.driver))["voltage_v"] == 5.0
    assert supply.lines_of(2)[0] == "*IDN?"


async def test_garbage_is_failed_as_a_measurement_and_unknown_as_a_confirmation(open_supply: Any) -> None:
    supply, device = await open_supply()
    supply.trouble["MEAS:VOLT?"] = b"\xff\x00\xb0C 21.5\n"
    with pytest.raises(DriverFailed, match="ff 00 b0"):
        await device.driver.invoke(call(SAMPLE))
    supply.trouble = {"VOLT?": b"12,5\n"}
    with pytest.raises(OutcomeUnknown):
        await device.driver.invoke(call(CONFIGURE, voltage_v=5))
    supply.trouble.clear()
    assert (await state(device.driver))["voltage_v"] == 5.0


async def test_replies_in_two_pieces_are_whole_replies(open_supply: Any, clock: Any) -> None:
    supply, device = await open_supply()
    supply.trouble = dict.fromkeys(("VOLT?", "MEAS:VOLT?", "SYST:ERR?"), "split")
    assert (await device.driver.invoke(call(CONFIGURE, voltage_v=12.5))).output == {
        "applied": {"voltage_v": 12.5}
    }


async def test_a_stop_goes_out_while_a_query_hangs_on_the_other_connection(
    open_supply: Any, nursery: trio.Nursery
) -> None:
    supply, device = await open_supply(timeout_s=60)
    await device.driver.invoke(call(CONFIGURE, voltage_v=20))
    await device.driver.invoke(call(OUTPUT, enabled=True))
    supply.trouble["MEAS:VOLT?"] = "mute"
    ended = trio.Event()

    async def sample() -> None:
        with pytest.raises(Cancelled):
            await device.driver.invoke(call(SAMPLE))
        ended.set()

    nursery.start_soon(sample)
    await asked(supply, "MEAS:VOLT?")
    assert await device.driver.estop("test") is True
    assert (supply.twin.enabled, supply.twin.voltage_v) == (False, 0.0)
    assert supply.lines_of(2)[:5] == ["*IDN?", "OUTP OFF", "OUTP?", "VOLT 0", "VOLT?"]
    with trio.fail_after(30):
        await ended.wait()


async def test_a_hanging_read_does_not_hold_the_stop_either(open_supply: Any, nursery: trio.Nursery) -> None:
    supply, device = await open_supply(timeout_s=60)
    supply.trouble["CURR?"] = "mute"
    nursery.start_soon(device.driver.read, ["output"])
    await asked(supply, "CURR?")
    assert await device.driver.halt("test") is True
    nursery.cancel_scope.cancel()


async def test_another_instrument_at_the_address_is_not_opened(open_supply: Any) -> None:
    with pytest.raises(LinkDown, match="identifies as 'mhsd,PSU-1,SIM,1'"):
        await open_supply(idn="ACME,PSU-9,")


async def test_small_packets_leave_at_once(open_supply: Any) -> None:
    _, device = await open_supply()
    stream = device.driver.link._wire._stream
    assert stream.getsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY) != 0
