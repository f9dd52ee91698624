"""The ledger of a code file: which receipts a run of it got, in order, tied to the endpoint's evidence [TPT-050].

Decides what the file says and what makes it true. Each entry names a receipt with its number and digest in the
endpoint's chain, and is linked to the entry before it; the last link covers the script, the times and the end.
"""

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from mhsd import __version__
from mhsd.client.receipts import FINAL

LEDGER_VERSION = "1.0.0"

_SAVE_S = 1.0
"""A run that is killed loses at most the receipts of so long."""

_FROM_THE_START = (
    "receipt_id",
    "command_id",
    "operation_id",
    "session_id",
    "endpoint_id",
    "device_id",
    "capability_id",
    "input_digest",
    "accepted_at",
)
_AT_THE_END = ("status", "ended_at", "mhs_code")
_IN_THE_CHAIN = ("seq", "digest")

_FOOT = ("endpoint_id", "ended_at", "outcome", "exit_code")
"""What is known at the end only; null in the ledger of a run that was killed."""


def link(entry: Mapping[str, Any], previous: str) -> str:
    """The digest of an entry (or of the head and foot of a ledger) as the successor of `previous`.

    Over the canonical JSON of the entry, then the text of `previous`, as the digest of a receipt is.
    """
    # Ledgers hold text, integers and nulls only, for which this is what RFC 8785 writes.
    body = json.dumps(entry, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(body.encode("utf-8", "surrogatepass") + previous.encode()).hexdigest()


class Ledger:
    """One run. `note` may be called from several threads."""

    def __init__(self, path: Path, script: str, source: bytes, started_at: str) -> None:
        """Writes the ledger of a run of `source` that has just begun; OSError where it cannot be written."""
        self._path = path.resolve()  # The code file may go to another directory.
        self._lock = threading.Lock()
        self._saved_mono_s = 0.0
        self._entries: list[dict[str, Any]] = []
        self._head: dict[str, Any] = {
            "ledger_version": LEDGER_VERSION,
            "script": script,
            "script_digest": "sha256:" + hashlib.sha256(source).hexdigest(),
            "client": f"mhsd {__version__}",
            "started_at": started_at,
        }
        self._foot: dict[str, Any] = {
            "endpoint_id": None,
            "ended_at": None,
            "outcome": None,
            "exit_code": None,
        }
        self._last_link = link(self._head, "")
        self._save()

    def note(self, receipt: Mapping[str, Any]) -> None:
        """The script has got a receipt."""
        with self._lock:
            entry = {"n": len(self._entries) + 1, **_entry(receipt)}
            self._last_link = link(entry, self._last_link)
            self._entries.append({**entry, "link": self._last_link})
            if time.monotonic() - self._saved_mono_s > _SAVE_S:
                # The script gets its receipt whatever becomes of the ledger, and `finish` tells.
                with contextlib.suppress(OSError):
                    self._save()

    def reached(self, endpoint_id: str) -> None:
        """The script has reached an endpoint; the ledger names the first, and every receipt its own."""
        with self._lock:
            if self._foot["endpoint_id"] is None:
                self._foot["endpoint_id"] = endpoint_id

    def finish(self, outcome: str, exit_code: int, ended_at: str) -> dict[str, Any]:
        """The run is over; returns the ledger as it was written. OSError where it cannot be written any more."""
        with self._lock:
            self._foot |= {"ended_at": ended_at, "outcome": outcome, "exit_code": exit_code}
            return self._save()

    def _save(self) -> dict[str, Any]:
        document = {
            **self._head,
            **self._foot,
            "receipts": self._entries,
            "chain_digest": link(self._foot, self._last_link),
        }
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}.partial")
        try:
            with partial.open("w", encoding="utf-8") as file:
                json.dump(document, file, ensure_ascii=False, indent=1)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._path)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()
            self._saved_mono_s = time.monotonic()
        return document


class LedgerCheck:
    """A check of a ledger in steps: `add` the receipts of the endpoint's evidence, then `report`.

    An entry without a number in the chain is a receipt that was not final when the script got it: the evidence has at
    most what became of it. One of another endpoint cannot be in this evidence. That either is missing is no error.
    """

    def __init__(self, ledger: Mapping[str, Any], endpoint_id: str) -> None:
        entries = ledger.get("receipts")
        self._errors: list[str] = []
        self._entries: list[Mapping[str, Any]] = []
        if isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries):
            self._entries = entries
            self._check_links(ledger)
        else:
            self._errors.append("the ledger has no list of receipts")
        self._endpoint_id = endpoint_id
        self._wanted: dict[str, list[Mapping[str, Any]]] = {}
        for entry in self._entries:
            self._wanted.setdefault(str(entry.get("receipt_id")), []).append(entry)
        self._sessions = {str(entry.get("session_id")) for entry in self._entries} - {"None"}
        self._checked = self._unlisted = 0

    def _check_links(self, ledger: Mapping[str, Any]) -> None:
        foot = {name: ledger.get(name) for name in _FOOT}
        head = {name: ledger[name] for name in ledger if name not in (*_FOOT, "receipts", "chain_digest")}
        last = link(head, "")
        for number, entry in enumerate(self._entries, 1):
            body = {name: value for name, value in entry.items() if name != "link"}
            if entry.get("n") != number or entry.get("link") != link(body, last):
                self._errors.append(f"entry {number} was changed, or what is before it")
            last = str(entry.get("link"))
        if ledger.get("chain_digest") != link(foot, last):
            self._errors.append("chain_digest does not fit: the end of the ledger was changed")

    def add(self, receipt: Mapping[str, Any]) -> None:
        """A receipt of the evidence."""
        entries = self._wanted.pop(str(receipt.get("receipt_id")), None)
        if entries is None:
            self._unlisted += str(receipt.get("session_id")) in self._sessions
            return
        self._checked += len(entries)
        stated = _entry(receipt)
        for entry in entries:
            differing = [name for name in _known(entry) if stated[name] != entry.get(name)]
            if differing:
                self._errors.append(
                    f"entry {entry.get('n')}: the evidence has another {', '.join(differing)}"
                )

    def report(self) -> dict[str, Any]:
        """`{valid, entries, checked, unlisted, errors}`; `unlisted` are receipts of the ledger's sessions that the
        script did not get, as when an answer was lost."""
        missing = [
            f"entry {entry.get('n')}: the evidence has no receipt {entry.get('receipt_id')}"
            for entries in self._wanted.values()
            for entry in entries
            if entry.get("seq") is not None and entry.get("endpoint_id") == self._endpoint_id
        ]
        errors = [*self._errors, *missing]
        return {
            "valid": not errors,
            "entries": len(self._entries),
            "checked": self._checked,
            "unlisted": self._unlisted,
            "errors": errors,
        }


def _entry(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """What a ledger keeps of a receipt."""
    evidence, error = receipt.get("evidence"), receipt.get("error")
    evidence = evidence if isinstance(evidence, dict) else {}
    return {
        **{name: receipt.get(name) for name in (*_FROM_THE_START, "status", "ended_at")},
        "mhs_code": error.get("mhs_code") if isinstance(error, dict) else None,
        "seq": evidence.get("seq"),
        "digest": evidence.get("digest"),
    }


def _known(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """What of an entry the evidence must have too: the script may have got the receipt before it was final, and that of
    a stop before it had its number."""
    numbered = entry.get("seq") is not None
    ended = numbered or str(entry.get("status")) in FINAL
    return _FROM_THE_START + _AT_THE_END * ended + _IN_THE_CHAIN * numbered


Noted = TypeVar("Noted", bound=Mapping[str, Any])

_current: Ledger | None = None


def keep(ledger: Ledger | None) -> None:
    """From now on every receipt that this process gets goes into `ledger`; None ends it."""
    global _current  # noqa: PLW0603 - one process runs one code file
    _current = ledger


# A child that the code file forks has the ledger of its parent, which goes on.
os.register_at_fork(after_in_child=lambda: keep(None))


def reached(endpoint_id: str) -> None:
    """This process has an endpoint, which the ledger of the run is told."""
    if _current is not None:
        _current.reached(endpoint_id)


def noted(receipt: Noted) -> Noted:
    """A receipt on its way to the script, which the ledger of the run is told."""
    if _current is not None:
        _current.note(receipt)
    return receipt
