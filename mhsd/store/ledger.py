"""The head of the chain and everything that is not on the disk yet: what look-ups must see before they read there.

Decides the order of the chain, which is the order of the calls, and what each entry writes. It holds the commands
in flight and nothing that grows with the number of receipts. Synchronous, without input or output.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from mhsd.core.chain import link
from mhsd.store.entries import CommandRow, Entry, Intent, Receipt, StoredReceipt, VoidIntent
from mhsd.wire.canonical import canonical

Statement = tuple[str, tuple[Any, ...]]
Key = tuple[str, str]

_INSERT_RECEIPT = (
    "INSERT INTO receipts (seq, receipt_id, device_id, command_id, kind, operation_id, session_id, principal_id,"
    " input_digest, prev_digest, digest, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_INSERT_INTENT = (
    "INSERT INTO intents (slot, device_id, command_id, input_digest, principal_id, operation_id, session_id, body)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_DELETE_INTENT = "DELETE FROM intents WHERE slot = ?"
_SET_REVISION = (
    "INSERT INTO devices (device_id, revision) VALUES (?, ?)"
    " ON CONFLICT (device_id) DO UPDATE SET revision = excluded.revision"
)


@attrs.define
class _Open:
    """A command without a final receipt, and its row in the table of intents."""

    row: CommandRow
    slot: int


@attrs.frozen(eq=False)
class _Landing:
    """A command whose last receipt is on its way to the disk."""

    row: CommandRow


@attrs.frozen(eq=False)
class Staged:
    """One `put`: what it writes, and the receipts that it added."""

    statements: list[Statement] = attrs.field(factory=list)
    receipts: tuple[StoredReceipt, ...] = ()
    landings: list[_Landing] = attrs.field(factory=list)


class Ledger:
    """Starts from what is on the disk; `stage` adds, `landed` forgets what the disk has from then on."""

    def __init__(self, seq: int, digest: str, revisions: Mapping[str, int]) -> None:
        self._seq, self._digest = seq, digest
        self.durable_seq, self.durable_digest = seq, digest
        self._revisions = dict(revisions)
        self._open: dict[Key, _Open] = {}
        self._open_operations: dict[str, Key] = {}
        self._landing: dict[Key, _Landing] = {}
        self._landing_operations: dict[str, _Landing] = {}
        self._free_slots: list[int] = []
        self._next_slot = 1

    def adopt(self, slot: int, row: CommandRow) -> None:
        """Take over a command that a former process left open; slots come in ascending order."""
        key = (row.device_id, row.command_id)
        self._free_slots.extend(range(self._next_slot, slot))
        self._next_slot = slot + 1
        self._open[key] = _Open(row, slot)
        self._open_operations[row.operation_id] = key

    def revision(self, device_id: str) -> int:
        return self._revisions.get(device_id, 0)

    def command(self, device_id: str, command_id: str) -> CommandRow | None:
        key = (device_id, command_id)
        landing = self._landing.get(key)
        if landing is not None:
            return landing.row
        opened = self._open.get(key)
        return None if opened is None else opened.row

    def operation(self, operation_id: str) -> CommandRow | None:
        landing = self._landing_operations.get(operation_id)
        if landing is not None:
            return landing.row
        key = self._open_operations.get(operation_id)
        return None if key is None else self._open[key].row

    def operations(self) -> list[CommandRow]:
        """Every operation whose outcome is not on the disk: in flight, or on its way there."""
        in_flight = [opened.row for opened in self._open.values()]
        return in_flight + [landing.row for landing in self._landing_operations.values()]

    def stage(self, entries: Sequence[Entry]) -> Staged:
        """Give the entries their places. All of them or, when it raises, none.

        NotCanonical for a body without canonical form, ValueError for a receipt of the wrong shape, for an intent
        whose command is in flight, and for a void one whose command is not.
        """
        encoded, receipts = self._prepare(entries)
        staged = Staged(receipts=tuple(receipts))
        stored = iter(receipts)
        for entry, data in zip(entries, encoded, strict=True):
            match entry:
                case Intent():
                    staged.statements.append(self._reserve(entry, data))
                case VoidIntent():
                    staged.statements.append(self._release((entry.device_id, entry.command_id)))
                case Receipt():
                    self._append(entry, next(stored), staged)
        return staged

    def landed(self, staged: Staged) -> None:
        """These entries are on the disk, where look-ups find them from now on."""
        if staged.receipts:
            last = staged.receipts[-1]
            self.durable_seq, self.durable_digest = last.seq, last.digest
        for landing in staged.landings:
            key = (landing.row.device_id, landing.row.command_id)
            if self._landing.get(key) is landing:
                del self._landing[key]
            if self._landing_operations.get(landing.row.operation_id) is landing:
                del self._landing_operations[landing.row.operation_id]

    def _prepare(self, entries: Sequence[Entry]) -> tuple[list[bytes], list[StoredReceipt]]:
        """Everything that can fail, without changing anything."""
        digest = self._digest
        encoded: list[bytes] = []
        receipts: list[StoredReceipt] = []
        in_flight: dict[Key, bool] = {}
        for entry in entries:
            key = (entry.device_id, entry.command_id)
            is_open = in_flight.get(key, key in self._open)
            data = b""
            if isinstance(entry, Intent):
                if is_open:
                    raise ValueError(f"command {entry.command_id} is in flight already")
                in_flight[key] = True
                data = canonical(entry.body)
            elif isinstance(entry, VoidIntent):
                if not is_open:
                    raise ValueError(f"command {entry.command_id} is not in flight")
                in_flight[key] = False
            else:
                _check_shape(entry)
                prev_digest = digest
                data, digest = link(entry.body, prev_digest)
                receipts.append(StoredReceipt(self._seq + len(receipts) + 1, prev_digest, digest, data))
                if entry.kind == "final":
                    in_flight[key] = False
            encoded.append(data)
        return encoded, receipts

    def _reserve(self, entry: Intent, data: bytes) -> Statement:
        key = (entry.device_id, entry.command_id)
        slot = self._free_slots.pop() if self._free_slots else self._next_slot
        self._next_slot = max(self._next_slot, slot + 1)
        self._open[key] = _Open(row_of_intent(entry), slot)
        self._open_operations[entry.operation_id] = key
        return _INSERT_INTENT, (
            slot,
            entry.device_id,
            entry.command_id,
            entry.input_digest,
            entry.principal_id,
            entry.operation_id,
            entry.session_id,
            data,
        )

    def _release(self, key: Key) -> Statement:
        opened = self._open.pop(key)
        self._open_operations.pop(opened.row.operation_id, None)
        self._free_slots.append(opened.slot)
        return _DELETE_INTENT, (opened.slot,)

    def _append(self, entry: Receipt, stored: StoredReceipt, staged: Staged) -> None:
        self._seq, self._digest = stored.seq, stored.digest
        staged.statements.append(_receipt_statement(entry, stored))
        key = (entry.device_id, entry.command_id)
        opened = self._open.get(key)
        if entry.kind == "interim":
            if opened is not None:
                opened.row = attrs.evolve(opened.row, interim=stored)
        elif entry.kind == "final" or entry.operation_id is not None:
            staged.landings.append(self._land(entry, stored))
        if entry.kind == "final" and opened is not None:
            staged.statements.append(self._release(key))
        if entry.revision is not None:
            self._revisions[entry.device_id] = entry.revision
            staged.statements.append((_SET_REVISION, (entry.device_id, entry.revision)))

    def _land(self, entry: Receipt, stored: StoredReceipt) -> _Landing:
        """Until it is on the disk, look-ups find the outcome here; a refusal is one of its operation only."""
        landing = _Landing(
            CommandRow(
                device_id=entry.device_id,
                command_id=entry.command_id,
                input_digest=entry.body["input_digest"],
                principal_id=entry.principal_id,
                operation_id=entry.operation_id or "",
                session_id=entry.body["session_id"],
                state="final",
                final=stored,
            )
        )
        if entry.kind == "final":
            # The first outcome of a command stays its outcome [OP-004].
            self._landing.setdefault((entry.device_id, entry.command_id), landing)
        if entry.operation_id is not None:
            self._landing_operations[entry.operation_id] = landing
        return landing


def row_of_intent(intent: Intent, interim: StoredReceipt | None = None) -> CommandRow:
    """The row of a command in flight."""
    return CommandRow(
        device_id=intent.device_id,
        command_id=intent.command_id,
        input_digest=intent.input_digest,
        principal_id=intent.principal_id,
        operation_id=intent.operation_id,
        session_id=intent.session_id,
        state="open",
        interim=interim,
        body=intent.body,
    )


def _check_shape(entry: Receipt) -> None:
    missing = [name for name in ("receipt_id", "input_digest", "session_id") if name not in entry.body]
    if missing:
        raise ValueError(f"a receipt needs {', '.join(missing)}")


def _receipt_statement(entry: Receipt, stored: StoredReceipt) -> Statement:
    body = entry.body
    return _INSERT_RECEIPT, (
        stored.seq,
        body["receipt_id"],
        entry.device_id,
        entry.command_id,
        entry.kind,
        entry.operation_id,
        body["session_id"],
        entry.principal_id,
        body["input_digest"],
        stored.prev_digest,
        stored.digest,
        stored.data,
    )
