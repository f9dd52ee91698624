"""The ledger of a code file: what it says, and what it takes to change it unnoticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mhsd.base.resources import schema_document
from mhsd.client import ledger as ledgers
from mhsd.client.ledger import Ledger, LedgerCheck, link, noted, reached
from mhsd.wire.canonical import canonical, sha256_text
from mhsd.wire.schema import compile_schema

ENDPOINT = "mhs://localhost:7400"
SOURCE = "print('grüezi')\n".encode()


def receipt(number: int, **more: Any) -> dict[str, Any]:
    return {
        "receipt_id": f"01J8ZQ3W1B7M2N4P6R8S0T2V{number:02}",
        "command_id": f"01J8ZQ3V6Y7M2N4P6R8S0T2V{number:02}",
        "session_id": "mhs_s_1",
        "endpoint_id": ENDPOINT,
        "device_id": f"{ENDPOINT}/lab/one",
        "capability_id": "cap.x.v1",
        "input_digest": "sha256:" + "1" * 64,
        "status": "completed",
        "accepted_at": "2026-10-20T07:46:58.900Z",
        "output": {"secret": 42},
        "evidence": {"seq": number, "prev_digest": "sha256:" + "0" * 64, "digest": f"sha256:{number:064}"},
        **more,
    }


RUNNING = {**receipt(9), "status": "running"}
del RUNNING["evidence"]
RECEIPTS = [
    receipt(1),
    receipt(2, status="rejected", error={"mhs_code": "MHS.DEVICE.BUSY"}),
    RUNNING,
    receipt(3, operation_id="op_1"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sweep.ledger.json"


@pytest.fixture
def written(path: Path) -> dict[str, Any]:
    """The ledger of a run that got these receipts, as it is in the file."""
    ledger = Ledger(path, "sweep.py", SOURCE, "2026-10-20T07:46:00.000Z")
    ledger.reached(ENDPOINT)
    ledger.reached("mhs://other:7400")
    for each in RECEIPTS:
        ledger.note(each)
    document = ledger.finish("refused", 1, "2026-10-20T07:47:00.000Z")
    content: dict[str, Any] = json.loads(path.read_text())
    assert content == document
    return content


def report(ledger: dict[str, Any], receipts: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    check = LedgerCheck(ledger, ENDPOINT)
    for each in RECEIPTS if receipts is None else receipts:
        if "evidence" in each:
            check.add(each)
    return check.report()


def test_a_ledger_names_the_script_the_endpoint_the_times_and_the_receipts(written: dict[str, Any]) -> None:
    """[CORE-140]"""
    assert written["script_digest"] == "sha256:" + hashlib.sha256(SOURCE).hexdigest()
    assert written["endpoint_id"] == ENDPOINT
    assert (written["started_at"], written["ended_at"]) == (
        "2026-10-20T07:46:00.000Z",
        "2026-10-20T07:47:00.000Z",
    )
    assert (written["outcome"], written["exit_code"]) == ("refused", 1)
    assert [each["seq"] for each in written["receipts"]] == [1, 2, None, 3]
    assert [each["status"] for each in written["receipts"]] == [
        "completed",
        "rejected",
        "running",
        "completed",
    ]
    assert written["receipts"][1]["mhs_code"] == "MHS.DEVICE.BUSY"
    assert written["receipts"][0]["digest"] == RECEIPTS[0]["evidence"]["digest"]
    assert "secret" not in json.dumps(written)


def test_a_ledger_fits_its_schema(written: dict[str, Any]) -> None:
    schema = compile_schema(schema_document("ledger"), resolve=schema_document)
    assert schema.errors(written) == []


def test_a_ledger_is_true_to_the_evidence_it_came_from(written: dict[str, Any]) -> None:
    assert report(written) == {"valid": True, "entries": 4, "checked": 3, "unlisted": 0, "errors": []}


def test_links_are_made_of_canonical_json(written: dict[str, Any]) -> None:
    entry = {**written["receipts"][0], "device_id": "mhs://ü:7400/labör/\u2028\U0001f52c"}
    assert link(entry, "sha256:before") == sha256_text(canonical(entry) + b"sha256:before")


def _without_second(ledger: dict[str, Any]) -> None:
    del ledger["receipts"][1]


def _without_last(ledger: dict[str, Any]) -> None:
    ledger["receipts"].pop()


def _swapped(ledger: dict[str, Any]) -> None:
    ledger["receipts"][0:2] = ledger["receipts"][1::-1]


def _other_status(ledger: dict[str, Any]) -> None:
    ledger["receipts"][1]["status"] = "completed"


def _other_script(ledger: dict[str, Any]) -> None:
    ledger["script_digest"] = "sha256:" + "f" * 64


def _other_end(ledger: dict[str, Any]) -> None:
    ledger["exit_code"] = 0


def _more(ledger: dict[str, Any]) -> None:
    ledger["approved"] = True


def _no_entries(ledger: dict[str, Any]) -> None:
    ledger["receipts"] = "none"


@pytest.mark.parametrize(
    "change",
    [_without_second, _without_last, _swapped, _other_status, _other_script, _other_end, _more, _no_entries],
)
def test_a_ledger_that_was_changed_is_noticed(
    written: dict[str, Any], change: Callable[[dict[str, Any]], None]
) -> None:
    change(written)
    assert report(written)["errors"] != []


def test_a_ledger_that_was_made_anew_does_not_fit_the_evidence(path: Path, written: dict[str, Any]) -> None:
    forged = Ledger(path, "sweep.py", SOURCE, written["started_at"])
    forged.note({**RECEIPTS[1], "status": "completed"})
    document = forged.finish("finished", 0, written["ended_at"])
    assert report(document)["errors"] == ["entry 1: the evidence has another status"]


def of(path: Path, *receipts: dict[str, Any]) -> dict[str, Any]:
    """A ledger of these receipts, in which everything fits together."""
    ledger = Ledger(path, "sweep.py", SOURCE, "2026-10-20T07:46:00.000Z")
    for each in receipts:
        ledger.note(each)
    return ledger.finish("finished", 0, "2026-10-20T07:47:00.000Z")


def test_every_entry_of_a_receipt_that_came_twice_is_checked(path: Path) -> None:
    told = report(of(path, receipt(1), receipt(1)), [receipt(1)])
    assert (told["valid"], told["checked"]) == (True, 2)
    told = report(of(path, receipt(1, status="failed"), receipt(1)), [receipt(1)])
    assert told["errors"] == ["entry 1: the evidence has another status"]


@pytest.mark.parametrize("status", ["running", "accepted", "unknown"])
def test_what_a_receipt_had_before_it_was_final_is_checked(path: Path, status: str) -> None:
    early = {name: value for name, value in receipt(1, status=status).items() if name != "evidence"}
    assert report(of(path, early, receipt(1)), [receipt(1)])["valid"]
    told = report(of(path, {**early, "capability_id": "cap.y.v1"}), [receipt(1)])
    assert told["errors"] == ["entry 1: the evidence has another capability_id"]


def test_a_stop_may_get_its_number_later_and_nothing_else(path: Path) -> None:
    assert report(of(path, receipt(1, evidence={"pending": True})), [receipt(1)])["valid"]
    told = report(of(path, receipt(1, evidence={"pending": True}, status="failed")), [receipt(1)])
    assert told["errors"] == ["entry 1: the evidence has another status"]


def test_a_receipt_of_this_endpoint_cannot_be_passed_off_as_anothers(path: Path) -> None:
    told = report(of(path, receipt(1, endpoint_id="mhs://other:7400")), [receipt(1)])
    assert told["errors"] == ["entry 1: the evidence has another endpoint_id"]


def test_what_a_script_did_not_get_of_its_sessions_is_counted(path: Path) -> None:
    others = receipt(3, session_id="mhs_s_2")
    told = report(of(path, receipt(1)), [receipt(1), receipt(2), others])
    assert (told["valid"], told["checked"], told["unlisted"]) == (True, 1, 1)


@pytest.mark.parametrize("nonsense", [[], {}, 7, None])
def test_entries_of_any_kind_can_be_checked(written: dict[str, Any], nonsense: Any) -> None:
    written["receipts"][0] = dict.fromkeys(written["receipts"][0], nonsense)
    assert report(written)["errors"][0] == "entry 1 was changed, or what is before it"


def test_a_receipt_gets_to_the_script_although_the_ledger_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[TPT-055]"""
    monkeypatch.setattr(ledgers, "_SAVE_S", -1.0)
    directory = tmp_path / "taken away"
    directory.mkdir()
    ledger = Ledger(directory / "ledger.json", "sweep.py", SOURCE, "2026-10-20T07:46:00.000Z")
    (directory / "ledger.json").unlink()
    directory.rmdir()
    ledger.note(RECEIPTS[0])
    with pytest.raises(OSError, match="No such file"):
        ledger.finish("finished", 0, "2026-10-20T07:47:00.000Z")
    directory.mkdir()
    assert len(ledger.finish("finished", 0, "2026-10-20T07:47:00.000Z")["receipts"]) == 1


def test_a_receipt_that_the_evidence_does_not_have_is_named(written: dict[str, Any]) -> None:
    missing = report(written, RECEIPTS[1:])
    assert missing["errors"] == [f"entry 1: the evidence has no receipt {RECEIPTS[0]['receipt_id']}"]


def test_receipts_of_another_endpoint_are_not_looked_for(path: Path) -> None:
    ledger = Ledger(path, "sweep.py", SOURCE, "2026-10-20T07:46:00.000Z")
    ledger.note(receipt(1, endpoint_id="mhs://other:7400"))
    document = ledger.finish("finished", 0, "2026-10-20T07:47:00.000Z")
    told = report(document, [])
    assert told == {"valid": True, "entries": 1, "checked": 0, "unlisted": 0, "errors": []}


def test_a_run_that_was_killed_leaves_what_it_had(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "_SAVE_S", -1.0)
    ledger = Ledger(path, "sweep.py", SOURCE, "2026-10-20T07:46:00.000Z")
    ledger.note(RECEIPTS[0])
    left = json.loads(path.read_text())
    assert (left["outcome"], left["ended_at"], len(left["receipts"])) == (None, None, 1)
    assert report(left)["valid"]


def test_what_a_process_gets_is_told_to_the_ledger_that_is_kept(path: Path) -> None:
    ledger = Ledger(path, "sweep.py", SOURCE, "2026-10-20T07:46:00.000Z")
    ledgers.keep(ledger)
    try:
        reached(ENDPOINT)
        assert noted(RECEIPTS[0]) is RECEIPTS[0]
    finally:
        ledgers.keep(None)
    noted(RECEIPTS[1])
    document = ledger.finish("finished", 0, "2026-10-20T07:47:00.000Z")
    assert (document["endpoint_id"], len(document["receipts"])) == (ENDPOINT, 1)


def test_a_ledger_that_cannot_be_written_is_known_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        Ledger(tmp_path / "nowhere" / "ledger.json", "sweep.py", SOURCE, "2026-10-20T07:46:00.000Z")
