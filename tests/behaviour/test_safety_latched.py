"""What a latched device still does, and how long the latch lasts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import UNHURRIED, Start
from tests.behaviour.safety import (
    CONFIGURE,
    CONVEY,
    DESCRIBE,
    DOOR,
    FAR,
    FAULT,
    PURGE,
    STEP,
    VALVE,
    WAIT,
    code_of,
    conveying,
    evidence,
    latched,
    permit,
    reset,
    restored,
    status,
    stop,
)
from tests.lab import CONVEYOR, Lab, Session, request, running, ulid


@pytest.fixture
def session(lab: Lab) -> Iterator[Session]:
    with restored(lab) as session:
        yield session


@pytest.fixture
def stopped(lab: Lab, session: Session) -> Session:
    """A session on the conveyor, whose latch is engaged."""
    assert stop(lab, reason="before the test")["status"] == "completed"
    return session


MUTATIONS = [
    (STEP, {"ticks": 1}),
    (VALVE, {"open": True}),
    (VALVE, {"open": False}),
    (PURGE, {"duration_ms": 1}),
    (CONVEY, {"distance_mm": 1, "speed_mm_s": 500}),
    (CONFIGURE, {"speed_mm_s": 5}),
]


@pytest.mark.parametrize(("capability_id", "value"), MUTATIONS, ids=[f"{c}{v}" for c, v in MUTATIONS])
def test_a_latched_device_refuses_every_mutation(stopped: Session, capability_id: str, value: Any) -> None:
    """[MHSD-4-03, OP-002, CORE-091]"""
    before = {name: stopped.read(name) for name in ("world", "belt", "valve")}
    command_id = ulid()
    for _ in range(2):
        receipt = stopped.command(capability_id, value, command_id=command_id)
        assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.SAFETY.ESTOP_LATCHED")
        assert receipt["replayed"] is False, "a refusal is no outcome of the command"
        assert receipt["effects"] == []
        assert receipt["state_revision_before"] == receipt["state_revision_after"]
        assert receipt["error"]["retryable"] is True
        assert "operation_id" not in receipt
    after = {name: stopped.read(name) for name in before}
    for name in before:
        assert after[name]["state"] == before[name]["state"]
        assert after[name]["revision"] == before[name]["revision"]


def test_a_write_is_refused_as_well(stopped: Session) -> None:
    """[PROTO-025a, MHSD-4-03]"""
    receipt = stopped.write("belt", {"speed_mm_s": 5})
    assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.SAFETY.ESTOP_LATCHED")


def test_the_latch_is_told_before_what_is_wrong_with_the_input(stopped: Session) -> None:
    """[MHSD-4-03, MHSD-4-04]"""
    stopped.completed(DOOR, {"closed": False})
    for value in ({"open": "perhaps"}, {}, {"open": True}):
        assert code_of(stopped.command(VALVE, value)) == "MHS.SAFETY.ESTOP_LATCHED"
    beyond = {"distance_mm": 1, "speed_mm_s": 900}
    assert code_of(stopped.command(CONVEY, beyond, expected_revision=10**6)) == "MHS.SAFETY.ESTOP_LATCHED"


def test_what_is_refused_before_the_latch_keeps_its_own_reason(stopped: Session) -> None:
    """[CORE-060, MHSD-4-03]"""
    assert code_of(stopped.command("cap.nobody.knows.v1", {})) == "MHS.CAPABILITY.UNKNOWN"
    assert code_of(stopped.command("cap.measure.sample.v1", {})) == "MHS.CAPABILITY.NOT_BOUND"
    looking = stopped.lab.open([])
    assert code_of(looking.command(VALVE, {"open": True})) == "MHS.SESSION.CAPABILITY_NOT_GRANTED"
    looking.close()


def test_looking_works_after_a_stop(stopped: Session) -> None:
    """[MHSD-4-06]"""
    lab = stopped.lab
    digest = stopped.completed(DESCRIBE, {})["output"]["digest"]
    manifest = lab.call("mhs.devices.get", device_id=CONVEYOR)
    assert manifest["digest"] == digest
    assert stopped.read("world")["state"]["estop"] == "engaged"
    assert stopped.call("mhs.session.heartbeat")["safety_context"]["estop"]["engaged"] is True
    other = lab.open()
    assert other.grant["safety_context"]["estop"]["engaged"] is True
    assert other.close()["summary"]["commands"] == 0
    assert permit(stopped, {"duration_ms": 1})["single_use"] is True


def test_simulation_controls_work_after_a_stop(stopped: Session) -> None:
    """[CORE-060]"""
    stopped.completed(DOOR, {"closed": False})
    assert stopped.read("world")["state"]["door"] == "open"
    stopped.completed(DOOR, {"closed": True})
    stopped.completed(FAULT, {"kind": "busy", "times": 1})


def test_a_retained_receipt_is_replayed_after_a_stop(lab: Lab, session: Session) -> None:
    """[OP-003] Asking again for what was done does nothing, and so needs no released latch."""
    command_id = ulid()
    done = session.completed(VALVE, {"open": True}, command_id=command_id)
    stop(lab)
    again = session.command(VALVE, {"open": True}, command_id=command_id)
    assert again == {**done, "replayed": True}
    assert session.read("valve")["state"] == {"open": False}


# How long it lasts.


def test_a_latch_outlives_the_sessions(stopped: Session) -> None:
    """[SAFE-003]"""
    lab = stopped.lab
    stopped.close()
    later = lab.open()
    assert later.grant["safety_context"]["estop"]["engaged"] is True
    assert code_of(later.command(STEP, {"ticks": 1})) == "MHS.SAFETY.ESTOP_LATCHED"
    later.close()


def test_without_a_state_dir_a_stop_does_not_claim_to_last(lab: Lab, session: Session) -> None:
    """[MHSD-5-08, CORE-170]"""
    assert lab.hello()["limits"]["receipt_store"] == "memory"
    assert stop(lab)["output"]["latch_durable"] is False


def test_a_latch_outlives_the_daemon_however_that_ends(binding: str, tmp_path: Path) -> None:
    """[CORE-186, MHSD-5-08, MHSD-5-09]"""
    state = ("--state-dir", str(tmp_path / "state"), *UNHURRIED)
    with running(binding, tmp_path, *state) as lab:
        assert lab.hello()["limits"]["receipt_store"] == "state_dir"
        session = lab.open()
        session.completed(VALVE, {"open": True})
        receipt = stop(lab, reason="before the power went")
        lab.kill()
    assert receipt["output"]["latch_durable"] is True
    engaged = {"reason": "before the power went", "engaged_at": receipt["accepted_at"]}

    with running(binding, tmp_path, *state) as lab:
        shown = status(lab)["estop"]
        assert shown["engaged"] is True
        assert {name: shown[name] for name in engaged} == engaged
        session = lab.open()
        assert session.read("world")["state"]["estop"] == "engaged", "the device was told so too"
        assert code_of(session.command(STEP, {"ticks": 1})) == "MHS.SAFETY.ESTOP_LATCHED"
        assert evidence(lab)[-2]["receipt_id"] == receipt["receipt_id"]
        assert reset(session)["status"] == "completed"
        session.completed(STEP, {"ticks": 1})
        lab.kill()

    with running(binding, tmp_path, *state) as lab:
        assert not latched(lab), "what an operator released stays released"
        assert lab.open().read("world")["state"]["estop"] == "released"


def test_a_stop_that_nobody_waits_for_lasts_as_well(binding: str, tmp_path: Path) -> None:
    """[CORE-186, CORE-183]"""
    from tests.behaviour.test_estop import notify

    state = ("--state-dir", str(tmp_path / "state"), *UNHURRIED)
    with running(binding, tmp_path, *state) as lab:
        notify(lab, b'{"jsonrpc":"2.0","method":"mhs.safety.estop"}')
        # The receipt of a later stop is given when the latches up to then are on the disk.
        assert stop(lab)["output"]["latch_durable"] is True
        first = status(lab)["estop"]
        lab.kill()
    with running(binding, tmp_path, *state) as lab:
        assert status(lab)["estop"] == first


def test_a_stop_while_the_belt_moves_is_kept_with_what_it_ended(binding: str, tmp_path: Path) -> None:
    """[CORE-186, OP-006]"""
    state = ("--state-dir", str(tmp_path / "state"), *UNHURRIED)
    with running(binding, tmp_path, *state) as lab:
        session = lab.open()
        begun = conveying(session)
        receipt = stop(lab)
        lab.kill()
    assert receipt["output"]["cancelled_operations"] == [begun["operation_id"]]
    with running(binding, tmp_path, *state) as lab:
        session = lab.open()
        final = session.get(begun["operation_id"])
        assert (final["status"], final["cancellation"]["reason"]) == ("cancelled", "estop")
        assert latched(lab)
        assert reset(session)["status"] == "completed"
        assert session.read("belt")["state"]["running"] is False
        assert session.get(begun["operation_id"]) == final, "and nothing of it runs on"


def test_a_command_that_the_power_cut_ends_leaves_the_device_safe(binding: str, tmp_path: Path) -> None:
    """[OP-006, CORE-172, MHSD-4-33]"""
    state = ("--state-dir", str(tmp_path / "state"), *UNHURRIED)
    with running(binding, tmp_path, *state) as lab:
        session = lab.open()
        command_id = ulid()
        begun = conveying(session, command_id=command_id)
        lab.kill()
    with running(binding, tmp_path, *state) as lab:
        assert not latched(lab)
        session = lab.open()
        final = session.look_up(command_id)
        assert (final["status"], code_of(final)) == ("unknown", "MHS.OUTCOME.UNKNOWN")
        assert final["error"]["details"]["reason"] == "endpoint_restarted"
        assert final["operation_id"] == begun["operation_id"]
        again = session.command(CONVEY, FAR, command_id=command_id)
        assert again == {**final, "replayed": True}, "it never runs a second time"
        assert session.read("belt")["state"] == {"speed_mm_s": 0, "position_mm": 0, "running": False}
        session.completed(STEP, {"ticks": 1})


def test_many_long_reasons_fit_the_latch(tmp_path: Path) -> None:
    """[MHSD-5-09] Which devices are stopped matters more than why."""
    paths = [f"/lab/cell-{number}" for number in range(12)]
    state = ("--state-dir", str(tmp_path / "state"))
    targets = [f"conveyor-workcell@{path}" for path in paths]
    with running("stdio", tmp_path, *state, targets=targets) as lab:
        receipt = stop(lab, reason="\u20ac" * 2000)
        assert receipt["output"]["latch_durable"] is True
        lab.kill()
    with running("stdio", tmp_path, *state, targets=targets) as lab:
        for path in paths:
            assert latched(lab, f"mhs://localhost:7400{path}")


def test_stops_of_different_devices_in_one_breath_all_last(fresh: Start, tmp_path: Path) -> None:
    """[CORE-186, MHSD-5-09]"""
    devices = [f"mhs://localhost:7400/lab/cell-{number}" for number in range(8)]
    state = ("--state-dir", str(tmp_path / "state"))
    targets = [f"conveyor-workcell@/lab/cell-{number}" for number in range(8)]
    lab = fresh(*state, targets=targets)
    lab.wire.exchange([request("mhs.safety.estop", device_id=device) for device in devices])
    lab.kill()
    again = fresh(*state, targets=targets)
    assert all(latched(again, device) for device in devices)


def test_a_status_asks_for_no_session_and_no_hello(fresh: Start) -> None:
    """[SAFE-001, MHSD-2-10]"""
    lab = fresh(greet=False)
    shown = lab.call("mhs.safety.status", **WAIT)
    assert shown["device_id"] == CONVEYOR
    assert shown["estop"]["engaged"] is False
    assert shown["safe_state"] == {
        "description": "Belt stopped, valve closed.",
        "achieved_by": ["driver.stop"],
    }
    assert shown["permits"] == []
    assert [(each["id"], each["state"]) for each in shown["interlocks"]] == [("door_closed", "closed")]
