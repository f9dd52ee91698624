"""Receipts: every body that is built fits the shipped schema and says no more than what happened."""

import copy
import math
from typing import Any

import pytest

from mhsd.base.errors import ERRORS, Fault
from mhsd.core import receipts
from mhsd.core.operations import (
    Conclusion,
    Ending,
    Failed,
    Interrupted,
    Lost,
    Refused,
    Returned,
    conclude,
)
from mhsd.core.permits import Permit
from mhsd.core.receipts import Change
from mhsd.wire.canonical import stays_canonical
from tests.unit.core_builders import (
    AGENT,
    AT,
    BROKEN,
    BUSY,
    CONVEY,
    DEVICE,
    ENDPOINT,
    EVIDENCE,
    INTERIM,
    JUDGE,
    KINDS,
    LATER,
    MOVE,
    OPERATION,
    RECEIPT,
    SESSION,
    UNKNOWN,
    ZEROS,
    attempt,
    capability,
    ending,
    operation,
)

MOVED, STILL = Change(41, 42, ZEROS), Change(41, 41, ZEROS)
ALICE = {"principal": {"id": "human:alice", "kind": "human"}, "approved_at": AT}


def checked(body: dict[str, Any], *, chained: bool = True) -> dict[str, Any]:
    """The body, once it fits the schema of a receipt and the chain can take it."""
    assert stays_canonical(body)
    whole = {**body, "evidence": EVIDENCE} if chained else body
    assert [error.message for error in JUDGE.iter_errors(whole)] == []
    return body


def shared(**changes: Any) -> dict[str, Any]:
    return receipts.command_members(attempt(**changes), ENDPOINT, "simulated")


def permit(*approvals: dict[str, Any]) -> Permit:
    return Permit(
        permit_id="permit_1",
        session_id=SESSION,
        device_id=DEVICE,
        capability_id=CONVEY,
        resource="belt",
        input_digest=ZEROS,
        principal_id=AGENT["id"],
        expires_mono_s=1000.0,
        expires_at=LATER,
        approvals=approvals,
    )


def final(conclusion: Conclusion, change: Change = STILL, **changes: Any) -> dict[str, Any]:
    return receipts.final(shared(), operation(**changes), conclusion, change, (MOVE,), LATER)


DONE = Conclusion("completed", output={"position_mm": 100})


# What all receipts of a command share.


def test_the_shared_members_tell_what_was_asked_by_whom_and_where() -> None:
    a = attempt()
    assert shared() == {
        "command_id": a.command_id,
        "session_id": SESSION,
        "endpoint_id": ENDPOINT,
        "device_id": DEVICE,
        "capability_id": CONVEY,
        "resource_ids": ["belt"],
        "input_digest": a.input_digest,
        "mode": "simulated",
        "principal": AGENT,
        "accepted_at": AT,
        "replayed": False,
    }


def test_a_command_that_resolved_no_resource_names_none() -> None:
    assert shared(resource=None)["resource_ids"] == []


def test_a_trace_id_is_carried_beside_what_else_the_vendor_says() -> None:
    body = shared(trace_id="00-abc-01")
    assert body["x-vendor"] == {"trace_id": "00-abc-01"}
    receipts.add_vendor(body, {"reconciles": INTERIM})
    assert body["x-vendor"] == {"trace_id": "00-abc-01", "reconciles": INTERIM}


def test_adding_for_one_receipt_does_not_change_another() -> None:
    first = shared(trace_id="00-abc-01")
    second = dict(first)
    receipts.add_vendor(second, {"reconciles": INTERIM})
    assert first["x-vendor"] == {"trace_id": "00-abc-01"}


@pytest.mark.parametrize(
    ("capability_id", "resource", "value"),
    [("cap.world.step.v1", "world", {"ticks": 2}), (CONVEY, "belt", {}), (CONVEY, None, {"ticks": 1})],
)
def test_the_input_digest_is_over_class_resource_and_input_alone(
    capability_id: str, resource: str | None, value: Any
) -> None:
    assert receipts.input_digest(capability_id, resource, value) != receipts.input_digest(
        CONVEY, "belt", {"ticks": 1}
    )


def test_equal_inputs_have_one_digest_however_they_are_written() -> None:
    first = receipts.input_digest(CONVEY, "belt", {"a": 1, "b": 100})
    assert receipts.input_digest(CONVEY, "belt", {"b": 1e2, "a": 1.0}) == first
    assert first.startswith("sha256:")


def test_stops_and_resets_have_the_reserved_classes() -> None:
    assert receipts.ESTOP == "cap.internal.safety_estop.v1"
    assert receipts.RESET == "cap.internal.safety_reset.v1"


# Refusals.


@pytest.mark.parametrize("mhs_code", list(ERRORS))
def test_a_rejected_receipt_fits_the_schema_moves_no_revision_and_has_no_effects(mhs_code: str) -> None:
    fault = Fault(mhs_code, "refused", details={"field": "a"}, current_revision=41)
    body = checked(receipts.rejected(shared(), RECEIPT, fault, 41, LATER))
    assert body["status"] == "rejected"
    assert body["receipt_id"] == RECEIPT
    assert body["state_revision_before"] == body["state_revision_after"] == 41
    assert body["effects"] == []
    assert body["error"]["data"] == fault.data()
    assert body["error"]["code"] == fault.code
    assert body["error"]["mhs_code"] == mhs_code
    assert "operation_id" not in body
    assert "state_hash_after" not in body


def test_a_refused_interlock_is_named_beside_the_code_and_in_its_data() -> None:
    opened = [{"id": "door_closed", "state": "open"}]
    fault = Fault("MHS.SAFETY.INTERLOCK_OPEN", "open", interlocks=opened)
    error = checked(receipts.rejected(shared(), RECEIPT, fault, 0, LATER))["error"]
    assert error["interlocks"] == error["data"]["interlocks"] == opened


def test_a_refusal_of_a_class_that_is_none_names_it_as_sent() -> None:
    body = shared(capability_id="no such class!", resource="no such resource!")
    checked(receipts.rejected(body, RECEIPT, Fault("MHS.CAPABILITY.UNKNOWN", "unknown"), 0, LATER))


# Snapshots and interim receipts.


def test_a_running_snapshot_has_the_ids_of_the_final_receipt_and_the_progress() -> None:
    running = operation()
    running.report(40, 12, "half way")
    body = checked(receipts.running(shared(), running), chained=False)
    assert body["status"] == "running"
    assert (body["receipt_id"], body["operation_id"]) == (RECEIPT, OPERATION)
    assert body["progress"] == {"percent": 40, "ticks": 12, "message": "half way"}
    assert "cancellation" not in body


def test_a_snapshot_does_not_change_with_the_operation() -> None:
    running = operation()
    body = receipts.running(shared(), running)
    running.report(90, None, None)
    assert body["progress"] == {"percent": 0}


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_of_an_operation_that_is_being_ended_claims_no_safe_state_yet(kind: Any) -> None:
    body = checked(receipts.running(shared(), operation(ending=ending(kind))), chained=False)
    assert body["status"] == "running"
    assert body["cancellation"]["safe_state_achieved"] is False
    assert body["cancellation"]["requested_by"] == f"endpoint:{kind}"


def test_an_interim_receipt_has_its_own_id_the_same_operation_and_is_never_retryable() -> None:
    body = checked(receipts.interim(shared(), operation(), INTERIM, 41, LATER))
    assert body["status"] == "unknown"
    assert (body["receipt_id"], body["operation_id"]) == (INTERIM, OPERATION)
    assert body["error"]["mhs_code"] == "MHS.OUTCOME.TIMEOUT"
    assert body["error"]["retryable"] is False
    assert body["error"]["details"]["operation_id"] == OPERATION
    assert body["state_revision_before"] == body["state_revision_after"] == 41
    assert body["effects"] == []


# Final receipts.

CHANGES = {"moved": MOVED, "still": STILL, "unreadable": Change(41, 42, None)}
NATIVES = {
    "returned": Returned({"position_mm": 100}, None),
    "returned with effects": Returned({"position_mm": 100}, (MOVE,)),
    "bad output": Returned({}, None),
    "failed": Failed(BROKEN),
    "refused": Refused(BUSY),
    "lost": Lost(UNKNOWN),
    "interrupted": Interrupted(),
}


@pytest.mark.parametrize("change", list(CHANGES.values()), ids=list(CHANGES))
@pytest.mark.parametrize("kind", [None, *KINDS])
@pytest.mark.parametrize("name", [name for name in NATIVES if name != "refused"])
def test_every_final_receipt_fits_the_schema(name: str, kind: Any, change: Change) -> None:
    if name == "interrupted" and kind is None:
        return
    told = ending(kind) if kind is not None else None
    conclusion = conclude(NATIVES[name], told, True, capability().output)
    body = checked(final(conclusion, change, interim_id=INTERIM, ending=told))
    assert body["status"] == conclusion.status
    assert body["receipt_id"] == RECEIPT
    assert body["operation_id"] == OPERATION
    assert body["state_revision_after"] - body["state_revision_before"] == change.after - change.before
    assert body["x-vendor"] == {"reconciles": INTERIM}


def test_a_final_receipt_without_an_interim_one_reconciles_nothing() -> None:
    assert "x-vendor" not in checked(final(DONE))


def test_the_state_hash_stands_in_the_receipt_where_it_could_be_computed() -> None:
    assert final(DONE, MOVED)["state_hash_after"] == ZEROS
    assert "state_hash_after" not in final(DONE, Change(41, 42, None))


def test_a_completed_receipt_is_a_hundred_percent_and_any_other_as_far_as_it_came() -> None:
    half = {"progress": {"percent": 40, "ticks": 3}}
    assert final(DONE, **copy.deepcopy(half))["progress"] == {"percent": 100, "ticks": 3}
    assert final(Conclusion("failed", error=BROKEN), **half)["progress"] == {"percent": 40, "ticks": 3}
    cancelled = Conclusion("cancelled", cancellation=ending("cancel").cancellation(True))
    assert final(cancelled, **half)["progress"] == {"percent": 40, "ticks": 3}


def test_the_final_receipt_does_not_change_the_operations_own_progress() -> None:
    running = operation()
    receipts.final(shared(), running, DONE, STILL, (), LATER)
    assert running.progress == {"percent": 0}


def test_a_failed_receipt_has_the_drivers_code_and_native_code() -> None:
    error = checked(final(Conclusion("failed", error=BROKEN)))["error"]
    assert error["mhs_code"] == "MHS.DEVICE.FAULT"
    assert error["details"] == {"native_code": "E7"}


OWN = {**MOVE, "summary": "as the driver saw it"}
CANCELLED = Conclusion("cancelled", cancellation=ending("cancel").cancellation(True))


@pytest.mark.parametrize(
    ("conclusion", "change", "effects"),
    [
        (DONE, MOVED, [MOVE]),
        (DONE, STILL, [MOVE]),
        (Conclusion("completed", output={}, effects=(OWN,)), STILL, [OWN]),
        (Conclusion("completed", output={}, effects=()), STILL, [MOVE]),
        (Conclusion("failed", error=BROKEN), STILL, []),
        (Conclusion("failed", error=BROKEN), MOVED, [MOVE]),
        (Conclusion("failed", error=BROKEN, effects=(OWN,)), STILL, [OWN]),
        (Conclusion("failed", error=BROKEN, effects=()), MOVED, []),
        (CANCELLED, STILL, []),
        (CANCELLED, MOVED, [MOVE]),
        (Conclusion("unknown", error=UNKNOWN), MOVED, []),
        (Conclusion("unknown", error=UNKNOWN), STILL, []),
    ],
)
def test_effects_are_the_drivers_word_else_the_declared_ones_where_something_happened(
    conclusion: Conclusion, change: Change, effects: list[Any]
) -> None:
    assert final(conclusion, change)["effects"] == effects


def test_a_binding_that_declares_no_effects_has_none() -> None:
    body = receipts.final(shared(), operation(), DONE, STILL, (), LATER)
    assert checked(body)["effects"] == []


def test_a_cancellation_stands_in_the_receipt_as_it_was_confirmed() -> None:
    told = Ending("cancel", AGENT["id"], AT).cancellation(False)
    body = checked(final(Conclusion("cancelled", cancellation=told)))
    assert body["cancellation"] == {
        "requested_at": AT,
        "requested_by": AGENT["id"],
        "reason": "cancel",
        "safe_state_achieved": False,
    }


# Approvals.


def test_every_receipt_of_an_execution_names_who_approved_its_permit() -> None:
    approved = operation(attempt=attempt(permit=permit(ALICE)))
    # The members that are shared are collected before the permit is reserved.
    members = shared()
    for body in (
        receipts.running(members, approved),
        receipts.interim(members, approved, INTERIM, 41, LATER),
        receipts.final(members, approved, DONE, MOVED, (MOVE,), LATER),
    ):
        chained = body["status"] != "running"
        assert checked(body, chained=chained)["approvals"] == [ALICE]


def test_a_permit_that_nobody_signed_and_a_command_without_one_have_no_approvals() -> None:
    assert "approvals" not in receipts.running(shared(), operation(attempt=attempt(permit=permit())))
    assert "approvals" not in receipts.running(shared(), operation())


# What drivers write.


@pytest.mark.parametrize("message", ["", "x" * 5000, "bad \ud800 text", "line\nbreak\x00"])
def test_a_drivers_message_of_any_kind_becomes_one_that_a_receipt_can_carry(message: str) -> None:
    error = checked(final(Conclusion("failed", error=Fault("MHS.DEVICE.FAULT", message))))["error"]
    assert 1 <= len(error["message"]) <= 4000


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, 2**60, 1e16, "\ud800", object(), {1: 2}, {"deep": [math.nan]}]
)
def test_a_drivers_details_that_are_no_json_are_left_out_and_the_failure_stays(value: Any) -> None:
    fault = Fault("MHS.DEVICE.FAULT", "overload", details={"value": value}, retryable=False)
    error = checked(final(Conclusion("failed", error=fault)))["error"]
    assert error["mhs_code"] == "MHS.DEVICE.FAULT"
    assert error["message"] == "overload"
    assert error["retryable"] is False
    assert "details" not in error
    assert "details" not in error["data"]
