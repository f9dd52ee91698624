"""mhsd whose disk fails: `python -m tests.crash.faulty_mhsd KIND COUNT ARGUMENTS...`.

From the COUNT-th time on the store's writing connection fails where KIND says: `write`, an INSERT is refused;
`flush`, a COMMIT is refused; `late_flush`, a COMMIT is done and then said to have failed, as by an fsync whose error
comes after the bytes have reached the disk.
"""

import sqlite3
import sys
from functools import partial
from pathlib import Path
from typing import Any

import mhsd.daemon.run
from mhsd.cli.main import mhsd as main
from mhsd.store import open_store

SQL = {"write": "INSERT INTO", "flush": "COMMIT", "late_flush": "COMMIT"}


class FaultyDisk:
    """Opens connections that fail together."""

    def __init__(self, kind: str, count: int) -> None:
        self.kind, self.left = kind, count

    def __call__(self, path: Path) -> sqlite3.Connection:
        disk = self

        class Faulty(sqlite3.Connection):
            def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
                if not sql.startswith(SQL[disk.kind]):
                    return super().execute(sql, *parameters)
                disk.left -= 1
                if disk.left > 0:
                    return super().execute(sql, *parameters)
                if disk.kind == "late_flush":
                    super().execute(sql, *parameters)
                raise sqlite3.OperationalError("disk I/O error")

        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Faulty)


if __name__ == "__main__":
    kind, count, *arguments = sys.argv[1:]
    mhsd.daemon.run.open_store = partial(open_store, connect=FaultyDisk(kind, int(count)))  # type: ignore[assignment]
    sys.argv = ["mhsd", *arguments]
    sys.exit(main())
