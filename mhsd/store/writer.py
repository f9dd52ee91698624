"""The one writer: everything that waits goes to the disk in one transaction, and one failure ends all writing.

The batch fills by itself while the one before it is being flushed, and for a few turns of the event loop before it
is: a receipt frees its device, whose next command puts its intent two turns later. After a failed write the
state of the file is unknown, so nothing is tried again: the store is read-only until a restart (fail-stop).
"""

import logging
import os
import sqlite3
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import attrs
import trio

from mhsd.store.entries import StoredReceipt, StoreFailed
from mhsd.store.heads import Head, Heads
from mhsd.store.ledger import Staged, Statement
from mhsd.store.retention import FIRST_LOOK_S, LOOK_EVERY_S, REST_FACTOR, Retention

log = logging.getLogger("mhsd.store")

MOST_PER_COMMIT = 64
"""Calls of `put` that share a transaction."""
GATHERING_TURNS = 4
"""Turns of the event loop for which a commit waits for company. They cost microseconds, a flush of its own hundreds."""
CHECKPOINT_COMMITS = 512
CHECKPOINT_BYTES = 8 << 20
"""After this many commits, or bytes of receipts, the log is copied into the database, even under load."""
IDLE_S = 1.0
"""After so long without work the same is done with what little there is."""


class Ticket:
    """What `put` gave: `receipts` have their places in the chain already, `wait` says when they are durable."""

    def __init__(self, receipts: tuple[StoredReceipt, ...]) -> None:
        self.receipts = receipts
        self._done = trio.Event()
        self._failure: str | None = None

    async def wait(self) -> tuple[StoredReceipt, ...]:
        """The receipts, once they are on the disk; StoreFailed where they cannot be. Cancelling it harms nothing."""
        await self._done.wait()
        if self._failure is not None:
            raise StoreFailed(self._failure)
        return self.receipts

    def succeed(self) -> None:
        self._done.set()

    def fail(self, reason: str) -> None:
        self._failure = reason
        self._done.set()


@attrs.frozen
class _Work:
    staged: Staged
    ticket: Ticket
    sign: bool


class Writer:
    """Owns the writing connection. `on_landed` and `on_failed` run in the event loop, before the tickets are told."""

    def __init__(
        self,
        db: sqlite3.Connection,
        path: Path,
        heads: Heads,
        retention: Retention,
        *,
        inline: bool,
        on_landed: Callable[[Staged], None],
        on_failed: Callable[[], None],
    ) -> None:
        self._db = db
        self._path = path
        self._file = _identity(path)
        self._heads, self._retention = heads, retention
        self._prune_at_mono_s = float("inf")
        self.wants_signer = trio.Event()
        """Set when a signature is due that must wait until `Signer.load` was called elsewhere."""
        self._inline = inline
        self._on_landed, self._on_failed = on_landed, on_failed
        self._limiter = trio.CapacityLimiter(1)
        self._waiting: deque[_Work] = deque()
        self._wake = trio.Event()
        self._scope = trio.CancelScope(shield=True)
        self._closing = False
        self._commits = 0
        self._bytes = 0
        self.failure: str | None = None

    def submit(self, staged: Staged, ticket: Ticket, *, sign: bool = False) -> None:
        """Hand over the next entries of the chain; the order of the calls is the order on the disk.

        With `sign` the head is signed in the same transaction.
        """
        self._waiting.append(_Work(staged, ticket, sign))
        self._wake.set()

    def nudge(self) -> None:
        """Look again for what can be done meanwhile."""
        self._wake.set()

    async def run(self) -> None:
        """The writing task. It ends after `close`, when everything that was handed over is written."""
        self._prune_at_mono_s = trio.current_time() + FIRST_LOOK_S
        with self._scope:
            while self._waiting or not self._closing:
                if self._waiting:
                    await self._commit_next()
                else:
                    await self._rest()
            if self._heads.unsigned and self.failure is None:
                await self._sign()
        if self._waiting:
            self._fail("the store was closed before it could write", ())

    def close(self, cancel: bool = False) -> None:
        """Let `run` end; with `cancel` without waiting for a disk that does not answer."""
        self._closing = True
        self._wake.set()
        if cancel:
            self._scope.cancel()

    async def _commit_next(self) -> None:
        for _ in range(0 if self._inline else GATHERING_TURNS):
            await trio.lowlevel.checkpoint()
        batch = [self._waiting.popleft() for _ in range(min(MOST_PER_COMMIT, len(self._waiting)))]
        statements = [statement for work in batch for statement in work.staged.statements]
        receipts = [receipt for work in batch for receipt in work.staged.receipts]
        head = (receipts[-1].seq, receipts[-1].digest) if receipts else self._heads.head
        signing = self._signs(head, asked=any(work.sign for work in batch))
        try:
            await self._elsewhere(lambda: self._commit(statements, head if signing else None))
        except Exception as error:
            # Named boundary: whatever kept the write from the disk, the chain must not go on after it.
            self._fail(f"a write failed: {error}", batch)
            return
        except trio.Cancelled:
            self._fail("the store was closed while the disk did not answer", batch)
            raise
        self._heads.head = head
        if signing:
            self._heads.signed(head)
        for work in batch:
            self._on_landed(work.staged)
        for work in batch:
            work.ticket.succeed()
        self._commits += 1
        self._bytes += sum(len(receipt.data) for receipt in receipts)
        if self._commits >= CHECKPOINT_COMMITS or self._bytes >= CHECKPOINT_BYTES:
            await self._checkpoint()

    def _signs(self, head: Head, *, asked: bool) -> bool:
        """Whether the next commit signs this head; never where the key would have to be loaded first."""
        if head[0] <= self._heads.signed_seq or not (asked or self._heads.due(head)):
            return False
        if not self._heads.ready and not self._inline:
            self.wants_signer.set()
            return False
        return True

    async def _rest(self) -> None:
        if self._inline:
            await self._wake.wait()
        else:
            busy = self._commits or (self._heads.unsigned and not self.wants_signer.is_set())
            patience_s = IDLE_S if busy else float("inf")
            patience_s = min(patience_s, max(0.0, self._prune_at_mono_s - trio.current_time()))
            with trio.move_on_after(patience_s):
                await self._wake.wait()
            if not self._wake.is_set() and self.failure is None:
                await self._use_quiet_time()
        self._wake = trio.Event()

    async def _use_quiet_time(self) -> None:
        """Sign the head, empty the log, and remove what is too old; one piece of each."""
        if trio.current_time() >= self._prune_at_mono_s:
            await self._prune()
            return
        if self._heads.unsigned and self._heads.ready:
            await self._sign()
        elif self._heads.unsigned:
            self.wants_signer.set()
        if self._commits:
            await self._checkpoint()

    async def _sign(self) -> None:
        """State and sign the durable head, in a transaction of its own."""
        head = self._heads.head
        try:
            await self._elsewhere(lambda: self._commit([], head))
        except Exception as error:
            # Named boundary, as above.
            self._fail(f"a signed head could not be written: {error}", ())
            return
        self._heads.signed(head)
        self._commits += 1

    async def _prune(self) -> None:
        more = False

        def step() -> None:
            nonlocal more
            more = self._retention.step(self._db)

        start_mono_s = trio.current_time()
        try:
            await self._elsewhere(step)
        except Exception as error:
            # Named boundary, as above.
            self._fail(f"old receipts could not be removed: {error}", ())
            return
        now_mono_s = trio.current_time()
        rest_s = REST_FACTOR * (now_mono_s - start_mono_s) if more else LOOK_EVERY_S
        self._prune_at_mono_s = now_mono_s + rest_s
        self._commits += more

    async def _checkpoint(self) -> None:
        self._commits = self._bytes = 0
        try:
            # The rows must be fetched: an unfinished statement would keep the next transaction from committing.
            await self._elsewhere(lambda: self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall())
        except Exception as error:
            # Named boundary, as above.
            self._fail(f"a checkpoint failed: {error}", ())

    def _commit(self, statements: list[Statement], sign: Head | None) -> None:
        if sign is not None:
            statements = [*statements, self._heads.statement(sign)]
        if _identity(self._path) != self._file:
            # SQLite would go on in a file without a name, which is gone with the process.
            raise OSError(f"{self._path} was removed or replaced")
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for sql, parameters in statements:
                self._db.execute(sql, parameters)
            self._db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise

    def _fail(self, reason: str, batch: "list[_Work] | tuple[()]") -> None:
        if self.failure is None:
            self.failure = reason
            log.critical("the receipt store stops: %s; restart after the cause is mended", reason)
        lost = [*batch, *self._waiting]
        self._waiting.clear()
        self._on_failed()
        for work in lost:
            work.ticket.fail(self.failure)

    async def _elsewhere(self, work: Callable[[], object]) -> None:
        if self._inline:
            work()
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            # Abandoned only when the closing deadline has passed: nothing else cancels this scope.
            await trio.to_thread.run_sync(work, limiter=self._limiter, abandon_on_cancel=True)


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file it is that has this name now; None where there is none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
