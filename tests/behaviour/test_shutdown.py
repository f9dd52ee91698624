"""The end of the daemon: what runs is brought to the safe state, recorded, and the exit is clean."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import PRESS_TARGET, UNHURRIED
from tests.behaviour.safety import (
    CONDUCT,
    CONVEY,
    FAR,
    FAULT,
    HOLD,
    PRESS,
    PURGE,
    STEP,
    code_of,
    evidence,
    latched,
    permit,
    stop,
)
from tests.documents import check_chain
from tests.lab import PATIENCE_S, Lab, running, ulid


def state_dir(tmp_path: Path, *more: str) -> tuple[str, ...]:
    return ("--state-dir", str(tmp_path / "state"), *UNHURRIED, *more)


def ended(lab: Lab) -> int:
    """The exit code of a daemon that was told to end."""
    return lab.process.wait(PATIENCE_S)


def recorded(binding: str, tmp_path: Path, **more: Any) -> list[Any]:
    """The receipts that the next daemon on the same state directory finds, in an unbroken chain."""
    with running(binding, tmp_path, *state_dir(tmp_path), **more) as lab:
        receipts = evidence(lab)
        info = lab.call("mhs.evidence.export")["endpoint_info"]
        check_chain(receipts, info["genesis_digest"])
        return receipts


@pytest.mark.parametrize(
    ("binding", "signum"),
    [
        ("stdio", signal.SIGTERM),
        ("http", signal.SIGTERM),
        ("http", signal.SIGINT),
        ("stdio", signal.SIGHUP),
    ],
    ids=str,
)
def test_a_signal_ends_the_motion_and_the_daemon(
    binding: str, tmp_path: Path, signum: signal.Signals
) -> None:
    """[TPT-009, MHSD-8-03, OP-011]"""
    with running(binding, tmp_path, *state_dir(tmp_path)) as lab:
        pending, begun = lab.open().started(CONVEY, FAR)
        lab.process.send_signal(signum)
        assert ended(lab) == 0
        assert pending.result()["status"] == "cancelled", "who waits for it gets its answer"
    receipts = {each["operation_id"]: each for each in recorded(binding, tmp_path) if "operation_id" in each}
    final = receipts[begun["operation_id"]]
    assert final["status"] == "cancelled"
    assert final["cancellation"]["requested_by"] == "endpoint:shutdown"
    assert final["cancellation"]["reason"] == "shutdown"
    assert final["cancellation"]["safe_state_achieved"] is True
    assert final["receipt_id"] == begun["receipt_id"]


def test_the_end_of_the_input_ends_the_motion_and_the_daemon(tmp_path: Path) -> None:
    """[TPT-008, OP-011]"""
    with running("stdio", tmp_path, *state_dir(tmp_path)) as lab:
        session = lab.open()
        pending, begun = session.started(CONVEY, FAR)
        lab.wire.close()
        assert ended(lab) == 0
        answer = pending.result()
        assert answer["status"] == "cancelled", "who closes only its sending half still gets its answers"
    last = [each for each in recorded("stdio", tmp_path) if each.get("operation_id") == begun["operation_id"]]
    assert last == [answer]
    assert answer["cancellation"]["requested_by"] == "endpoint:shutdown"


def test_what_came_before_the_end_of_the_input_is_answered_and_kept(tmp_path: Path) -> None:
    """[TPT-008]"""
    with running("stdio", tmp_path, *state_dir(tmp_path)) as lab:
        session = lab.open()
        steps = [session.begin(STEP, {"ticks": 1}) for _ in range(20)]
        lab.wire.close()
        assert ended(lab) == 0
        receipts = [pending.result() for pending in steps]
    # What was not begun when the input ended is refused, and what was is recorded as it ended.
    assert {receipt["status"] for receipt in receipts} <= {"completed", "rejected", "cancelled"}
    assert len(receipts) == 20
    kept = {each["receipt_id"]: each for each in recorded("stdio", tmp_path)}
    for receipt in receipts:
        assert kept[receipt["receipt_id"]] == receipt


def test_half_a_line_at_the_end_of_the_input_moves_nothing(tmp_path: Path) -> None:
    """[TPT-008]"""
    with running("stdio", tmp_path, *state_dir(tmp_path)) as lab:
        session = lab.open()
        command = {
            "session_id": session.id,
            "capability_id": STEP,
            "input": {"ticks": 1},
            "command_id": ulid(),
            "deadline_ms": 1000,
        }
        line = json.dumps({"jsonrpc": "2.0", "id": ulid(), "method": "mhs.command", "params": command})
        stdin = lab.process.stdin
        assert stdin is not None
        stdin.write(line.encode())
        stdin.close()
        assert ended(lab) == 0
    assert recorded("stdio", tmp_path) == []


def test_a_stop_that_ends_the_input_without_a_line_feed_is_kept(tmp_path: Path) -> None:
    """[CORE-076, TPT-008]"""
    with running("stdio", tmp_path, *state_dir(tmp_path)) as lab:
        stdin = lab.process.stdin
        assert stdin is not None
        stdin.write(b'{"jsonrpc":"2.0","id":"last","method":"mhs.safety.estop"}')
        stdin.close()
        assert ended(lab) == 0
    with running("stdio", tmp_path, *state_dir(tmp_path)) as lab:
        assert latched(lab)


def test_a_purge_ends_with_the_valve_closed(binding: str, tmp_path: Path) -> None:
    """[TPT-009, OP-011]"""
    value = {"duration_ms": 10_000}
    with running(binding, tmp_path, *state_dir(tmp_path)) as lab:
        session = lab.open()
        pending, begun = session.started(PURGE, value, permit_id=permit(session, value)["permit_id"])
        lab.process.terminate()
        assert ended(lab) == 0
        final = pending.result()
    assert (final["status"], final["operation_id"]) == ("cancelled", begun["operation_id"])
    assert final["cancellation"]["safe_state_achieved"] is True


def test_a_call_that_hangs_is_ended_and_what_queues_is_refused(tmp_path: Path) -> None:
    """[MHSD-8-03, OP-002]"""
    with running("stdio", tmp_path, *state_dir(tmp_path)) as lab:
        session = lab.open()
        session.completed(FAULT, {"kind": "hang", "times": 1})
        holding, _ = session.started(STEP, {"ticks": 1})
        queued = [session.begin(STEP, {"ticks": 1}) for _ in range(5)]
        session.read("world")  # By now the commands before it have been entered.
        lab.process.terminate()
        assert ended(lab) == 0
        assert holding.result()["status"] == "cancelled"
        for pending in queued:
            receipt = pending.result()
            assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.TRANSPORT.UNAVAILABLE")
            assert receipt["error"]["retryable"] is True
    kept = recorded("stdio", tmp_path)
    assert [each["status"] for each in kept].count("rejected") == 5


def test_a_latch_outlives_an_orderly_end(binding: str, tmp_path: Path) -> None:
    """[CORE-186]"""
    with running(binding, tmp_path, *state_dir(tmp_path)) as lab:
        receipt = stop(lab)
        lab.process.terminate()
        assert ended(lab) == 0
    with running(binding, tmp_path, *state_dir(tmp_path)) as lab:
        assert latched(lab)
        assert evidence(lab) == [receipt]


def test_a_driver_that_does_not_come_back_holds_the_end_up_no_longer_than_its_grace(tmp_path: Path) -> None:
    """[MHSD-8-03, MHSD-4-22, MHSD-4-25]"""
    options = state_dir(tmp_path, "--stop-grace-s", "0.3")
    with running("stdio", tmp_path, *options, targets=(PRESS_TARGET,)) as lab:
        press = lab.open(device_id=PRESS)
        pending, begun = press.started(HOLD, {"stubborn": True})
        press.completed(CONDUCT, {"stop": "hang"})
        lab.process.terminate()
        assert ended(lab) == 1
        final = pending.result()
    assert "a driver did not come back" in lab.stderr()
    assert (final["status"], code_of(final)) == ("unknown", "MHS.OUTCOME.UNKNOWN")
    kept = recorded("stdio", tmp_path, targets=(PRESS_TARGET,))
    assert [each for each in kept if each.get("operation_id") == begun["operation_id"]] == [final]
