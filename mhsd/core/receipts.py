"""Receipts: the bodies, before the store gives them their place in the chain [MHS-002 section 10; MHSD-5].

A body here has `replayed: false` and no `evidence`; both are added when it is answered. Timestamps arrive as text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from mhsd.base.errors import Fault
from mhsd.core.admission import Attempt
from mhsd.core.operations import Conclusion, Operation, storable
from mhsd.wire.canonical import digest, stays_canonical

ESTOP = "cap.internal.safety_estop.v1"
RESET = "cap.internal.safety_reset.v1"
RESTORE = "cap.internal.restore.v1"

LONGEST_MESSAGE = 4000
"""Characters of an error's message in a receipt."""


def input_digest(capability_id: str, resource: str | None, value: Any) -> str:
    """The digest that binds permits and the idempotency store [PROTO-036]; NotCanonical when there is no JCS form."""
    return digest({"capability_id": capability_id, "resource": resource, "input": value})


@attrs.frozen
class Change:
    """What a receipt says about the device's state: revisions, and the hash where it could be computed."""

    before: int
    after: int
    state_hash: str | None

    def members(self) -> dict[str, Any]:
        known = {} if self.state_hash is None else {"state_hash_after": self.state_hash}
        return {"state_revision_before": self.before, "state_revision_after": self.after, **known}


def command_members(attempt: Attempt, endpoint_id: str, mode: str) -> dict[str, Any]:
    """The members that every receipt of one command shares."""
    body: dict[str, Any] = {
        "command_id": attempt.command_id,
        "session_id": attempt.session.session_id,
        "endpoint_id": endpoint_id,
        "device_id": attempt.device_id,
        "capability_id": attempt.capability_id,
        "resource_ids": [] if attempt.resource is None else [attempt.resource],
        "input_digest": attempt.input_digest,
        "mode": mode,
        "principal": dict(attempt.principal),
        "accepted_at": attempt.accepted_at,
        "replayed": False,
    }
    if attempt.trace_id is not None:
        body["x-vendor"] = {"trace_id": attempt.trace_id}
    return body


def add_vendor(body: dict[str, Any], members: Mapping[str, Any]) -> None:
    """Put members under `x-vendor`, beside those that stand there."""
    body["x-vendor"] = {**body.get("x-vendor", {}), **members}


def _execution_members(shared: Mapping[str, Any], operation: Operation) -> dict[str, Any]:
    """The members that every receipt of one execution shares, with the approvals of the permit that it uses."""
    permit = operation.attempt.permit
    approvals = [dict(approval) for approval in permit.approvals] if permit is not None else []
    return {
        **shared,
        "receipt_id": operation.receipt_id,
        "operation_id": operation.operation_id,
        "started_at": operation.started_at,
        "progress": dict(operation.progress),
        **({"approvals": approvals} if approvals else {}),
    }


def _error_members(fault: Fault) -> dict[str, Any]:
    """A receipt's `error`, whatever a driver wrote into the fault: what cannot be stored is left out."""
    error = fault.receipt_error()
    error["message"] = storable(fault.message, LONGEST_MESSAGE) or "no message"
    if stays_canonical(error):
        return error
    return _error_members(
        Fault(fault.mhs_code, fault.message, retryable=fault.retryable, remediation=fault.remediation)
    )


def rejected(
    shared: Mapping[str, Any], receipt_id: str, fault: Fault, revision: int, ended_at: str
) -> dict[str, Any]:
    """A refusal: the revision does not move and nothing happened [OP-002]."""
    return {
        **shared,
        "receipt_id": receipt_id,
        "status": "rejected",
        "ended_at": ended_at,
        **Change(revision, revision, None).members(),
        "effects": [],
        "error": _error_members(fault),
    }


def running(shared: Mapping[str, Any], operation: Operation) -> dict[str, Any]:
    """The snapshot of an execution that has no final receipt yet; it is not in the chain."""
    body = {**_execution_members(shared, operation), "status": "running"}
    if operation.ending is not None:
        body["cancellation"] = operation.ending.cancellation(False)
    return body


def interim(
    shared: Mapping[str, Any], operation: Operation, receipt_id: str, revision: int, ended_at: str
) -> dict[str, Any]:
    """The answer to a caller whose deadline passed while its command runs on [PROTO-011, OP-010]."""
    fault = Fault(
        "MHS.OUTCOME.TIMEOUT",
        "the deadline passed before the command ended; it keeps running and its final receipt will say how it ended",
        details={"reason": "deadline_exceeded", "operation_id": operation.operation_id},
    )
    return {
        **_execution_members(shared, operation),
        "receipt_id": receipt_id,
        "status": "unknown",
        "ended_at": ended_at,
        **Change(revision, revision, None).members(),
        "effects": [],
        "error": _error_members(fault),
    }


def final(
    shared: Mapping[str, Any],
    operation: Operation,
    conclusion: Conclusion,
    change: Change,
    declared_effects: Sequence[Mapping[str, Any]],
    ended_at: str,
) -> dict[str, Any]:
    """The one receipt that says how an execution ended [OP-001]."""
    body: dict[str, Any] = {
        **_execution_members(shared, operation),
        "status": conclusion.status,
        "ended_at": ended_at,
        **change.members(),
        "effects": _effects(conclusion, change, declared_effects),
    }
    if conclusion.status == "completed":
        body["progress"]["percent"] = 100
    if conclusion.output is not None:
        body["output"] = dict(conclusion.output)
    if conclusion.error is not None:
        body["error"] = _error_members(conclusion.error)
    if conclusion.cancellation is not None:
        body["cancellation"] = dict(conclusion.cancellation)
    if operation.interim_id is not None:
        add_vendor(body, {"reconciles": operation.interim_id})
    return body


def _effects(
    conclusion: Conclusion, change: Change, declared: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """What physically happened [PROTO-037]: the driver's word, else what the binding declares if something happened.

    A completed command of a binding with effects always has some, whatever the driver says.
    """
    completed = conclusion.status == "completed"
    if conclusion.effects or (conclusion.effects is not None and not completed):
        return [dict(effect) for effect in conclusion.effects]
    happened = completed or (conclusion.status != "unknown" and change.after != change.before)
    return [dict(effect) for effect in declared] if happened else []
