"""Resources and commands. What stands before the envelope's table is checked here, in its order."""

import json
from collections.abc import Awaitable, Mapping
from typing import Any

import trio

from mhsd.base.errors import Fault
from mhsd.base.ids import is_ulid
from mhsd.core.admission import CONFIGURE, Attempt
from mhsd.core.receipts import input_digest
from mhsd.core.sessions import Session
from mhsd.driver.loader import capability_known
from mhsd.driver.manifest import Binding
from mhsd.protocol.context import Context, timed_out
from mhsd.services.carriage import Answer
from mhsd.services.recordings import sample
from mhsd.services.served_device import ServedDevice
from mhsd.wire.canonical import MAX_SAFE_INTEGER, NotCanonical, canonical
from mhsd.wire.json_text import Raw
from mhsd.wire.params import CommandParams, ResourceReadParams, ResourceWriteParams, RestoreParams


async def resource_read(context: Context, params: ResourceReadParams) -> dict[str, Any]:
    """The state of one resource, with the revision that it belongs to [PROTO-023, PROTO-024, PROTO-035a]."""
    session = context.session(params.session_id)
    device = context.device_in(session, params.device_id)
    _known_resource(device, params.resource_id)
    with trio.move_on_at(context.deadline_mono_s(params.deadline_ms)):
        return await _state_document(context, device, params)
    raise timed_out(f"the state of {params.resource_id}", params.deadline_ms)


async def _state_document(
    context: Context, device: ServedDevice, params: ResourceReadParams
) -> dict[str, Any]:
    host = device.host
    wanted = params.filter.revision if params.filter is not None else None
    revision, reading = await sample(host, params.resource_id, wanted)
    state = dict(reading.resources[params.resource_id])
    if params.fields is not None:
        unknown = [name for name in params.fields if name not in state]
        if unknown:
            raise Fault(
                "MHS.RESOURCE.FIELD_UNKNOWN",
                f"{params.resource_id} has no field {', '.join(unknown)}; it has {', '.join(state)}",
                details={"fields": unknown},
            )
        state = {name: state[name] for name in params.fields}
    return {
        "revision": revision,
        "state": state,
        "state_hash": host.hash_of(params.resource_id, state),
        "sampled_at": reading.sampled_at or context.wall(),
    }


def _known_resource(device: ServedDevice, resource_id: str) -> None:
    if resource_id not in device.host.manifest.resources:
        raise Fault(
            "MHS.RESOURCE.UNKNOWN",
            f"{device.device_id} has no resource {resource_id}; it has {', '.join(device.host.manifest.resources)}",
            details={"resource_id": resource_id},
        )


def command(context: Context, params: CommandParams) -> Raw | Awaitable[Answer]:
    """One command through the envelope; the result is its bare receipt [PROTO-027 to PROTO-029, CORE-093]."""
    session = context.session(params.session_id)
    device = context.device_in(session, params.device_id)
    check_command_id(params.command_id)
    binding, resource = resolve_binding(device, params.capability_id, params.resource)
    attempt = new_attempt(
        context, session, device, binding, resource, params.capability_id, params.input, params
    )
    return device.executions.submit(attempt, id_spent=context.id_spent)


def resource_write(context: Context, params: ResourceWriteParams) -> Raw | Awaitable[Answer]:
    """A command of the resource's configure binding; never a patch for another class [PROTO-025, PROTO-025a]."""
    session = context.session(params.session_id)
    device = context.device_in(session, params.device_id)
    check_command_id(params.command_id)
    _known_resource(device, params.resource_id)
    if params.capability_id not in (None, CONFIGURE):
        raise _not_writable(
            params.resource_id, "write_class_not_configure", f"a write runs {CONFIGURE} and nothing else"
        )
    binding = device.host.manifest.binding(CONFIGURE, params.resource_id)
    if binding is None:
        raise _not_writable(
            params.resource_id, "configure_unbound", f"{params.resource_id} has no {CONFIGURE} binding"
        )
    attempt = new_attempt(
        context, session, device, binding, params.resource_id, CONFIGURE, params.patch, params
    )
    return device.executions.submit(attempt, id_spent=context.id_spent)


def _not_writable(resource_id: str, reason: str, message: str) -> Fault:
    return Fault("MHS.RESOURCE.NOT_WRITABLE", message, details={"reason": reason, "resource_id": resource_id})


def check_command_id(command_id: str) -> None:
    """INVALID_PARAMS for a command_id that is no ULID."""
    if not is_ulid(command_id):
        raise Fault(
            "MHS.PROTOCOL.INVALID_PARAMS",
            "command_id must be a ULID: 26 characters of Crockford base32",
            details={"field": "command_id"},
        )


def resolve_binding(
    device: ServedDevice, capability_id: str, resource: str | None
) -> tuple[Binding | None, str | None]:
    """The binding and the resource that the command means; resource_required when the class leaves a choice."""
    bindings = device.host.manifest.bindings_of(capability_id)
    if resource is not None:
        return next((b for b in bindings if b.resource == resource), None), resource
    if len(bindings) > 1:
        choices = [binding.resource for binding in bindings]
        raise Fault(
            "MHS.PROTOCOL.INVALID_PARAMS",
            f"{capability_id} is bound to several resources: {', '.join(choices)}; name one in resource",
            details={"field": "resource", "reason": "resource_required", "resources": choices},
        )
    return (bindings[0], bindings[0].resource) if bindings else (None, None)


def new_attempt(
    context: Context,
    session: Session,
    device: ServedDevice,
    binding: Binding | None,
    resource: str | None,
    capability_id: str,
    value: Any,
    params: CommandParams | ResourceWriteParams | RestoreParams,
) -> Attempt:
    """The attempt to run `capability_id` with the input `value`; INPUT_INVALID without canonical form [PROTO-036]."""
    try:
        digest = input_digest(capability_id, resource, value)
    except NotCanonical as error:
        raise _not_canonical(error) from None
    return Attempt(
        command_id=params.command_id,
        capability_id=capability_id,
        resource=resource,
        input=canonical_value(value),
        input_digest=digest,
        session=session,
        principal=session.principal,
        device_id=device.device_id,
        binding=binding,
        class_known=binding is not None or capability_known(capability_id),
        received_mono_s=context.received_mono_s,
        deadline_mono_s=context.deadline_mono_s(params.deadline_ms),
        accepted_at=context.wall(),
        expected_revision=params.expected_revision,
        permit_id=None if isinstance(params, RestoreParams) else params.permit_id,
        trace_id=params.trace_id,
        state_schema=_state_schema(device, resource),
    )


def canonical_value(value: Any) -> Any:
    """The value as it is hashed: 1e2 as 100, -0.0 as 0, 5.0 as 5. INPUT_INVALID where it has no canonical form."""
    try:
        return json.loads(canonical(value), parse_int=_plain_number)
    except NotCanonical as error:
        raise _not_canonical(error) from None


def _not_canonical(error: NotCanonical) -> Fault:
    return Fault(
        "MHS.CAPABILITY.INPUT_INVALID",
        f"the input has no canonical JSON form: {error}",
        details={"reason": "not_canonical_json"},
    )


def _plain_number(digits: str) -> int | float:
    """Canonical JSON writes 1e16 as digits; only what a double holds exactly is taken for an integer."""
    number = int(digits)
    return number if abs(number) <= MAX_SAFE_INTEGER else float(digits)


def _state_schema(device: ServedDevice, resource: str | None) -> Mapping[str, Any] | None:
    known = device.host.manifest.resources.get(resource) if resource is not None else None
    return known.state_schema if known is not None else None
