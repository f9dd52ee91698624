"""The exit-code table of TPT-052, row by row."""

from typing import Any

import pytest

from mhsd.cli import exits, main


def receipt(status: str, mhs_code: str | None = None) -> dict[str, Any]:
    return {"status": status} | ({"error": {"mhs_code": mhs_code}} if mhs_code else {})


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (receipt("completed"), 0),
        (receipt("accepted"), 0),
        (receipt("running"), 0),
        (receipt("rejected", "MHS.SAFETY.INTERLOCK_OPEN"), 1),
        (receipt("rejected", "MHS.OUTCOME.TIMEOUT"), 1),
        (receipt("rejected", "MHS.TRANSPORT.UNAVAILABLE"), 1),
        (receipt("failed", "MHS.DEVICE.FAULT"), 1),
        (receipt("failed", "MHS.AUTH.FORBIDDEN"), 1),
        (receipt("cancelled"), 1),
        (receipt("unknown", "MHS.OUTCOME.UNKNOWN"), 1),
        (receipt("unknown", "MHS.OUTCOME.TIMEOUT"), 1),
        (receipt("rejected", "MHS.AUTH.FORBIDDEN"), 4),
        (receipt("rejected", "MHS.AUTH.HARDWARE_DISABLED"), 4),
        (receipt("something new"), 1),
        ({}, 1),
        ({"status": "rejected", "error": "no object"}, 1),
    ],
)
def test_a_receipt_exits_by_its_status(document: dict[str, Any], code: int) -> None:
    assert exits.of_receipt(document) == code


@pytest.mark.parametrize(
    ("mhs_code", "code"),
    [
        ("MHS.TRANSPORT.UNAVAILABLE", 3),
        ("MHS.OUTCOME.TIMEOUT", 3),
        ("MHS.OUTCOME.UNKNOWN", 3),
        ("MHS.AUTH.UNAUTHENTICATED", 4),
        ("MHS.AUTH.FORBIDDEN", 4),
        ("MHS.AUTH.TRANSPORT_INSECURE", 4),
        ("MHS.DEVICE.UNKNOWN", 1),
        ("MHS.SESSION.EXPIRED", 1),
        ("MHS.PROTOCOL.INVALID_PARAMS", 1),
        ("MHS.LIMIT.RATE_EXCEEDED", 1),
        ("MHS.INTERNAL.ERROR", 1),
    ],
)
def test_an_error_without_a_receipt_exits_by_its_code(mhs_code: str, code: int) -> None:
    assert exits.of_error(mhs_code) == code


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([], 0),
        ([0], 0),
        ([0, 0, 0], 0),
        ([0, 1], 1),
        ([3, 3], 3),
        ([0, 4, 4], 4),
        ([3, 4], 1),
        ([1, 4], 1),
        ([0, 3, 1], 1),
    ],
)
def test_several_devices_exit_with_the_code_that_their_failures_share(codes: list[int], code: int) -> None:
    assert exits.of_devices(codes) == code


@pytest.mark.parametrize("program", ["mhsctl", "mhsd"])
def test_ctrl_c_while_the_program_is_still_loaded_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, f"_{program}", interrupted)
    assert getattr(main, program)() == exits.INTERRUPTED
