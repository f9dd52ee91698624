"""The real driver on the labwire simulator's supply, which answers every command and has its own physics.

The simulator needs Python 3.12 or newer, so it runs in whatever interpreter has it: the one that
MHSD_LABWIRE_PYTHON names, else the one of the tests, else python3.13 or python3.12 on the PATH.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import trio

from mhsd.driver import Call, Driver, DriverFailed
from mhsd.driver.loader import load_target

SCRIPT = Path(__file__).parent / "instruments" / "labwire_psu.py"
PATIENCE_S = 30


@cache
def interpreter() -> str | None:
    """A Python that can import the simulator."""
    named = os.environ.get("MHSD_LABWIRE_PYTHON")
    for name in [named] if named else [sys.executable, "python3.13", "python3.12"]:
        found = shutil.which(name)
        if found and subprocess.run([found, "-c", "import labwire.sim"], capture_output=True).returncode == 0:
            return found
    return None


@pytest.fixture
def python() -> str:
    found = interpreter()
    if found is None:
        pytest.skip("no Python 3.12 or newer with labwire-sim is at hand (MHSD_LABWIRE_PYTHON names one)")
    return found


@pytest.fixture
async def psu(python: str, nursery: trio.Nursery) -> AsyncIterator[Driver]:
    process = await trio.lowlevel.open_process(
        [python, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = b""
        with trio.fail_after(PATIENCE_S):
            while not line.endswith(b"\n"):
                line += await process.stdout.receive_some()
            options = {
                "link": f"tcp://127.0.0.1:{int(line)}",
                "idn": "Labwire Project,SimPSU-",
                "confirm": "reply",
            }
            device = load_target("scpi-psu", backend="hardware", options=options)
            await device.driver.open(nursery)
        yield device.driver
    finally:
        process.terminate()
        with trio.CancelScope(shield=True), trio.move_on_after(PATIENCE_S):
            await process.wait()


def call(capability_id: str, **given: Any) -> Call:
    return Call(capability_id, "output", given, "01J8ZQ3V6Y7M2N4P6R8S0T2V4Y", 60000, lambda *_, **__: None)


async def state(psu: Driver) -> Any:
    return (await psu.read(["output"])).resources["output"]


async def test_it_sets_reads_back_and_switches(psu: Driver) -> None:
    outcome = await psu.invoke(call("cap.device.configure.v1", voltage_v=5.5, current_a=1.5))
    assert outcome.output == {"applied": {"voltage_v": 5.5, "current_a": 1.5}}
    assert (await psu.invoke(call("cap.electrical.output.v1", enabled=True))).output == {"enabled": True}
    shown = await state(psu)
    assert (shown["voltage_v"], shown["enabled"], shown["measured_v_quality"]) == (5.5, True, "good")


async def test_what_the_supply_refuses_is_failed_in_its_own_words(psu: Driver) -> None:
    with pytest.raises(DriverFailed, match="ERR voltage out of range"):
        await psu.invoke(call("cap.device.configure.v1", voltage_v=31))
    assert (await state(psu))["voltage_v"] == 0.0


async def test_a_stop_leaves_it_off_at_0_v(psu: Driver) -> None:
    await psu.invoke(call("cap.device.configure.v1", voltage_v=5.5))
    await psu.invoke(call("cap.electrical.output.v1", enabled=True))
    assert await psu.estop("test") is True
    shown = await state(psu)
    assert (shown["enabled"], shown["voltage_v"], shown["measured_v"]) == (False, 0.0, 0.0)
