"""The SQLite file of a store: how it is opened, brought to the newest schema, and checked at start."""

import os
import sqlite3
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from mhsd.base.errors import StartError
from mhsd.wire.canonical import sha256_text

DATABASE_FILE = "receipts.db"

Connect = Callable[[Path], sqlite3.Connection]

_BUSY_TIMEOUT_S = 5.0
_READER_BUSY_TIMEOUT_MS = 100


def connect(path: Path) -> sqlite3.Connection:
    """A connection that threads may hand to each other, with explicit transactions only."""
    return sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that can only read, and that never makes the event loop wait for another program for long.

    Results must be fetched whole: an open cursor would hold back checkpoints.
    """
    reader = connect(path)
    reader.execute(f"PRAGMA busy_timeout = {_READER_BUSY_TIMEOUT_MS}").fetchall()
    reader.execute("PRAGMA query_only = ON").fetchall()
    return reader


def open_database(path: Path, *, durable: bool, created_at: str, connect: Connect) -> sqlite3.Connection:
    """The writer's connection, with the newest schema; StartError in one line where the file is not usable.

    `durable`: every commit is flushed to the disk before it returns.
    """
    db: sqlite3.Connection | None = None
    try:
        # SQLite gives its -wal and -shm files the mode of this one.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = connect(path)
        # Where the file system has no shared memory this stays what it was; that is slower and just as durable.
        db.execute("PRAGMA journal_mode = WAL").fetchall()
        db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
        # A checkpoint inside a commit stalls it by tens of milliseconds; the writer makes them between commits.
        db.execute("PRAGMA wal_autocheckpoint = 0")
        _migrate(db, path, created_at)
        _check_head(db, path)
    except StartError:
        if db is not None:
            db.close()
        raise
    except (OSError, sqlite3.Error) as error:
        if db is not None:
            db.close()
        raise unusable(path, error) from None
    return db


def unusable(path: Path, error: Exception) -> StartError:
    """The refusal to start on a database that cannot be opened, read or written."""
    return StartError(f"{path} is not a usable receipt store: {error}", 2)


def migrations() -> list[tuple[int, str]]:
    """The shipped schema steps as (version, SQL), in order."""
    directory = files("mhsd.store") / "migrations"
    steps = [
        (int(step.name.split("_")[0]), step.read_text(encoding="utf-8"))
        for step in directory.iterdir()
        if step.name.endswith(".sql")
    ]
    return sorted(steps)


def _migrate(db: sqlite3.Connection, path: Path, created_at: str) -> None:
    steps = migrations()
    version = _version(db, path)
    if version > steps[-1][0]:
        raise StartError(
            f"{path} has schema version {version}, and this mhsd knows versions up to {steps[-1][0]}: "
            "start the newer mhsd, or give another state directory",
            2,
        )
    for number, sql in steps:
        if number <= version:
            continue
        # The version is a number of ours, and created_at becomes a literal with its quotes doubled.
        note = f"INSERT INTO schema_version VALUES ({number}, '{created_at.replace(chr(39), chr(39) * 2)}');"  # noqa: S608
        try:
            db.executescript(f"BEGIN IMMEDIATE;\n{sql}\n{note}\nCOMMIT;")
        except sqlite3.Error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


def _version(db: sqlite3.Connection, path: Path) -> int:
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()}
    if not tables:
        db.execute("CREATE TABLE schema_version (version INTEGER PRIMARY KEY, applied_at TEXT NOT NULL)")
        return 0
    if "schema_version" not in tables:
        raise StartError(f"{path} is a database of another program", 2)
    newest: int | None = db.execute("SELECT max(version) FROM schema_version").fetchone()[0]
    return newest or 0


def _check_head(db: sqlite3.Connection, path: Path) -> None:
    """The last receipt must have the digest it states: what follows would be chained to it."""
    row: tuple[Any, ...] | None = db.execute(
        "SELECT seq, prev_digest, digest, CAST(body AS BLOB) FROM receipts ORDER BY seq DESC LIMIT 1"
    ).fetchone()
    if row is not None and sha256_text(row[3] + row[1].encode()) != row[2]:
        raise StartError(f"{path} is damaged: receipt {row[0]} does not have the digest that it states", 2)
