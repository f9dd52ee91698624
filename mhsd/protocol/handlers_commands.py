"""Resources, commands, operations. What stands before the envelope's table is checked here, in its order."""

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
from mhsd.services.served_device import ServedDevice
from mhsd.store import CommandRow
from mhsd.wire.canonical import MAX_SAFE_INTEGER, NotCanonical, canonical
from mhsd.wire.json_text import Raw
from mhsd.wire.params import (
    CommandParams,
    OperationsCancelParams,
    OperationsGetParams,
    ResourceReadParams,
    ResourceWriteParams,
)

STEADY_READS = 3
"""How often a read is repeated when a mutation ended while it was under way."""


async def resource_read(context: Context, params: ResourceReadParams) -> dict[str, Any]:
    """The current state of one resource, with the revision that it belongs to [PROTO-023, PROTO-024]."""
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
    if params.filter is not None and params.filter.revision != host.revision:
        raise Fault(
            "MHS.RESOURCE.UNKNOWN",
            f"{host.mode} devices keep no past revisions; the device is at revision {host.revision}",
            details={"recorded_revisions": [host.revision]},
        )
    for _ in range(STEADY_READS):
        revision = host.revision
        reading = await host.read((params.resource_id,))
        if host.revision == revision:
            break
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
        "revision": host.revision,
        "state": state,
        "state_hash": host.hash_of(params.resource_id, state),
        "sampled_at": context.wall(),
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
    _check_command_id(params.command_id)
    binding, resource = resolve_binding(device, params.capability_id, params.resource)
    attempt = _attempt(
        context, session, device, binding, resource, params.capability_id, params.input, params
    )
    return device.executions.submit(attempt, id_spent=context.id_spent)


def resource_write(context: Context, params: ResourceWriteParams) -> Raw | Awaitable[Answer]:
    """A command of the resource's configure binding; never a patch for another class [PROTO-025, PROTO-025a]."""
    session = context.session(params.session_id)
    device = context.device_in(session, params.device_id)
    _check_command_id(params.command_id)
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
    attempt = _attempt(context, session, device, binding, params.resource_id, CONFIGURE, params.patch, params)
    return device.executions.submit(attempt, id_spent=context.id_spent)


def _not_writable(resource_id: str, reason: str, message: str) -> Fault:
    return Fault("MHS.RESOURCE.NOT_WRITABLE", message, details={"reason": reason, "resource_id": resource_id})


def _check_command_id(command_id: str) -> None:
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


def _attempt(
    context: Context,
    session: Session,
    device: ServedDevice,
    binding: Binding | None,
    resource: str | None,
    capability_id: str,
    value: Any,
    params: CommandParams | ResourceWriteParams,
) -> Attempt:
    try:
        digest = input_digest(capability_id, resource, value)
        # What was hashed is what the driver gets: 1e2 as 100, -0.0 as 0, 5.0 as 5.
        value = json.loads(canonical(value), parse_int=_plain_number)
    except NotCanonical as error:
        raise Fault(
            "MHS.CAPABILITY.INPUT_INVALID",
            f"the input has no canonical JSON form: {error}",
            details={"reason": "not_canonical_json"},
        ) from None
    return Attempt(
        command_id=params.command_id,
        capability_id=capability_id,
        resource=resource,
        input=value,
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
        permit_id=params.permit_id,
        trace_id=params.trace_id,
        state_schema=_state_schema(device, resource),
    )


def _plain_number(digits: str) -> int | float:
    """Canonical JSON writes 1e16 as digits; only what a double holds exactly is taken for an integer."""
    number = int(digits)
    return number if abs(number) <= MAX_SAFE_INTEGER else float(digits)


def _state_schema(device: ServedDevice, resource: str | None) -> Mapping[str, Any] | None:
    known = device.host.manifest.resources.get(resource) if resource is not None else None
    return known.state_schema if known is not None else None


def operations_get(context: Context, params: OperationsGetParams) -> Raw:
    """The current receipt of an operation, with its progress [PROTO-030]. Executes nothing.

    A command that never became an operation is found by its command_id too: its refusal was its answer [OP-001].
    """
    session = context.session(params.session_id)
    if params.command_id is not None:
        refused = _refused(context, session, params.command_id, params.device_id)
        if refused is not None:
            return refused
    device, row = _operation(context, session, params.operation_id, params.command_id, params.device_id)
    return device.executions.current(row)


def _refused(context: Context, session: Session, command_id: str, device_id: str | None) -> Raw | None:
    """The caller's last refusal under a command_id that no execution has."""
    store = context.endpoint.store
    device = context.device_in(session, device_id)
    if store.find_command(device.device_id, command_id) is not None:
        return None
    receipt = store.find_rejected(device.device_id, command_id)
    if receipt is None or receipt.body["principal"]["id"] != session.principal_id:
        return None
    return receipt.wire()


async def operations_cancel(context: Context, params: OperationsCancelParams) -> Raw:
    """Stop an operation: its cancelled receipt, or a running snapshot that says it is under way [PROTO-032].

    One that had finished answers its retained receipt, unchanged [PROTO-033].
    """
    session = context.session(params.session_id)
    device, row = _operation(context, session, params.operation_id, None, params.device_id)
    carriage = device.executions.running(row.operation_id)
    if row.final is not None or carriage is None or carriage.operation is None:
        return device.executions.current(row)
    device.executions.end(carriage.operation, "cancel", session.principal_id)
    with trio.move_on_at(context.deadline_mono_s(params.deadline_ms)):
        await carriage.answered.wait()
    if isinstance(carriage.answer, Fault):
        raise carriage.answer
    if carriage.answer is not None:
        return carriage.answer
    return device.executions.current(row)


def _operation(
    context: Context,
    session: Session,
    operation_id: str | None,
    command_id: str | None,
    device_id: str | None,
) -> tuple[ServedDevice, CommandRow]:
    """The caller's own operation; another principal's is as unknown as one that never was [CORE-151]."""
    store = context.endpoint.store
    row: CommandRow | None
    if operation_id is not None:
        row = store.find_operation(operation_id)
    else:
        assert command_id is not None  # the parameters hold exactly one of the two
        row = store.find_command(context.device_in(session, device_id).device_id, command_id)
    name = operation_id or command_id
    if (
        row is None
        or row.principal_id != session.principal_id
        or row.device_id not in context.endpoint.devices
    ):
        raise Fault("MHS.OPERATION.UNKNOWN", f"this endpoint knows no operation {name} of yours")
    if device_id is not None and device_id != row.device_id:
        raise Fault("MHS.OPERATION.UNKNOWN", f"{device_id} knows no operation {name} of yours")
    return context.endpoint.devices[row.device_id], row
