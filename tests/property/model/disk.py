"""A disk that can be full, or gone with the process, and that does not make a test wait for it."""

import sqlite3
from pathlib import Path
from typing import Any


class Disk:
    """`full` fails every write from then on."""

    def __init__(self) -> None:
        self.full = False

    def connect(self, path: Path) -> sqlite3.Connection:
        """The store's writing connection."""
        connection: _Connection = sqlite3.connect(
            path, timeout=5, isolation_level=None, check_same_thread=False, factory=_Connection
        )
        connection.disk = self
        return connection


class _Connection(sqlite3.Connection):
    disk: Disk

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql.startswith("PRAGMA synchronous"):
            sql = "PRAGMA synchronous = OFF"
        if self.disk.full and sql.startswith("BEGIN"):
            raise sqlite3.OperationalError("database or disk is full")
        return super().execute(sql, *parameters)
