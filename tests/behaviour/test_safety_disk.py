"""A disk that takes nothing more: nothing new is begun, and the stop stops all the same."""

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import UNHURRIED
from tests.behaviour.safety import (
    CONVEY,
    DESCRIBE,
    FAR,
    STEP,
    VALVE,
    code_of,
    conveying,
    latched,
    reset,
    status,
    stop,
)
from tests.documents import check_chain
from tests.lab import Lab, Session, ask_until, running, ulid

FULL_BYTES = 200_000
"""More than the latch file has, and little more than the receipts of a few commands."""


def fill_the_disk(lab: Lab, session: Session) -> None:
    """Let no file of the daemon grow any more, and find out by asking it to."""
    resource.prlimit(lab.process.pid, resource.RLIMIT_FSIZE, (FULL_BYTES, FULL_BYTES))

    def failed() -> bool:
        answer = session.begin(DESCRIBE, {}).answer()
        return "error" in answer

    ask_until(failed, bool)


@pytest.fixture
def state(tmp_path: Path) -> tuple[str, ...]:
    return ("--state-dir", str(tmp_path / "state"), *UNHURRIED)


Full = tuple[Session, dict[str, Any]]


@pytest.fixture
def full(binding: str, tmp_path: Path, state: tuple[str, ...]) -> Iterator[Full]:
    """A session on a conveyor whose disk has become full, and the running receipt of a motion from before."""
    with running(binding, tmp_path, *state) as lab:
        session = lab.open()
        session.completed(VALVE, {"open": True})
        begun = conveying(session)
        fill_the_disk(lab, session)
        yield session, begun


def test_nothing_is_begun_that_could_not_be_recorded(full: Full) -> None:
    """[MHSD-4-05, MHSD-5-10]"""
    session, _ = full
    before = session.read("world")["state"]
    command = {"capability_id": STEP, "input": {"ticks": 1}, "command_id": ulid(), "deadline_ms": 30_000}
    refused = session.refused("mhs.command", **command)
    assert refused.code == "MHS.INTERNAL.STORE_UNAVAILABLE"
    assert session.read("world")["state"] == before


def test_a_stop_does_not_need_the_disk(
    full: Full, binding: str, tmp_path: Path, state: tuple[str, ...]
) -> None:
    """[MHSD-5-08, MHSD-5-09, MHSD-5-10, SAFE-002]"""
    session, begun = full
    lab = session.lab
    receipt = stop(lab, reason="the disk is full as well")
    assert receipt["status"] == "completed"
    assert receipt["evidence"] == {"pending": True}, "and it does not say that it was recorded"
    assert receipt["output"]["operations"] == [{"operation_id": begun["operation_id"], "state": "stopped"}]
    assert receipt["output"]["latch_durable"] is True, "the latch has room of its own"
    assert session.read("belt")["state"]["running"] is False
    assert session.read("valve")["state"] == {"open": False}
    assert latched(lab)

    for look in ({"operation_id": begun["operation_id"]}, {"command_id": begun["command_id"]}):
        refused = session.refused("mhs.operations.get", **look, deadline_ms=30_000)
        assert refused.code == "MHS.OUTCOME.UNKNOWN"
        assert refused.details == {
            "reason": "receipt_not_stored",
            "operation_id": begun["operation_id"],
        }
    again = session.refused(
        "mhs.command", capability_id=CONVEY, input=FAR, command_id=begun["command_id"], deadline_ms=30_000
    )
    assert again.code == "MHS.OUTCOME.UNKNOWN"

    refused = session.refused("mhs.safety.reset", device_id=receipt["device_id"], deadline_ms=30_000)
    assert refused.code == "MHS.INTERNAL.STORE_UNAVAILABLE"
    assert latched(lab), "who released it could not have been recorded"

    lab.kill()
    with running(binding, tmp_path, *state) as lab:
        assert status(lab)["estop"]["reason"] == "the disk is full as well"
        session = lab.open()
        final = session.get(begun["operation_id"])
        assert (final["status"], code_of(final)) == ("unknown", "MHS.OUTCOME.UNKNOWN")
        assert reset(session)["status"] == "completed"
        session.completed(STEP, {"ticks": 1})
        bundle = lab.call("mhs.evidence.export")
        check_chain(bundle["receipts"], bundle["endpoint_info"]["genesis_digest"])
