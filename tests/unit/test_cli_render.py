"""What a person reads of receipts, readings, stops and devices."""

import io
from typing import Any

import pytest

from mhsd.base.resources import ERROR_TABLE, drivers_dir, read_toml
from mhsd.cli.advice import advice
from mhsd.cli.render import progress_text, reading_lines, receipt_lines, unit_text, units_of
from mhsd.cli.render_devices import device_lines, device_table, trust_of, trust_text
from mhsd.cli.render_safety import status_lines, stop_lines
from mhsd.cli.terminal import Paint

PAINT = Paint(io.StringIO())
DEVICE = "mhs://localhost:7400/lab/conveyor-workcell"


def test_a_completed_receipt_shows_output_effect_and_revision() -> None:
    lines = receipt_lines(
        {
            "status": "completed",
            "capability_id": "cap.actuation.valve.v1",
            "device_id": DEVICE,
            "resource_ids": ["valve"],
            "command_id": "01J8ZQ3V6Y7M2N4P6R8S0T2V4Y",
            "receipt_id": "01J8ZQ3W1B7M2N4P6R8S0T2V4Z",
            "output": {"open": True},
            "effects": [
                {"kind": "valve.set", "summary": "the valve opens", "reversible": True, "severity": "R1"}
            ],
            "state_revision_before": 4,
            "state_revision_after": 5,
            "evidence": {"seq": 12},
        },
        PAINT,
    )
    assert lines == [
        "COMPLETED  cap.actuation.valve.v1 on /lab/conveyor-workcell (valve)",
        "  output    open: true",
        "  effect    the valve opens (R1)",
        "  revision  4 → 5",
        "  command   01J8ZQ3V6Y7M2N4P6R8S0T2V4Y",
        "  receipt   01J8ZQ3W1B7M2N4P6R8S0T2V4Z  (evidence 12)",
    ]


def test_a_refusal_shows_reason_code_details_and_what_to_do() -> None:
    lines = receipt_lines(
        {
            "status": "rejected",
            "capability_id": "cap.motion.convey.v1",
            "device_id": DEVICE,
            "command_id": "C",
            "receipt_id": "R",
            "error": {
                "mhs_code": "MHS.SAFETY.ENVELOPE_VIOLATION",
                "message": "speed_mm_s 600 is above 500 mm/s",
                "remediation": "Choose a value inside the limits.",
                "details": {"field": "speed_mm_s", "limit": 500},
                "interlocks": [{"id": "door_closed", "state": "open"}],
                "native_code": "E7",
            },
        },
        PAINT,
    )
    assert lines == [
        "REJECTED  cap.motion.convey.v1 on /lab/conveyor-workcell",
        "  reason       speed_mm_s 600 is above 500 mm/s",
        "               MHS.SAFETY.ENVELOPE_VIOLATION",
        "  native code  E7",
        "               field: speed_mm_s",
        "               limit: 500",
        "  interlock    door_closed open",
        "  what to do   Choose a value inside the limits.",
        "  command      C",
        "  receipt      R",
    ]


def test_a_cancelled_receipt_says_who_cancelled_and_whether_it_is_safe() -> None:
    lines = receipt_lines(
        {
            "status": "cancelled",
            "capability_id": "c",
            "device_id": DEVICE,
            "command_id": "C",
            "operation_id": "op_1",
            "receipt_id": "R",
            "replayed": True,
            "cancellation": {"requested_by": "local:ada", "safe_state_achieved": False},
        },
        PAINT,
    )
    text = "\n".join(lines)
    assert "cancelled by  local:ada" in text
    assert "safe state    NOT confirmed" in text
    assert "operation     op_1" in text
    assert "nothing was done again" in text


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        ({"percent": 42.4}, "42 %"),
        ({"percent": 1, "ticks": 20, "message": "moving"}, "1 %, 20 ticks, moving"),
        ({}, "running"),
    ],
)
def test_progress_is_short(progress: dict[str, Any], text: str) -> None:
    assert progress_text(progress) == text


def test_a_reading_shows_units() -> None:
    belt = read_toml(drivers_dir() / "conveyor_workcell" / "manifest.toml")["resources"][1]
    reading = {"revision": 3, "state": {"speed_mm_s": 120, "running": False}, "sampled_at": "now"}
    assert reading_lines(reading, units_of(belt)) == [
        "speed_mm_s  120 mm/s",
        "running     false",
        "revision    3",
        "sampled at  now",
    ]
    assert units_of(None) == {}


@pytest.mark.parametrize(
    ("unit", "text"),
    [("mm/s", "mm/s"), ("{tick}", "tick"), ("Cel", "°C"), ("1", ""), ("1/{sample}", "1/sample")],
)
def test_units_are_as_a_person_writes_them(unit: str, text: str) -> None:
    assert unit_text(unit) == text


def test_a_stop_says_of_each_device_what_was_confirmed_and_no_more() -> None:
    stopped = {
        "status": "completed",
        "device_id": DEVICE,
        "output": {
            "estop": "engaged",
            "latched": True,
            "latency_ms": 12.5,
            "latch_durable": True,
            "safe_state_achieved": True,
            "safe_state": "belt stopped, valve closed",
            "operations": [{"operation_id": "op_1", "state": "stopped"}],
        },
    }
    failed = {
        "status": "failed",
        "device_id": "mhs://localhost:7400/bench/psu",
        "error": {
            "mhs_code": "MHS.SAFETY.SAFE_STATE_UNREACHED",
            "message": "not confirmed",
            "remediation": "Look.",
        },
        "output": {"estop": "engaged", "latched": True, "latch_durable": False, "safe_state_achieved": False},
    }
    assert stop_lines([stopped, failed], PAINT) == [
        "STOPPED  /lab/conveyor-workcell",
        "  e-stop engaged, latched, kept over a restart",
        "  safe state reached (belt stopped, valve closed) after 12.5 ms",
        "  operations ended: op_1 stopped",
        "NOT CONFIRMED  /bench/psu",
        "  MHS.SAFETY.SAFE_STATE_UNREACHED: not confirmed",
        "  Look.",
        "  e-stop engaged, latched, not kept over a restart",
        "  safe state NOT reached",
    ]


def test_status_is_a_table_and_a_broken_device_does_not_hide_the_others() -> None:
    entries: list[Any] = [
        {
            "device_id": DEVICE,
            "mode": "simulated",
            "risk_class": "R1",
            "estop": {"engaged": True},
            "interlocks": [{"id": "door_closed", "state": "open", "description": "The guard door."}],
            "permits": [{"permit_id": "permit_1", "capability_id": "cap.x.v1", "expires_at": "soon"}],
            "safe_state": {"description": "belt stopped"},
        },
        {
            "device_id": "mhs://localhost:7400/bench/psu",
            "mode": "hardware",
            "error": {"mhs_code": "MHS.OUTCOME.TIMEOUT", "message": "no answer", "remediation": "Look."},
        },
    ]
    assert status_lines(entries, PAINT) == [
        "DEVICE                  MODE       RISK  E-STOP     INTERLOCKS",
        "/lab/conveyor-workcell  simulated  R1    ENGAGED    door_closed open",
        "/bench/psu              hardware   ?     NOT KNOWN  MHS.OUTCOME.TIMEOUT",
        "",
        "/lab/conveyor-workcell",
        "  safe state  belt stopped",
        "  interlock   door_closed: The guard door.",
        "  permit      permit_1 for cap.x.v1 until soon",
        "",
        "/bench/psu",
        "  no answer",
        "  Look.",
    ]


def test_a_device_is_described_with_gaps_trust_limits_and_units() -> None:
    manifest = read_toml(drivers_dir() / "conveyor_workcell" / "manifest.toml")
    manifest |= {"device_id": DEVICE, "mode": "simulated"}
    trust = trust_of({"features": ["MHS.SAFETY.NOT_CERTIFIED"], "safety": {"certified": False}}, DEVICE)
    text = "\n".join(device_lines(manifest, trust, PAINT))
    for expected in (
        "mode",
        "simulated",
        "risk class    R1",
        "trust         not certified; not conformance tested",
        "no fluid dynamics",
        "door_closed (hard)",
        "speed_mm_s   number   0 to 1000 mm/s  writable",
        "limit up to 500 mm/s",
        "needs a permit",
        "cannot be undone",
    ):
        assert expected in text
    prose = [line for line in text.split("\n  resources")[0].splitlines() if line.startswith("  ")]
    assert max(map(len, prose)) <= 80


def test_devices_are_one_a_line() -> None:
    summary = {"device_id": DEVICE, "mode": "simulated", "risk_class": "R1", "display_name": "The \x1bcell"}
    assert device_table([summary]) == [
        "DEVICE                  MODE       RISK  NAME",
        "/lab/conveyor-workcell  simulated  R1    The \\x1bcell",
    ]


@pytest.mark.parametrize(
    ("hello", "text"),
    [
        ({}, "not certified; not conformance tested"),
        (
            {"safety": {"certified": True}, "conformance": [{"profile": "core", "level": "CL3"}]},
            "certified by its endpoint's own word; claims CL3 of core",
        ),
        (
            {"safety": {"certified": True}, "features": ["MHS.SAFETY.NOT_CERTIFIED"]},
            "not certified; not conformance tested",
        ),
        (
            {"conformance": [{"profile": "core", "level": "CL3", "device_id": "another"}]},
            "not certified; not conformance tested",
        ),
    ],
)
def test_trust_is_only_what_the_endpoint_claims(hello: dict[str, Any], text: str) -> None:
    assert trust_text(trust_of(hello, DEVICE)) == text


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        (
            "Open one with mhs.session.open and use its session_id.",
            "Open one with `mhsctl session open` and use its --session.",
        ),
        ("Follow it with mhs.operations.get.", "Follow it with `mhsctl ops ID`."),
        ("then let an operator call mhs.safety.reset or", "then let an operator call `mhsctl reset` or"),
        ("hello.limits.max_command_deadline_ms", "hello.limits.max_command_deadline_ms"),
        ("use mhs.commandeer", "use mhs.commandeer"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
    ],
)
def test_advice_names_what_a_person_can_type(told: str, shown: str) -> None:
    """[MHSD-8-13] Methods become commands, parameters options, and nothing takes over the terminal."""
    assert advice(told) == shown


@pytest.mark.parametrize(
    ("told", "details", "shown"),
    [
        (
            "Send a value for details.field within details.limit (in details.unit).",
            {"field": "speed_mm_s", "limit": 500, "unit": "mm/s"},
            "Send a value for speed_mm_s within 500 (in mm/s).",
        ),
        ("Wait details.retry_after_ms, then", {"retry_after_ms": 200}, "Wait 200 ms, then"),
        ("Leave out details.fields.", {"fields": ["a", "\x1b"]}, "Leave out a, \\x1b."),
        ("Look at details.errors.", {"errors": [{"path": ""}]}, "Look at details.errors."),
        ("Look at details.errors.", "none", "Look at details.errors."),
        ("Look at details.errors.", {"errors": None}, "Look at details.errors."),
    ],
)
def test_advice_says_the_details_that_it_speaks_of(told: str, details: object, shown: str) -> None:
    """[MHSD-8-13]"""
    assert advice(told, details) == shown


def test_no_advice_of_the_error_table_names_a_method_to_a_person() -> None:
    """[MHSD-8-13] But for methods that no command stands for."""
    without_command = ("mhs.snapshot", "mhs.restore", "mhs.unsubscribe")
    for code in ERROR_TABLE["codes"].values():
        for row in (code, *code.get("reasons", {}).values()):
            shown = advice(row.get("remediation", ""))
            for name in without_command:
                shown = shown.replace(name, "")
            assert "mhs." not in shown
