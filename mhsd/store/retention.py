"""Retention: receipts older than promised are removed, up to a signed head from which the rest can be checked.

A head that was signed before the retention began says that everything up to it is older. Removing is decided first and
durably (`meta.pruned_through`), for readers at once; the rows go in small steps, so that no receipt waits for them.
"""

import sqlite3
from collections.abc import Callable

from mhsd.base.clock import rfc3339

DAY_S = 86_400.0
LOOK_EVERY_S = 3600.0
FIRST_LOOK_S = 5.0
"""A start has better things to do."""
ROWS_A_STEP = 64
"""Removed in one transaction: about two milliseconds of the writer's thread."""
REST_FACTOR = 9
"""After a step the writer belongs to receipts for so many times as long as the step took."""

# The newest receipt always stays, because the chain goes on from it.
_BOUNDARY = """
SELECT seq FROM signed_heads
WHERE signed_at <= ? AND seq < (SELECT max(seq) FROM receipts) ORDER BY signed_at DESC, seq DESC LIMIT 1
"""
_REMOVE = """
DELETE FROM receipts WHERE seq IN (SELECT seq FROM receipts WHERE seq <= ? ORDER BY seq LIMIT ?)
"""
_REMOVE_HEADS = "DELETE FROM signed_heads WHERE seq IN (SELECT seq FROM signed_heads WHERE seq < ? LIMIT ?)"
_LEFT = "SELECT 1 FROM receipts WHERE seq <= ? UNION ALL SELECT 1 FROM signed_heads WHERE seq < ? LIMIT 1"
_SET_FLOOR = "INSERT OR REPLACE INTO meta (name, value) VALUES ('pruned_through', ?)"
FLOOR = "SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'pruned_through'"


class Retention:
    """Removes what is older than `days`, step by step, on the writing connection."""

    def __init__(self, days: int, *, now: Callable[[], float]) -> None:
        self._keep_s = days * DAY_S
        self._now = now
        self._removing = True

    def step(self, db: sqlite3.Connection) -> bool:
        """Do a bounded piece of work; whether more is left to do now."""
        floor = _floor(db)
        if not self._removing:
            # ISO times in UTC sort as text.
            row = db.execute(_BOUNDARY, (rfc3339(self._now() - self._keep_s),)).fetchone()
            if row is None or row[0] <= floor:
                return False
            db.execute(_SET_FLOOR, (str(row[0]),))
            self._removing = True
            return True
        if db.execute(_LEFT, (floor, floor)).fetchone() is None:
            # There may be a newer boundary meanwhile, which the next step looks for.
            self._removing = False
            return True
        db.execute("BEGIN IMMEDIATE")
        try:
            db.execute(_REMOVE, (floor, ROWS_A_STEP))
            db.execute(_REMOVE_HEADS, (floor, ROWS_A_STEP))
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return True


def _floor(db: sqlite3.Connection) -> int:
    row = db.execute(FLOOR).fetchone()
    return 0 if row is None else int(row[0])
