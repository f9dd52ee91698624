"""A command_id stands for one execution: replays, reuse, and what a restart leaves of it."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.behaviour.conftest import BENCH, SECOND, UNHURRIED, Start
from tests.documents import check_chain
from tests.lab import MHSD, PATIENCE_S, Lab, Session, running, stop, ulid

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
    # What came while it was on its way got the snapshot; what came later the receipt.
    assert {receipt["status"] for receipt in receipts} <= {"accepted", "running", "completed"}
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
    late = session.command(STEP, {"ticks": 7}, command_id=command_id, deadline_ms=50)
    assert late["error"]["details"]["reason"] == "deadline_exceeded_before_dispatch"
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

TWO_CONVEYORS = ("conveyor-workcell", "conveyor-workcell@/lab/second")


@attrs.frozen
class Crash:
    """What was answered before a crash, and the daemon that was started on the same state dir afterwards."""

    lab: Lab
    session: Session
    finished: list[Any]
    refused: Any
    in_flight: Any
    interim: Any
    bundle: Any
    old_session_id: str
    old_instance_id: str


def crash_and_restart(binding: str, directory: Path, stack: ExitStack) -> Crash:
    options = ("--state-dir", str(directory / "state"), *UNHURRIED)
    lab = stack.enter_context(running(binding, directory, *options, targets=TWO_CONVEYORS))
    session, other = lab.open(), lab.open(device_id=SECOND)
    session.completed(FAULT, {"kind": "fail", "times": 1})
    finished = [session.command(STEP, {"ticks": 1})]
    refused = session.command(STEP, {"ticks": 0})
    finished += [each.result() for each in [session.begin(STEP, {"ticks": 2}) for _ in range(8)]]
    other.completed(FAULT, {"kind": "hang", "times": 1})
    interim = other.command(STEP, {"ticks": 1}, deadline_ms=1000)
    _, in_flight = session.started(CONVEY, FAR)
    bundle = lab.call("mhs.evidence.export")
    old_instance_id = lab.hello()["devices"][0]["instance_id"]
    lab.kill()
    again = stack.enter_context(running(binding, directory, *options, targets=TWO_CONVEYORS))
    return Crash(
        lab=again,
        session=again.open(),
        finished=finished,
        refused=refused,
        in_flight=in_flight,
        interim=interim,
        bundle=bundle,
        old_session_id=session.id,
        old_instance_id=old_instance_id,
    )


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Crash]]:
    """The crash of each binding's daemon, made when it is first asked for."""
    made: dict[str, Crash] = {}
    with ExitStack() as stack:

        def crash_of(binding: str) -> Crash:
            if binding not in made:
                made[binding] = crash_and_restart(binding, tmp_path_factory.mktemp(binding), stack)
            return made[binding]

        yield crash_of


@pytest.fixture
def crash(binding: str, crashes: Callable[[str], Crash]) -> Crash:
    return crashes(binding)


def test_what_was_finished_before_a_crash_replays_byte_for_byte(crash: Crash) -> None:
    """[OP-006, OP-001]"""
    for receipt in crash.finished:
        ticks = 1 if receipt["status"] == "failed" else 2
        again = crash.session.command(STEP, {"ticks": ticks}, command_id=receipt["command_id"])
        assert json.dumps(again) == json.dumps({**receipt, "replayed": True})
        assert crash.session.get(receipt["operation_id"]) == receipt
        reused = crash.session.command(STEP, {"ticks": 3}, command_id=receipt["command_id"])
        assert reused["error"]["mhs_code"] == REUSE


def test_a_refusal_is_kept_over_a_crash(crash: Crash) -> None:
    """[OP-002, OP-001]"""
    assert crash.session.look_up(crash.refused["command_id"]) == crash.refused


def test_a_simulated_device_begins_anew_and_its_revision_goes_on(crash: Crash) -> None:
    """[OP-006]"""
    belt = crash.session.read("belt")
    assert (belt["state"]["running"], belt["state"]["position_mm"]) == (False, 0)
    last = max(receipt["state_revision_after"] for receipt in crash.finished)
    # What the command in flight did is not known, so the revision counts it as a change.
    assert belt["revision"] >= last + 1
    assert crash.lab.hello()["devices"][0]["instance_id"] != crash.old_instance_id
    stepped = crash.session.completed(STEP, {"ticks": 1})
    assert stepped["state_revision_before"] == belt["revision"]


def test_sessions_end_with_the_process(crash: Crash) -> None:
    """[SESS-004]"""
    refused = crash.lab.refused("mhs.session.heartbeat", session_id=crash.old_session_id)
    assert refused.code == "MHS.SESSION.UNKNOWN"


def test_what_was_in_flight_at_a_crash_is_unknown_and_never_runs_again(crash: Crash) -> None:
    """[OP-006, OP-013, CORE-172]"""
    session, before = crash.session, crash.in_flight
    receipt = session.get(before["operation_id"])
    assert (receipt["status"], receipt["error"]["mhs_code"]) == ("unknown", "MHS.OUTCOME.UNKNOWN")
    assert receipt["error"]["details"]["reason"] == "endpoint_restarted"
    assert receipt["error"]["retryable"] is False
    assert receipt["receipt_id"] == before["receipt_id"]
    assert receipt["session_id"] == before["session_id"] == crash.old_session_id
    last = max(each["state_revision_after"] for each in crash.finished)
    assert (receipt["state_revision_before"], receipt["state_revision_after"]) == (last, last + 1)
    assert session.look_up(before["command_id"]) == receipt
    assert session.cancel(before["operation_id"]) == receipt
    again = session.command(CONVEY, FAR, command_id=before["command_id"])
    assert again == {**receipt, "replayed": True}
    assert session.read("belt")["state"]["running"] is False


def test_an_interim_receipt_is_reconciled_after_a_crash(crash: Crash) -> None:
    """[OP-006, OP-010]"""
    interim = crash.interim
    assert (interim["status"], interim["error"]["mhs_code"]) == ("unknown", "MHS.OUTCOME.TIMEOUT")
    final = crash.session.get(interim["operation_id"])
    assert final["error"]["details"]["reason"] == "endpoint_restarted"
    assert final["receipt_id"] != interim["receipt_id"]
    assert final["x-vendor"]["reconciles"] == interim["receipt_id"]
    again = crash.lab.open(device_id=SECOND).command(STEP, {"ticks": 1}, command_id=interim["command_id"])
    assert again == {**final, "replayed": True}


def test_the_chain_goes_on_after_a_crash(crash: Crash) -> None:
    """[EVID-001, OP-001, OP-006, PROTO-029]"""
    bundle, before = crash.lab.call("mhs.evidence.export"), crash.bundle
    assert bundle["endpoint_info"]["genesis"] == before["endpoint_info"]["genesis"]
    count = len(before["receipts"])
    assert bundle["receipts"][:count] == before["receipts"], "what was answered is on the disk"
    restarted = [receipt["operation_id"] for receipt in bundle["receipts"][count : count + 2]]
    assert sorted(restarted) == sorted([crash.in_flight["operation_id"], crash.interim["operation_id"]])
    genesis_digest = bundle["endpoint_info"]["genesis_digest"]
    assert check_chain(bundle["receipts"], genesis_digest) == bundle["head_digest"]


def test_a_shutdown_ends_what_runs_in_the_safe_state_and_keeps_its_receipt(
    fresh: Start, tmp_path: Path
) -> None:
    """[OP-006, OP-011, TPT-008]"""
    state_dir = ("--state-dir", str(tmp_path / "state"))
    lab = fresh(*state_dir)
    _, moving = lab.open().started(CONVEY, FAR)
    assert stop(lab.process) == 0
    session = fresh(*state_dir).open()
    receipt = session.get(moving["operation_id"])
    assert receipt["status"] == "cancelled"
    assert receipt["cancellation"]["requested_by"] == "endpoint:shutdown"
    assert receipt["cancellation"]["safe_state_achieved"] is True
    assert session.command(CONVEY, FAR, command_id=moving["command_id"]) == {**receipt, "replayed": True}


def test_without_a_state_dir_nothing_is_left_behind(binding: str, tmp_path: Path) -> None:
    """[OP-006]"""
    command_id = ulid()
    seen = []
    for _ in range(2):
        with running(binding, tmp_path, *UNHURRIED) as lab:
            receipt = lab.open().completed(STEP, {"ticks": 1}, command_id=command_id)
            seen.append((receipt["replayed"], receipt["state_revision_before"]))
    assert seen == [(False, 0), (False, 0)]


def refused_start(directory: Path, *options: str) -> str:
    """The one line with which a daemon that cannot start ends with exit code 1."""
    ended = subprocess.run(
        [MHSD, "conveyor-workcell", "--port", "0", *options],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "MHSD_RUNTIME_DIR": str(directory / "run")},
        cwd=directory,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    return line


def test_a_state_dir_serves_one_daemon_and_one_endpoint(fresh: Start, tmp_path: Path) -> None:
    """[OP-006]"""
    state_dir = ("--state-dir", str(tmp_path / "state"))
    lab = fresh(*state_dir)
    assert str(lab.process.pid) in refused_start(tmp_path, *state_dir)
    assert lab.hello()["limits"]["receipt_store"] == "state_dir", "the first one serves on"
    lab.kill()
    line = refused_start(tmp_path, *state_dir, "--endpoint-id", "mhs://other:7400")
    assert "mhs://localhost:7400" in line
