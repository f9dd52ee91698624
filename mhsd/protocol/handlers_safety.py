"""Safety: status, the emergency stop, reset, permits [MHS-002 section 11; SAFE-001 to SAFE-004]."""

from collections.abc import Awaitable, Sequence
from typing import Any

import trio

from mhsd.base.clock import rfc3339
from mhsd.base.errors import Fault
from mhsd.base.ids import is_ulid
from mhsd.core.permits import Permit
from mhsd.core.sessions import Session
from mhsd.protocol.context import Context, device_required
from mhsd.protocol.handlers_commands import resolve_binding
from mhsd.services.carriage import Answer
from mhsd.services.estop import StopRequest
from mhsd.services.served_device import ServedDevice
from mhsd.wire.params import SafetyEstopParams, SafetyPermitParams, SafetyResetParams, SafetyStatusParams

STATUS_READ_S = 1.0
"""How long a status waits for the interlocks; a hung device must not hide the latch. Unread ones show as open."""

NO_REASON = "no reason given"


async def safety_status(context: Context, params: SafetyStatusParams) -> dict[str, Any]:
    """Latch, interlocks, permits and safe state of one device; needs no session and no permit [SAFE-001]."""
    device = _one_device(context, params.device_id, params.session_id)
    reading = await device.host.read_within((), min(params.deadline_ms / 1000, STATUS_READ_S))
    safety = device.host.manifest.safety
    return {
        "device_id": device.device_id,
        **device.safety_context(reading, context.endpoint.permits),
        "safe_state": dict(safety.safe_state),
        **({"notes": safety.notes} if safety.notes else {}),
    }


def _one_device(context: Context, device_id: str | None, session_id: str | None) -> ServedDevice:
    if session_id is not None:
        return context.device_in(context.session(session_id), device_id)
    if device_id is not None:
        return context.device(device_id)
    devices = tuple(context.devices())
    if len(devices) != 1:
        raise device_required(devices)
    return context.device(devices[0])


def safety_estop(context: Context, params: SafetyEstopParams) -> Awaitable[Answer]:
    """Latch and stop: one device, the session's only one, or all [SAFE-002, CORE-076]. Latched when it returns.

    What a token may drive or see does not limit what it may stop.
    """
    session = context.endpoint.sessions.any_live(params.session_id) if params.session_id is not None else None
    devices = _devices_to_stop(context, params.device_id, session)
    # Only the caller's own session is named in its receipt.
    own = session is not None and session.principal_id == context.peer.principal.id
    request = StopRequest(
        reason=params.reason or NO_REASON,
        principal=context.peer.principal.wire(),
        received_mono_s=context.received_mono_s,
        accepted_at=context.wall(),
        session_id=session.session_id if session is not None and own else None,
        command_id=params.command_id
        if params.command_id is not None and is_ulid(params.command_id)
        else None,
    )
    return context.endpoint.estop.engage(devices, request)


def _devices_to_stop(
    context: Context, device_id: str | None, session: Session | None
) -> Sequence[ServedDevice]:
    if device_id is not None:
        return [context.endpoint.device(device_id)]
    if session is not None and len(session.device_ids) == 1:
        return [context.endpoint.device(session.device_ids[0])]
    return list(context.endpoint.devices.values())


def safety_reset(context: Context, params: SafetyResetParams) -> Awaitable[Answer]:
    """Release the latch of one device, for an operator [SAFE-003, CORE-083]."""
    session = context.session(params.session_id)
    device = context.device_in(session, params.device_id)
    request = StopRequest(
        reason="reset",
        principal=context.peer.principal.wire(),
        received_mono_s=context.received_mono_s,
        accepted_at=context.wall(),
        session_id=session.session_id,
    )
    deadline_mono_s = context.deadline_mono_s(params.deadline_ms)
    return context.endpoint.reset.reset(device, request, deadline_mono_s, _operator_refusal(context, device))


def _operator_refusal(context: Context, device: ServedDevice) -> Fault | None:
    """MHS.AUTH.FORBIDDEN for who is no operator of this device: on hardware only a credential makes one.

    Where none is configured everybody has the role, on stdio too, and nobody a credential for it.
    """
    by_credential = context.peer.authenticated and context.endpoint.operator_configured
    simulated = device.host.mode in ("simulated", "replay")
    if context.peer.role == "operator" and (by_credential or simulated):
        return None
    return Fault(
        "MHS.AUTH.FORBIDDEN",
        f"only an operator may do this on {device.device_id}",
        details={"needed_role": "operator"},
    )


def safety_permit(context: Context, params: SafetyPermitParams) -> dict[str, Any]:
    """Approve one exact input for one session [SAFE-004]. The caller is recorded as approver."""
    longest_s = context.endpoint.limits.session_max_ttl_s
    if params.ttl_s > longest_s:
        raise Fault(
            "MHS.PROTOCOL.INVALID_PARAMS",
            f"ttl_s is {params.ttl_s} s; a permit ends with its session, so at most {longest_s} s are allowed",
            details={"field": "ttl_s", "limit": longest_s},
        )
    session = context.endpoint.sessions.any_live(params.session_id)
    if session is None or (
        session.principal_id != context.peer.principal.id and context.peer.role != "operator"
    ):
        session = context.session(params.session_id)
    device = context.device_in(session, params.device_id)
    refusal = _operator_refusal(context, device)
    if refusal is not None:
        raise refusal
    binding, resource = resolve_binding(device, params.capability_id, params.resource)
    if binding is None or resource is None:
        raise Fault(
            "MHS.CAPABILITY.NOT_BOUND",
            f"{params.capability_id} is not bound on {device.device_id}",
            details={"capability_id": params.capability_id, "resource": params.resource},
        )
    now_mono_s = trio.current_time()
    permit = Permit(
        permit_id=context.endpoint.ids.permit_id(),
        session_id=session.session_id,
        device_id=device.device_id,
        capability_id=params.capability_id,
        resource=resource,
        input_digest=params.input_digest,
        principal_id=session.principal_id,
        expires_mono_s=now_mono_s + params.ttl_s,
        expires_at=rfc3339(context.endpoint.clock.now() + params.ttl_s),
        approvals=_approvals(context, params),
    )
    context.endpoint.permits.issue(permit, now_mono_s)
    device.host.feed.note("permit.issued", permit.told(), resource_id=resource)
    return {
        "permit_id": permit.permit_id,
        "scope": permit.scope(),
        "expires_at": permit.expires_at,
        "single_use": True,
    }


def _approvals(context: Context, params: SafetyPermitParams) -> tuple[dict[str, Any], ...]:
    claimed = [
        {
            "principal": {"id": approval.principal.id, "kind": approval.principal.kind},
            **({"approved_at": approval.approved_at} if approval.approved_at is not None else {}),
            **({"note": approval.note} if approval.note is not None else {}),
        }
        for approval in params.approvals
    ]
    return (*claimed, {"principal": context.peer.principal.wire(), "approved_at": context.wall()})
