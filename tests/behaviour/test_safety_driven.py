"""A device is driven by the session of its last mutation: that session's end brings it to its safe state."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.behaviour.safety import (
    CONDUCT,
    CONVEY,
    DESCRIBE,
    FAR,
    HOLD,
    NUDGE,
    PRESS,
    PURGE,
    RELEASE,
    STEP,
    VALVE,
    code_of,
    permit,
    restored,
    restored_press,
    status,
)
from tests.lab import Lab, RpcError, Session, ask_until


@pytest.fixture
def session(lab: Lab) -> Iterator[Session]:
    """A session that only looks on, unless a test makes it act."""
    with restored(lab) as session:
        yield session


def valve_is_open(session: Session) -> bool:
    is_open: bool = session.read("valve")["state"]["open"]
    return is_open


def ended(session: Session) -> bool:
    """Whether the session is over; asking does not prolong it."""
    try:
        session.read("world")
    except RpcError as error:
        return error.code in ("MHS.SESSION.EXPIRED", "MHS.SESSION.CLOSED")
    return False


def test_expiry_closes_a_valve_that_the_session_opened(lab: Lab, session: Session) -> None:
    """[SESS-004, CORE-085, MHSD-4-28]"""
    driving = lab.open(ttl_s=2)
    driving.completed(VALVE, {"open": True})
    ask_until(lambda: valve_is_open(session), lambda is_open: not is_open)
    assert driving.refused("mhs.session.heartbeat").code == "MHS.SESSION.EXPIRED"


def test_expiry_leaves_alone_what_another_session_drives(lab: Lab, session: Session) -> None:
    """[SESS-004, MHSD-4-28]"""
    first = lab.open(ttl_s=2)
    first.completed(VALVE, {"open": False})
    session.completed(VALVE, {"open": True})
    ask_until(lambda: ended(first), bool)
    for _ in range(10):
        assert valve_is_open(session)
    session.completed(VALVE, {"open": False})


def test_expiry_of_a_session_that_only_looked_changes_nothing(lab: Lab, session: Session) -> None:
    """[SESS-004, MHSD-4-28]"""
    session.completed(VALVE, {"open": True})
    looking = lab.open(ttl_s=2)
    looking.completed(DESCRIBE, {})
    looking.read("valve")
    ask_until(lambda: ended(looking), bool)
    assert valve_is_open(session)
    session.completed(VALVE, {"open": False})


def test_a_refused_mutation_does_not_make_a_session_drive(lab: Lab, session: Session) -> None:
    """[MHSD-4-28] Driven is who was dispatched, not who asked."""
    session.completed(VALVE, {"open": True})
    asking = lab.open()
    assert code_of(asking.command(PURGE, {"duration_ms": 1})) == "MHS.SAFETY.APPROVAL_REQUIRED"
    assert code_of(asking.command(CONVEY, {"distance_mm": 1, "speed_mm_s": 900})) is not None
    asking.close()
    assert valve_is_open(session)
    session.completed(VALVE, {"open": False})


def test_a_heartbeat_keeps_the_valve_open(lab: Lab, session: Session) -> None:
    """[SESS-005, MHSD-4-28]"""
    kept, left = lab.open(ttl_s=2), lab.open(ttl_s=2)
    left.completed(STEP, {"ticks": 1})
    kept.completed(VALVE, {"open": True})

    def left_has_ended() -> bool:
        kept.call("mhs.session.heartbeat")
        return ended(left)

    ask_until(left_has_ended, bool)
    assert valve_is_open(session)
    kept.close()
    assert not valve_is_open(session)


def test_expiry_ends_the_motion_and_closes_the_valve(lab: Lab, session: Session) -> None:
    """[SESS-004, CORE-085, OP-011]"""
    driving = lab.open(ttl_s=2)
    driving.completed(VALVE, {"open": True})
    pending, begun = driving.started(CONVEY, FAR)
    receipt = session.follow(begun["operation_id"])
    assert (receipt["status"], receipt["cancellation"]["reason"]) == ("cancelled", "session_expiry")
    assert receipt["cancellation"]["safe_state_achieved"] is True
    assert session.read("belt")["state"]["running"] is False
    assert not valve_is_open(session)
    assert pending.result() == receipt, "whoever still waits gets the receipt"


def test_a_close_during_a_motion_ends_it_first(lab: Lab, session: Session) -> None:
    """[SESS-006, OP-011, MHSD-4-20]"""
    driving = lab.open()
    driving.completed(VALVE, {"open": True})
    pending, begun = driving.started(CONVEY, FAR)
    summary = driving.close()["summary"]
    assert (summary["cancelled"], summary.get("cancellation_pending")) == (1, None)
    assert not valve_is_open(session)
    stopped = session.read("belt")["state"]
    assert stopped["running"] is False
    receipt = pending.result()
    assert (receipt["status"], receipt["cancellation"]["reason"]) == ("cancelled", "session_close")
    assert session.get(begun["operation_id"]) == receipt
    assert session.read("belt")["state"] == stopped


def test_a_close_leaves_the_motion_of_another_session_alone(lab: Lab, session: Session) -> None:
    """[MHSD-4-28]"""
    first = lab.open()
    first.completed(VALVE, {"open": True})
    _, begun = session.started(CONVEY, FAR)
    assert "cancellation_pending" not in first.close()["summary"]
    assert session.get(begun["operation_id"])["status"] == "running"
    assert valve_is_open(session), "it is the other one's now"
    session.cancel(begun["operation_id"])


def test_permits_end_with_an_expired_session(lab: Lab, session: Session) -> None:
    """[SESS-004, CORE-085]"""
    expiring = lab.open(ttl_s=2)
    permitted = permit(expiring, {"duration_ms": 1})["permit_id"]

    def listed() -> list[str]:
        return [each["permit_id"] for each in status(lab)["permits"]]

    assert permitted in listed()
    ask_until(listed, lambda permits: permitted not in permits)


# A device whose safe state is not confirmed, and one that does not come back.


@pytest.fixture
def press(press_lab: Lab) -> Iterator[Session]:
    with restored_press(press_lab) as session:
        yield session


@pytest.mark.parametrize("conduct", ["deny", "raise", "hang"])
def test_a_safe_state_that_is_not_confirmed_at_the_end_is_not_forgotten(press: Session, conduct: str) -> None:
    """[SESS-006, MHSD-4-22]"""
    driving = press.lab.open(device_id=PRESS)
    driving.completed(NUDGE, {})
    press.completed(CONDUCT, {"stop": conduct})
    driving.close()
    refused = ask_until(
        lambda: press.command(NUDGE, {}), lambda receipt: code_of(receipt) == "MHS.DEVICE.UNCONFIRMED"
    )
    assert refused["status"] == "rejected"


def test_a_close_tells_what_it_could_not_wait_for(press: Session) -> None:
    """[SESS-006, MHSD-4-21, MHSD-4-22]"""
    driving = press.lab.open(device_id=PRESS)
    pending, begun = driving.started(HOLD, {"stubborn": True})
    closed: Any = driving.close()
    # The grace of this daemon is shorter than a close waits, so the command has been given up by then.
    assert pending.result()["status"] == "unknown"
    assert press.get(begun["operation_id"])["error"]["details"]["reason"] == "stop_grace_exceeded"
    assert closed["summary"]["commands"] == 1
    press.completed(RELEASE, {})
