"""The real driver on an instrument server that is not ours: sinstruments-server, a process of its own."""

import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from mhsd.driver import Call, Cancelled, Driver, DriverFailed
from mhsd.driver.loader import load_target

INSTRUMENTS = Path(__file__).parent / "instruments"
SERVER = Path(sys.executable).with_name("sinstruments-server")
PATIENCE_S = 30


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Control:
    """The test's own connection to the instrument."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def ask(self, *lines: str) -> str:
        """Send the lines; the last is a query, and its reply is returned."""
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            await stream.send_all("".join(f"{line}\n" for line in lines).encode())
            reply = b""
            while not reply.endswith(b"\n"):
                reply += await stream.receive_some()
            return reply.decode().strip()

    async def log(self, *lines: str) -> list[str]:
        return (await self.ask(*lines, "SIM:LOG?")).split(";")


async def ready(port: int) -> None:
    while True:
        try:
            await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
        except OSError:
            await trio.sleep(0.05)
        else:
            return


@pytest.fixture
async def instrument(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Control]:
    port = free_port()
    transport = {"type": "tcp", "url": ["127.0.0.1", port]}
    device = {"name": "psu", "package": "sin_psu", "class": "ErrorQueuePsu", "transports": [transport]}
    config = tmp_path / "instruments.json"
    config.write_text(json.dumps({"devices": [device]}))
    process = await trio.lowlevel.open_process(
        [str(SERVER), "-c", str(config)], env={**os.environ, "PYTHONPATH": str(INSTRUMENTS)}
    )
    try:
        with trio.fail_after(PATIENCE_S):
            await ready(port)
        yield Control(port)
    finally:
        process.terminate()
        with trio.CancelScope(shield=True), trio.move_on_after(PATIENCE_S):
            await process.wait()


@pytest.fixture
async def psu(instrument: Control, nursery: trio.Nursery) -> Driver:
    options = {"link": f"tcp://127.0.0.1:{instrument.port}", "idn": "EXAMPLE,BENCH-30-5,", "timeout_s": 20}
    device = load_target("scpi-psu", backend="hardware", options=options)
    with trio.fail_after(PATIENCE_S):
        await device.driver.open(nursery)
    return device.driver


def call(capability_id: str, **given: Any) -> Call:
    return Call(capability_id, "output", given, "01J8ZQ3V6Y7M2N4P6R8S0T2V4Y", 60000, lambda *_, **__: None)


async def state(psu: Driver) -> Any:
    return (await psu.read(["output"])).resources["output"]


async def test_a_voltage_inside_the_limits_is_set_and_read_back_and_the_output_switched(psu: Driver) -> None:
    outcome = await psu.invoke(call("cap.device.configure.v1", voltage_v=4.5, current_a=2))
    assert outcome.output == {"applied": {"voltage_v": 4.5, "current_a": 2.0}}
    assert (await psu.invoke(call("cap.electrical.output.v1", enabled=True))).output == {"enabled": True}
    assert await state(psu) == {
        "voltage_v": 4.5,
        "current_a": 2.0,
        "enabled": True,
        "measured_v": 4.5,
        "measured_v_quality": "good",
        "measured_a": 0.45,
        "measured_a_quality": "good",
    }


async def test_what_the_instrument_refuses_is_failed_with_its_code_and_nothing_changes(psu: Driver) -> None:
    await psu.invoke(call("cap.device.configure.v1", voltage_v=4.5))
    with pytest.raises(DriverFailed) as caught:
        await psu.invoke(call("cap.device.configure.v1", voltage_v=31))
    assert (caught.value.mhs_code, caught.value.native_code) == ("MHS.DEVICE.FAULT", "-222")
    assert (await state(psu))["voltage_v"] == 4.5


async def test_an_error_from_before_the_connection_blames_no_command(psu: Driver) -> None:
    assert (await psu.invoke(call("cap.electrical.output.v1", enabled=False))).output == {"enabled": False}


async def test_a_stop_does_not_wait_behind_a_query_that_hangs(
    psu: Driver, instrument: Control, nursery: trio.Nursery
) -> None:
    await psu.invoke(call("cap.device.configure.v1", voltage_v=20))
    await psu.invoke(call("cap.electrical.output.v1", enabled=True))
    ended = trio.Event()

    async def sample() -> None:
        with pytest.raises(Cancelled):
            await psu.invoke(call("cap.measure.sample.v1"))
        ended.set()

    with trio.fail_after(PATIENCE_S):
        await instrument.log("SIM:HOLD")
        nursery.start_soon(sample)
        assert await instrument.ask("SIM:WAITING?") == "1"
        assert await psu.estop("test") is True
        # The meter still waits: what counts is the order of events, and the clock has no part in it.
        log = await instrument.log()
        assert log[-3:] == ["meter waits", "OUTP OFF", "VOLT 0"]
        await ended.wait()
        await instrument.log("SIM:RELEASE")
        shown = await state(psu)
    assert (shown["enabled"], shown["voltage_v"], shown["measured_v"]) == (False, 0.0, 0.0)


async def test_a_ramp_arrives(psu: Driver) -> None:
    outcome = await psu.invoke(call("cap.electrical.ramp.v1", to_v=1.5, rate_v_s=10))
    assert outcome.output == {"voltage_v": 1.5}
