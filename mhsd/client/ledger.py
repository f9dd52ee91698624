"""The ledger of a code file: which receipts a run of it got, in order, tied to the endpoint's evidence [TPT-050].

Decides what the file says and what makes it true. Each entry names a receipt with its number and digest in the
endpoint's chain, and is linked to the entry before it; the last link covers the script, the times and the end.
"""

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mhsd import __version__

LEDGER_VERSION = "1.0.0"

_SAVE_S = 1.0
"""A run that is killed loses at most the receipts of so long."""

_FROM_RECEIPT = (
    "receipt_id",
    "command_id",
    "operation_id",
    "session_id",
    "endpoint_id",
    "device_id",
    "capability_id",
    "input_digest",
    "status",
    "accepted_at",
    "ended_at",
)


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
        self._path = path
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
        evidence = receipt.get("evidence")
        evidence = evidence if isinstance(evidence, dict) else {}
        error = receipt.get("error")
        error = error if isinstance(error, dict) else {}
        with self._lock:
            entry: dict[str, Any] = {"n": len(self._entries) + 1}
            entry |= {name: receipt.get(name) for name in _FROM_RECEIPT}
            entry |= {
                "mhs_code": error.get("mhs_code"),
                "seq": evidence.get("seq"),
                "digest": evidence.get("digest"),
            }
            self._last_link = link(entry, self._last_link)
            self._entries.append({**entry, "link": self._last_link})
            if time.monotonic() - self._saved_mono_s > _SAVE_S:
                self._save()

    def reached(self, endpoint_id: str) -> None:
        """The script has reached an endpoint; the ledger names the first, and every receipt its own."""
        with self._lock:
            if self._foot["endpoint_id"] is None:
                self._foot["endpoint_id"] = endpoint_id

    def finish(self, outcome: str, exit_code: int, ended_at: str) -> dict[str, Any]:
        """The run is over; returns the ledger as it was written."""
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
            partial.unlink(missing_ok=True)
        self._saved_mono_s = time.monotonic()
        return document


def defects(ledger: Mapping[str, Any], receipts: Iterable[Mapping[str, Any]]) -> list[str]:
    """What is wrong with a ledger, as sentences: in itself, and against the receipts of the endpoint's evidence."""
    entries = ledger.get("receipts")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return ["the ledger has no list of receipts"]
    return [*_broken_links(ledger, entries), *_not_in_evidence(entries, receipts)]


def _broken_links(ledger: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> list[str]:
    found = []
    foot = {name: ledger.get(name) for name in ("endpoint_id", "ended_at", "outcome", "exit_code")}
    rest = {*foot, "receipts", "chain_digest"}
    last = link({name: value for name, value in ledger.items() if name not in rest}, "")
    for number, entry in enumerate(entries, 1):
        body = {name: value for name, value in entry.items() if name != "link"}
        if entry.get("n") != number or entry.get("link") != link(body, last):
            found.append(f"entry {number} was changed, or one before it was left out")
        last = str(entry.get("link"))
    if ledger.get("chain_digest") != link(foot, last):
        found.append(
            "chain_digest does not fit: the end was changed, or entries after the last were left out"
        )
    return found


def _not_in_evidence(
    entries: Sequence[Mapping[str, Any]], receipts: Iterable[Mapping[str, Any]]
) -> list[str]:
    """An entry without a number in the chain is a receipt that was not final, or not on disk yet."""
    wanted = {entry["receipt_id"]: entry for entry in entries if entry.get("seq") is not None}
    known = {each.get("receipt_id"): each for each in receipts if each.get("receipt_id") in wanted}
    found = []
    for receipt_id, entry in wanted.items():
        receipt = known.get(receipt_id)
        if receipt is None:
            found.append(f"entry {entry.get('n')}: the evidence has no receipt {receipt_id}")
            continue
        evidence = receipt.get("evidence") or {}
        stated = {name: receipt.get(name) for name in _FROM_RECEIPT} | {
            name: evidence.get(name) for name in ("seq", "digest")
        }
        differing = [name for name, value in stated.items() if value != entry.get(name)]
        if differing:
            found.append(f"entry {entry.get('n')}: the evidence has another {', '.join(differing)}")
    return found


Noted = TypeVar("Noted", bound=Mapping[str, Any])

_current: Ledger | None = None


def keep(ledger: Ledger | None) -> None:
    """From now on every receipt that this process gets goes into `ledger`; None ends it."""
    global _current  # noqa: PLW0603 - one process runs one code file
    _current = ledger


def reached(endpoint_id: str) -> None:
    """This process has an endpoint, which the ledger of the run is told."""
    if _current is not None:
        _current.reached(endpoint_id)


def noted(receipt: Noted) -> Noted:
    """A receipt on its way to the script, which the ledger of the run is told."""
    if _current is not None:
        _current.note(receipt)
    return receipt
