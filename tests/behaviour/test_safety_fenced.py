"""A stop that is not confirmed: what its receipt says, what the device still does, and what its neighbours do."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.behaviour.conftest import PRESS_TARGET, UNHURRIED, Start
from tests.behaviour.safety import (
    CONDUCT,
    CONVEY,
    DESCRIBE,
    FAR,
    HOLD,
    NUDGE,
    PRESS,
    RELEASE,
    STEP,
    STOP_CLASS,
    VALVE,
    code_of,
    evidence,
    latched,
    reset,
    restored_press,
    stop,
)
from tests.lab import CONVEYOR, Lab, Session, ask_until, request, running

UNREACHED = "MHS.SAFETY.SAFE_STATE_UNREACHED"


@pytest.fixture
def press(press_lab: Lab) -> Iterator[Session]:
    with restored_press(press_lab) as session:
        yield session


def by_device(receipt: Any) -> dict[str, Any]:
    """The receipts that the answer to a stop of several devices lists, by device."""
    return {each["device_id"]: each for each in receipt["x-vendor"]["estop"]["devices"]}


@pytest.mark.parametrize("conduct", ["deny", "raise", "hang"])
def test_a_stop_that_is_not_confirmed_is_failed_and_latches(press: Session, conduct: str) -> None:
    """[SAFE-002, CORE-074, CORE-077]"""
    lab = press.lab
    press.completed(CONDUCT, {"stop": conduct})
    receipt = stop(lab, device_id=PRESS, reason="now")
    assert (receipt["status"], code_of(receipt)) == ("failed", UNREACHED)
    assert receipt["output"]["safe_state_achieved"] is False
    assert receipt["output"]["latched"] is True
    assert receipt["error"]["retryable"] is False
    assert "breaks" not in json.dumps(receipt)
    assert latched(lab, PRESS)
    assert code_of(press.command(NUDGE, {})) == "MHS.DEVICE.UNCONFIRMED"
    press.completed(DESCRIBE, {})

    press.completed(CONDUCT, {"stop": "confirm"})
    again = stop(lab, device_id=PRESS, reason="once more")
    assert (again["status"], again["output"]["safe_state_achieved"]) == ("completed", True)


def test_a_stop_does_not_wait_for_a_device_that_cannot_be_read(press: Session) -> None:
    """[SAFE-002, OP-009] What cannot be read counts as changed."""
    press.completed(CONDUCT, {"read": "hang"})
    receipt = stop(press.lab, device_id=PRESS)
    assert receipt["status"] == "completed"
    assert "state_hash_after" not in receipt
    assert receipt["state_revision_after"] == receipt["state_revision_before"] + 1


def test_a_call_that_ignores_the_stop_is_not_called_stopped(press: Session) -> None:
    """[MHSD-4-31, MHSD-4-32, CORE-074]"""
    before = press.read("press")["state"]["position_mm"]
    holding, begun = press.started(HOLD, {"stubborn": True})
    receipt = stop(press.lab, device_id=PRESS)
    assert (receipt["status"], code_of(receipt)) == ("failed", UNREACHED)
    entries = [{"operation_id": begun["operation_id"], "state": "still_running"}]
    assert receipt["output"]["operations"] == entries
    assert receipt["error"]["details"]["operations"] == entries
    assert holding.result()["status"] == "unknown"
    press.completed(RELEASE, {})
    ask_until(lambda: press.read("press")["state"]["holding"], lambda holds: not holds)
    assert press.read("press")["state"]["position_mm"] == before + 1
    final = press.get(begun["operation_id"])
    assert final["status"] == "unknown", "what came back late is never a completion"


def test_a_stop_outranks_a_cancellation_that_is_under_way(fresh: Start) -> None:
    """[PROTO-032, MHSD-4-31]"""
    press = fresh(targets=(PRESS_TARGET,)).open(device_id=PRESS)
    holding, begun = press.started(HOLD, {"stubborn": True})
    cancelling = press.cancel(begun["operation_id"], deadline_ms=1)
    assert (cancelling["status"], cancelling["cancellation"]["safe_state_achieved"]) == ("running", False)
    stopping = press.lab.begin("mhs.safety.estop", device_id=PRESS)
    ask_until(lambda: latched(press.lab, PRESS), bool)
    press.completed(RELEASE, {})
    final = holding.result()
    assert (final["status"], final["cancellation"]["reason"]) == ("cancelled", "estop")
    assert stopping.result()["output"]["cancelled_operations"] == [begun["operation_id"]]


def test_what_was_ended_and_not_confirmed_is_unknown(press: Session) -> None:
    """[MHSD-4-32]"""
    press.completed(CONDUCT, {"stop": "deny"})
    holding, begun = press.started(HOLD, {"stubborn": False})
    receipt = stop(press.lab, device_id=PRESS)
    assert receipt["output"]["operations"] == [{"operation_id": begun["operation_id"], "state": "unknown"}]
    final = holding.result()
    assert final["status"] == "cancelled"
    assert final["cancellation"]["safe_state_achieved"] is False


def test_a_stop_of_all_devices_lists_the_receipt_of_each(press: Session) -> None:
    """[SAFE-002, CORE-076]"""
    lab = press.lab
    receipt = stop(lab, reason="everything")
    listed = by_device(receipt)
    assert set(listed) == {PRESS, CONVEYOR}
    assert {each["status"] for each in listed.values()} == {"completed"}
    assert receipt["receipt_id"] == next(iter(listed.values()))["receipt_id"]
    assert latched(lab, PRESS)
    assert latched(lab, CONVEYOR)
    stored = {each["receipt_id"]: each for each in evidence(lab)}
    for each in listed.values():
        assert stored[each["receipt_id"]]["device_id"] == each["device_id"]
    assert stored[receipt["receipt_id"]] == receipt


@pytest.mark.parametrize("conduct", ["deny", "raise", "hang"])
def test_a_device_that_cannot_be_stopped_keeps_no_neighbour_moving(press: Session, conduct: str) -> None:
    """[SAFE-002, CORE-074]"""
    lab = press.lab
    conveyor = lab.open()
    conveyor.completed(VALVE, {"open": True})
    _, begun = conveyor.started(CONVEY, FAR)
    press.completed(CONDUCT, {"stop": conduct})
    receipt = stop(lab)
    assert (receipt["device_id"], receipt["status"]) == (PRESS, "failed"), "the worst is what is answered"
    listed = by_device(receipt)
    assert listed[CONVEYOR]["status"] == "completed"
    assert listed[CONVEYOR]["output"]["operations"] == [
        {"operation_id": begun["operation_id"], "state": "stopped"}
    ]
    assert conveyor.read("belt")["state"]["running"] is False
    assert conveyor.read("valve")["state"] == {"open": False}
    assert latched(lab, CONVEYOR)


def test_the_worst_is_answered_wherever_it_stands(press: Session) -> None:
    """[SAFE-002]"""
    receipt = stop(press.lab)
    assert (receipt["status"], receipt["device_id"]) == ("completed", PRESS), "the first, when all are well"
    press.completed(CONDUCT, {"stop": "deny"})
    listed = by_device(stop(press.lab))
    assert {device: each["status"] for device, each in listed.items()} == {
        PRESS: "failed",
        CONVEYOR: "completed",
    }


def test_a_stop_of_one_device_leaves_the_other_alone(press: Session) -> None:
    """[SAFE-002]"""
    lab = press.lab
    for more in ({"device_id": PRESS}, {"session_id": press.id}):
        receipt = stop(lab, **more)
        assert receipt["device_id"] == PRESS
        assert "x-vendor" not in receipt
        assert latched(lab, PRESS)
        assert not latched(lab, CONVEYOR)
        conveyor = lab.open()
        conveyor.completed(STEP, {"ticks": 1})
        conveyor.close()
        assert reset(press, PRESS)["status"] == "completed"


def test_a_reset_releases_one_device_at_a_time(press: Session) -> None:
    """[SAFE-003]"""
    lab = press.lab
    stop(lab)
    assert reset(press, PRESS)["status"] == "completed"
    assert not latched(lab, PRESS)
    assert latched(lab, CONVEYOR)
    conveyor = lab.open()
    assert code_of(conveyor.command(STEP, {"ticks": 1})) == "MHS.SAFETY.ESTOP_LATCHED"
    assert reset(conveyor)["status"] == "completed"
    conveyor.close()


def test_a_session_on_several_devices_stops_all_of_them(press: Session) -> None:
    """[CORE-076]"""
    lab = press.lab
    params = {
        "device_ids": [PRESS, CONVEYOR],
        "capabilities": [],
        "mode": "simulated",
        "ttl_s": 60,
        "client_info": {"name": "t", "version": "1"},
        "principal": {"id": "agent:t", "kind": "agent"},
    }
    both = Session(lab, lab.call("mhs.session.open", **params))
    assert set(by_device(stop(lab, session_id=both.id))) == {PRESS, CONVEYOR}
    both.close()


def test_a_command_of_the_stop_class_stops_what_it_names(press: Session) -> None:
    """[CORE-076]"""
    lab = press.lab
    answer = lab.wire.exchange(request("mhs.command", capability_id=STOP_CLASS, device_id=CONVEYOR))
    assert answer["result"]["device_id"] == CONVEYOR
    assert latched(lab, CONVEYOR)
    assert not latched(lab, PRESS)
    answer = lab.wire.exchange(request("mhs.command", capability_id=STOP_CLASS))
    assert set(by_device(answer["result"])) == {PRESS, CONVEYOR}


def test_one_fixture_may_be_served_twice(binding: str, tmp_path: Any) -> None:
    """[MHSD-1-08, SAFE-002]"""
    second = "mhs://localhost:7400/lab/second"
    targets = ("conveyor-workcell", "conveyor-workcell@/lab/second")
    with running(binding, tmp_path, *UNHURRIED, targets=targets) as lab:
        one, other = lab.open(), lab.open(device_id=second)
        _, first_begun = one.started(CONVEY, FAR)
        _, second_begun = other.started(CONVEY, FAR)
        other.completed("x-cap.sim.door.v1", {"closed": False})
        assert one.get(first_begun["operation_id"])["status"] == "running", "each has a door of its own"
        assert other.follow(second_begun["operation_id"])["status"] == "failed"
        listed = by_device(stop(lab))
        assert set(listed) == {CONVEYOR, second}
        assert listed[CONVEYOR]["output"]["cancelled_operations"] == [first_begun["operation_id"]]
        assert listed[second]["output"]["cancelled_operations"] == []
        assert latched(lab, second)
