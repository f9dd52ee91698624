"""The recorded chamber: what it plays is what was recorded, and nothing in it can be changed."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import trio

from mhsd.driver import Call, Driver, DriverFailed, resource_state_hash
from mhsd.driver.loader import load_target
from mhsd.wire.schema import compile_schema

RECORDING = json.loads((Path(__file__).parent.parent / "recording.json").read_text(encoding="utf-8"))
FRAMES = RECORDING["frames"]
REVISIONS = [frame["revision"] for frame in FRAMES]


@pytest.fixture
def device() -> Any:
    return load_target("replay-thermal", backend="fake", options={})


@pytest.fixture
async def replay(device: Any, nursery: trio.Nursery) -> Driver:
    driver: Driver = device.driver
    await driver.open(nursery)
    return driver


def test_the_recording_has_at_least_20_revisions_in_their_order() -> None:
    """[PROTO-035a]"""
    assert len(REVISIONS) >= 20
    assert sorted(set(REVISIONS)) == REVISIONS


async def test_the_recording_is_what_the_chamber_does(device: Any, autojump_clock: Any) -> None:
    """Whoever changes the chamber makes the recording anew with record.py."""
    record = importlib.import_module(type(device.driver).__module__.replace(".driver", ".record"))
    assert await record.record() == RECORDING


async def test_every_recorded_revision_plays_its_own_frame(device: Any, replay: Driver) -> None:
    """[PROTO-035a, PROTO-024]"""
    resource = device.manifest.resources["chamber"]
    schema = compile_schema(resource.state_schema)
    assert list(replay.recorded_revisions()) == REVISIONS
    for frame in FRAMES:
        reading = await replay.read_recorded(frame["revision"], ["chamber"])
        state = dict(reading.resources["chamber"])
        assert state == frame["resources"]["chamber"]
        assert reading.sampled_at == frame["sampled_at"]
        assert schema.errors(state) == []
        recorded_hash = frame["state_hashes"]["chamber"]
        assert recorded_hash == resource_state_hash(state, resource.hash_exclusions)


async def test_by_itself_it_shows_the_newest_frame(replay: Driver) -> None:
    """[PROTO-024]"""
    reading = await replay.read(["chamber"])
    assert reading.resources == FRAMES[-1]["resources"]
    assert reading.sampled_at == FRAMES[-1]["sampled_at"]


async def test_only_what_was_asked_for_is_played(replay: Driver) -> None:
    """[PROTO-024]"""
    assert (await replay.read_recorded(REVISIONS[0], [])).resources == {}


async def test_a_frame_that_was_changed_afterwards_is_not_played(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[PROTO-012]"""
    changed = json.loads(json.dumps(RECORDING))
    changed["frames"][3]["resources"]["chamber"]["setpoint_cel"] += 1
    file = tmp_path / "recording.json"
    file.write_text(json.dumps(changed))
    monkeypatch.setattr(importlib.import_module(type(device.driver).__module__), "RECORDING", file)
    async with trio.open_nursery() as nursery:
        with pytest.raises(DriverFailed, match=str(REVISIONS[3])):
            await device.driver.open(nursery)


@pytest.mark.parametrize("capability_id", ["cap.device.configure.v1", "cap.thermal.ramp.v1"])
async def test_what_is_bound_is_bound_only_to_be_refused(replay: Driver, capability_id: str) -> None:
    """[PROTO-035a]"""
    with pytest.raises(DriverFailed) as failed:
        await replay.invoke(Call(capability_id, "chamber", {}, "", None, lambda: None))
    assert failed.value.mhs_code == "MHS.MODE.READ_ONLY"


def test_resource_and_bindings_are_those_of_the_chamber(device: Any) -> None:
    chamber = load_target("thermal-chamber", backend="fake", options={}).manifest
    ours, theirs = device.manifest.resources["chamber"], chamber.resources["chamber"]
    assert (ours.state_schema, ours.hash_exclusions) == (theirs.state_schema, theirs.hash_exclusions)
    for binding in device.manifest.bindings:
        twin = chamber.binding(binding.capability_id, binding.resource)
        assert twin is not None
        assert (binding.input_schema, binding.limits) == (twin.input_schema, twin.limits)
    assert (device.manifest.mode, device.manifest.risk_class) == ("replay", "R0")


async def test_its_stop_has_nothing_to_do(replay: Driver) -> None:
    assert await replay.halt("test") is True
