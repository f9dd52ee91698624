"""How a native call's end becomes a receipt's status, and what a running operation tells [MHS-002 section 10.2]."""

import math
from typing import Any

import pytest

from mhsd.core.operations import (
    REASONS,
    TERMINAL,
    Conclusion,
    EndingKind,
    Failed,
    Interrupted,
    Lost,
    Native,
    Refused,
    Returned,
    conclude,
    native_fault,
)
from tests.unit.core_builders import (
    AT,
    BROKEN,
    BUSY,
    KINDS,
    LATER,
    MOVE,
    OPENED,
    UNKNOWN,
    capability,
    ending,
    operation,
)

OUTPUT = capability().output
DONE = Returned({"position_mm": 100}, None)
NATIVES: dict[str, Native] = {
    "returned": DONE,
    "failed": Failed(BROKEN),
    "refused": Refused(BUSY),
    "lost": Lost(UNKNOWN),
    "interrupted": Interrupted(),
}


def concluded(native: Native, kind: EndingKind | None = None, *, safe: bool = True) -> Conclusion:
    return conclude(native, ending(kind) if kind is not None else None, safe, OUTPUT)


# The table of native outcomes.


def test_a_result_completes_the_command() -> None:
    assert concluded(DONE) == Conclusion("completed", output={"position_mm": 100})


def test_a_result_with_effects_keeps_the_drivers_word_on_them() -> None:
    assert concluded(Returned({"position_mm": 1}, (MOVE,))).effects == (MOVE,)


@pytest.mark.parametrize(
    "output",
    [
        {},
        {"position_mm": "far"},
        {"position_mm": True},
        {"position_mm": 1, "colour": "red"},
        {"position_mm": math.nan},
        {"position_mm": math.inf},
        {"position_mm": 2**53},
        {"position_mm": 1e16},
        {"position_mm": 1, "note": "\ud800"},
        None,
        [],
        "far",
        {1: 2},
    ],
)
def test_an_output_that_the_class_does_not_allow_is_a_failure_with_its_errors(output: Any) -> None:
    conclusion = concluded(Returned(output, None))
    assert conclusion.status == "failed"
    assert conclusion.output is None
    assert conclusion.error is not None
    assert conclusion.error.mhs_code == "MHS.CAPABILITY.OUTPUT_INVALID"
    assert conclusion.error.details is not None
    assert [sorted(error) for error in conclusion.error.details["errors"]] == [["message", "path", "rule"]]


def test_an_invalid_output_does_not_hide_the_effects_that_happened() -> None:
    assert concluded(Returned({}, (MOVE,))).effects == (MOVE,)


@pytest.mark.parametrize(
    "effects",
    [
        ({},),
        ("belt.move",),
        ({**MOVE, "severity": "R9"},),
        ({name: value for name, value in MOVE.items() if name != "irreversible_reason"},),
        ({**MOVE, "colour": "red"},),
        ({**MOVE, "summary": math.nan},),
        ({**MOVE, "summary": "\ud800"},),
        (MOVE, {}),
        5,
        MOVE,
    ],
)
def test_effects_that_no_receipt_can_carry_are_a_failure_and_are_not_repeated(effects: Any) -> None:
    conclusion = concluded(Returned({"position_mm": 1}, effects))
    assert conclusion.status == "failed"
    assert conclusion.effects is None
    assert conclusion.error is not None
    assert conclusion.error.mhs_code == "MHS.CAPABILITY.OUTPUT_INVALID"


def test_a_driver_that_failed_fails_with_its_code_and_native_code() -> None:
    assert concluded(Failed(BROKEN)) == Conclusion("failed", error=BROKEN)


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_a_busy_device_is_rejected_retryable_and_says_when(kind: EndingKind | None) -> None:
    conclusion = concluded(Refused(BUSY), kind)
    assert conclusion == Conclusion("rejected", error=BUSY)
    assert BUSY.retryable is True


def test_an_unknown_outcome_stays_unknown_and_is_not_retryable() -> None:
    assert concluded(Lost(UNKNOWN)) == Conclusion("unknown", error=UNKNOWN)
    assert UNKNOWN.retryable is False


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_outcome_of_an_ended_call_says_who_ended_it_and_claims_no_safety(kind: EndingKind) -> None:
    conclusion = concluded(Lost(UNKNOWN), kind, safe=True)
    assert conclusion.status == "unknown"
    assert conclusion.cancellation is not None
    assert conclusion.cancellation["requested_by"] == f"endpoint:{kind}"
    assert conclusion.cancellation["safe_state_achieved"] is False


def test_any_other_exception_is_named_by_its_type_and_never_by_its_text() -> None:
    class SerialGarbled(Exception):
        pass

    fault = native_fault(SerialGarbled("password=hunter2 at /dev/ttyUSB0"))
    assert fault.mhs_code == "MHS.ADAPTER.SHIM_FAILED"
    assert fault.message == "driver raised SerialGarbled"
    assert fault.details == {"exception_type": "SerialGarbled"}
    assert fault.retryable is False
    assert "hunter2" not in repr(fault.error())


# Calls that were ended early.

CANCELLED_KINDS = [kind for kind in KINDS if kind != "interlock"]


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("kind", CANCELLED_KINDS)
def test_an_interrupted_call_is_cancelled_and_says_by_whom_why_and_whether_it_is_safe(
    kind: EndingKind, safe: bool
) -> None:
    conclusion = concluded(Interrupted(), kind, safe=safe)
    assert conclusion.status == "cancelled"
    assert conclusion.output is None
    assert conclusion.cancellation == {
        "requested_at": AT,
        "requested_by": f"endpoint:{kind}",
        "reason": REASONS[kind],
        "safe_state_achieved": safe,
    }


@pytest.mark.parametrize("kind", [kind for kind in CANCELLED_KINDS if kind != "max_duration"])
def test_a_cancelled_command_has_no_error(kind: EndingKind) -> None:
    assert concluded(Interrupted(), kind).error is None


def test_a_command_that_ran_too_long_is_cancelled_with_a_timeout_that_is_not_retryable() -> None:
    conclusion = concluded(Interrupted(), "max_duration")
    assert conclusion.status == "cancelled"
    assert conclusion.error is not None
    assert conclusion.error.mhs_code == "MHS.OUTCOME.TIMEOUT"
    assert conclusion.error.details == {"reason": "max_duration_exceeded"}
    assert conclusion.error.retryable is False


@pytest.mark.parametrize("name", ["returned", "failed", "interrupted"])
def test_an_interlock_that_opened_fails_the_command_whatever_came_back(name: str) -> None:
    conclusion = concluded(NATIVES[name], "interlock")
    assert conclusion.status == "failed"
    assert conclusion.error is OPENED
    assert conclusion.output is None


def test_an_interruption_that_nobody_asked_for_cannot_be_concluded() -> None:
    with pytest.raises(ValueError, match="ending"):
        concluded(Interrupted())


@pytest.mark.parametrize("name", list(NATIVES))
@pytest.mark.parametrize("safe", [True, False])
def test_nothing_that_comes_back_after_an_emergency_stop_is_completed(name: str, safe: bool) -> None:
    conclusion = concluded(NATIVES[name], "estop", safe=safe)
    assert conclusion.status in {"cancelled", "unknown", "rejected"}
    assert conclusion.output is None
    if conclusion.status == "cancelled":
        assert conclusion.cancellation is not None
        assert conclusion.cancellation["reason"] == "estop"
        assert conclusion.cancellation["safe_state_achieved"] is safe


@pytest.mark.parametrize("name", list(NATIVES))
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("estop", "interlock")])
def test_a_result_that_beat_the_cancellation_is_told_as_it_was(name: str, kind: EndingKind) -> None:
    statuses = {
        "returned": "completed",
        "failed": "failed",
        "refused": "rejected",
        "lost": "unknown",
        "interrupted": "cancelled",
    }
    assert concluded(NATIVES[name], kind).status == statuses[name]


@pytest.mark.parametrize("kind", [None, *KINDS])
@pytest.mark.parametrize("name", list(NATIVES))
def test_every_conclusion_is_terminal_and_carries_what_its_status_must(
    name: str, kind: EndingKind | None
) -> None:
    if name == "interrupted" and kind is None:
        return
    conclusion = concluded(NATIVES[name], kind)
    assert conclusion.status in TERMINAL
    assert (conclusion.output is not None) == (conclusion.status == "completed")
    if conclusion.status in ("failed", "rejected", "unknown"):
        assert conclusion.error is not None
    if conclusion.status == "cancelled":
        assert conclusion.cancellation is not None


def test_every_kind_of_ending_has_a_reason() -> None:
    assert set(REASONS) == set(KINDS)


# Ending an operation.


def test_the_first_ending_is_the_one_that_is_reported() -> None:
    running = operation()
    running.end(ending("cancel"), 5.0)
    running.end(ending("session_close"), 6.0)
    assert running.ending == ending("cancel")
    assert running.ending_mono_s == 5.0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "estop"])
def test_an_emergency_stop_outranks_every_other_ending_and_is_outranked_by_none(kind: EndingKind) -> None:
    running = operation()
    running.end(ending(kind), 5.0)
    running.end(ending("estop"), 6.0)
    running.end(ending(kind), 7.0)
    assert running.ending == ending("estop")
    assert running.ending_mono_s == 6.0


def test_a_second_emergency_stop_does_not_give_the_driver_more_time() -> None:
    running = operation()
    running.end(ending("estop"), 5.0)
    running.end(ending("estop"), 9.0)
    assert running.ending_mono_s == 5.0


def test_every_ending_stops_the_native_call_again() -> None:
    calls: list[str] = []
    running = operation(stop_native=lambda: calls.append("stop"))
    running.end(ending("cancel"), 5.0)
    running.end(ending("cancel"), 6.0)
    running.end(ending("estop"), 7.0)
    assert len(calls) == 3


def test_a_concluded_operation_cannot_be_ended() -> None:
    calls: list[str] = []
    over = operation(concluded=True, stop_native=lambda: calls.append("stop"))
    over.end(ending("estop"), 5.0)
    assert over.ending is None
    assert not calls


@pytest.mark.parametrize(
    ("long_running", "interim_id", "awaited"),
    [(False, None, True), (False, "01J8", False), (True, None, False), (True, "01J8", False)],
)
def test_only_a_short_command_whose_caller_still_waits_is_awaited(
    long_running: bool, interim_id: str | None, awaited: bool
) -> None:
    assert operation(long_running=long_running, interim_id=interim_id).awaited is awaited


# Progress.


def reported(*percents: Any) -> list[Any]:
    running, seen = operation(), []
    for percent in percents:
        running.report(percent, None, None)
        seen.append(running.progress["percent"])
    return seen


def test_progress_starts_at_zero() -> None:
    assert operation().progress == {"percent": 0}


@pytest.mark.parametrize(
    ("percents", "seen"),
    [
        ((10, 50, 20, 60), [10, 50, 50, 60]),
        ((-5, 0), [0, 0]),
        ((150, 10), [100, 100]),
        ((math.inf,), [100]),
        ((-math.inf,), [0]),
        ((math.nan, 3), [0, 3]),
        ((30, math.nan), [30, 30]),
        ((30, None), [30, 30]),
        ((30, True), [30, 30]),
        ((True,), [0]),
        (("50",), [0]),
        ((10**400,), [100]),
        ((0.5, 0.25), [0.5, 0.5]),
    ],
)
def test_the_percentage_never_falls_and_stays_between_zero_and_a_hundred(
    percents: Any, seen: list[Any]
) -> None:
    assert reported(*percents) == seen


@pytest.mark.parametrize(
    ("reports", "last"),
    [((5, 3), 5), ((3, 5), 5), ((-1,), 0), ((2**60,), 2**53 - 1), ((5, None), 5), ((5, True, 2.5, "9"), 5)],
)
def test_ticks_never_fall_and_stay_an_integer_that_json_readers_know(reports: Any, last: int) -> None:
    running = operation()
    for ticks in reports:
        running.report(None, ticks, None)
    assert running.progress == {"percent": 0, "ticks": last}


@pytest.mark.parametrize("ticks", [None, True, 1.5, "7", math.nan])
def test_ticks_that_are_no_integer_are_not_told(ticks: Any) -> None:
    running = operation()
    running.report(None, ticks, None)
    assert running.progress == {"percent": 0}


@pytest.mark.parametrize(
    ("message", "told"),
    [("half way", "half way"), ("", ""), ("x" * 2000, "x" * 1000), ("bad \ud800 text", "bad ? text")],
)
def test_a_message_is_told_as_a_receipt_can_carry_it(message: str, told: str) -> None:
    running = operation()
    running.report(None, None, message)
    assert running.progress["message"] == told


@pytest.mark.parametrize("message", [None, 5, b"bytes", ["text"]])
def test_a_message_that_is_no_text_is_not_told(message: Any) -> None:
    running = operation()
    running.report(None, None, message)
    assert "message" not in running.progress


def test_the_last_message_stands() -> None:
    running = operation()
    running.report(1, None, "first")
    running.report(2, None, "second")
    running.report(3, None, None)
    assert running.progress == {"percent": 3, "message": "second"}


def test_operations_do_not_share_their_progress() -> None:
    first, second = operation(), operation(started_at=LATER)
    first.report(50, None, None)
    assert second.progress == {"percent": 0}
