"""Receipts, devices and events as people see them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mhsd.client.documents import Device, Event, Receipt

RECEIPT: dict[str, Any] = {
    "receipt_id": "01J8ZQ3W1B7M2N4P6R8S0T2V4Z",
    "device_id": "mhs://localhost:7400/lab/one",
    "capability_id": "cap.motion.convey.v1",
    "resource_ids": ["belt"],
    "status": "completed",
    "operation_id": "op_1",
    "output": {"position_mm": 12.5},
    "effects": [{"summary": "the belt moves"}],
    "state_revision_before": 3,
    "state_revision_after": 4,
}
REFUSED: dict[str, Any] = {
    **{name: RECEIPT[name] for name in ("receipt_id", "device_id", "capability_id")},
    "status": "rejected",
    "error": {
        "mhs_code": "MHS.SAFETY.ENVELOPE_VIOLATION",
        "message": "speed_mm_s = 900 mm/s is above the limit",
        "remediation": "Send less.",
    },
}
CANCELLED: dict[str, Any] = {
    **RECEIPT,
    "status": "cancelled",
    "cancellation": {"requested_by": "local:ada", "safe_state_achieved": False},
}
DEVICE: dict[str, Any] = {
    "device_id": "mhs://localhost:7400/lab/one",
    "display_name": "One",
    "mode": "simulated",
    "risk_class": "R1",
    "fidelity": {"determinism": "exact", "gaps": ["no friction"]},
    "resources": [{"resource_id": "belt"}],
    "bindings": [
        {
            "capability_id": "cap.motion.convey.v1",
            "resource": "belt",
            "input_schema": {
                "properties": {
                    "speed_mm_s": {"minimum": 1, "maximum": 1000, "x-mhs-unit": "mm/s"},
                    "count": {"minimum": 1, "x-mhs-unit": "1"},
                    "ticks": {"x-mhs-unit": "{tick}"},
                    "kind": {"enum": ["fast", "slow"]},
                }
            },
            "limits": {"speed_mm_s": {"max": 500, "unit": "mm/s"}},
        }
    ],
}
HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e'\"&"


def test_a_receipt_is_the_document_and_names_what_is_asked_for_most() -> None:
    receipt = Receipt(RECEIPT)
    assert receipt == RECEIPT
    assert json.loads(json.dumps(receipt)) == RECEIPT
    assert (receipt.status, receipt.ok, receipt.final, receipt.revision) == ("completed", True, True, 4)
    assert (receipt.output, receipt.error, receipt.mhs_code) == ({"position_mm": 12.5}, None, None)
    assert receipt.operation_id == "op_1"


def test_a_refused_receipt_names_its_code_and_has_no_output() -> None:
    receipt = Receipt(REFUSED)
    assert (receipt.ok, receipt.mhs_code) == (False, "MHS.SAFETY.ENVELOPE_VIOLATION")
    assert (receipt.output, receipt.operation_id, receipt.revision) == ({}, None, None)


def test_what_a_prompt_shows_of_a_receipt_is_one_line_with_the_outcome() -> None:
    assert repr(Receipt(RECEIPT)) == (
        "<Receipt completed cap.motion.convey.v1 on /lab/one: position_mm 12.5>"
    )
    assert repr(Receipt(REFUSED)) == (
        "<Receipt rejected cap.motion.convey.v1 on /lab/one: "
        "MHS.SAFETY.ENVELOPE_VIOLATION speed_mm_s = 900 mm/s is above the limit>"
    )
    running = Receipt({**RECEIPT, "status": "running", "output": None, "progress": {"percent": 40}})
    assert repr(running).endswith("percent 40>")


def test_printing_a_receipt_tells_the_whole_of_it() -> None:
    assert str(Receipt(RECEIPT)).split("\n") == [
        "completed: cap.motion.convey.v1 on belt of /lab/one",
        "  position_mm  12.5",
        "  effects      the belt moves",
        "  revision     3 → 4",
        "  receipt      01J8ZQ3W1B7M2N4P6R8S0T2V4Z",
    ]
    assert "what to do  Send less." in str(Receipt(REFUSED))


def test_a_safe_state_that_was_not_confirmed_is_not_overlooked() -> None:
    assert "safe state    NOT confirmed" in str(Receipt(CANCELLED))


def test_a_device_says_what_it_is_and_may() -> None:
    """[TPT-056]"""
    device = Device(DEVICE)
    assert (device.path, device.mode, device.risk_class) == ("/lab/one", "simulated", "R1")
    assert (device.determinism, device.fidelity_gaps) == ("exact", ["no friction"])
    assert (device.capabilities, device.resources) == (["cap.motion.convey.v1"], ["belt"])
    assert repr(device) == "<Device /lab/one (simulated, R1): One>"
    assert "speed_mm_s 1..500 mm/s; count 1..; ticks tick; kind fast|slow" in str(device)


def test_an_event_shows_its_number_its_stream_and_its_payload() -> None:
    event = Event(seq="7", stream="state", resource_id="belt", payload={"running": True})
    assert (event.seq, event.stream, event.is_gap) == (7, "state", False)
    assert repr(event) == "<Event 7 state belt: running true>"
    assert Event(seq=9, stream="control", type="gap").is_gap
    assert Event(seq=9, stream="control", type="gap").payload == {}


@pytest.mark.parametrize(
    "document",
    [
        Receipt({**RECEIPT, "output": {HOSTILE: HOSTILE}, "capability_id": HOSTILE}),
        Receipt({**REFUSED, "error": {"mhs_code": HOSTILE, "message": HOSTILE, "remediation": HOSTILE}}),
        Device({**DEVICE, "display_name": HOSTILE, "mode": HOSTILE}),
        Device({**DEVICE, "bindings": [{"capability_id": HOSTILE, "resource": HOSTILE, "limits": 3}]}),
    ],
)
def test_what_an_endpoint_says_takes_over_neither_terminal_nor_page(document: Receipt | Device) -> None:
    page = document._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    for text in (repr(document), str(document), page):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "\\x1b" in page


@pytest.mark.parametrize("kind", [Receipt, Device, Event])
@pytest.mark.parametrize(
    "document", [{}, {"error": 3, "effects": {}, "output": [], "bindings": 1, "payload": 0}]
)
def test_a_document_of_another_shape_is_shown_as_well(kind: Any, document: dict[str, Any]) -> None:
    assert repr(kind(document))
    assert str(kind(document))


def test_a_long_value_is_cut_for_the_eye_only() -> None:
    receipt = Receipt({**RECEIPT, "output": {"data": "x" * 10_000}})
    assert len(repr(receipt)) < 300
    assert len(receipt.output["data"]) == 10_000
