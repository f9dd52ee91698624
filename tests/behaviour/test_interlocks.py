"""Interlocks: what an open one refuses, and what it ends."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.behaviour.safety import (
    CONDUCT,
    CONFIGURE,
    CONVEY,
    DESCRIBE,
    DOOR,
    FAR,
    HOLD,
    NUDGE,
    PRESS,
    PURGE,
    STEP,
    VALVE,
    code_of,
    latched,
    permit,
    reason_of,
    restored,
    restored_press,
    status,
)
from tests.lab import Lab, Session, ask_until, ulid

OPEN = "MHS.SAFETY.INTERLOCK_OPEN"


@pytest.fixture
def session(lab: Lab) -> Iterator[Session]:
    with restored(lab) as session:
        yield session


def named(receipt: Any) -> list[tuple[str, str]]:
    return [(each["id"], each["state"]) for each in receipt["error"]["interlocks"]]


# The door of the conveyor.


@pytest.mark.parametrize(
    ("capability_id", "value"),
    [
        (VALVE, {"open": True}),
        (VALVE, {"open": False}),
        (CONVEY, {"distance_mm": 1, "speed_mm_s": 500}),
        (PURGE, {"duration_ms": 1}),
    ],
    ids=lambda given: given if isinstance(given, str) else str(given),
)
def test_behind_an_open_door_nothing_moves(session: Session, capability_id: str, value: Any) -> None:
    """[MHSD-4-04, OP-002]"""
    permits = {"permit_id": permit(session, value)["permit_id"]} if capability_id == PURGE else {}
    session.completed(DOOR, {"closed": False})
    before = {name: session.read(name) for name in ("belt", "valve")}
    command_id = ulid()
    receipt = session.command(capability_id, value, command_id=command_id, **permits)
    assert (receipt["status"], code_of(receipt)) == ("rejected", OPEN)
    assert named(receipt) == [("door_closed", "open")]
    assert receipt["error"]["retryable"] is True, "nothing happened, so it may be asked for again"
    assert receipt["effects"] == []
    for name, document in before.items():
        now = session.read(name)
        assert (now["state"], now["revision"]) == (document["state"], document["revision"])
    session.completed(DOOR, {"closed": True})
    session.completed(capability_id, value, command_id=command_id, **permits)


def test_what_no_interlock_guards_works_with_the_door_open(session: Session) -> None:
    """[MHSD-4-06]"""
    session.completed(DOOR, {"closed": False})
    session.completed(STEP, {"ticks": 1})
    session.completed(CONFIGURE, {"speed_mm_s": 7})
    session.completed(DESCRIBE, {})
    assert session.write("belt", {"speed_mm_s": 0})["status"] == "completed"


def test_status_and_sessions_show_the_door(lab: Lab, session: Session) -> None:
    """[SAFE-001]"""
    for closed, state in ((False, "open"), (True, "closed")):
        session.completed(DOOR, {"closed": closed})
        shown = status(lab)["interlocks"]
        assert [(each["id"], each["state"], each["hard"]) for each in shown] == [("door_closed", state, True)]
        assert shown[0]["description"]
        assert session.call("mhs.session.heartbeat")["safety_context"]["interlocks"] == shown
        assert session.read("world")["state"]["door"] == state


def test_a_door_that_opens_ends_the_motion(lab: Lab, session: Session) -> None:
    """[OP-007, MHSD-4-20]"""
    start_mm = session.read("belt")["state"]["position_mm"]
    pending, begun = session.started(CONVEY, FAR)
    ask_until(lambda: session.read("belt")["state"]["position_mm"], lambda at_mm: at_mm > start_mm)
    session.completed(DOOR, {"closed": False})
    stopped = session.read("belt")["state"]
    assert stopped["running"] is False, "it stands when the door is open, not some time after"
    receipt = session.follow(begun["operation_id"])
    assert (receipt["status"], code_of(receipt)) == ("failed", OPEN)
    assert reason_of(receipt) == "opened_while_running"
    assert named(receipt) == [("door_closed", "open")]
    assert receipt["error"]["retryable"] is False, "it had begun, so it is not to be asked for again blindly"
    assert [effect["kind"] for effect in receipt["effects"]] == ["belt.move"]
    assert receipt["state_revision_after"] == receipt["state_revision_before"] + 1
    assert pending.result() == receipt
    for _ in range(10):
        assert session.read("belt")["state"] == stopped
    assert not latched(lab), "an open door is no emergency stop"
    session.completed(DOOR, {"closed": True})
    assert session.read("belt")["state"] == stopped, "and closing it resumes nothing"
    session.completed(CONVEY, {"distance_mm": 1, "speed_mm_s": 500})
    assert session.read("belt")["state"]["position_mm"] == stopped["position_mm"] + 1


def test_a_door_that_opens_ends_the_purge_with_the_valve_closed(session: Session) -> None:
    """[OP-007, MHSD-4-13]"""
    value = {"duration_ms": 10_000}
    permitted = permit(session, value)["permit_id"]
    pending, begun = session.started(PURGE, value, permit_id=permitted)
    ask_until(lambda: session.read("valve")["state"]["open"], bool)
    session.completed(DOOR, {"closed": False})
    assert session.read("valve")["state"] == {"open": False}
    receipt = pending.result()
    assert receipt["operation_id"] == begun["operation_id"]
    assert (receipt["status"], code_of(receipt)) == ("failed", OPEN)
    assert receipt["error"]["retryable"] is False
    session.completed(DOOR, {"closed": True})
    again = session.command(PURGE, value, permit_id=permitted)
    assert (code_of(again), reason_of(again)) == ("MHS.SAFETY.PERMIT_INVALID", "already_used")


def test_a_replay_of_what_the_door_ended_is_its_receipt(session: Session) -> None:
    """[OP-003]"""
    command_id = ulid()
    _, begun = session.started(CONVEY, FAR, command_id=command_id)
    session.completed(DOOR, {"closed": False})
    receipt = session.follow(begun["operation_id"])
    session.completed(DOOR, {"closed": True})
    assert session.command(CONVEY, FAR, command_id=command_id) == {**receipt, "replayed": True}


def test_a_valve_that_was_opened_stays_open_behind_the_door(session: Session) -> None:
    """The safety notes of the conveyor say so: only a motion that runs is ended."""
    session.completed(VALVE, {"open": True})
    session.completed(DOOR, {"closed": False})
    assert session.read("valve")["state"] == {"open": True}
    session.completed(DOOR, {"closed": True})
    session.completed(VALVE, {"open": False})


# A press whose interlocks the endpoint has to look at itself.


@pytest.fixture
def press(press_lab: Lab) -> Iterator[Session]:
    with restored_press(press_lab) as session:
        yield session


@pytest.mark.parametrize("state", ["open", "unreadable"])
@pytest.mark.parametrize("part", ["gate", "cover"])
def test_an_interlock_that_is_not_known_to_be_closed_is_open(press: Session, part: str, state: str) -> None:
    """[MHSD-4-04] Hard or not."""
    press.completed(CONDUCT, {part: state})
    receipt = press.command(NUDGE, {})
    assert (receipt["status"], code_of(receipt)) == ("rejected", OPEN)
    assert named(receipt) == [(f"{part}_closed", "open")]
    shown = {each["id"]: each["state"] for each in status(press.lab, PRESS)["interlocks"]}
    assert shown[f"{part}_closed"] == "open"
    press.completed(CONDUCT, {part: "closed"})
    press.completed(NUDGE, {})


def test_all_open_interlocks_are_named(press: Session) -> None:
    """[MHSD-4-04]"""
    press.completed(CONDUCT, {"gate": "open", "cover": "unreadable"})
    assert named(press.command(NUDGE, {})) == [("gate_closed", "open"), ("cover_closed", "open")]


@pytest.mark.parametrize("state", ["open", "unreadable"])
def test_a_polled_interlock_that_opens_ends_the_command(press: Session, state: str) -> None:
    """[MHSD-4-20, OP-011]"""
    pending, _ = press.started(HOLD, {"stubborn": False})
    before = press.read("press")["state"]
    press.completed(CONDUCT, {"gate": state})
    receipt = pending.result()
    assert (receipt["status"], code_of(receipt)) == ("failed", OPEN)
    assert reason_of(receipt) == "opened_while_running"
    assert named(receipt) == [("gate_closed", "open")]
    assert receipt["error"]["retryable"] is False
    after = press.read("press")["state"]
    assert (after["holding"], after["position_mm"]) == (False, before["position_mm"])
    assert after["halts"] > before["halts"], "the device was brought to its safe state"


def test_a_polled_interlock_that_guards_another_command_ends_nothing(press: Session) -> None:
    """[MHSD-4-04]"""
    pending, begun = press.started(HOLD, {"stubborn": False})
    press.completed(CONDUCT, {"cover": "open"})
    for _ in range(20):
        assert press.get(begun["operation_id"])["status"] == "running"
    press.completed("x-cap.test.release.v1", {})
    assert pending.result()["status"] == "completed"


def test_a_device_that_cannot_be_read_refuses_in_time(press: Session) -> None:
    """[OP-012, MHSD-4-10] The read of the interlocks counts against the deadline."""
    before = press.read("press")["state"]["position_mm"]
    press.completed(CONDUCT, {"read": "hang"})
    receipt = press.command(NUDGE, {}, deadline_ms=200)
    assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.OUTCOME.TIMEOUT")
    assert reason_of(receipt) == "deadline_exceeded_before_dispatch"
    assert receipt["error"]["retryable"] is True
    press.completed(CONDUCT, {"read": "answer"})
    press.completed(NUDGE, {})
    assert press.read("press")["state"]["position_mm"] == before + 1


def test_an_interlock_that_opens_while_a_command_queues_refuses_it(press: Session) -> None:
    """[MHSD-4-11]"""
    before = press.read("press")["state"]["position_mm"]
    holding, _ = press.started(HOLD, {"stubborn": False})
    queued = press.begin(NUDGE, {})
    press.completed(CONDUCT, {"cover": "open"})
    press.completed("x-cap.test.release.v1", {})
    assert holding.result()["status"] == "completed"
    receipt = queued.result()
    assert (receipt["status"], code_of(receipt)) == ("rejected", OPEN)
    assert press.read("press")["state"]["position_mm"] == before + 1, "only what was held has moved"
