"""Operations: looked up, listed and cancelled. Another principal's are as unknown as ones that never were."""

import trio

from mhsd.base.errors import Fault
from mhsd.core.sessions import Session
from mhsd.protocol.context import Context
from mhsd.services.served_device import ServedDevice
from mhsd.store import CommandRow
from mhsd.wire.json_text import Raw
from mhsd.wire.params import OperationsCancelParams, OperationsGetParams


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
