"""A fault carries its row to the peer, and a start error its exit code."""

import pytest

from mhsd.base.errors import ERRORS, Fault, StartError


def test_a_fault_says_what_its_row_says() -> None:
    row = ERRORS["MHS.DEVICE.BUSY"]
    fault = Fault("MHS.DEVICE.BUSY", "the belt is moving")
    assert fault.error() == {
        "code": -32009,
        "message": "the belt is moving",
        "data": {"mhs_code": "MHS.DEVICE.BUSY", "retryable": True, "remediation": row.remediation},
    }
    assert str(fault) == "the belt is moving"
    assert repr(fault) == "Fault('MHS.DEVICE.BUSY', 'the belt is moving')"


def test_the_reason_of_a_fault_overrides_its_row() -> None:
    plain = Fault("MHS.OUTCOME.TIMEOUT", "late")
    before = Fault("MHS.OUTCOME.TIMEOUT", "late", details={"reason": "deadline_exceeded_before_dispatch"})
    assert (plain.retryable, before.retryable) == (False, True)
    assert before.remediation != plain.remediation


@pytest.mark.parametrize(
    "reason", ["something_else", 7, None, ["deadline_exceeded_before_dispatch"], {"a": 1}]
)
def test_a_reason_without_a_row_of_its_own_changes_nothing(reason: object) -> None:
    fault = Fault("MHS.OUTCOME.TIMEOUT", "late", details={"reason": reason})
    assert fault.retryable is False
    assert fault.remediation == ERRORS["MHS.OUTCOME.TIMEOUT"].remediation


def test_a_reason_that_changes_one_thing_leaves_the_other_to_the_row() -> None:
    fault = Fault("MHS.PROTOCOL.INVALID_REQUEST", "no hello yet", details={"reason": "hello_required"})
    assert fault.retryable is False
    assert "mhs.hello" in fault.remediation


def test_the_raiser_has_the_last_word() -> None:
    fault = Fault(
        "MHS.OUTCOME.TIMEOUT",
        "late",
        details={"reason": "deadline_exceeded_before_dispatch"},
        retryable=False,
        remediation="Do something else.",
    )
    assert fault.retryable is False
    assert fault.remediation == "Do something else."


def test_revision_zero_and_no_open_interlock_are_still_said() -> None:
    data = Fault("MHS.CONFLICT.REVISION", "stale", current_revision=0, interlocks=[], details={}).data()
    assert data["current_revision"] == 0
    assert data["interlocks"] == []
    assert data["details"] == {}


def test_the_error_of_a_receipt_repeats_the_data_beside_it() -> None:
    fault = Fault(
        "MHS.SAFETY.INTERLOCK_OPEN",
        "door open",
        details={"field": "x"},
        current_revision=4,
        interlocks=[{"id": "door_closed", "state": "open"}],
    )
    error = fault.receipt_error()
    data = error.pop("data")
    assert data == fault.data()
    assert error == {"code": -32010, "message": "door open", **data}


def test_a_fault_keeps_its_own_copy_of_the_details() -> None:
    details = {"field": "speed_mm_s"}
    fault = Fault("MHS.PROTOCOL.INVALID_PARAMS", "bad", details=details)
    details["field"] = "other"
    assert fault.data()["details"] == {"field": "speed_mm_s"}


def test_a_code_without_a_row_is_a_defect_of_the_program() -> None:
    with pytest.raises(KeyError):
        Fault("MHS.NOTHING.AT_ALL", "x")


def test_the_tables_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        ERRORS["MHS.NEW.CODE"] = ERRORS["MHS.DEVICE.BUSY"]  # type: ignore[index]


def test_a_start_error_is_a_usage_error_unless_it_says_otherwise() -> None:
    assert (StartError("no such file").exit_code, StartError("no such file").mhs_code) == (2, None)
    refused = StartError("not allowed", 4, "MHS.AUTH.HARDWARE_DISABLED")
    assert (str(refused), refused.exit_code, refused.mhs_code) == (
        "not allowed",
        4,
        "MHS.AUTH.HARDWARE_DISABLED",
    )


def test_half_a_surrogate_pair_in_a_drivers_text_does_not_keep_the_answer_from_being_sent() -> None:
    """[PROTO-042]"""
    assert Fault("MHS.DEVICE.FAULT", "21.5 \udcb0C").message == "21.5 ?C"
    assert Fault("MHS.DEVICE.FAULT", "21.5 °C").message == "21.5 °C"
