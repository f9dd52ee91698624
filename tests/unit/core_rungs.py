"""What breaks each rung of the envelope, and what it then answers: the order of MHSD-4, written down once more."""

from collections.abc import Callable
from typing import Any

from mhsd.base.errors import Fault
from mhsd.core.admission import Attempt, Step, refusal
from tests.unit.core_builders import DEVICE, Shown, attempt, restoration

Break = Callable[[Attempt, Shown], None]


def class_(a: Attempt, _: Shown) -> None:
    a.class_known = False


def unbound(a: Attempt, _: Shown) -> None:
    a.binding = None


def grant(a: Attempt, _: Shown) -> None:
    a.session.grants = frozenset()


def mode(_: Attempt, d: Shown) -> None:
    d.mode = "replay"


def arming(_: Attempt, d: Shown) -> None:
    d.armed = False


def availability(_: Attempt, d: Shown) -> None:
    d.crashed = Fault("MHS.ADAPTER.CRASHED", "the driver crashed")


def draining(_: Attempt, d: Shown) -> None:
    d.draining = True


def latch(_: Attempt, d: Shown) -> None:
    d.latched = True


def input_(a: Attempt, _: Shown) -> None:
    a.input = {**a.input, "colour": "red"}


def limits(a: Attempt, _: Shown) -> None:
    a.input = {**a.input, "speed_mm_s": 501}


def interlocks(a: Attempt, _: Shown) -> None:
    a.interlocks = {"door_closed": "open"}


def snapshot(a: Attempt, _: Shown) -> None:
    a.restoration = restoration(device_id=f"{DEVICE}-2")


def revision(a: Attempt, d: Shown) -> None:
    a.expected_revision = d.revision + 1


def permit(_: Attempt, d: Shown) -> None:
    d.permit_fault = Fault("MHS.SAFETY.APPROVAL_REQUIRED", "needs a permit")


def rate(_: Attempt, d: Shown) -> None:
    d.rate_fault = Fault("MHS.LIMIT.RATE_EXCEEDED", "too often")


def slot(_: Attempt, d: Shown) -> None:
    d.slot_fault = Fault("MHS.DEVICE.BUSY", "busy")


RUNGS: tuple[tuple[str, Break], ...] = (
    ("MHS.CAPABILITY.UNKNOWN", class_),
    ("MHS.CAPABILITY.NOT_BOUND", unbound),
    ("MHS.SESSION.CAPABILITY_NOT_GRANTED", grant),
    ("MHS.MODE.READ_ONLY", mode),
    ("MHS.AUTH.HARDWARE_DISABLED", arming),
    ("MHS.ADAPTER.CRASHED", availability),
    ("MHS.TRANSPORT.UNAVAILABLE", draining),
    ("MHS.SAFETY.ESTOP_LATCHED", latch),
    ("MHS.CAPABILITY.INPUT_INVALID", input_),
    ("MHS.SAFETY.ENVELOPE_VIOLATION", limits),
    ("MHS.SAFETY.INTERLOCK_OPEN", interlocks),
    ("MHS.CONFLICT.SNAPSHOT_MISMATCH", snapshot),
    ("MHS.CONFLICT.REVISION", revision),
    ("MHS.SAFETY.APPROVAL_REQUIRED", permit),
    ("MHS.LIMIT.RATE_EXCEEDED", rate),
    ("MHS.DEVICE.BUSY", slot),
)
"""The order of MHSD-4, written down once more: what breaks each rung, and what it then answers."""

CODES = [code for code, _ in RUNGS]


def answer(a: Attempt, d: Shown, first: Step = Step.CLASS, last: Step = Step.CONCURRENCY) -> str | None:
    fault = refusal(a, d, first, last)
    return fault.mhs_code if fault is not None else None


def broken(*rungs: int, **changes: Any) -> tuple[Attempt, Shown]:
    """An attempt and its device that fail at these rungs and at no other."""
    a, d = attempt(**changes), Shown()
    for rung in rungs:
        RUNGS[rung][1](a, d)
    return a, d
