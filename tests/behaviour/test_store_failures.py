"""The disk fails while the daemon runs: nothing new is dispatched, and whoever must look or stop still can.

The faults are real ones: the kernel refuses the daemon's writes, or its files are damaged under it.
"""

import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import Start
from tests.documents import check_chain
from tests.lab import MHSD, Lab, RpcError, Session, stop, ulid

STEP = "cap.world.step.v1"
UNAVAILABLE = "MHS.INTERNAL.STORE_UNAVAILABLE"
LOST_OUTCOME = "MHS.OUTCOME.UNKNOWN"
LATCH_BYTES = 64 << 10
"""The latch file is smaller than this, and a database that has run for a while larger."""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def limit_files(lab: Lab, largest_bytes: int) -> None:
    """From now on the kernel refuses the daemon every write beyond this place of a file."""
    resource.prlimit(lab.process.pid, resource.RLIMIT_FSIZE, (largest_bytes, resource.RLIM_INFINITY))


def run_until_refused(session: Session) -> tuple[list[Any], list[RpcError]]:
    """Steps until three in a row were refused: their receipts, and the errors."""
    receipts: list[Any] = []
    errors: list[RpcError] = []
    while len(errors) < 3:
        try:
            receipts.append(session.completed(STEP, {"ticks": 1}))
        except RpcError as error:
            errors.append(error)
        assert len(receipts) < 2000, "the disk never filled"
    return receipts, errors


def check_refusals(errors: list[RpcError]) -> int:
    """Every error tells the truth; how many of them say that the command may have run."""
    lost = [error for error in errors if error.code == LOST_OUTCOME]
    assert lost == errors[: len(lost)], "the command whose receipt was lost is the first to fail"
    assert len(lost) <= 1
    for error in errors[len(lost) :]:
        assert error.code == UNAVAILABLE
        assert error.error["data"]["retryable"] is False
        assert "restart the endpoint" in error.error["data"]["remediation"]
        assert "\n" not in error.error["message"]
    return len(lost)


def check_looking_goes_on(lab: Lab, session: Session, receipts: list[Any], ticks: int) -> None:
    """Reads, replays, the chain and the safety state answer as ever; the device did what was said and no more."""
    assert session.read("world")["state"]["tick"] == ticks
    assert lab.call("mhs.safety.status", deadline_ms=5000)["estop"]["engaged"] is False
    bundle = lab.call("mhs.evidence.export")
    assert check_chain(receipts, bundle["endpoint_info"]["genesis_digest"]) == bundle["head_digest"]
    assert bundle["receipts"] == receipts
    assert lab.call("mhs.evidence.verify", bundle=bundle)["valid"] is True
    again = session.command(STEP, {"ticks": 1}, command_id=receipts[0]["command_id"])
    assert again == {**receipts[0], "replayed": True}
    assert session.look_up(receipts[-1]["command_id"]) == receipts[-1]
    # New sessions are no records: one that only looks may still be opened.
    lab.open(capabilities=[]).close()


def check_stop_works(lab: Lab, session: Session, *, latch_durable: bool) -> None:
    receipt = lab.call("mhs.safety.estop", reason="smoke")
    assert receipt["status"] == "completed"
    assert receipt["evidence"] == {"pending": True}
    assert receipt["output"]["latched"] is True
    assert receipt["output"]["safe_state_achieved"] is True
    assert receipt["output"]["latch_durable"] is latch_durable
    assert session.read("world")["state"]["estop"] == "engaged"
    assert lab.call("mhs.safety.status", deadline_ms=5000)["estop"]["engaged"] is True
    assert session.refused("mhs.command", **step()).code == UNAVAILABLE


def step() -> dict[str, Any]:
    return {"command_id": ulid(), "capability_id": STEP, "input": {"ticks": 1}, "deadline_ms": 30_000}


def test_a_full_disk_refuses_commands_and_nothing_else(fresh: Start, state: Path) -> None:
    """[EVID-001, OP-006, OP-013, SAFE-001, SAFE-002]"""
    lab = fresh("--state-dir", str(state))
    session = lab.open()
    first = session.completed(STEP, {"ticks": 1})
    log = state / "receipts.db-wal"
    limit_files(lab, max(LATCH_BYTES, log.stat().st_size) + (64 << 10))
    more, errors = run_until_refused(session)
    receipts = [first, *more]
    ticks = len(receipts) + check_refusals(errors)
    check_looking_goes_on(lab, session, receipts, ticks)
    assert session.refused("mhs.resource.write", **write()).code == UNAVAILABLE
    assert session.read("world")["state"]["tick"] == ticks
    check_stop_works(lab, session, latch_durable=True)
    stop(lab.process)
    assert lab.stderr().count("the receipt store stops") == 1

    lab = fresh("--state-dir", str(state))
    assert lab.call("mhs.safety.status", deadline_ms=5000)["estop"]["engaged"] is True
    bundle = lab.call("mhs.evidence.export")
    check_chain(bundle["receipts"], bundle["endpoint_info"]["genesis_digest"])
    assert bundle["receipts"][: len(receipts)] == receipts


def write() -> dict[str, Any]:
    return {
        "resource_id": "belt",
        "patch": {"speed_mm_s": 5},
        "command_id": ulid(),
        "deadline_ms": 30_000,
    }


def test_a_disk_that_takes_nothing_at_all_refuses_commands_and_nothing_else(
    fresh: Start, state: Path
) -> None:
    """A file system that became read-only; even the daemon's log is not written. [SAFE-001, SAFE-002]"""
    lab = fresh("--state-dir", str(state))
    session = lab.open()
    receipt = session.completed(STEP, {"ticks": 1})
    limit_files(lab, 0)
    more, errors = run_until_refused(session)
    assert more == []
    assert check_refusals(errors) == 0, "the intent was refused, so nothing ran"
    check_looking_goes_on(lab, session, [receipt], 1)
    check_stop_works(lab, session, latch_durable=False)
    limit_files(lab, resource.RLIM_INFINITY)
    assert session.refused("mhs.command", **step()).code == UNAVAILABLE, "fail-stop until a restart"


def test_the_receipt_of_a_running_operation_that_cannot_be_stored_is_an_unknown_outcome(
    fresh: Start, state: Path
) -> None:
    """The stop reaches what runs, its caller gets no receipt that does not exist. [OP-013, OP-014, SAFE-002]"""
    lab = fresh("--state-dir", str(state))
    session = lab.open()
    pending, running = session.started(
        "cap.motion.convey.v1", {"distance_mm": 50_000, "speed_mm_s": 1}, deadline_ms=60_000
    )
    limit_files(lab, 0)
    stopped = lab.call("mhs.safety.estop", reason="smoke")
    assert stopped["status"] == "completed"
    assert session.read("belt")["state"]["running"] is False
    with pytest.raises(RpcError) as lost:
        pending.result()
    assert lost.value.code == LOST_OUTCOME
    assert lost.value.details["operation_id"] == running["operation_id"]
    stop(lab.process)

    lab = fresh("--state-dir", str(state))
    recovered = lab.open().look_up(running["command_id"])
    assert recovered["status"] == "unknown"
    assert recovered["error"]["data"]["details"]["reason"] == "endpoint_restarted"


def damaged(path: Path) -> None:
    """Overwrites every page of a file in place with what is no page."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(b"\x5a" * size)
        os.fsync(file.fileno())


def test_a_database_that_is_damaged_under_the_daemon_refuses_commands_and_nothing_else(
    fresh: Start, state: Path
) -> None:
    """[OP-003, OP-006, SAFE-001, SAFE-002]"""
    lab = fresh("--state-dir", str(state))
    session = lab.open()
    session.completed(STEP, {"ticks": 1})
    for name in ("receipts.db", "receipts.db-wal"):
        damaged(state / name)
    receipts, errors = run_until_refused(session)
    ticks = 1 + len(receipts) + check_refusals(errors)
    assert session.read("world")["state"]["tick"] == ticks
    assert lab.call("mhs.safety.status", deadline_ms=5000)["estop"]["engaged"] is False
    assert lab.refused("mhs.evidence.export").code == UNAVAILABLE
    check_stop_works(lab, session, latch_durable=True)
    stop(lab.process)
    check_start_is_refused(lab, state, "receipts.db")


def test_a_database_that_is_removed_under_the_daemon_refuses_commands(fresh: Start, state: Path) -> None:
    """Receipts in a file without a name would be gone with the process. [OP-006]"""
    lab = fresh("--state-dir", str(state))
    session = lab.open()
    session.completed(STEP, {"ticks": 1})
    (state / "receipts.db").rename(state / "moved.db")
    receipts, errors = run_until_refused(session)
    assert receipts == []
    assert check_refusals(errors) == 0
    assert "receipts.db was removed or replaced" in errors[0].error["message"]
    assert session.read("world")["state"]["tick"] == 1
    assert lab.call("mhs.safety.status", deadline_ms=5000)["estop"]["engaged"] is False
    check_stop_works(lab, session, latch_durable=True)


def check_start_is_refused(lab: Lab, state: Path, named: str) -> None:
    """The next start says in one line which file it cannot use."""
    ended = subprocess.run(
        [str(MHSD), "--stdio", "--state-dir", str(state)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=state.parent,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert named in line
