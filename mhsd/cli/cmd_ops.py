"""`ops`: the operations of this caller, one of them followed or cancelled [PROTO-030 to PROTO-033, MHSD-8-11]."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from mhsd.cli import exits
from mhsd.cli.boundary import UsageProblem
from mhsd.cli.command import DeviceOption, client_command
from mhsd.cli.link import Link
from mhsd.cli.mutation import close_quietly, open_session
from mhsd.cli.progress import Progress
from mhsd.cli.render import progress_text, receipt_lines
from mhsd.cli.targets import named
from mhsd.cli.terminal import Paint, emit, note, plain, say, table, value
from mhsd.client.client import Client
from mhsd.client.errors import error
from mhsd.client.naming import devices_of, path_of
from mhsd.client.receipts import is_final
from mhsd.client.session import Receipt, Session


@client_command
def ops(
    link: Link,
    operation: Annotated[
        str | None, typer.Argument(metavar="ID", help="an operation's id, op_…; else all are listed")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="follow it to its final receipt")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="stop it, and wait until its device is in the safe state")
    ] = False,
    device: DeviceOption = None,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="ID", help="list this session's operations, the ended ones too"),
    ] = None,
) -> int:
    """Without an id what runs, on every device; with one its receipt. Ctrl-C stops waiting, never the operation."""
    if operation is None and (wait or cancel):
        raise UsageProblem(
            "--wait and --cancel are for one operation; give its id, as `mhsctl ops` lists them"
        )
    if wait and cancel:
        raise UsageProblem("give --wait or --cancel, not both: --cancel waits for the end too")
    with link.client() as client:
        devices = devices_of(client.hello())
        chosen = devices if device is None else [dict(named(devices, device))]
        if operation is None:
            return _list(link, _operations(client, chosen, session, device))
        with _session(client, chosen, session) as used:
            receipt = _receipt(used, operation, wait=wait, cancel=cancel)
    if link.json:
        emit(receipt)
    else:
        say(receipt_lines(receipt, Paint(sys.stdout)))
    return exits.of_receipt(receipt)


def _receipt(session: Session, operation: str, *, wait: bool, cancel: bool) -> Receipt:
    """The operation's receipt: as it stands, at its end, or after it was stopped."""
    receipt = session.cancel(operation) if cancel else session.operation(operation)
    if not (wait or cancel) or is_final(receipt):
        return receipt
    progress = Progress(str(receipt.get("capability_id")))
    try:
        with session.kept_alive():
            return session.follow(receipt, progress.show)
    except KeyboardInterrupt:
        progress.clear()
        note(f"{plain(operation)} goes on; follow it again with `mhsctl ops {plain(operation)} --wait`")
        raise
    finally:
        progress.clear()


@contextmanager
def _session(
    client: Client, devices: Sequence[Mapping[str, Any]], session_id: str | None
) -> Iterator[Session]:
    """The session that was named, which stays open, or a reading one for the block: operations are their caller's."""
    if session_id is not None:
        yield Session(client, session_id)
        return
    if not devices:
        raise error("MHS.DEVICE.UNKNOWN", "the endpoint serves no device", "Start mhsd with a device.")
    opened = open_session(client, devices[:1], [])
    try:
        yield opened
    finally:
        close_quietly(opened)


def _operations(
    client: Client, devices: Sequence[Mapping[str, Any]], session_id: str | None, device: str | None
) -> list[dict[str, Any]]:
    """The operations of one session, or what runs for this caller on each device, newest first."""
    found: dict[str, dict[str, Any]] = {}
    if session_id is not None:
        only = {} if device is None else {"device_id": str(devices[0]["device_id"])}
        return _answered(Session(client, session_id).call("mhs.operations.list", only))
    for each in devices:
        # One session covers devices of one mode only.
        with _session(client, [each], None) as used:
            for operation in _answered(used.call("mhs.operations.list", {})):
                found[str(operation.get("operation_id"))] = operation
    return [found[name] for name in sorted(found, reverse=True)]


def _answered(answered: Mapping[str, Any]) -> list[dict[str, Any]]:
    operations = answered.get("operations")
    if answered.get("truncation"):
        note("warning: the endpoint has more operations than it lists at once; the newest are shown")
    return [each for each in operations if isinstance(each, dict)] if isinstance(operations, list) else []


def _list(link: Link, operations: Sequence[Mapping[str, Any]]) -> int:
    if link.json:
        emit({"operations": list(operations)})
        return exits.OK
    rows = [
        [
            value(each.get("operation_id")),
            value(each.get("state")),
            value(each.get("capability_id")),
            plain(path_of(str(each.get("device_id")))),
            value(each.get("accepted_at")),
            _progress(each),
        ]
        for each in operations
    ]
    header = ("OPERATION", "STATE", "CAPABILITY", "DEVICE", "ACCEPTED AT", "PROGRESS")
    say(table(rows, header) if rows else "nothing runs")
    return exits.OK


def _progress(operation: Mapping[str, Any]) -> str:
    progress = operation.get("progress")
    running = operation.get("state") in ("running", "accepted")
    return progress_text(progress) if running and isinstance(progress, dict) else ""
