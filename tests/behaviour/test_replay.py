"""A replay device: every recorded revision can be read, nothing can be changed."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import UNHURRIED, Start
from tests.behaviour.safety import reset, stop
from tests.documents import digest
from tests.lab import CONVEYOR, HttpWire, Lab, Session, running, ulid

REPLAY = "mhs://localhost:7400/lab/replay-thermal"
CONFIGURE = "cap.device.configure.v1"
RAMP = "cap.thermal.ramp.v1"
WAIT = {"deadline_ms": 30_000}

_DRIVER = Path(__file__).parents[2] / "drivers" / "replay_thermal"
FRAMES = json.loads((_DRIVER / "recording.json").read_text())["frames"]
NEWEST = FRAMES[-1]["revision"]
REVISIONS = [frame["revision"] for frame in FRAMES]


@pytest.fixture(scope="session")
def shared_replay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Lab]]:
    """A daemon of each binding that serves the recording, and the conveyor beside it."""
    labs: dict[str, Lab] = {}
    with ExitStack() as stack:

        def lab_of(binding: str) -> Lab:
            if binding not in labs:
                directory = tmp_path_factory.mktemp(f"replay-{binding}")
                targets = ("replay-thermal", "conveyor-workcell")
                labs[binding] = stack.enter_context(running(binding, directory, *UNHURRIED, targets=targets))
            return labs[binding]

        yield lab_of


@pytest.fixture
def replay(binding: str, shared_replay: Callable[[str], Lab]) -> Iterator[Session]:
    session = shared_replay(binding).open(device_id=REPLAY, mode="replay")
    yield session
    session.close()


def test_an_endpoint_with_a_replay_device_can_seek_and_one_without_cannot(lab: Lab, replay: Session) -> None:
    """[PROTO-035a, PROTO-018]"""
    assert "replay.seek" in replay.lab.hello()["features"]
    assert "replay.seek" not in lab.hello()["features"]
    if isinstance(replay.lab.wire, HttpWire):
        _, _, body = replay.lab.wire.get("/.well-known/mhs.json")
        assert "replay.seek" in json.loads(body)["features"]


def test_a_replay_device_says_what_it_is(replay: Session) -> None:
    """[PROTO-024]"""
    assert replay.lab.call("mhs.devices.get", device_id=REPLAY)["mode"] == "replay"
    found = replay.lab.call("mhs.devices.list", filter={"mode": "replay"})["devices"]
    assert [device["device_id"] for device in found] == [REPLAY]
    assert replay.completed("cap.device.describe.v1", {})["mode"] == "replay"


@pytest.mark.parametrize("frame", FRAMES, ids=[str(revision) for revision in REVISIONS])
def test_a_recorded_revision_is_read_as_it_was(replay: Session, frame: Any) -> None:
    """[PROTO-035a, PROTO-024]"""
    shown = replay.read("chamber", filter={"revision": frame["revision"]})
    assert shown == {
        "revision": frame["revision"],
        "state": frame["resources"]["chamber"],
        "state_hash": frame["state_hashes"]["chamber"],
        "sampled_at": frame["sampled_at"],
    }


def test_a_read_without_a_filter_is_of_the_newest_revision_and_seeking_does_not_change_that(
    replay: Session,
) -> None:
    """[PROTO-024, PROTO-035a]"""
    before = replay.read("chamber")
    replay.read("chamber", filter={"revision": REVISIONS[0]})
    assert replay.read("chamber") == before
    assert (before["revision"], before["state"]) == (NEWEST, FRAMES[-1]["resources"]["chamber"])
    assert before["sampled_at"] == FRAMES[-1]["sampled_at"]


def test_fields_of_a_recorded_revision_can_be_chosen(replay: Session) -> None:
    """[PROTO-023, PROTO-035a]"""
    shown = replay.read("chamber", filter={"revision": REVISIONS[4]}, fields=["setpoint_cel"])
    setpoint = {"setpoint_cel": FRAMES[4]["resources"]["chamber"]["setpoint_cel"]}
    assert (shown["revision"], shown["state"]) == (REVISIONS[4], setpoint)
    assert shown["state_hash"] == digest(setpoint)


@pytest.mark.parametrize("revision", [0, 1, REVISIONS[0] - 1, NEWEST + 1, 2**53 - 1])
def test_an_unrecorded_revision_names_the_recorded_ones(replay: Session, revision: int) -> None:
    """[PROTO-035a]"""
    refused = replay.refused(
        "mhs.resource.read", resource_id="chamber", filter={"revision": revision}, **WAIT
    )
    assert (refused.error["code"], refused.code) == (-32004, "MHS.RESOURCE.UNKNOWN")
    assert refused.details["recorded_revisions"] == REVISIONS


@pytest.mark.parametrize("revision", [-1, 1.5, "101", None, True])
def test_a_revision_is_an_integer(replay: Session, revision: Any) -> None:
    """[PROTO-035a]"""
    refused = replay.refused(
        "mhs.resource.read", resource_id="chamber", filter={"revision": revision}, **WAIT
    )
    assert refused.code == "MHS.PROTOCOL.INVALID_PARAMS"


def test_nothing_can_be_driven(replay: Session) -> None:
    """[PROTO-035a, CORE-060]"""
    receipts = [
        replay.command(RAMP, {"target_cel": 30, "rate_cel_min": 1}),
        replay.command(CONFIGURE, {"setpoint_cel": 30}),
        replay.write("chamber", {"setpoint_cel": 30}),
        # The mode answers before the input is looked at.
        replay.command(RAMP, {"target_cel": 10**6}),
        replay.write("chamber", {"temperature_cel": 0}),
    ]
    for receipt in receipts:
        assert (receipt["status"], receipt["error"]["mhs_code"]) == ("rejected", "MHS.MODE.READ_ONLY")
        assert receipt["state_revision_before"] == receipt["state_revision_after"] == NEWEST
        assert "filter.revision" in receipt["error"]["remediation"]
    assert replay.read("chamber")["revision"] == NEWEST


def test_a_snapshot_is_of_the_newest_frame_and_no_restore_is_accepted(replay: Session) -> None:
    """[PROTO-034, PROTO-035a]"""
    taken = replay.call("mhs.snapshot", device_id=REPLAY, **WAIT)
    assert (taken["mode"], taken["revision"]) == ("replay", NEWEST)
    assert taken["snapshot"] == FRAMES[-1]["resources"]
    for sent in (taken, {}):
        receipt = replay.call("mhs.restore", device_id=REPLAY, snapshot=sent, command_id=ulid(), **WAIT)
        assert (receipt["status"], receipt["error"]["mhs_code"]) == ("rejected", "MHS.MODE.READ_ONLY")
        assert receipt["capability_id"] == "cap.internal.restore.v1"


def test_a_session_on_it_says_replay(replay: Session) -> None:
    """[SESS-002]"""
    refused = replay.lab.refused(
        "mhs.session.open", device_ids=[REPLAY], capabilities=[], mode="simulated", ttl_s=60
    )
    assert refused.code == "MHS.SESSION.MODE_MISMATCH"


def test_a_stop_latches_and_leaves_the_recording_as_it_is(replay: Session) -> None:
    """[SAFE-002, OP-007]"""
    receipt = stop(replay.lab, device_id=REPLAY, reason="test")
    assert (receipt["status"], receipt["mode"]) == ("completed", "replay")
    assert receipt["state_revision_before"] == receipt["state_revision_after"] == NEWEST
    assert replay.read("chamber", filter={"revision": REVISIONS[0]})["revision"] == REVISIONS[0]
    released = reset(replay, REPLAY)
    assert released["status"] == "completed"
    assert released["state_revision_after"] == NEWEST


def test_it_stands_at_the_same_revision_after_a_restart(fresh: Start, tmp_path: Path) -> None:
    """[PROTO-024]"""
    options = ("--state-dir", str(tmp_path / "state"))
    for _ in range(2):
        lab = fresh(*options, targets=("replay-thermal",))
        session = lab.open(device_id=REPLAY, mode="replay")
        assert session.command(CONFIGURE, {"setpoint_cel": 1})["state_revision_after"] == NEWEST
        assert session.read("chamber")["revision"] == NEWEST
        lab.kill()


def test_a_device_that_is_not_replayed_keeps_only_its_current_revision(replay: Session) -> None:
    """[PROTO-024]"""
    conveyor = replay.lab.open(device_id=CONVEYOR)
    conveyor.completed("cap.world.step.v1", {"ticks": 1})
    now = conveyor.revision()
    assert conveyor.read("world", filter={"revision": now})["revision"] == now
    for revision in (now - 1, now + 1):
        refused = conveyor.refused(
            "mhs.resource.read", resource_id="world", filter={"revision": revision}, **WAIT
        )
        assert (refused.code, refused.details["recorded_revisions"]) == ("MHS.RESOURCE.UNKNOWN", [now])
    conveyor.close()
