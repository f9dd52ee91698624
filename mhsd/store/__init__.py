"""Receipts in their chain, commands in flight, and the e-stop latch, on a disk [MHSD-5, OP-001, OP-006]."""

import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from mhsd.base.errors import StartError
from mhsd.store.database import Connect, connect
from mhsd.store.entries import (
    CommandRow,
    Entry,
    Intent,
    Page,
    Receipt,
    StoredReceipt,
    StoreFailed,
    VoidIntent,
)
from mhsd.store.files import open_files
from mhsd.store.latch import LatchRecord
from mhsd.store.store import Store
from mhsd.store.writer import Ticket

__all__ = [
    "CommandRow",
    "Connect",
    "Entry",
    "Intent",
    "LatchRecord",
    "Page",
    "Receipt",
    "Store",
    "StoreFailed",
    "StoredReceipt",
    "Ticket",
    "VoidIntent",
    "open_store",
]


@asynccontextmanager
async def open_store(
    state_dir: Path | None,
    *,
    endpoint_id: str,
    mhs_version: str,
    created_at: str,
    device_ids: Sequence[str] = (),
    inline: bool = False,
    retention_days: int = 30,
    now: Callable[[], float] = time.time,
    connect: Connect = connect,
) -> AsyncIterator[Store]:
    """The store in `state_dir`, or without one in a private temporary directory that is removed at the end.

    With a state directory every receipt is flushed before its ticket answers. `created_at` (RFC 3339) dates the
    genesis record of a new store. Receipts older than `retention_days` by the clock `now` are removed. `device_ids`
    are the served devices, which count as latched where the latch file cannot be read. `inline` writes in the event
    loop, for tests on a test clock. `connect` opens the writing connection. Raises StartError in one line for a
    directory or file that cannot be used.
    """
    genesis = {"endpoint_id": endpoint_id, "created_at": created_at, "mhs_version": mhs_version}
    with open_files(state_dir, genesis, device_ids, connect) as files:
        try:
            store = Store(files, inline=inline, retention_days=retention_days, now=now)
        except sqlite3.Error as error:
            raise StartError(f"the receipt store in {state_dir} cannot be read: {error}") from None
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.run)
            try:
                yield store
            except Exception as error:
                # Raised again below: out of the nursery it would come inside a group.
                failure = error
            finally:
                await store.close()
                files.abandoned = store.abandoned
        if failure is not None:
            raise failure
