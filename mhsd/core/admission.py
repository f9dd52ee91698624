"""THE envelope: the order in which a command is checked [CORE-060, PROTO-029; MHSD-4].

The table `ENVELOPE` is the order of the answers. It is walked more than once for a command, over a part each time:
what was checked before an await is checked again before the driver is called. Every check is a function of the
attempt and of what its device shows now; None means "nothing against it".
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Literal, Protocol

import attrs

from mhsd.base.errors import Fault
from mhsd.core.interlocks import interlock_refusal
from mhsd.core.limits import LimitFacts, limit_refusal
from mhsd.core.patches import patch_refusal
from mhsd.core.permits import Permit
from mhsd.core.sessions import Session
from mhsd.core.snapshots import Restoration
from mhsd.wire.json_text import excerpt

CONFIGURE = "cap.device.configure.v1"


class InputCheck(Protocol):
    def errors(self, value: Any) -> list[dict[str, Any]]: ...


class CapabilityFacts(Protocol):
    @property
    def input(self) -> InputCheck: ...


class BindingFacts(Protocol):
    """What the envelope needs to know of a binding."""

    @property
    def capability_id(self) -> str: ...
    @property
    def resource(self) -> str: ...
    @property
    def limits(self) -> Mapping[str, LimitFacts]: ...
    @property
    def interlocks(self) -> tuple[str, ...]: ...
    @property
    def permit(self) -> str: ...
    @property
    def max_rate_per_s(self) -> float | None: ...
    @property
    def long_running(self) -> bool: ...
    @property
    def simulation_control(self) -> bool: ...
    @property
    def actuating(self) -> bool: ...
    @property
    def input(self) -> InputCheck: ...
    @property
    def capability(self) -> CapabilityFacts: ...


class Step(IntEnum):
    """The rungs in their order; the JSON-RPC errors that stand before them are the handlers' work."""

    CLASS = 0
    BINDING = 1
    GRANT = 2
    MODE = 3
    ARMED = 4
    AVAILABLE = 5
    DRAINING = 6
    LATCH = 7
    INPUT = 8
    LIMITS = 9
    INTERLOCKS = 10
    SNAPSHOT = 11
    REVISION = 12
    PERMIT = 13
    RATE = 14
    CONCURRENCY = 15


RESTORE_RUNGS = frozenset(
    {
        Step.MODE,
        Step.AVAILABLE,
        Step.DRAINING,
        Step.LATCH,
        Step.INTERLOCKS,
        Step.SNAPSHOT,
        Step.REVISION,
        Step.CONCURRENCY,
    }
)
"""What is checked of a restore: it is no binding's command, so that none of the rungs about one applies."""


@attrs.define(eq=False)
class Attempt:
    """One command on its way through the envelope; times are monotonic seconds of the endpoint."""

    command_id: str
    capability_id: str
    resource: str | None
    input: Any
    input_digest: str
    session: Session
    principal: Mapping[str, str]
    device_id: str
    binding: BindingFacts | None
    class_known: bool
    received_mono_s: float
    deadline_mono_s: float
    accepted_at: str
    expected_revision: int | None = None
    permit_id: str | None = None
    trace_id: str | None = None
    state_schema: Mapping[str, Any] | None = None
    restoration: Restoration | None = None
    rungs: frozenset[Step] = frozenset(Step)
    """The rungs that apply; a command passes them all."""
    permit: Permit | None = None
    interlocks: Mapping[str, str] | None = None

    @property
    def actuating(self) -> bool:
        return self.binding is not None and self.binding.actuating

    @property
    def simulation_control(self) -> bool:
        return self.binding is not None and self.binding.simulation_control

    @property
    def guarded(self) -> bool:
        """Whether latch, interlocks and the device slot apply: it moves something, and is no simulation control."""
        return self.actuating and not self.simulation_control

    def permit_scope(self) -> dict[str, str]:
        return {
            "device_id": self.device_id,
            "capability_id": self.capability_id,
            "resource": self.resource or "",
            "input_digest": self.input_digest,
            "principal": self.session.principal_id,
        }


class DeviceView(Protocol):
    """What a device shows of itself at the instant of a check."""

    @property
    def mode(self) -> str: ...
    @property
    def armed(self) -> bool: ...
    @property
    def revision(self) -> int: ...
    @property
    def draining(self) -> bool: ...
    @property
    def latched(self) -> bool: ...
    @property
    def crashed(self) -> Fault | None: ...
    @property
    def unconfirmed(self) -> Fault | None: ...
    def permit_refusal(self, attempt: Attempt) -> Fault | None: ...
    def rate_refusal(self, attempt: Attempt) -> Fault | None: ...
    def slot_refusal(self, attempt: Attempt) -> Fault | None: ...


def _class_known(attempt: Attempt, _: DeviceView) -> Fault | None:
    if attempt.class_known:
        return None
    return Fault(
        "MHS.CAPABILITY.UNKNOWN",
        f"this endpoint does not know the capability class {attempt.capability_id}",
        details={"capability_id": attempt.capability_id},
    )


def _binding_exists(attempt: Attempt, _: DeviceView) -> Fault | None:
    if attempt.binding is not None:
        return None
    where = f" to resource {attempt.resource}" if attempt.resource is not None else ""
    return Fault(
        "MHS.CAPABILITY.NOT_BOUND",
        f"{attempt.capability_id} is not bound{where} on {attempt.device_id}",
        details={"capability_id": attempt.capability_id, "resource": attempt.resource},
    )


def _granted(attempt: Attempt, _: DeviceView) -> Fault | None:
    if attempt.session.may(attempt.device_id, attempt.capability_id, attempt.resource or ""):
        return None
    return Fault(
        "MHS.SESSION.CAPABILITY_NOT_GRANTED",
        f"session {attempt.session.session_id} was not granted {attempt.capability_id} on {attempt.resource}",
        details={"capability_id": attempt.capability_id, "resource": attempt.resource},
    )


def _mode_allows(attempt: Attempt, device: DeviceView) -> Fault | None:
    if device.mode == "replay" and attempt.actuating:
        return Fault("MHS.MODE.READ_ONLY", f"{attempt.device_id} replays a recording and cannot be driven")
    return attempt.restoration.mode_refusal() if attempt.restoration is not None else None


def _armed(attempt: Attempt, device: DeviceView) -> Fault | None:
    if device.armed or not attempt.actuating:
        return None
    return Fault(
        "MHS.AUTH.HARDWARE_DISABLED",
        f"{attempt.device_id} is hardware and is not armed",
        details={"reason": "not_armed"},
    )


def _available(attempt: Attempt, device: DeviceView) -> Fault | None:
    if device.crashed is not None:
        return device.crashed
    return device.unconfirmed if attempt.actuating else None


def _not_draining(_: Attempt, device: DeviceView) -> Fault | None:
    if not device.draining:
        return None
    return Fault("MHS.TRANSPORT.UNAVAILABLE", "the endpoint is shutting down and accepts no new commands")


def _not_latched(attempt: Attempt, device: DeviceView) -> Fault | None:
    if not attempt.guarded or not device.latched:
        return None
    return Fault("MHS.SAFETY.ESTOP_LATCHED", f"the emergency stop of {attempt.device_id} is latched")


def _input_valid(attempt: Attempt, _: DeviceView) -> Fault | None:
    assert attempt.binding is not None  # _binding_exists stands before this rung
    if attempt.capability_id == CONFIGURE and attempt.state_schema is not None:
        refusal = patch_refusal(attempt.input, attempt.state_schema)
        if refusal is not None:
            return refusal
    errors = attempt.binding.input.errors(attempt.input) or attempt.binding.capability.input.errors(
        attempt.input
    )
    if not errors:
        return None
    first = errors[0]
    where = excerpt(first["path"]) or "/"
    return Fault(
        "MHS.CAPABILITY.INPUT_INVALID",
        f"the input does not match the schema of {attempt.capability_id}: {where}: {first['message']}",
        details={"errors": errors},
    )


def _within_limits(attempt: Attempt, _: DeviceView) -> Fault | None:
    assert attempt.binding is not None
    return limit_refusal(attempt.input, attempt.binding.limits)


def _interlocks_closed(attempt: Attempt, _: DeviceView) -> Fault | None:
    assert attempt.binding is not None
    if not attempt.guarded or not attempt.binding.interlocks:
        return None
    return interlock_refusal(attempt.binding.interlocks, attempt.interlocks)


def _snapshot_restorable(attempt: Attempt, device: DeviceView) -> Fault | None:
    return attempt.restoration.refusal(device.latched) if attempt.restoration is not None else None


def _revision_expected(attempt: Attempt, device: DeviceView) -> Fault | None:
    if attempt.expected_revision is None or attempt.expected_revision == device.revision:
        return None
    return Fault(
        "MHS.CONFLICT.REVISION",
        f"the device is at revision {device.revision}, not {attempt.expected_revision}",
        details={"expected_revision": attempt.expected_revision},
        current_revision=device.revision,
    )


def _permitted(attempt: Attempt, device: DeviceView) -> Fault | None:
    return device.permit_refusal(attempt) if attempt.actuating else None


def _within_rate(attempt: Attempt, device: DeviceView) -> Fault | None:
    return device.rate_refusal(attempt)


def _slot_free(attempt: Attempt, device: DeviceView) -> Fault | None:
    return device.slot_refusal(attempt) if attempt.guarded else None


Check = Callable[[Attempt, DeviceView], Fault | None]

ENVELOPE: tuple[tuple[Step, Check], ...] = (
    (Step.CLASS, _class_known),
    (Step.BINDING, _binding_exists),
    (Step.GRANT, _granted),
    (Step.MODE, _mode_allows),
    (Step.ARMED, _armed),
    (Step.AVAILABLE, _available),
    (Step.DRAINING, _not_draining),
    (Step.LATCH, _not_latched),
    (Step.INPUT, _input_valid),
    (Step.LIMITS, _within_limits),
    (Step.INTERLOCKS, _interlocks_closed),
    (Step.SNAPSHOT, _snapshot_restorable),
    (Step.REVISION, _revision_expected),
    (Step.PERMIT, _permitted),
    (Step.RATE, _within_rate),
    (Step.CONCURRENCY, _slot_free),
)


def refusal(attempt: Attempt, device: DeviceView, first: Step, last: Step) -> Fault | None:
    """The first refusal from rung `first` to rung `last`, both included, of those that apply to the attempt."""
    for step, check in ENVELOPE[first : last + 1]:
        fault = check(attempt, device) if step in attempt.rungs else None
        if fault is not None:
            return fault
    return None


def last_refusal(attempt: Attempt, device: DeviceView, now_mono_s: float) -> Fault | None:
    """Step (e), the last look before the driver is called, from the session to the deadline."""
    return (
        attempt.session.refusal(now_mono_s)
        or refusal(attempt, device, Step.AVAILABLE, Step.LATCH)
        or _interlocks_closed(attempt, device)
        or _permitted(attempt, device)
        or _within_rate(attempt, device)
        or deadline_refusal(attempt, now_mono_s)
    )


def deadline_refusal(attempt: Attempt, now_mono_s: float) -> Fault | None:
    """A command whose deadline passed before its dispatch is refused, and nothing is dispatched [OP-012]."""
    if now_mono_s < attempt.deadline_mono_s:
        return None
    return Fault(
        "MHS.OUTCOME.TIMEOUT",
        "the deadline passed before the command could be dispatched; nothing was done",
        details={"reason": "deadline_exceeded_before_dispatch"},
    )


def prior_refusal(prior_digest: str, prior_principal: str, attempt: Attempt) -> Literal["replay"] | Fault:
    """What a command_id that is already taken answers: the retained receipt, or a refusal [OP-003, OP-004].

    The refusal says nothing about the other command: it may be another principal's.
    """
    if prior_digest == attempt.input_digest and prior_principal == attempt.session.principal_id:
        return "replay"
    return Fault(
        "MHS.CONFLICT.COMMAND_ID_REUSE",
        f"command_id {attempt.command_id} was already used for another command",
        details={"command_id": attempt.command_id},
    )
