"""Sessions: open, heartbeat, close [SESS-001 to SESS-006]."""

from collections.abc import Awaitable
from typing import Any

from mhsd.core.sessions import Session
from mhsd.protocol.context import Context
from mhsd.services.served_device import ServedDevice
from mhsd.wire.params import SessionCloseParams, SessionHeartbeatParams, SessionOpenParams

SAFETY_READ_S = 1.0
"""How long a session call waits for the interlocks; those that cannot be read by then are shown as open."""


def session_open(context: Context, params: SessionOpenParams) -> Awaitable[dict[str, Any]]:
    """Open a session of the authenticated principal; `principal` in the request stays a claim [TPT-058]."""
    peer, endpoint = context.peer, context.endpoint
    session = endpoint.sessions.open(
        params, peer.principal.wire(), peer.role, peer.devices, peer.capabilities
    )
    return _grant(context, session)


async def _grant(context: Context, session: Session) -> dict[str, Any]:
    limits = context.endpoint.limits
    return {
        "session_id": session.session_id,
        "granted": sorted(
            (grant.wire() for grant in session.grants),
            key=lambda g: (g["device_id"], g["capability_id"], g["resource"]),
        ),
        "expires_at": session.expires_at,
        "safety_context": await _safety_context(context, session),
        "mode": session.mode,
        "limits": {
            "max_open_operations": limits.max_open_operations,
            "max_subscriptions": limits.max_subscriptions,
            "max_rate_per_s": limits.max_rate_per_s,
        },
    }


def session_heartbeat(context: Context, params: SessionHeartbeatParams) -> Awaitable[dict[str, Any]]:
    """Extend the lease to now + ttl_s [SESS-005]."""
    session = _named(context, params)
    context.endpoint.sessions.heartbeat(session)
    return _extension(context, session)


def _named(context: Context, params: SessionHeartbeatParams | SessionCloseParams) -> Session:
    """The caller's session; a device that is named beside it must be one of its own."""
    session = context.session(params.session_id)
    if params.device_id is not None:
        context.device_in(session, params.device_id)
    return session


async def _extension(context: Context, session: Session) -> dict[str, Any]:
    return {"expires_at": session.expires_at, "safety_context": await _safety_context(context, session)}


async def _safety_context(context: Context, session: Session) -> dict[str, Any]:
    """The safety facts of the session's device; of several, each under `x-vendor` too, the riskiest in front."""
    devices = [context.endpoint.device(device_id) for device_id in session.device_ids]
    described = [await _device_context(context, device) for device in devices]
    first = max(described, key=lambda entry: (entry["estop"]["engaged"], entry["risk_class"]))
    if len(devices) == 1:
        return first
    by_device = {device.device_id: entry for device, entry in zip(devices, described, strict=True)}
    return {**first, "x-vendor": {"devices": by_device}}


async def _device_context(context: Context, device: ServedDevice) -> dict[str, Any]:
    reading = await device.host.read_within((), SAFETY_READ_S)
    return device.safety_context(reading, context.endpoint.permits)


async def session_close(context: Context, params: SessionCloseParams) -> dict[str, Any]:
    """End the session; its operations go to the safe state first, or are reported as pending [SESS-006]."""
    session = _named(context, params)
    pending = await context.endpoint.sessions.close(session)
    _, head = context.endpoint.store.head()
    summary = session.summary(head)
    if pending:
        summary |= {"cancellation_pending": True, "operation_ids": pending}
    return {"closed_at": context.wall(), "summary": summary}
