"""One execution and how it ended: from the driver's native outcome to the status of a receipt.

`conclude` is the table of MHS-002 section 10.2 and of MHSD-4. It never reports more than was confirmed: a call that
comes back after the latch was set is not `completed`, and an unconfirmed end is `unknown` [OP-013, OP-014].
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

import attrs

from mhsd.base.errors import Fault
from mhsd.base.resources import SCHEMA_BASE, schema_document
from mhsd.core.admission import Attempt, InputCheck
from mhsd.wire.canonical import MAX_SAFE_INTEGER, stays_canonical
from mhsd.wire.schema import Validator, compile_schema

LONGEST_PROGRESS = 1000
"""Characters of a progress message in a receipt."""

TERMINAL = frozenset({"completed", "failed", "rejected", "cancelled", "unknown"})

EndingKind = Literal[
    "cancel", "session_close", "session_expiry", "estop", "shutdown", "max_duration", "interlock"
]

REASONS: Mapping[str, str] = {
    "cancel": "cancel",
    "session_close": "session_close",
    "session_expiry": "session_expiry",
    "estop": "estop",
    "shutdown": "shutdown",
    "max_duration": "max_duration_exceeded",
    "interlock": "interlock_open",
}
"""`cancellation.reason` of each way to end an execution early."""


@attrs.frozen
class Ending:
    """Why an execution was told to stop; the first one told is the one that is reported, but an e-stop outranks it."""

    kind: EndingKind
    requested_by: str
    requested_at: str
    fault: Fault | None = None

    def cancellation(self, safe_state_achieved: bool) -> dict[str, Any]:
        return {
            "requested_at": self.requested_at,
            "requested_by": self.requested_by,
            "reason": REASONS[self.kind],
            "safe_state_achieved": safe_state_achieved,
        }


@attrs.frozen
class Returned:
    output: Mapping[str, Any]
    effects: tuple[Mapping[str, Any], ...] | None


@attrs.frozen
class Failed:
    fault: Fault


@attrs.frozen
class Refused:
    """The device itself was busy: nothing happened, and the receipt is `rejected`."""

    fault: Fault


@attrs.frozen
class Lost:
    """The driver cannot say what happened, or the stop grace passed with the call still out."""

    fault: Fault


@attrs.frozen
class Interrupted:
    """The native call was ended early. `safe_state_achieved` is None when the driver said nothing about it."""

    safe_state_achieved: bool | None = None


Native = Returned | Failed | Refused | Lost | Interrupted


@attrs.frozen
class Conclusion:
    """What the final receipt says of an execution."""

    status: Literal["completed", "failed", "rejected", "cancelled", "unknown"]
    error: Fault | None = None
    output: Mapping[str, Any] | None = None
    effects: tuple[Mapping[str, Any], ...] | None = None
    cancellation: Mapping[str, Any] | None = None


def storable(text: str, longest: int) -> str:
    """A driver's `text` as a receipt can carry it: cut, and with half surrogate pairs replaced."""
    return text[:longest].encode(errors="replace").decode()


def native_fault(exception: BaseException) -> Fault:
    """Any other exception of a driver: its type is told, its message never [MHS-002 section 10.2]."""
    name = type(exception).__name__
    return Fault("MHS.ADAPTER.SHIM_FAILED", f"driver raised {name}", details={"exception_type": name})


def conclude(
    native: Native, ending: Ending | None, safe_state_achieved: bool, output_check: InputCheck
) -> Conclusion:
    """The conclusion of one execution.

    `safe_state_achieved` is what the stop path confirmed; it matters only when the execution was ended early.
    """
    match native:
        case Refused(fault):
            return Conclusion("rejected", error=fault)
        case Lost(fault):
            cancellation = ending.cancellation(False) if ending is not None else None
            return Conclusion("unknown", error=fault, cancellation=cancellation)
        case Interrupted() if ending is not None:
            return _ended_early(ending, safe_state_achieved)
        case Interrupted():
            raise ValueError("an interrupted call has an ending that says why")
        case _ if ending is not None and ending.kind in ("estop", "interlock"):
            # Fenced stop: whatever came back after the latch or the open interlock is not a completion.
            return _ended_early(ending, safe_state_achieved)
        case Failed(fault):
            return Conclusion("failed", error=fault)
        case Returned(output, effects):
            return _returned(output, effects, output_check)


def _ended_early(ending: Ending, safe_state_achieved: bool) -> Conclusion:
    cancellation = ending.cancellation(safe_state_achieved)
    if ending.kind == "interlock":
        return Conclusion("failed", error=ending.fault)
    if ending.kind == "max_duration":
        error = Fault(
            "MHS.OUTCOME.TIMEOUT",
            "the execution passed its max_duration_ms and was brought to the safe state",
            details={"reason": REASONS["max_duration"]},
        )
        return Conclusion("cancelled", error=error, cancellation=cancellation)
    return Conclusion("cancelled", cancellation=cancellation)


def _returned(
    output: Mapping[str, Any], effects: tuple[Mapping[str, Any], ...] | None, output_check: InputCheck
) -> Conclusion:
    if effects is not None and (errors := _defects(effects, _effects_check())):
        # Such an account does not say what physically happened, so the effect may not be vouched for [PROTO-037].
        return _output_invalid("the driver's effects are no effects of a receipt", errors, None)
    if errors := _defects(output, output_check):
        message = "the driver's output does not match the output schema of the class"
        return _output_invalid(message, errors, effects)
    return Conclusion("completed", output=output, effects=effects)


def _output_invalid(
    message: str, errors: list[dict[str, Any]], effects: tuple[Mapping[str, Any], ...] | None
) -> Conclusion:
    fault = Fault("MHS.CAPABILITY.OUTPUT_INVALID", message, details={"errors": errors})
    return Conclusion("failed", error=fault, effects=effects)


def _defects(value: Any, check: InputCheck) -> list[dict[str, Any]]:
    """What keeps a driver's value out of a receipt: no canonical form, or not the schema's."""
    if stays_canonical(value):
        return check.errors(value)
    return [{"path": "", "rule": "canonical", "message": "something in it has no canonical JSON form"}]


@cache
def _effects_check() -> Validator:
    effect = {"$ref": f"{SCHEMA_BASE}defs.schema.json#/definitions/effect"}
    return compile_schema({"type": "array", "items": effect}, resolve=schema_document)


@attrs.define(eq=False)
class Operation:
    """One dispatched command while it runs, and what its running snapshots say.

    `stop_native` cancels the driver call; it is set by the host for as long as there is a call to cancel.
    """

    attempt: Attempt
    operation_id: str
    receipt_id: str
    long_running: bool
    started_mono_s: float
    started_at: str
    due_mono_s: float | None
    stop_native: Callable[[], None] | None = None
    progress: dict[str, Any] = attrs.Factory(lambda: {"percent": 0})
    ending: Ending | None = None
    ending_mono_s: float | None = None
    interim_id: str | None = None
    native_returned: bool = False
    concluded: bool = False

    @property
    def awaited(self) -> bool:
        """Whether its caller still waits, so that short commands may queue behind it."""
        return not self.long_running and self.interim_id is None

    def report(self, percent: Any, ticks: Any, message: Any) -> None:
        """Take a driver's progress. The percentage never falls and stays within 0 to 100.

        What a receipt cannot carry is left out: a command does not fail by how it tells of itself.
        """
        if isinstance(percent, int | float) and not isinstance(percent, bool):
            # NaN compares as false and so counts as 0.
            self.progress["percent"] = max(self.progress["percent"], min(100, max(0, percent)))
        if isinstance(ticks, int) and not isinstance(ticks, bool):
            self.progress["ticks"] = min(MAX_SAFE_INTEGER, max(self.progress.get("ticks", 0), ticks))
        if isinstance(message, str):
            self.progress["message"] = storable(message, LONGEST_PROGRESS)

    def end(self, ending: Ending, now_mono_s: float) -> None:
        """Tell the execution to stop. Only the first telling counts, except that an e-stop replaces any other."""
        if self.concluded:
            return
        if self.ending is None or (ending.kind == "estop" and self.ending.kind != "estop"):
            self.ending = ending
            self.ending_mono_s = now_mono_s
        if self.stop_native is not None:
            self.stop_native()
