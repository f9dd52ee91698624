"""Permits: one exact input, one principal, one session, once, for a time [SAFE-004]."""

from typing import Any

import pytest

from mhsd.core.permits import Permit, PermitBook
from tests.unit.core_builders import AGENT, CONVEY, DEVICE, LATER, SESSION, ZEROS, attempt

EXPIRY_S = 160.0
WANTED = {
    "device_id": DEVICE,
    "capability_id": CONVEY,
    "resource": "belt",
    "input_digest": ZEROS,
    "principal": AGENT["id"],
}


def permit(**changes: Any) -> Permit:
    known: dict[str, Any] = {
        "permit_id": "permit_1",
        "session_id": SESSION,
        "device_id": DEVICE,
        "capability_id": CONVEY,
        "resource": "belt",
        "input_digest": ZEROS,
        "principal_id": AGENT["id"],
        "expires_mono_s": EXPIRY_S,
        "expires_at": LATER,
        "approvals": ({"principal": {"id": "human:alice", "kind": "human"}},),
    }
    return Permit(**{**known, **changes})


def book(*permits: Permit) -> PermitBook:
    issued = PermitBook()
    for each in permits:
        issued.issue(each, 100.0)
    return issued


def reason(
    permits: PermitBook,
    permit_id: str | None = "permit_1",
    *,
    session_id: str = SESSION,
    own: bool = False,
    now_mono_s: float = 100.0,
    **wanted: str,
) -> str | None:
    """What is wrong with the permit, or None."""
    fault = permits.refusal(
        permit_id, wanted={**WANTED, **wanted}, session_id=session_id, own=own, now_mono_s=now_mono_s
    )
    if fault is None:
        return None
    assert fault.mhs_code == "MHS.SAFETY.PERMIT_INVALID"
    assert fault.retryable is False
    assert fault.details is not None
    return str(fault.details["reason"])


def test_a_permit_covers_the_command_that_it_was_issued_for() -> None:
    assert reason(book(permit())) is None


def test_no_permit_asks_for_an_approval_of_exactly_this_input() -> None:
    fault = book(permit()).refusal(None, wanted=WANTED, session_id=SESSION, own=False, now_mono_s=100.0)
    assert fault is not None
    assert fault.mhs_code == "MHS.SAFETY.APPROVAL_REQUIRED"
    assert fault.details == {"input_digest": ZEROS, "capability_id": CONVEY}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"permit_id": "permit_2"}, "unknown"),
        ({"permit_id": ""}, "unknown"),
        ({"principal": "human:bob"}, "other_principal"),
        ({"session_id": "mhs_s_other"}, "other_session"),
        ({"device_id": f"{DEVICE}-2"}, "other_capability"),
        ({"capability_id": "cap.actuation.purge.v1"}, "other_capability"),
        ({"resource": "valve"}, "other_capability"),
        ({"input_digest": "sha256:" + "1" * 64}, "other_input"),
        ({"now_mono_s": EXPIRY_S}, "expired"),
        ({"now_mono_s": EXPIRY_S + 1}, "expired"),
    ],
)
def test_a_permit_for_anything_else_is_invalid_and_says_why(changed: dict[str, Any], expected: str) -> None:
    assert reason(book(permit()), **changed) == expected


def test_a_permit_lives_until_the_instant_of_its_expiry() -> None:
    assert reason(book(permit()), now_mono_s=EXPIRY_S - 1e-6) is None


def test_a_used_permit_is_used_even_for_the_command_that_used_it() -> None:
    permits = book(permit(state="used"))
    assert reason(permits) == "already_used"
    assert reason(permits, own=True) == "already_used"


def test_a_reserved_permit_is_taken_for_every_other_command() -> None:
    permits = book(permit(state="reserved"))
    assert reason(permits) == "already_used"
    assert reason(permits, own=True) is None


def test_a_reserved_permit_can_expire_before_it_is_used() -> None:
    assert reason(book(permit(state="reserved")), own=True, now_mono_s=EXPIRY_S) == "expired"


def test_a_permit_that_was_given_back_can_be_used_again() -> None:
    given = permit()
    permits = book(given)
    given.state = "reserved"
    given.state = "issued"
    assert reason(permits) is None


def test_the_scope_of_a_permit_is_what_the_attempt_asks_of_it() -> None:
    a = attempt()
    fitting = permit(input_digest=a.input_digest)
    assert fitting.scope() == a.permit_scope()
    assert (
        book(fitting).refusal(
            "permit_1",
            wanted=a.permit_scope(),
            session_id=a.session.session_id,
            own=False,
            now_mono_s=a.received_mono_s,
        )
        is None
    )


# The end of a session.


def test_permits_end_with_their_session_and_no_other_ones_do() -> None:
    permits = book(permit(), permit(permit_id="permit_2", session_id="mhs_s_other"))
    permits.release_session(SESSION)
    assert reason(permits) == "unknown"
    assert reason(permits, "permit_2", session_id="mhs_s_other") is None


def test_a_permit_that_is_given_back_after_its_session_ended_is_nobodys() -> None:
    given = permit(state="reserved")
    permits = book(given)
    permits.release_session(SESSION)
    given.state = "issued"
    assert reason(permits) == "unknown"
    assert permits.live(DEVICE, 100.0) == []


def test_the_end_of_the_session_does_not_take_the_permit_from_the_command_that_holds_it() -> None:
    permits = book(permit(state="reserved"))
    permits.release_session(SESSION)
    assert reason(permits, own=True) is None


# What is shown.


def test_only_permits_that_could_still_be_used_on_the_device_are_shown() -> None:
    permits = book(
        permit(permit_id="live"),
        permit(permit_id="late", expires_mono_s=101.0),
        permit(permit_id="reserved", state="reserved"),
        permit(permit_id="used", state="used"),
        permit(permit_id="elsewhere", device_id=f"{DEVICE}-2"),
        permit(permit_id="ended", session_id="mhs_s_other"),
    )
    permits.release_session("mhs_s_other")
    assert permits.live(DEVICE, 101.0) == [
        {"permit_id": "live", "capability_id": CONVEY, "expires_at": LATER}
    ]


def test_expired_permits_are_forgotten_when_new_ones_come_and_stay_invalid() -> None:
    permits = book(permit(), permit(permit_id="held", state="reserved"))
    permits.issue(permit(permit_id="new", expires_mono_s=1000.0), EXPIRY_S)
    assert permits.get("permit_1") is None
    assert permits.get("held") is not None
    assert permits.get("new") is not None
    assert reason(permits, now_mono_s=EXPIRY_S) == "unknown"


def test_no_id_names_no_permit() -> None:
    assert book(permit()).get(None) is None
