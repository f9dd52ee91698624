"""Reading the store: look-ups by an index each, and pages of the chain."""

import sqlite3
from contextlib import closing
from threading import Lock
from typing import Any

from mhsd.core.heads import SignedHead
from mhsd.store.entries import CommandRow, Page, StoredReceipt
from mhsd.store.retention import FLOOR
from mhsd.wire.json_text import count_items

_COMMAND = "device_id, command_id, input_digest, principal_id, operation_id, session_id"
# Whoever edits the file with another program may leave text where bytes were.
_STORED = "seq, prev_digest, digest, CAST(body AS BLOB)"

# The columns are constants of this module.
_FINAL_OF_COMMAND = f"""
SELECT {_COMMAND}, {_STORED} FROM receipts
WHERE device_id = ? AND command_id = ? AND kind = 'final' ORDER BY seq LIMIT 1
"""  # noqa: S608
_OUTCOME_OF_OPERATION = f"""
SELECT {_COMMAND}, {_STORED} FROM receipts
WHERE operation_id = ? AND kind <> 'interim' ORDER BY seq LIMIT 1
"""  # noqa: S608
_LAST_OF_COMMAND = f"""
SELECT {_STORED} FROM receipts
WHERE device_id = ? AND command_id = ? AND kind = ? ORDER BY seq DESC LIMIT 1
"""  # noqa: S608
_BY_ID = f"SELECT {_STORED} FROM receipts WHERE receipt_id = ?"  # noqa: S608
# A receipt is JSON text in a BLOB, which SQLite would take for JSON of its own binary kind.
_OUTCOMES_OF_SESSION = f"""
SELECT {_STORED} FROM receipts
WHERE session_id = :session_id AND operation_id IS NOT NULL AND kind <> 'interim'
AND (:device_id IS NULL OR device_id = :device_id)
AND (:status IS NULL OR json_extract(CAST(body AS TEXT), '$.status') = :status)
ORDER BY seq DESC LIMIT :most
"""  # noqa: S608
_HEAD = """
SELECT seq, digest, signed_at, public_key, value FROM signed_heads
WHERE seq BETWEEN ? AND ? AND value IS NOT NULL ORDER BY seq DESC LIMIT 1
"""
_INTENTS = f"SELECT slot, {_COMMAND}, body FROM intents ORDER BY slot"  # noqa: S608


class ReceiptReader:
    """Look-ups on a connection of its own, by the thread that opened it; tens of microseconds each."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def close(self) -> None:
        self._db.close()

    def final_of_command(self, device_id: str, command_id: str) -> CommandRow | None:
        return _command(self._first(_FINAL_OF_COMMAND, device_id, command_id))

    def outcome_of_operation(self, operation_id: str) -> CommandRow | None:
        return _command(self._first(_OUTCOME_OF_OPERATION, operation_id))

    def last_of_command(self, device_id: str, command_id: str, kind: str) -> StoredReceipt | None:
        return _stored(self._first(_LAST_OF_COMMAND, device_id, command_id, kind))

    def by_id(self, receipt_id: str) -> StoredReceipt | None:
        return _stored(self._first(_BY_ID, receipt_id))

    def head(self) -> tuple[int, str] | None:
        row = self._first("SELECT seq, digest FROM receipts ORDER BY seq DESC LIMIT 1")
        return None if row is None else (row[0], row[1])

    def signed_seq(self) -> int:
        """The receipt at the newest signed head; 0 where there is none."""
        row = self._first("SELECT max(seq) FROM signed_heads")
        return 0 if row is None or row[0] is None else int(row[0])

    def intents(self) -> list[tuple[Any, ...]]:
        """(slot, device_id, command_id, input_digest, principal_id, operation_id, session_id, body), by slot."""
        return self._db.execute(_INTENTS).fetchall()

    def revisions(self) -> dict[str, int]:
        return dict(self._db.execute("SELECT device_id, revision FROM devices").fetchall())

    def device_ids(self) -> list[str]:
        """Every device that has a receipt, a revision or a command in flight."""
        return [
            row[0]
            for row in self._db.execute(
                "SELECT device_id FROM devices UNION SELECT device_id FROM intents"
                " UNION SELECT DISTINCT device_id FROM receipts"
            ).fetchall()
        ]

    def _first(self, sql: str, *parameters: Any) -> tuple[Any, ...] | None:
        rows = self._db.execute(sql, parameters).fetchall()
        return rows[0] if rows else None


class PageReader:
    """Pages on a connection of its own; any thread may ask, one at a time."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._lock = Lock()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def page(
        self,
        since_seq: int,
        *,
        up_to_seq: int | None,
        device_id: str | None,
        session_id: str | None,
        max_receipts: int,
        max_bytes: int,
        max_items: int,
    ) -> Page:
        """The receipts after `since_seq`, up to the first limit that is reached, but at least one if there is one.

        `up_to_seq` is the last one there is for this page; what was added since is neither shown nor counted.
        """
        where, chosen = _selection(device_id, session_id)
        receipts: list[StoredReceipt] = []
        bytes_left, items_left = max_bytes, max_items
        with self._lock:
            # One read transaction, so that the page and what remains after it speak of one moment.
            self._db.execute("BEGIN")
            try:
                floor = self._number(FLOOR)
                since_seq = max(since_seq, floor)
                last_seq = self._number("SELECT max(seq) FROM receipts") if up_to_seq is None else up_to_seq
                rows = self._db.execute(
                    f"SELECT {_STORED} FROM receipts WHERE seq > ? AND seq <= ?{where} ORDER BY seq LIMIT ?",  # noqa: S608
                    (since_seq, last_seq, *chosen, max_receipts),
                )
                with closing(rows):
                    for row in rows:
                        receipt = StoredReceipt(*row)
                        wire = receipt.wire().data
                        bytes_left -= len(wire) + 1
                        items_left -= count_items(wire) + 1
                        if receipts and (bytes_left < 0 or items_left < 0):
                            break
                        receipts.append(receipt)
                last = receipts[-1].seq if receipts else since_seq
                return Page(
                    tuple(receipts),
                    last,
                    self._remaining(last, last_seq, where, chosen),
                    floor + 1,
                    None if chosen else self._signed_head(since_seq + 1, last),
                    self._signed_head(floor, floor) if floor and not chosen else None,
                )
            finally:
                self._db.execute("COMMIT")

    def outcomes(
        self, session_id: str, *, device_id: str | None, status: str | None, most: int
    ) -> list[StoredReceipt]:
        """The receipts that ended the operations of a session, newest first."""
        asked = {"session_id": session_id, "device_id": device_id, "status": status, "most": most}
        with self._lock:
            return [StoredReceipt(*row) for row in self._db.execute(_OUTCOMES_OF_SESSION, asked)]

    def _remaining(self, last: int, last_seq: int, where: str, chosen: list[str]) -> int:
        if not chosen:
            # The chain has no holes, so nothing need be counted.
            return max(0, last_seq - last)
        count = f"SELECT count(*) FROM receipts WHERE seq > ? AND seq <= ?{where}"  # noqa: S608
        return self._number(count, last, last_seq, *chosen)

    def _signed_head(self, first_seq: int, last_seq: int) -> SignedHead | None:
        rows = self._db.execute(_HEAD, (first_seq, last_seq)).fetchall()
        return SignedHead(*rows[0]) if rows else None

    def _number(self, sql: str, *parameters: Any) -> int:
        rows = self._db.execute(sql, parameters).fetchall()
        return int(rows[0][0] or 0) if rows else 0


def _selection(device_id: str | None, session_id: str | None) -> tuple[str, list[str]]:
    where, chosen = "", []
    if session_id is not None:
        where += " AND session_id = ?"
        chosen.append(session_id)
    if device_id is not None:
        # The unary plus keeps SQLite from the device's index where the session's is the narrower one.
        where += " AND +device_id = ?" if session_id is not None else " AND device_id = ?"
        chosen.append(device_id)
    return where, chosen


def _stored(row: tuple[Any, ...] | None) -> StoredReceipt | None:
    return None if row is None else StoredReceipt(*row)


def _command(row: tuple[Any, ...] | None) -> CommandRow | None:
    if row is None:
        return None
    device_id, command_id, input_digest, principal_id, operation_id, session_id = row[:6]
    return CommandRow(
        device_id=device_id,
        command_id=command_id,
        input_digest=input_digest,
        principal_id=principal_id,
        operation_id=operation_id or "",
        session_id=session_id,
        state="final",
        final=StoredReceipt(*row[6:]),
    )
