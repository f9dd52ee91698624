"""Snapshots: the whole state of a device, taken and restored."""

from collections.abc import Awaitable
from typing import Any

import attrs
import trio

from mhsd.core.admission import RESTORE_RUNGS
from mhsd.core.receipts import RESTORE
from mhsd.core.snapshots import Restoration, snapshot_digest
from mhsd.protocol.context import Context, timed_out
from mhsd.protocol.handlers_commands import canonical_value, check_command_id, new_attempt
from mhsd.services.carriage import Answer
from mhsd.services.snapshots import restore_binding, take_snapshot
from mhsd.wire.json_text import Raw
from mhsd.wire.params import RestoreParams, SnapshotParams


async def snapshot(context: Context, params: SnapshotParams) -> dict[str, Any]:
    """The whole state of a device, with everything that a restore will ask of it [PROTO-034]."""
    session = context.session(params.session_id)
    device = context.device_in(session, params.device_id)
    with trio.move_on_at(context.deadline_mono_s(params.deadline_ms)):
        return await take_snapshot(device.host, device.executions)
    raise timed_out(f"a snapshot of {device.device_id}", params.deadline_ms)


def restore(context: Context, params: RestoreParams) -> Raw | Awaitable[Answer]:
    """Set a device to a snapshot's state: a mutation like any other, with the receipt of one [PROTO-035]."""
    session = context.session(params.session_id)
    device = context.device_in(session, params.device_id)
    check_command_id(params.command_id)
    document = canonical_value(params.snapshot)
    value = {"snapshot_digest": snapshot_digest(document)}
    binding = restore_binding(device.host.manifest)
    attempt = attrs.evolve(
        new_attempt(context, session, device, binding, None, RESTORE, value, params),
        restoration=Restoration(document, device.host.origin),
        rungs=RESTORE_RUNGS,
    )
    return device.executions.submit(attempt, id_spent=context.id_spent)
