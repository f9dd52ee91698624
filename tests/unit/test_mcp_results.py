"""Results hold the whole receipt as text and structured; an error is what has no receipt [TPT-037 to TPT-039]."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhsd.base.errors import ERRORS, Fault
from mhsd.mcp.artifacts import MOST_CHARACTERS, PIECE_CHARACTERS, Artifacts, within_frame
from mhsd.mcp.results import (
    Asked,
    document_result,
    error_result,
    fault_result,
    json_line,
    operation_of,
    receipt_result,
    safety_result,
    summary_of,
)

ASKED = Asked(long_running=False, deadline_ms=7000, max_duration_ms=5000)
RECEIPT: dict[str, Any] = {
    "receipt_id": "01J8ZQ3W1B7M2N4P6R8S0T2V4Z",
    "command_id": "01J8ZQ3V6Y7M2N4P6R8S0T2V4Y",
    "operation_id": "op_01J8ZQ3V6Y7M2N4P6R8S0T2V4X",
    "device_id": "mhs://localhost:7400/lab/conveyor-workcell",
    "capability_id": "cap.world.step.v1",
    "status": "completed",
    "state_revision_before": 76,
    "state_revision_after": 77,
    "output": {"tick": 77},
    "effects": [{"kind": "simulation.advance", "summary": "time {tick} advances"}],
    "replayed": False,
}
REJECTED = {
    **{name: RECEIPT[name] for name in ("receipt_id", "command_id", "device_id", "capability_id")},
    "status": "rejected",
    "error": {"mhs_code": "MHS.SAFETY.ENVELOPE_VIOLATION", "message": "ticks {9} is\nabove 5"},
}
FRAME = 4 << 20


def text_of(result: Any) -> str:
    """The first text block, which is all that some hosts show."""
    assert {block["type"] for block in result["content"]} == {"text"}
    text: str = result["content"][0]["text"]
    return text


@pytest.mark.parametrize(
    "status", ["accepted", "running", "completed", "failed", "rejected", "cancelled", "unknown"]
)
def test_a_receipt_of_any_status_is_no_error(status: str) -> None:
    """[TPT-037, TPT-038]"""
    receipt = {**RECEIPT, "status": status}
    result = receipt_result(receipt, ASKED)
    assert result["isError"] is False
    assert result["structuredContent"]["receipt"] == receipt
    assert result["structuredContent"]["mhs_error"] is None
    first, second = (block["text"] for block in result["content"])
    assert json.loads(first) == receipt
    assert second.startswith(f"{status}: cap.world.step.v1 on mhs://")


@pytest.mark.parametrize("receipt", [RECEIPT, REJECTED])
def test_the_receipt_can_be_cut_out_of_the_joined_text_by_its_braces(receipt: dict[str, Any]) -> None:
    """[TPT-037]"""
    text = "\n".join(block["text"] for block in receipt_result(receipt, ASKED)["content"])
    assert json.loads(text[text.index("{") : text.rindex("}") + 1]) == receipt
    assert json.JSONDecoder().raw_decode(text)[0] == receipt


def test_the_line_of_the_receipt_is_one_line_to_every_reader() -> None:
    receipt = {**RECEIPT, "output": {"text": "a\u2028b\u2029c\u0085d\ne µm {"}}
    text = text_of(receipt_result(receipt, ASKED))
    assert len(text.splitlines()) == 1
    assert json.loads(text) == receipt
    assert "µm" in text


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
        lambda child: st.lists(child) | st.dictionaries(st.text("ab\u2028"), child),
        max_leaves=8,
    )
)
def test_a_document_survives_its_line(document: Any) -> None:
    line = json_line(document)
    assert len(line.splitlines()) == 1
    assert json.loads(line) == document


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "revision 76 to 77"),
        ({"state_revision_after": 76}, "revision 76"),
        ({"status": "running"}, "follow it with mhs__operations, operation_id op_01J8"),
        ({"status": "unknown"}, "read the state before anything else"),
        ({"replayed": True}, "nothing was done a second time"),
        ({"cancellation": {"safe_state_achieved": True}}, "the safe state was reached"),
        ({"cancellation": {"safe_state_achieved": False}}, "the safe state is not confirmed"),
        (REJECTED, "MHS.SAFETY.ENVELOPE_VIOLATION: ticks (9) is above 5"),
    ],
)
def test_the_summary_tells_a_person_what_happened(change: dict[str, Any], words: str) -> None:
    """[TPT-037]"""
    summary = summary_of({**RECEIPT, **change})
    assert words in summary
    assert len(summary.splitlines()) == 1


@pytest.mark.parametrize("status", [None, 7, ["x"]])
def test_a_status_that_is_none_is_only_shown(status: Any) -> None:
    line = summary_of({"status": status, "capability_id": "c", "device_id": "d"})
    assert line == f"{status}: c on d"


def test_a_receipt_with_an_operation_names_it_beside() -> None:
    """[TPT-038]"""
    assert receipt_result(RECEIPT, ASKED)["structuredContent"]["operation"] == {
        "operation_id": RECEIPT["operation_id"],
        "status": "completed",
        "long_running": False,
        "deadline_ms": 7000,
        "max_duration_ms": 5000,
    }
    assert "operation" not in receipt_result(REJECTED, ASKED)["structuredContent"]
    unbounded = operation_of(RECEIPT, Asked(long_running=True, deadline_ms=1))
    assert unbounded is not None
    assert "max_duration_ms" not in unbounded


@pytest.mark.parametrize(
    "receipt",
    [
        {**RECEIPT, "status": "unknown", "receipt_id": "01J8ZQ3W1B7M2N4P6R8S0T2V40"},
        {**RECEIPT, "x-vendor": {"reconciles": "01J8ZQ3W1B7M2N4P6R8S0T2V40"}},
    ],
)
def test_the_receipt_that_said_unknown_is_named(receipt: dict[str, Any]) -> None:
    """[TPT-038]"""
    operation = operation_of(receipt, ASKED)
    assert operation is not None
    assert operation["unknown_receipt_id"] == "01J8ZQ3W1B7M2N4P6R8S0T2V40"


@pytest.mark.parametrize("mhs_code", sorted(ERRORS))
def test_an_error_is_the_mhs_error_and_its_text_starts_with_the_code(mhs_code: str) -> None:
    """[TPT-039]"""
    fault = Fault(mhs_code, "it went wrong", details={"field": "x"})
    result = fault_result(fault)
    assert result["isError"] is True
    assert result["structuredContent"] == {"receipt": None, "mhs_error": fault.data()}
    assert text_of(result).startswith(f"{mhs_code}: it went wrong")


def test_an_errors_text_says_what_to_do() -> None:
    """[TPT-039]"""
    unavailable = error_result(
        "no answer",
        {"mhs_code": "MHS.TRANSPORT.UNAVAILABLE", "retryable": True, "remediation": "Start mhsd."},
    )
    expected = "MHS.TRANSPORT.UNAVAILABLE: no answer\nStart mhsd. The same call may be repeated."
    assert text_of(unavailable) == expected
    bare = error_result("no", {"mhs_code": "MHS.INTERNAL.ERROR", "retryable": False})
    assert text_of(bare) == "MHS.INTERNAL.ERROR: no"


def test_a_document_is_its_own_text() -> None:
    """[TPT-044]"""
    document = {"devices": [], "note": "ü"}
    result = document_result(document)
    assert json.loads(text_of(result)) == result["structuredContent"] == document
    assert result["isError"] is False


def test_a_stop_answers_its_receipt() -> None:
    """[TPT-044]"""
    result = safety_result(RECEIPT)
    assert result["structuredContent"] == {"receipt": RECEIPT, "mhs_error": None}
    assert json.loads(text_of(result)) == result["structuredContent"]


def test_what_fits_into_a_frame_is_left_as_it_is() -> None:
    """[TPT-047]"""
    short, artifacts = receipt_result(RECEIPT, ASKED), Artifacts()
    long = document_result({"text": "x" * (FRAME // 3)})
    assert within_frame(short, artifacts, FRAME) is short
    assert within_frame(long, artifacts, FRAME) is long


def test_what_a_frame_holds_is_read_whole() -> None:
    """TPT-043: a client need not know of pieces."""
    artifacts = Artifacts()
    text = json.dumps({"text": "ü" * (5 * PIECE_CHARACTERS // 2)}, ensure_ascii=False)
    piece = artifacts.read(artifacts.keep(text))
    assert piece is not None
    assert (piece["text"], piece["mimeType"]) == (text, "application/json")
    assert piece["_meta"]["x-mhs"]["next"] is None


def read_whole(artifacts: Artifacts, uri: str) -> str:
    """The artifact as a client reads it, piece by piece."""
    text, following = "", uri
    while following is not None:
        piece = artifacts.read(following)
        assert piece is not None
        assert piece["uri"] == following
        assert len(json.dumps(piece)) <= FRAME
        is_whole = len(piece["text"]) == piece["_meta"]["x-mhs"]["total_characters"]
        assert piece["mimeType"] == ("application/json" if is_whole else "text/plain")
        text += piece["text"]
        following = piece["_meta"]["x-mhs"]["next"]
    return text


@pytest.mark.parametrize("filling", ["x" * FRAME, "\u00fc\u2028" * (FRAME // 16)])
def test_a_receipt_that_is_too_long_is_short_and_names_the_whole(filling: str) -> None:
    """[TPT-047]"""
    receipt = {
        **RECEIPT,
        "status": "failed",
        "output": {"text": filling},
        "error": {"mhs_code": "MHS.DEVICE.FAULT", "message": "m", "details": {"text": filling}},
    }
    artifacts = Artifacts()
    result = within_frame(receipt_result(receipt, ASKED), artifacts, FRAME)
    assert len(json.dumps(result)) < 10_000
    shown = result["structuredContent"]["receipt"]
    assert (shown["status"], shown["receipt_id"]) == ("failed", RECEIPT["receipt_id"])
    assert shown["error"] == {"mhs_code": "MHS.DEVICE.FAULT", "message": "m"}
    assert json.loads(text_of(result)) == shown
    assert result["structuredContent"]["operation"]["operation_id"] == RECEIPT["operation_id"]
    (artifact,) = shown["artifacts"]
    assert artifact["uri"] == f"mhs+artifact://{artifact['digest']}"
    whole = read_whole(artifacts, artifact["uri"])
    assert json.loads(whole) == receipt
    assert len(whole.encode()) == artifact["size_bytes"]


def test_a_document_that_is_too_long_is_an_artifact() -> None:
    """[TPT-047]"""
    document, artifacts = {"receipts": ["y" * FRAME]}, Artifacts()
    result = within_frame(document_result(document), artifacts, FRAME)
    (artifact,) = result["structuredContent"]["artifacts"]
    assert json.loads(read_whole(artifacts, artifact["uri"])) == document


def test_a_kept_text_is_found_by_its_uri_only() -> None:
    artifacts = Artifacts()
    uri = artifacts.keep("[]")
    piece = artifacts.read(uri)
    assert piece is not None
    assert piece["text"] == "[]"
    for wrong in (uri + "0", uri + "?offset=2", uri + "?offset=-1", uri + "?offset=9" * 9, uri + "?since=0"):
        assert artifacts.read(wrong) is None


def test_the_oldest_artifact_makes_room_for_the_newest() -> None:
    """[TPT-047]"""
    artifacts = Artifacts(most_characters=10)
    first, second = artifacts.keep("a" * 6), artifacts.keep("b" * 4)
    again = artifacts.keep("a" * 6)
    third = artifacts.keep("c" * 2)
    assert again == first
    assert artifacts.read(second) is None
    assert artifacts.read(first) is not None
    longer = artifacts.keep("d" * 11)
    assert artifacts.read(longer) is not None
    assert artifacts.read(third) is None
    assert MOST_CHARACTERS > FRAME
