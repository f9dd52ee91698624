"""What the tests of the store share: entries by number, and a store to put them in."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs

from mhsd.store import Intent, Receipt, Store, VoidIntent, open_store
from mhsd.store.database import connect

ENDPOINT = "mhs://localhost:7400"
DEVICE = f"{ENDPOINT}/lab/conveyor-workcell"
OTHER_DEVICE = f"{ENDPOINT}/bench/psu"
SESSION = "mhs_s_01J8ZQ3V6Y"
PRINCIPAL = "local:tester"
AT = "2026-10-20T07:45:00.000Z"
DIGEST = "sha256:" + 64 * "0"


def command_id(number: int) -> str:
    return f"01J8ZQ3V6Y7M2N4P6R8{number:07d}"


def operation_id(number: int) -> str:
    return f"op_{command_id(number)}"


def receipt_id(number: int) -> str:
    return f"01J8ZQ3W1B7M2N4P6R8{number:07d}"


def body(number: int, **members: Any) -> dict[str, Any]:
    """A receipt that its schema accepts."""
    return {
        "receipt_id": receipt_id(number),
        "command_id": command_id(number),
        "operation_id": operation_id(number),
        "session_id": SESSION,
        "endpoint_id": ENDPOINT,
        "device_id": DEVICE,
        "capability_id": "cap.world.step.v1",
        "input_digest": DIGEST,
        "status": "completed",
        "mode": "simulated",
        "accepted_at": AT,
        "output": {"tick": number},
        "replayed": False,
        **members,
    }


def intent(number: int, **changes: Any) -> Intent:
    entry = Intent(
        device_id=DEVICE,
        command_id=command_id(number),
        input_digest=DIGEST,
        principal_id=PRINCIPAL,
        operation_id=operation_id(number),
        session_id=SESSION,
        body={"receipt_id": receipt_id(number), "status": "running"},
    )
    return attrs.evolve(entry, **changes)


def void(number: int) -> VoidIntent:
    return VoidIntent(DEVICE, command_id(number))


def final(number: int, **changes: Any) -> Receipt:
    return attrs.evolve(_receipt("final", number), **changes)


def interim(number: int, **members: Any) -> Receipt:
    members = {"receipt_id": receipt_id(90_000 + number), "status": "unknown", **members}
    return attrs.evolve(_receipt("interim", number), body=body(number, **members))


def rejected(number: int, *, nth: int = 0, operation: str | None = None) -> Receipt:
    refused = body(number, receipt_id=receipt_id(50_000 + 100 * number + nth), status="rejected")
    return attrs.evolve(_receipt("rejected", number), body=refused, operation_id=operation)


def _receipt(kind: Any, number: int) -> Receipt:
    return Receipt(
        kind=kind,
        body=body(number),
        device_id=DEVICE,
        command_id=command_id(number),
        operation_id=operation_id(number),
        principal_id=PRINCIPAL,
        revision=None,
    )


@asynccontextmanager
async def opened(
    state_dir: Path | None, *, connect: Callable[[Path], sqlite3.Connection] = connect, **options: Any
) -> AsyncIterator[Store]:
    options = {"endpoint_id": ENDPOINT, "mhs_version": "1.0", "created_at": AT, **options}
    async with open_store(state_dir, connect=connect, **options) as store:
        yield store


async def put(store: Store, *entries: Any) -> None:
    """Put each entry by itself and wait until all are durable."""
    tickets = [store.put(entry) for entry in entries]
    for ticket in tickets:
        await ticket.wait()


async def run_commands(store: Store, numbers: range) -> None:
    """Durable intents, then durable final receipts."""
    await put(store, *(intent(number) for number in numbers))
    await put(store, *(final(number) for number in numbers))
