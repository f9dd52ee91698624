"""A command_id stands for one execution: replays, reuse, and what a restart leaves of it."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.behaviour.conftest import BENCH, UNHURRIED
from tests.documents import check_chain
from tests.lab import MHSD, PATIENCE_S, Lab, Session, running, ulid

STEP = "cap.world.step.v1"
CONVEY = "cap.motion.convey.v1"
FAULT = "x-cap.sim.fault.v1"
FAR = {"distance_mm": 10_000, "speed_mm_s": 100}
WAIT = {"deadline_ms": 30_000}
REUSE = "MHS.CONFLICT.COMMAND_ID_REUSE"


def test_a_replay_is_the_retained_receipt_and_executes_nothing(session: Session) -> None:
    """[OP-003]"""
    command_id = ulid()
    first = session.completed(STEP, {"ticks": 5}, command_id=command_id)
    before = session.read("world")
    for _ in range(3):
        again = session.command(STEP, {"ticks": 5}, command_id=command_id)
        assert json.dumps(again) == json.dumps({**first, "replayed": True}), "byte for byte, members in order"
    after = session.read("world")
    assert (after["revision"], after["state"]) == (before["revision"], before["state"])


def test_a_replay_asks_nothing_but_the_id(session: Session) -> None:
    """[OP-003, PROTO-036]"""
    command_id = ulid()
    first = session.completed(STEP, {"ticks": 1}, command_id=command_id)
    revision = session.revision()
    session.completed("x-cap.sim.door.v1", {"closed": False})
    again = session.command(
        STEP, {"ticks": 1}, command_id=command_id, deadline_ms=1, expected_revision=revision + 100
    )
    assert again == {**first, "replayed": True}
    session.completed("x-cap.sim.door.v1", {"closed": True})


def test_a_failed_command_replays_its_failure(session: Session) -> None:
    """[OP-003]"""
    session.completed(FAULT, {"kind": "fail", "times": 1})
    failed = session.command(STEP, {"ticks": 1})
    assert failed["status"] == "failed"
    again = session.command(STEP, {"ticks": 1}, command_id=failed["command_id"])
    assert again == {**failed, "replayed": True}


def test_a_command_id_with_another_input_is_refused(session: Session) -> None:
    """[OP-004]"""
    command_id = ulid()
    first = session.completed(STEP, {"ticks": 1}, command_id=command_id)
    before = session.read("world")
    others = [
        (STEP, {"ticks": 2}),
        ("cap.device.describe.v1", {}),
        ("cap.actuation.valve.v1", {"open": True}),
        ("cap.nobody.knows.v1", {"ticks": 1}),
    ]
    for capability_id, value in others:
        receipt = session.command(capability_id, value, command_id=command_id)
        assert (receipt["status"], receipt["error"]["mhs_code"]) == ("rejected", REUSE)
        assert receipt["error"]["retryable"] is False
        assert receipt["replayed"] is False
    after = session.read("world")
    assert (after["revision"], after["state"]) == (before["revision"], before["state"])
    assert session.command(STEP, {"ticks": 1}, command_id=command_id) == {**first, "replayed": True}


def test_a_rejected_command_does_not_reserve_its_id(session: Session) -> None:
    """[OP-001, OP-005]"""
    command_id = ulid()
    assert session.command(STEP, {"ticks": 0}, command_id=command_id)["status"] == "rejected"
    done = session.completed(STEP, {"ticks": 1}, command_id=command_id)
    assert done["replayed"] is False


def test_a_replay_of_what_still_runs_is_its_current_state(session: Session) -> None:
    """[OP-003, OP-010]"""
    _, running = session.started(CONVEY, FAR)
    again = session.command(CONVEY, FAR, command_id=running["command_id"])
    assert (again["status"], again["replayed"]) == ("running", True)
    assert again["operation_id"] == running["operation_id"]
    reused = session.command(CONVEY, {**FAR, "distance_mm": 1}, command_id=running["command_id"])
    assert reused["error"]["mhs_code"] == REUSE
    final = session.cancel(running["operation_id"])
    assert session.command(CONVEY, FAR, command_id=running["command_id"]) == {**final, "replayed": True}


def test_the_same_command_sent_many_times_at_once_runs_once(session: Session) -> None:
    """[OP-001, OP-003]"""
    before = session.read("world")
    command_id = ulid()
    receipts = [
        each.result()
        for each in [session.begin(STEP, {"ticks": 1}, command_id=command_id) for _ in range(20)]
    ]
    final = [receipt for receipt in receipts if not receipt["replayed"]]
    assert len(final) == 1
    assert len({receipt["receipt_id"] for receipt in receipts}) == 1
    # What came while it ran got the running snapshot; what came later the receipt.
    assert {receipt["status"] for receipt in receipts} <= {"running", "completed"}
    after = session.read("world")
    assert after["state"]["tick"] == before["state"]["tick"] + 1
    assert after["revision"] == before["revision"] + 1


def test_a_queued_command_that_is_sent_again_is_one_command(shared: Callable[[str], Lab]) -> None:
    """[OP-001, OP-003]"""
    lab = shared("stdio")
    session = lab.open()
    session.completed(FAULT, {"kind": "hang", "times": 1})
    held, running_ = session.started(STEP, {"ticks": 1})
    before = session.read("world")["state"]["tick"]
    command_id = ulid()
    first = session.begin(STEP, {"ticks": 7}, command_id=command_id)
    second = session.begin(STEP, {"ticks": 7}, command_id=command_id)
    other = session.command(STEP, {"ticks": 8}, command_id=command_id)
    assert other["error"]["mhs_code"] == REUSE, "the id is taken from the moment it came in"
    session.cancel(running_["operation_id"])
    assert held.result()["status"] == "cancelled"
    receipt, again = first.result(), second.result()
    assert receipt["status"] == "completed"
    assert (again["receipt_id"], again["replayed"]) == (receipt["receipt_id"], True)
    assert session.read("world")["state"]["tick"] == before + 7
    session.close()


def test_the_id_outlives_its_session(lab: Lab) -> None:
    """[OP-006]"""
    session = lab.open()
    receipt = session.completed(STEP, {"ticks": 1})
    session.close()
    other = lab.open()
    again = other.command(STEP, {"ticks": 1}, command_id=receipt["command_id"])
    assert again == {**receipt, "replayed": True}
    assert again["session_id"] == session.id
    other.close()


def test_one_id_on_two_devices_is_two_commands(pair: Lab) -> None:
    """[OP-006]"""
    command_id = ulid()
    for device_id in (pair.hello()["devices"][0]["device_id"], BENCH):
        session = pair.open(device_id=device_id)
        receipt = session.completed("cap.device.describe.v1", {}, command_id=command_id)
        assert (receipt["replayed"], receipt["device_id"]) == (False, device_id)
        session.close()


# Restarts.


Restart = Callable[[], Lab]


@pytest.fixture
def restart(binding: str, tmp_path: Path) -> Iterator[Restart]:
    """Starts a daemon on one state dir each time it is called; the one before it must have ended."""
    with ExitStack() as stack:

        def start() -> Lab:
            options = ("--state-dir", str(tmp_path / "state"), *UNHURRIED)
            return stack.enter_context(running(binding, tmp_path, *options))

        yield start


def test_what_was_finished_before_a_crash_replays_byte_for_byte(restart: Restart) -> None:
    """[OP-006, OP-001]"""
    lab = restart()
    session = lab.open()
    session.completed(FAULT, {"kind": "fail", "times": 1})
    receipts = [session.command(STEP, {"ticks": 1}), session.completed(STEP, {"ticks": 2})]
    assert [receipt["status"] for receipt in receipts] == ["failed", "completed"]
    refused = session.command(STEP, {"ticks": 0})
    instance_id = lab.hello()["devices"][0]["instance_id"]
    lab.kill()

    lab = restart()
    session = lab.open()
    for ticks, receipt in zip((1, 2), receipts, strict=True):
        again = session.command(STEP, {"ticks": ticks}, command_id=receipt["command_id"])
        assert json.dumps(again) == json.dumps({**receipt, "replayed": True})
        assert session.get(receipt["operation_id"]) == receipt
    reused = session.command(STEP, {"ticks": 3}, command_id=receipts[0]["command_id"])
    assert reused["error"]["mhs_code"] == REUSE
    world = session.read("world")
    assert world["revision"] == receipts[1]["state_revision_after"], "the revision goes on"
    assert world["state"]["tick"] == 0, "a simulated device has its initial state again"
    assert lab.hello()["devices"][0]["instance_id"] != instance_id
    stored = [receipt["receipt_id"] for receipt in lab.call("mhs.evidence.export")["receipts"]]
    assert refused["receipt_id"] in stored, "refusals are kept as long as the others"


def test_what_was_in_flight_at_a_crash_is_unknown_and_never_runs_again(restart: Restart) -> None:
    """[OP-006, OP-013, CORE-172]"""
    lab = restart()
    session = lab.open()
    done = session.completed(STEP, {"ticks": 1})
    _, in_flight = session.started(CONVEY, FAR)
    lab.kill()

    lab = restart()
    assert lab.refused("mhs.session.heartbeat", session_id=session.id).code == "MHS.SESSION.UNKNOWN"
    session = lab.open()
    receipt = session.get(in_flight["operation_id"])
    assert (receipt["status"], receipt["error"]["mhs_code"]) == ("unknown", "MHS.OUTCOME.UNKNOWN")
    assert receipt["error"]["details"]["reason"] == "endpoint_restarted"
    assert receipt["error"]["retryable"] is False
    assert receipt["receipt_id"] == in_flight["receipt_id"]
    assert receipt["session_id"] == in_flight["session_id"]
    assert session.look_up(in_flight["command_id"]) == receipt
    again = session.command(CONVEY, FAR, command_id=in_flight["command_id"])
    assert again == {**receipt, "replayed": True}
    assert session.cancel(in_flight["operation_id"]) == receipt
    belt = session.read("belt")["state"]
    assert (belt["running"], belt["position_mm"]) == (False, 0)
    # What it did is not known, so the revision counts it as a change.
    assert session.revision() == done["state_revision_after"] + 1
    assert session.completed(STEP, {"ticks": 1})["state_revision_before"] == session.revision() - 1


def test_the_chain_goes_on_after_a_crash(restart: Restart) -> None:
    """[EVID-001, OP-006]"""
    lab = restart()
    session = lab.open()
    session.completed(STEP, {"ticks": 1})
    session.started(CONVEY, FAR)
    before = lab.call("mhs.evidence.export")
    lab.kill()

    lab = restart()
    session = lab.open()
    session.completed(STEP, {"ticks": 1})
    bundle = lab.call("mhs.evidence.export")
    assert bundle["endpoint_info"]["genesis"] == before["endpoint_info"]["genesis"]
    assert bundle["receipts"][: len(before["receipts"])] == before["receipts"]
    assert [receipt["status"] for receipt in bundle["receipts"]] == ["completed", "unknown", "completed"]
    genesis_digest = bundle["endpoint_info"]["genesis_digest"]
    assert check_chain(bundle["receipts"], genesis_digest) == bundle["head_digest"]


def test_an_interim_receipt_stays_in_the_chain_after_a_crash(restart: Restart) -> None:
    """[OP-006, OP-010]"""
    lab = restart()
    session = lab.open()
    session.completed(FAULT, {"kind": "hang", "times": 1})
    interim = session.command(STEP, {"ticks": 1}, deadline_ms=1000)
    assert (interim["status"], interim["error"]["mhs_code"]) == ("unknown", "MHS.OUTCOME.TIMEOUT")
    lab.kill()

    lab = restart()
    final = lab.open().get(interim["operation_id"])
    assert final["error"]["details"]["reason"] == "endpoint_restarted"
    assert final["receipt_id"] != interim["receipt_id"]
    assert final["x-vendor"]["reconciles"] == interim["receipt_id"]
    receipts = lab.call("mhs.evidence.export")["receipts"]
    assert receipts[-2:] == [interim, final]


def test_without_a_state_dir_nothing_is_left_behind(binding: str, tmp_path: Path) -> None:
    """[OP-006]"""
    command_id = ulid()
    seen = []
    for _ in range(2):
        with running(binding, tmp_path, *UNHURRIED) as lab:
            receipt = lab.open().completed(STEP, {"ticks": 1}, command_id=command_id)
            seen.append((receipt["replayed"], receipt["state_revision_before"]))
    assert seen == [(False, 0), (False, 0)]


def test_a_state_dir_serves_one_daemon(restart: Restart, tmp_path: Path) -> None:
    """[OP-006]"""
    lab = restart()
    second = subprocess.run(
        [MHSD, "conveyor-workcell", "--port", "0", "--state-dir", tmp_path / "state"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={"PATH": "", "MHSD_RUNTIME_DIR": str(tmp_path / "run2")},
        cwd=tmp_path,
    )
    assert second.returncode == 1
    assert second.stdout == ""
    assert len(second.stderr.splitlines()) == 1
    assert str(lab.process.pid) in second.stderr
    assert lab.hello()["limits"]["receipt_store"] == "state_dir", "the first one serves on"
    assert lab.process.poll() is None


def test_a_state_dir_of_another_endpoint_is_refused(restart: Restart, tmp_path: Path) -> None:
    """[OP-006]"""
    restart().kill()
    second = subprocess.run(
        [MHSD, "--port", "0", "--state-dir", tmp_path / "state", "--endpoint-id", "mhs://other:7400"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={"PATH": "", "MHSD_RUNTIME_DIR": str(tmp_path / "run2")},
        cwd=tmp_path,
    )
    assert second.returncode == 1
    assert len(second.stderr.splitlines()) == 1
    assert "mhs://localhost:7400" in second.stderr


def test_a_receipt_that_was_answered_is_on_the_disk(restart: Restart) -> None:
    """[OP-001, PROTO-029]"""
    lab = restart()
    session = lab.open()
    answered = [each.result() for each in [session.begin(STEP, {"ticks": 1}) for _ in range(16)]]
    lab.kill()
    lab = restart()
    stored = {receipt["receipt_id"]: receipt for receipt in lab.call("mhs.evidence.export")["receipts"]}
    assert all(stored[receipt["receipt_id"]] == receipt for receipt in answered)
