"""The files of a store, opened together: the directory and its lock, the database, the latch."""

import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

import attrs

from mhsd.base.errors import StartError
from mhsd.store.database import DATABASE_FILE, Connect, open_database, open_reader, unusable
from mhsd.store.directories import open_scratch_dir, open_state_dir, remove_scratch_dir, sync_directory
from mhsd.store.latch import LATCH_FILE, EveryDeviceLatched, LatchFile, LatchRecord, open_latch
from mhsd.store.receipts import PageReader, ReceiptReader
from mhsd.store.signing import KEY_FILE, Signer, open_signer
from mhsd.wire.canonical import canonical

log = logging.getLogger("mhsd.store")

Genesis = Mapping[str, str]
Kind = Literal["memory", "state_dir"]


@attrs.define(eq=False)
class StoreFiles:
    """The open files of a store, and what they said when they were opened.

    `abandoned`: a thread is still inside the writing connection, because the disk did not answer. Then nothing is
    closed, which would wait for the thread, and the directory stays locked until the process ends.
    """

    kind: Kind
    genesis: Genesis
    latched: Mapping[str, LatchRecord]
    path: Path
    writer: sqlite3.Connection
    reader: ReceiptReader
    pages: PageReader
    latch: LatchFile | None
    signer: Signer | None
    abandoned: bool = False


@contextmanager
def open_files(
    state_dir: Path | None, genesis: Genesis, device_ids: Sequence[str], connect: Connect
) -> Iterator[StoreFiles]:
    """The files of a state directory, or of a private temporary one that is removed at the end.

    `genesis` becomes that of a new store; an existing one keeps its own. StartError in one line.
    """
    with ExitStack() as stack:
        if state_dir is None:
            directory, lock = open_scratch_dir()
            stack.callback(remove_scratch_dir, directory, lock)
            files = _open(stack, directory, "memory", genesis, device_ids, connect)
        else:
            stack.callback(open_state_dir(state_dir).release)
            files = _open(stack, state_dir, "state_dir", genesis, device_ids, connect)
        try:
            yield files
        finally:
            if files.abandoned:
                stack.pop_all()


def _open(
    stack: ExitStack,
    directory: Path,
    kind: Kind,
    genesis: Genesis,
    device_ids: Sequence[str],
    connect: Connect,
) -> StoreFiles:
    path = directory / DATABASE_FILE
    created_at = genesis["created_at"]
    latch: LatchFile | None = None
    signer: Signer | None = None
    latched: Mapping[str, LatchRecord] = {}
    was_used = (directory / KEY_FILE).exists()
    if kind == "state_dir":
        # The latch comes first: a database without one is then never an interrupted beginning.
        latch = open_latch(directory / LATCH_FILE, fresh=not path.exists(), now=created_at)
        stack.callback(latch.close)
        latched = latch.latched
        signer = open_signer(directory)
    writer = open_database(path, durable=kind == "state_dir", created_at=created_at, connect=connect)
    stack.callback(_close, writer)
    try:
        settled = _settle_genesis(writer, path, genesis)
        if was_used and settled is genesis:
            # After an interrupted first start there was no chain; after a loss of the file there was one.
            log.warning(
                "%s holds no receipts although the directory was used before: a new chain begins. If receipts are "
                "missing, stop now and restore the file from a backup",
                path,
            )
        reader, pages = ReceiptReader(open_reader(path)), PageReader(open_reader(path))
        stack.callback(_close, pages)
        stack.callback(_close, reader)
        if kind == "state_dir":
            sync_directory(directory)
        if isinstance(latched, EveryDeviceLatched):
            latched = latched.naming([*device_ids, *reader.device_ids()])
    except (OSError, sqlite3.Error) as error:
        raise unusable(path, error) from None
    return StoreFiles(kind, settled, latched, path, writer, reader, pages, latch, signer)


def _close(connection: sqlite3.Connection | ReceiptReader | PageReader) -> None:
    """The last connection to close empties the log into the database; after a failure it may not be able to."""
    with suppress(sqlite3.Error):
        connection.close()


def _settle_genesis(writer: sqlite3.Connection, path: Path, genesis: Genesis) -> Genesis:
    """The genesis record of the store, written with the first start; it must be of this endpoint."""
    rows = writer.execute("SELECT value FROM meta WHERE name = 'genesis'").fetchall()
    if not rows:
        writer.execute("INSERT INTO meta (name, value) VALUES ('genesis', ?)", (canonical(genesis).decode(),))
        return genesis
    existing: Genesis = json.loads(rows[0][0])
    if existing["endpoint_id"] != genesis["endpoint_id"]:
        raise StartError(
            f"state directory {path.parent} belongs to endpoint {existing['endpoint_id']}, "
            f"not to {genesis['endpoint_id']}: give --endpoint-id or another --state-dir",
            1,
        )
    return existing
