"""Permits: one approval for one exact input, by one principal, once, for a limited time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import UNHURRIED
from tests.behaviour.safety import (
    CONVEY,
    DESCRIBE,
    DOOR,
    FAULT,
    PURGE,
    STEP,
    VALVE,
    code_of,
    permit,
    reason_of,
    reset,
    restored,
    status,
    stop,
    token_file,
)
from tests.documents import input_digest
from tests.lab import CONVEYOR, HttpWire, Lab, RpcError, Session, ask_until, running, ulid

SHORT = {"duration_ms": 1}
LONG = {"duration_ms": 10_000}
INVALID = "MHS.SAFETY.PERMIT_INVALID"


@pytest.fixture
def session(lab: Lab) -> Iterator[Session]:
    with restored(lab) as session:
        yield session


def permit_id(session: Session, value: Any = SHORT, **more: Any) -> str:
    granted: str = permit(session, value, **more)["permit_id"]
    return granted


def shown(session: Session) -> list[str]:
    """The permits that the device's status lists."""
    return [each["permit_id"] for each in status(session.lab)["permits"]]


def refused(receipt: Any, reason: str) -> bool:
    return (receipt["status"], code_of(receipt), reason_of(receipt)) == ("rejected", INVALID, reason)


def test_a_permit_says_what_it_is_for(lab: Lab, session: Session) -> None:
    """[SAFE-004]"""
    granted = permit(session, SHORT)
    assert granted["permit_id"].startswith("permit_")
    assert granted["single_use"] is True
    assert granted["scope"] == {
        "device_id": CONVEYOR,
        "capability_id": PURGE,
        "resource": "valve",
        "input_digest": input_digest(PURGE, "valve", SHORT),
        "principal": session.completed(DESCRIBE, {})["principal"]["id"],
    }
    listed = status(lab)["permits"]
    assert {"permit_id", "capability_id", "expires_at"} == listed[-1].keys()
    assert listed[-1]["expires_at"] == granted["expires_at"]


def test_without_a_permit_a_gated_command_is_refused_and_nothing_happens(session: Session) -> None:
    """[SAFE-004, MHSD-4-04]"""
    before = session.read("valve")
    receipt = session.command(PURGE, SHORT)
    assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.SAFETY.APPROVAL_REQUIRED")
    assert receipt["error"]["details"]["input_digest"] == input_digest(PURGE, "valve", SHORT)
    after = session.read("valve")
    assert (after["state"], after["revision"]) == (before["state"], before["revision"])


def test_a_permit_opens_exactly_one_command(session: Session) -> None:
    """[SAFE-004, MHSD-4-13]"""
    permitted = permit_id(session)
    assert permitted in shown(session)
    receipt = session.completed(PURGE, SHORT, permit_id=permitted)
    assert receipt["output"] == {"open": False, **SHORT}
    assert receipt["approvals"][0]["principal"] == receipt["principal"], "who gave it is on record"
    assert permitted not in shown(session)
    assert refused(session.command(PURGE, SHORT, permit_id=permitted), "already_used")


def test_a_replay_needs_no_second_permit(session: Session) -> None:
    """[OP-003]"""
    command_id, permitted = ulid(), permit_id(session)
    done = session.completed(PURGE, SHORT, command_id=command_id, permit_id=permitted)
    again = session.command(PURGE, SHORT, command_id=command_id, permit_id=permitted)
    assert again == {**done, "replayed": True}


@pytest.mark.parametrize("spelled", [{"duration_ms": 1.0}, {"duration_ms": 1}])
def test_the_digest_is_what_counts_and_not_the_spelling(session: Session, spelled: Any) -> None:
    """[SAFE-004, PROTO-036]"""
    session.completed(PURGE, spelled, permit_id=permit_id(session))


@pytest.mark.parametrize("resource", [None, "valve"])
def test_the_resource_may_be_left_to_the_endpoint(session: Session, resource: str | None) -> None:
    """[SAFE-004] Permit and command mean the resource that the class is bound to."""
    given = session.call(
        "mhs.safety.permit",
        capability_id=PURGE,
        input_digest=input_digest(PURGE, "valve", SHORT),
        ttl_s=60,
        approvals=[],
    )
    assert given["scope"]["resource"] == "valve"
    named = {} if resource is None else {"resource": resource}
    session.completed(PURGE, SHORT, permit_id=given["permit_id"], **named)


def test_another_input_is_refused_and_the_permit_stays_good(session: Session) -> None:
    """[SAFE-004, MHSD-4-13]"""
    permitted = permit_id(session)
    for value in ({"duration_ms": 2}, LONG):
        assert refused(session.command(PURGE, value, permit_id=permitted), "other_input")
    session.completed(PURGE, SHORT, permit_id=permitted)


def test_an_input_that_is_no_input_at_all_does_not_use_a_permit(session: Session) -> None:
    """[MHSD-4-04, MHSD-4-13]"""
    permitted = permit_id(session)
    receipt = session.command(PURGE, {"duration_ms": 0}, permit_id=permitted)
    assert code_of(receipt) == "MHS.CAPABILITY.INPUT_INVALID"
    session.completed(PURGE, SHORT, permit_id=permitted)


@pytest.mark.parametrize("name", ["permit_nobodys", "permit_01M8P6TRVT43EV4R9N1VYBK4YC"])
def test_a_permit_that_does_not_exist_is_invalid(session: Session, name: str) -> None:
    """[SAFE-004]"""
    receipt = session.command(PURGE, SHORT, permit_id=name)
    assert refused(receipt, "unknown")
    assert session.read("valve")["state"] == {"open": False}


def test_a_permit_is_for_one_capability(session: Session) -> None:
    """[SAFE-004] A digest covers its capability, so one for another never matches."""
    other = permit(session, SHORT, capability_id=VALVE)["permit_id"]
    assert refused(session.command(PURGE, SHORT, permit_id=other), "other_capability")


def test_a_permit_expires(session: Session) -> None:
    """[SAFE-004]"""
    permitted = permit_id(session, ttl_s=1)
    assert permitted in shown(session)
    ask_until(lambda: shown(session), lambda listed: permitted not in listed)
    assert refused(session.command(PURGE, SHORT, permit_id=permitted), "expired")


def test_a_permit_ends_with_the_session_that_it_is_for(lab: Lab, session: Session) -> None:
    """[SESS-004, SAFE-004]"""
    one, other = lab.open(), lab.open()
    permitted = permit_id(one)
    assert refused(other.command(PURGE, SHORT, permit_id=permitted), "other_session")
    one.close()
    assert permitted not in shown(session)
    assert refused(other.command(PURGE, SHORT, permit_id=permitted), "unknown")
    other.close()


def test_a_command_that_needs_none_may_bring_one_and_does_not_use_it(session: Session) -> None:
    """[SAFE-004]"""
    permitted = permit_id(session)
    session.completed(STEP, {"ticks": 1}, permit_id=permitted)
    session.completed(VALVE, {"open": False}, permit_id="permit_nobodys")
    session.completed(PURGE, SHORT, permit_id=permitted)


# Given back, or not.


def test_a_device_that_is_busy_gives_the_permit_back(session: Session) -> None:
    """[MHSD-4-13, OP-002]"""
    permitted = permit_id(session)
    session.completed(FAULT, {"kind": "busy", "times": 2})
    for _ in range(2):
        receipt = session.command(PURGE, SHORT, permit_id=permitted)
        assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.DEVICE.BUSY")
        assert receipt["error"]["details"]["retry_after_ms"] > 0
        assert permitted in shown(session)
    session.completed(PURGE, SHORT, permit_id=permitted)


def test_every_refusal_gives_the_permit_back(lab: Lab, session: Session) -> None:
    """[MHSD-4-13]"""
    permitted = permit_id(session)
    session.completed(DOOR, {"closed": False})
    assert code_of(session.command(PURGE, SHORT, permit_id=permitted)) == "MHS.SAFETY.INTERLOCK_OPEN"
    session.completed(DOOR, {"closed": True})
    refused_revision = session.command(PURGE, SHORT, permit_id=permitted, expected_revision=10**9)
    assert code_of(refused_revision) == "MHS.CONFLICT.REVISION"
    stop(lab)
    assert code_of(session.command(PURGE, SHORT, permit_id=permitted)) == "MHS.SAFETY.ESTOP_LATCHED"
    assert reset(session)["status"] == "completed"
    pending, begun = session.started(CONVEY, {"distance_mm": 10_000, "speed_mm_s": 100})
    assert code_of(session.command(PURGE, SHORT, permit_id=permitted)) == "MHS.DEVICE.BUSY"
    session.cancel(begun["operation_id"])
    pending.result()
    assert permitted in shown(session)
    session.completed(PURGE, SHORT, permit_id=permitted)


def test_a_refused_command_in_the_queue_gives_the_permit_back(lab: Lab, session: Session) -> None:
    """[MHSD-4-13] Reserved while it waits, and free again when it is refused."""
    permitted = permit_id(session)
    session.completed(FAULT, {"kind": "hang", "times": 1})
    session.started(STEP, {"ticks": 1})
    queued = session.begin(PURGE, SHORT, permit_id=permitted)
    ask_until(lambda: shown(session), lambda listed: permitted not in listed)
    stop(lab)
    assert code_of(queued.result()) == "MHS.SAFETY.ESTOP_LATCHED"
    assert permitted in shown(session)
    assert reset(session)["status"] == "completed"
    session.completed(PURGE, SHORT, permit_id=permitted)


def test_a_deadline_that_passes_in_the_queue_gives_the_permit_back(session: Session) -> None:
    """[OP-012, MHSD-4-13]"""
    permitted = permit_id(session)
    session.completed(FAULT, {"kind": "hang", "times": 1})
    holding, begun = session.started(STEP, {"ticks": 1})
    receipt = session.command(PURGE, SHORT, permit_id=permitted, deadline_ms=50)
    assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.OUTCOME.TIMEOUT")
    assert reason_of(receipt) == "deadline_exceeded_before_dispatch"
    session.cancel(begun["operation_id"])
    holding.result()
    session.completed(PURGE, SHORT, permit_id=permitted)


@pytest.mark.parametrize(
    ("kind", "status_after"),
    [
        ("fail", "failed"),
        ("raise", "failed"),
        ("bad_output", "failed"),
        ("outcome_unknown", "unknown"),
    ],
)
def test_a_command_that_was_dispatched_has_used_its_permit(
    session: Session, kind: str, status_after: str
) -> None:
    """[MHSD-4-13]"""
    permitted = permit_id(session)
    session.completed(FAULT, {"kind": kind, "times": 1})
    receipt = session.command(PURGE, SHORT, permit_id=permitted)
    assert receipt["status"] == status_after
    assert permitted not in shown(session)
    assert refused(session.command(PURGE, SHORT, permit_id=permitted), "already_used")


def test_a_command_that_was_cancelled_has_used_its_permit(session: Session) -> None:
    """[MHSD-4-13, OP-011]"""
    permitted = permit_id(session, LONG)
    pending, begun = session.started(PURGE, LONG, permit_id=permitted)
    session.cancel(begun["operation_id"])
    receipt = pending.result()
    assert (receipt["status"], receipt["cancellation"]["safe_state_achieved"]) == ("cancelled", True)
    assert session.read("valve")["state"] == {"open": False}
    assert refused(session.command(PURGE, LONG, permit_id=permitted), "already_used")


def test_two_commands_cannot_share_a_permit(session: Session) -> None:
    """[SAFE-004, MHSD-4-09]"""
    permitted = permit_id(session)
    pending = [session.begin(PURGE, SHORT, permit_id=permitted) for _ in range(5)]
    receipts = [each.result() for each in pending]
    assert sorted(receipt["status"] for receipt in receipts) == ["completed", *["rejected"] * 4]
    assert {reason_of(receipt) for receipt in receipts if "error" in receipt} == {"already_used"}


# Asking for one.


def wanted(**changes: Any) -> dict[str, Any]:
    params = {
        "capability_id": PURGE,
        "input_digest": input_digest(PURGE, "valve", SHORT),
        "ttl_s": 60,
        "approvals": [],
        **changes,
    }
    return {name: value for name, value in params.items() if value is not ...}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"input_digest": "sha256:short"}, "MHS.PROTOCOL.INVALID_PARAMS"),
        ({"input_digest": input_digest(PURGE, "valve", SHORT).upper()}, "MHS.PROTOCOL.INVALID_PARAMS"),
        ({"input_digest": ...}, "MHS.PROTOCOL.INVALID_PARAMS"),
        ({"ttl_s": 0}, "MHS.PROTOCOL.INVALID_PARAMS"),
        ({"ttl_s": -5}, "MHS.PROTOCOL.INVALID_PARAMS"),
        ({"ttl_s": "long"}, "MHS.PROTOCOL.INVALID_PARAMS"),
        ({"ttl_s": True}, "MHS.PROTOCOL.INVALID_PARAMS"),
        ({"ttl_s": ...}, "MHS.PROTOCOL.INVALID_PARAMS"),
        ({"approvals": [{"principal": "me"}]}, "MHS.PROTOCOL.INVALID_PARAMS"),
        ({"single_use": False}, "MHS.PROTOCOL.INVALID_PARAMS"),
        ({"capability_id": "cap.nobody.knows.v1"}, "MHS.CAPABILITY.NOT_BOUND"),
        ({"resource": "belt"}, "MHS.CAPABILITY.NOT_BOUND"),
        ({"capability_id": "cap.internal.restore.v1"}, "MHS.CAPABILITY.NOT_BOUND"),
    ],
    ids=str,
)
def test_what_is_no_request_for_a_permit_gives_none(
    session: Session, changes: dict[str, Any], code: str
) -> None:
    """[SAFE-004, PROTO-012]"""
    before = shown(session)
    assert session.refused("mhs.safety.permit", **wanted(**changes)).code == code
    assert shown(session) == before


def test_a_permit_is_for_a_live_session(lab: Lab, session: Session) -> None:
    """[SAFE-004]"""
    unknown = lab.refused("mhs.safety.permit", session_id="mhs_s_unknown", **wanted())
    assert unknown.code == "MHS.SESSION.UNKNOWN"
    closed = lab.open()
    closed.close()
    assert closed.refused("mhs.safety.permit", **wanted()).code == "MHS.SESSION.CLOSED"


def test_a_permit_asked_for_as_a_notification_is_dropped(lab: Lab, session: Session) -> None:
    """[PROTO-005]"""
    before = shown(session)
    lab.wire.exchange(
        [
            {
                "jsonrpc": "2.0",
                "method": "mhs.safety.permit",
                "params": {"session_id": session.id, **wanted()},
            },
            {"jsonrpc": "2.0", "id": ulid(), "method": "mhs.devices.list"},
        ]
    )
    assert shown(session) == before


def test_who_approved_is_on_record_beside_who_was_named(session: Session) -> None:
    """[SAFE-004]"""
    named = {"principal": {"id": "human:chief", "kind": "human"}, "note": "seen"}
    receipt = session.completed(PURGE, SHORT, permit_id=permit_id(session, approvals=[named]))
    assert receipt["approvals"][0] == named
    assert receipt["approvals"][1]["principal"] == receipt["principal"]


def test_a_status_asked_for_in_a_session_shows_the_same(session: Session) -> None:
    """[SAFE-001]"""
    permitted = permit_id(session)
    context = session.call("mhs.session.heartbeat")["safety_context"]
    assert [each["permit_id"] for each in context["permits"]][-1] == permitted
    assert status(session.lab, session_id=session.id)["permits"] == context["permits"]
    session.completed(PURGE, SHORT, permit_id=permitted)


# Several principals.


def test_a_permit_of_one_principal_is_worth_nothing_to_another(tmp_path: Path) -> None:
    """[SAFE-004, SAFE-060]"""
    tokens = token_file(
        tmp_path / "tokens.toml",
        ("ann", "human:ann", "client"),
        ("bob", "human:bob", "client"),
    )
    operators = token_file(tmp_path / "operators.toml", ("op", "human:op", "operator"))
    options = ("--token-file", str(tokens), "--operator-token-file", str(operators), *UNHURRIED)
    with running("http", tmp_path, *options) as lab:

        def become(token: str) -> None:
            assert isinstance(lab.wire, HttpWire)
            lab.wire.token = token

        become("ann")
        ann = lab.open()
        become("bob")
        bob = lab.open()
        become("op")
        permitted = permit(ann, SHORT)["permit_id"]
        become("bob")
        assert refused(bob.command(PURGE, SHORT, permit_id=permitted), "other_principal")
        with pytest.raises(RpcError, match="UNKNOWN"):
            ann.command(PURGE, SHORT, permit_id=permitted)
        become("ann")
        done = ann.completed(PURGE, SHORT, permit_id=permitted)
        assert done["principal"]["id"] == "human:ann"
        assert [each["principal"]["id"] for each in done["approvals"]] == ["human:op"]


def test_permits_end_with_the_process(binding: str, tmp_path: Path) -> None:
    """[MHSD-4-13]"""
    state = ("--state-dir", str(tmp_path / "state"), *UNHURRIED)
    with running(binding, tmp_path, *state) as lab:
        permitted = permit_id(lab.open())
        lab.kill()
    with running(binding, tmp_path, *state) as lab:
        assert refused(lab.open().command(PURGE, SHORT, permit_id=permitted), "unknown")
