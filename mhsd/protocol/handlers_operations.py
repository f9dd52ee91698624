"""Operations: looked up, listed and cancelled. Another principal's are as unknown as ones that never were."""

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from typing import Any

import trio

from mhsd.base.errors import Fault
from mhsd.core.sessions import Session
from mhsd.protocol.context import Context
from mhsd.services.carriage import Answer
from mhsd.services.served_device import ServedDevice
from mhsd.store import CommandRow
from mhsd.wire.json_text import Raw, encode
from mhsd.wire.params import OperationsCancelParams, OperationsGetParams, OperationsListParams

LONGEST_LIST = 1000
LIST_BYTES = 900 * 1024
"""What one list holds at most, so that its answer keeps within the limits of a message."""


def operations_get(context: Context, params: OperationsGetParams) -> Raw | Awaitable[Answer]:
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


async def operations_list(context: Context, params: OperationsListParams) -> dict[str, Any]:
    """This session's operations and the principal's running ones on its devices, newest first [PROTO-031].

    A list holds no more than a message may; one that is cut says so, and `state` narrows it.
    """
    session = context.session(params.session_id)
    devices = session.device_ids
    if params.device_id is not None:
        devices = (context.device_in(session, params.device_id).device_id,)
    # Those in flight first: one that ends meanwhile is found among the ended ones then.
    found = dict(_in_flight(context, session, devices, params.state))
    ended = await context.endpoint.store.read_outcomes(
        session.session_id, device_id=params.device_id, status=params.state, most=LONGEST_LIST + 1
    )
    found |= {receipt.body["operation_id"]: receipt.body for receipt in ended}
    operations = [_listed(found[operation_id]) for operation_id in sorted(found, reverse=True)]
    shown = _fitting(operations)
    cut = {"truncation": {"reason": "limit", "shown": len(shown)}} if len(shown) < len(operations) else {}
    return {"operations": shown, **cut}


def _in_flight(
    context: Context, session: Session, device_ids: tuple[str, ...], state: str | None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The receipts, as they stand, of what has no durable outcome; what has ended is shown to its session alone."""
    for row in context.endpoint.store.operations():
        if row.principal_id != session.principal_id or row.device_id not in device_ids:
            continue
        if row.final is not None and row.session_id != session.session_id:
            continue
        receipt = context.endpoint.devices[row.device_id].executions.standing(row)
        if state in (None, receipt["status"]):
            yield row.operation_id, receipt


def _listed(receipt: Mapping[str, Any]) -> dict[str, Any]:
    names = ("operation_id", "device_id", "capability_id", "accepted_at")
    # What the device itself was too busy for was dispatched and got nowhere: its refusal has no progress.
    progress = receipt.get("progress", {"percent": 0})
    return {**{name: receipt[name] for name in names}, "progress": progress, "state": receipt["status"]}


def _fitting(operations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many as one answer may hold."""
    shown: list[dict[str, Any]] = []
    bytes_left = LIST_BYTES
    for operation in operations[:LONGEST_LIST]:
        bytes_left -= len(encode(operation)) + 1
        if bytes_left < 0:
            break
        shown.append(operation)
    return shown


async def operations_cancel(context: Context, params: OperationsCancelParams) -> Answer:
    """Stop an operation: its cancelled receipt, or a running snapshot that says it is under way [PROTO-032].

    One that had finished answers its retained receipt, unchanged [PROTO-033].
    """
    session = context.session(params.session_id)
    device, row = _operation(context, session, params.operation_id, None, params.device_id)
    carriage = device.executions.running(row.operation_id)
    if row.final is not None or carriage is None or carriage.operation is None:
        answer = await _current(device, row)
        # One that was about to be dispatched runs by now.
        carriage = device.executions.running(row.operation_id) if row.final is None else None
        if carriage is None or carriage.operation is None:
            return answer
    device.executions.end(carriage.operation, "cancel", session.principal_id)
    with trio.move_on_at(context.deadline_mono_s(params.deadline_ms)):
        await carriage.answered.wait()
    return await _current(device, row) if carriage.answer is None else carriage.answer


async def _current(device: ServedDevice, row: CommandRow) -> Answer:
    answer = device.executions.current(row)
    return answer if isinstance(answer, Raw) else await answer


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
