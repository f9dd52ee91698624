"""The parameters of the methods as both clients make them, and what a lost command is said to be.

Pure but for the name of the user. Decides what is sent for what a program left out: the only device, its mode, every
capability.
"""

import getpass
from collections.abc import Mapping, Sequence
from typing import Any

from mhsd import __version__
from mhsd.client.calls import limit, moment_s
from mhsd.client.continuity import number
from mhsd.client.errors import AuthError, MHSError, SessionError, error
from mhsd.client.naming import devices_of, listed, matching

DEFAULT_TTL_S = 600
DEFAULT_DEADLINE_MS = 30_000
_LONGEST_LIFE_S = 86_400.0
"""The next heartbeat tells what is left of a longer life."""


def member(answered: Mapping[str, Any], name: str) -> str:
    """The text that a result must have under `name`; ProtocolError where the endpoint left it out."""
    text = answered.get(name)
    if not isinstance(text, str):
        raise error("MHS.PROTOCOL.INVALID_REQUEST", f"the endpoint's answer has no {name}")
    return text


def first_seq(granted: Mapping[str, Any]) -> int:
    """The number of a subscription's first event."""
    try:
        return number(granted.get("seq_start", 1))
    except ValueError:
        raise error("MHS.PROTOCOL.INVALID_REQUEST", "the endpoint's seq_start is no number") from None


def device_named(hello: Mapping[str, Any], reference: str | None) -> str:
    """The id of the device that is meant, the only one without a reference; MHSError that names the devices
    where not exactly one is."""
    devices = devices_of(hello)
    found = devices if reference is None else matching(devices, reference)
    if len(found) == 1:
        return str(found[0]["device_id"])
    if reference is None:
        raise error(
            "MHS.PROTOCOL.INVALID_PARAMS",
            f"the endpoint has {len(devices)} devices: {listed(devices)}; nothing was sent",
            "Say which of them is meant.",
        )
    raise error(
        "MHS.DEVICE.UNKNOWN",
        f"{reference} names {len(found)} devices of the endpoint; it has: {listed(devices)}",
        "Use one of these paths, or a whole device id.",
    )


def device_of_session(device_ids: Sequence[str], reference: str | None) -> str:
    """The device of a session that is meant, its only one without a reference. What is none of them is left for the
    endpoint to refuse."""
    devices = [{"device_id": device_id} for device_id in device_ids]
    found = devices if reference is None else matching(devices, reference)
    if len(found) == 1:
        return found[0]["device_id"]
    if reference is not None and not found:
        return reference
    raise error(
        "MHS.PROTOCOL.INVALID_PARAMS",
        f"the session has {len(devices)} devices: {listed(devices)}; nothing was sent",
        "Say which is meant with device_id.",
    )


def device_meant(
    device_ids: Sequence[str], reference: str | None, grant: Mapping[str, Any], params: Mapping[str, Any]
) -> str:
    """The device of a session that a request with `params` is for: as above, and without a reference also the only one
    on which the capability or resource that it names was granted."""
    resource = params.get("resource", params.get("resource_id"))
    named = given(capability_id=params.get("capability_id"), resource=resource)
    if reference is None and len(device_ids) > 1 and named:
        granted = devices_of({"devices": grant.get("granted")})
        having = {str(each["device_id"]) for each in granted if named.items() <= each.items()}
        if len(found := having.intersection(device_ids)) == 1:
            return found.pop()
    return device_of_session(device_ids, reference)


def mode_of(hello: Mapping[str, Any], device_ids: Sequence[str]) -> str:
    """The mode of the first of these devices, which a session on it asks for."""
    modes = (str(device.get("mode")) for device in devices_of(hello) if device["device_id"] in device_ids)
    return next(modes, "simulated")


def open_params(
    hello: Mapping[str, Any],
    *,
    client_name: str,
    transport: str,
    principal: Mapping[str, Any],
    device_ids: Sequence[str],
    capabilities: Sequence[str],
    mode: str,
    ttl_s: int,
    approvals: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Of mhs.session.open; `ttl_s` is cut to what the endpoint allows [SESS-001]."""
    params: dict[str, Any] = {
        "principal": dict(principal),
        "device_ids": list(device_ids),
        "capabilities": list(capabilities),
        "mode": mode,
        "ttl_s": min(ttl_s, int(limit(hello, "session_max_ttl_s", ttl_s))),
        "client_info": {"name": client_name, "version": __version__, "transport": transport},
    }
    if approvals:
        params["approvals"] = [dict(approval) for approval in approvals]
    return params


def claimed_principal() -> dict[str, str]:
    """Who a program of this user claims to act for; the endpoint's own authentication wins."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    return {"id": f"local:{user}", "kind": "human"}


def approvals(people: Sequence[str]) -> list[dict[str, Any]]:
    """The people who answer for it, as a session or a permit names them."""
    return [{"principal": {"id": person, "kind": "human"}} for person in people]


Stream = Mapping[str, Any]
"""One of `streams`: `{stream, device_id?, resource_id?, capability_id?}`."""


def subscribe_params(
    streams: str | Stream | Sequence[str | Stream], *, rate_hz: float | None, filter: Stream | None
) -> dict[str, Any]:
    """Of mhs.subscribe; a stream is its name or an object."""
    named = [streams] if isinstance(streams, str | Mapping) else streams
    objects = [{"stream": each} if isinstance(each, str) else dict(each) for each in named]
    return given(streams=objects, rate_hz=rate_hz, filter=filter)


def input_digest(capability_id: str, resource: str, input: Mapping[str, Any]) -> str:
    """What binds a permit to its input [PROTO-036]; ValueError for an input that has no canonical form."""
    # Few programs issue permits, and the canonical form takes a while to import.
    from mhsd.wire.canonical import digest

    return digest({"capability_id": capability_id, "resource": resource, "input": input})


def only_resource(device: Mapping[str, Any], capability_id: str) -> str:
    """The one resource that a capability is bound to on the device of this manifest."""
    bindings = device.get("bindings")
    entries = [entry for entry in bindings if isinstance(entry, dict)] if isinstance(bindings, list) else []
    bound = [str(entry.get("resource")) for entry in entries if entry.get("capability_id") == capability_id]
    if len(bound) == 1:
        return bound[0]
    raise error(
        "MHS.PROTOCOL.INVALID_PARAMS",
        f"{capability_id} is bound to {len(bound)} resources of {device.get('device_id')}: "
        f"{', '.join(bound) or 'none'}",
        "Name the resource that the permit is for.",
    )


def given(**params: Any) -> dict[str, Any]:
    """These parameters without those that are None."""
    return {name: value for name, value in params.items() if value is not None}


def lifetime_s(answered: Mapping[str, Any], endpoint_time_s: float) -> float:
    """Seconds from now to `expires_at` by the endpoint's clock, at least 1 and at most a day."""
    expires_s = moment_s(member(answered, "expires_at"), "expires_at")
    return min(max(1.0, expires_s - endpoint_time_s), _LONGEST_LIFE_S)


def operation_meant(operation: str | Mapping[str, Any]) -> str:
    """The operation that is given by its id or by a receipt; ValueError for a receipt of none."""
    operation_id = operation if isinstance(operation, str) else operation.get("operation_id")
    if operation_id is None:
        raise ValueError("a receipt without operation_id belongs to nothing that could be cancelled")
    return str(operation_id)


def operations_of(answered: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The `operations` of a list; entries that are none are left out."""
    operations = answered.get("operations")
    return [each for each in operations if isinstance(each, dict)] if isinstance(operations, list) else []


def operation_unknown(operation_id: str) -> MHSError:
    """The error of an operation that the endpoint has never heard of."""
    return error(
        "MHS.OPERATION.UNKNOWN",
        f"the endpoint knows no operation {operation_id}",
        "Check the id, and that the endpoint is the one that accepted the command.",
    )


def fate_unknown(receipt: Mapping[str, Any], problem: MHSError) -> MHSError:
    """What an operation that had begun is said to be when it cannot be asked for any more [TPT-062].

    A session or a credential that is over is told as it is: another one can ask.
    """
    if isinstance(problem, SessionError | AuthError):
        return problem
    ids = ("operation_id", "command_id", "device_id", "session_id")
    return error(
        "MHS.OUTCOME.UNKNOWN",
        f"what became of operation {receipt.get('operation_id')} could not be found out: {problem.message}",
        "Read the device's state before you send anything again.",
        details={**{name: receipt.get(name) for name in ids}, "looked_up": problem.mhs_code},
    )


def outcome_unknown(lost: MHSError, params: Mapping[str, Any], session_id: str, looked_up: str) -> MHSError:
    """The error of a command whose answer was lost and could not be looked up; `looked_up` says why [TPT-062]."""
    return error(
        lost.mhs_code,
        lost.message,
        "Read the device's state before you send anything again; the same --command-id never runs twice.",
        details={
            "command_id": params["command_id"],
            "device_id": params["device_id"],
            "session_id": session_id,
            "looked_up": looked_up,
        },
    )
