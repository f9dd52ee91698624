"""The store of one endpoint: receipts in their chain, commands in flight, revisions, and the e-stop latch.

`put` and the look-ups are synchronous, so that a caller can check and reserve in one block; only waiting for the
disk is not.
"""

import json
import logging
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import trio

from mhsd.core.chain import genesis_digest
from mhsd.store.entries import CommandRow, Entry, Intent, Page, StoredReceipt, StoreFailed
from mhsd.store.files import StoreFiles
from mhsd.store.heads import Heads
from mhsd.store.latch import LatchWriter
from mhsd.store.ledger import Ledger, Staged, row_of_intent
from mhsd.store.retention import Retention
from mhsd.store.writer import Ticket, Writer

log = logging.getLogger("mhsd.store")

SIGN_S = 2.0
"""How long a signed head is waited for where it is wanted."""
FLUSH_S = 10.0
"""How long closing waits for a disk that does not answer."""

_DAMAGE = frozenset(
    (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN)
)
"""Errors of reading that do not pass, as those of a database that another program holds do."""
_PRIMARY_CODE = 0xFF

PAGE_RECEIPTS = 1000
PAGE_BYTES = 900 * 1024
PAGE_ITEMS = 18_000


class Store:
    """Open it with `open_store`; every method is for the event loop's thread, except `page`, which any may call."""

    def __init__(
        self, files: StoreFiles, *, inline: bool, retention_days: int, now: Callable[[], float]
    ) -> None:
        self.kind = files.kind
        self.directory = files.path.parent
        """Where the store lies: the state directory, or the temporary one that ends with the store."""
        self.genesis = files.genesis
        self.genesis_digest = genesis_digest(files.genesis)
        self.latched = files.latched
        """The latches as the last process left them. Look served devices up one by one: see EveryDeviceLatched."""
        self._inline = inline
        self._reader, self._pages = files.reader, files.pages
        self._ledger = self._read_ledger()
        self.open_intents: list[Intent] = [_intent(row) for row in files.reader.intents()]
        """The commands that the last process left without a final receipt."""
        self._closed = False
        self._damage: str | None = None
        self.abandoned = False
        """Whether `close` left a thread behind that waits for the disk."""
        self._signer = files.signer
        self._heads = Heads(
            files.signer,
            endpoint_id=files.genesis["endpoint_id"],
            genesis_digest=self.genesis_digest,
            head=(self._ledger.durable_seq, self._ledger.durable_digest),
            signed_seq=files.reader.signed_seq(),
            now=now,
        )
        self._writer = Writer(
            files.writer,
            files.path,
            self._heads,
            Retention(retention_days, now=now),
            inline=inline,
            on_landed=self._landed,
            on_failed=self._forget_what_is_not_durable,
        )
        self._finished = trio.Event()
        self._latch = None if files.latch is None else LatchWriter(files.latch, inline=inline)

    @property
    def failure(self) -> str | None:
        """Why nothing can be written any more; None while the store is writable.

        What cannot be read is not written either: nobody could be shown what was acknowledged.
        """
        return self._writer.failure or self._damage

    def put(self, *entries: Entry) -> Ticket:
        """Add the entries, whole or not at all, at the chain's end. The order of calls is the chain's order.

        Raises what `Ledger.stage` raises for entries that are not well formed. On a store that has failed the ticket
        fails, and has no receipts.
        """
        reason = self.failure or ("the store is closed" if self._closed else None)
        if reason is not None:
            ticket = Ticket(())
            ticket.fail(reason)
            return ticket
        staged = self._ledger.stage(entries)
        ticket = Ticket(staged.receipts)
        self._writer.submit(staged, ticket)
        return ticket

    def find_command(self, device_id: str, command_id: str) -> CommandRow | None:
        """The command in flight or finished; refusals do not count [OP-006]. Raises StoreFailed.

        It sees what was put and is not durable yet; after a failure it answers only what is durable.
        """
        row = self._ledger.command(device_id, command_id)
        if row is not None:
            return row
        with self._reading():
            return self._reader.final_of_command(device_id, command_id)

    def find_operation(self, operation_id: str) -> CommandRow | None:
        """As `find_command`, by operation; the refusal of a dispatched command (a busy device) is its outcome here."""
        row = self._ledger.operation(operation_id)
        if row is not None:
            return row
        with self._reading():
            return self._reader.outcome_of_operation(operation_id)

    def find_rejected(self, device_id: str, command_id: str) -> StoredReceipt | None:
        """The last durable refusal of this command_id [OP-001, OP-002]. Raises StoreFailed."""
        with self._reading():
            return self._reader.last_of_command(device_id, command_id, "rejected")

    def receipt(self, receipt_id: str) -> StoredReceipt | None:
        """The durable receipt of this id [OP-001]. Raises StoreFailed."""
        with self._reading():
            return self._reader.by_id(receipt_id)

    def seq_of(self, receipt_id: str) -> int | None:
        """The place in the chain of a durable receipt. Raises StoreFailed."""
        receipt = self.receipt(receipt_id)
        return None if receipt is None else receipt.seq

    def revision(self, device_id: str) -> int:
        """The newest revision that was put; 0 for a device that never moved."""
        return self._ledger.revision(device_id)

    def head(self) -> tuple[int, str]:
        """(seq, digest) of the last durable receipt; (0, the genesis digest) before the first."""
        return self._ledger.durable_seq, self._ledger.durable_digest

    @property
    def public_key(self) -> str | None:
        """The key that the heads are signed with, in base64; None for a store that does not sign."""
        return None if self._signer is None else self._signer.public_key

    async def sign_head(self) -> int | None:
        """Have everything that is durable now covered by a signed head; its seq, or None where it cannot be signed."""
        if self._heads.signer is None or self.failure is not None or self._closed:
            return None
        if not self._heads.unsigned:
            return self._heads.signed_seq
        with trio.move_on_after(SIGN_S):
            await self._make_signer_ready()
            ticket = Ticket(())
            self._writer.submit(Staged(), ticket, sign=True)
            with suppress(StoreFailed):
                await ticket.wait()
                return self._heads.signed_seq if self._heads.signer is not None else None
        return None

    def page(
        self,
        since_seq: int = 0,
        *,
        up_to_seq: int | None = None,
        device_id: str | None = None,
        session_id: str | None = None,
        max_receipts: int = PAGE_RECEIPTS,
        max_bytes: int = PAGE_BYTES,
        max_items: int = PAGE_ITEMS,
    ) -> Page:
        """Durable receipts after `since_seq` up to the first limit; never none where there is one. Raises StoreFailed.

        Takes milliseconds: the event loop should ask `read_page`.
        """
        with self._reading():
            return self._pages.page(
                since_seq,
                up_to_seq=up_to_seq,
                device_id=device_id,
                session_id=session_id,
                max_receipts=max_receipts,
                max_bytes=max_bytes,
                max_items=max_items,
            )

    async def read_page(self, since_seq: int = 0, **selection: Any) -> Page:
        """`page` in a thread; in the loop's own where the store is inline."""
        if self._inline:
            await trio.lowlevel.checkpoint()
            return self.page(since_seq, **selection)
        return await trio.to_thread.run_sync(lambda: self.page(since_seq, **selection))

    def operations(self) -> list[CommandRow]:
        """Every operation, of whomever, whose outcome is not durable yet."""
        return self._ledger.operations()

    async def read_outcomes(
        self, session_id: str, *, device_id: str | None = None, status: str | None = None, most: int
    ) -> list[StoredReceipt]:
        """The durable receipts that ended a session's operations, newest first [PROTO-031]. Raises StoreFailed."""

        def read() -> list[StoredReceipt]:
            with self._reading():
                return self._pages.outcomes(session_id, device_id=device_id, status=status, most=most)

        if self._inline:
            await trio.lowlevel.checkpoint()
            return read()
        return await trio.to_thread.run_sync(read)

    async def write_latch(self, latches: Mapping[str, Any]) -> bool:
        """Make these the latches on the disk, `{device_id: {reason, engaged_at}}`; True when they are durable.

        Never waits for receipts. Without a state directory nothing is written and the answer is False. A caller that
        is cancelled does not stop the write.
        """
        if self._latch is None:
            await trio.lowlevel.checkpoint()
            return False
        return await self._latch.write(latches)

    async def run(self) -> None:
        """The writing tasks, until `close`; `open_store` starts it."""
        try:
            async with trio.open_nursery() as nursery:
                if self._latch is not None:
                    nursery.start_soon(self._latch.run)
                async with trio.open_nursery() as writing:
                    writing.start_soon(self._load_signer)
                    await self._writer.run()
                    writing.cancel_scope.cancel()
        finally:
            self._finished.set()

    async def _load_signer(self) -> None:
        """Have the key ready when the first signature is due, while the writer goes on writing."""
        await self._writer.wants_signer.wait()
        await self._make_signer_ready()
        self._writer.nudge()

    async def _make_signer_ready(self) -> None:
        signer = self._heads.signer
        if signer is None or signer.ready:
            return
        try:
            await trio.to_thread.run_sync(signer.load)
        except ValueError as error:
            # Receipts are worth more than their signature: the endpoint goes on without one.
            log.error("nothing is signed: %s; restore the key file and restart", error)  # noqa: TRY400
            self._heads.signer = None

    async def close(self) -> None:
        """Take no more entries and write what there is, for at most FLUSH_S; cancelling does not shorten it."""
        self._closed = True
        self._stop_writing(at_once=False)
        with trio.move_on_after(FLUSH_S, shield=True):
            await self._finished.wait()
            return
        log.critical("the disk did not answer within %g s; what it did not take is lost", FLUSH_S)
        self.abandoned = True
        self._stop_writing(at_once=True)

    def _stop_writing(self, at_once: bool) -> None:
        self._writer.close(at_once)
        if self._latch is not None:
            self._latch.close(at_once)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """A database that cannot be read answers nothing: no command may run that might have run before."""
        try:
            yield
        except sqlite3.Error as error:
            reason = f"the receipt store cannot be read: {error}"
            code = getattr(error, "sqlite_errorcode", 0)
            if code & _PRIMARY_CODE in _DAMAGE and self._damage is None:
                self._damage = reason
                log.critical("the receipt store stops: %s; restart after the cause is mended", reason)
            raise StoreFailed(reason) from None

    def _landed(self, staged: Staged) -> None:
        self._ledger.landed(staged)

    def _forget_what_is_not_durable(self) -> None:
        # Where the disk cannot even be read, look-ups fail, and that is answered as StoreFailed.
        with suppress(sqlite3.Error):
            self._ledger = self._read_ledger()

    def _read_ledger(self) -> Ledger:
        seq, digest = self._reader.head() or (0, self.genesis_digest)
        ledger = Ledger(seq, digest, self._reader.revisions())
        for row in self._reader.intents():
            intent = _intent(row)
            interim = self._reader.last_of_command(intent.device_id, intent.command_id, "interim")
            if interim is not None and interim.body["operation_id"] != intent.operation_id:
                # Of an earlier attempt, which the device refused in the end.
                interim = None
            ledger.adopt(row[0], row_of_intent(intent, interim))
        return ledger


def _intent(row: tuple[Any, ...]) -> Intent:
    _, device_id, command_id, input_digest, principal_id, operation_id, session_id, body = row
    return Intent(
        device_id=device_id,
        command_id=command_id,
        input_digest=input_digest,
        principal_id=principal_id,
        operation_id=operation_id,
        session_id=session_id,
        body=json.loads(body),
    )
