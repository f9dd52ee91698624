"""Values that the tests of the core share: one belt that conveys, one session that may, one device to look at."""

from collections.abc import Mapping
from typing import Any, get_args

import attrs
import jsonschema
import referencing
from referencing.jsonschema import DRAFT7

from mhsd.base.errors import Fault
from mhsd.base.resources import schema_document, schema_names
from mhsd.core.admission import Attempt
from mhsd.core.operations import Ending, EndingKind, Operation
from mhsd.core.sessions import Grant, Session
from mhsd.core.snapshots import Origin, Restoration
from mhsd.driver.classes import CapabilityClass
from mhsd.driver.manifest import Binding, Limit
from mhsd.wire.canonical import digest
from mhsd.wire.schema import compile_schema

ENDPOINT = "mhs://localhost:7400"
DEVICE = f"{ENDPOINT}/lab/conveyor-workcell"
CONVEY = "cap.motion.convey.v1"
COMMAND = "01J8ZQ3V6Y7M2N4P6R8S0T2V4Y"
RECEIPT = "01J8ZQ3W1B7M2N4P6R8S0T2V4Z"
INTERIM = "01J8ZQ3W1B7M2N4P6R8S0T2V50"
OPERATION = f"op_{RECEIPT}"
SESSION = "mhs_s_01J8ZQ3V6Y"
AT = "2026-10-20T07:46:58.900Z"
LATER = "2026-10-20T07:46:59.221Z"
ZEROS = "sha256:" + "0" * 64
AGENT = {"id": "agent:openai4s/session-7", "kind": "agent"}
MOVE = {
    "kind": "belt.move",
    "summary": "the belt moved its load",
    "reversible": False,
    "severity": "R1",
    "irreversible_reason": "what has fallen off the belt does not come back",
}

KINDS: tuple[EndingKind, ...] = get_args(EndingKind)
BUSY = Fault("MHS.DEVICE.BUSY", "busy", details={"retry_after_ms": 250})
BROKEN = Fault("MHS.DEVICE.FAULT", "overload", details={"native_code": "E7"})
UNKNOWN = Fault("MHS.OUTCOME.UNKNOWN", "no answer")
OPENED = Fault("MHS.SAFETY.INTERLOCK_OPEN", "the door opened", details={"reason": "opened_while_running"})

SPEED_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"speed_mm_s": {"type": "number", "minimum": 1, "maximum": 1000, "x-mhs-unit": "mm/s"}},
    "required": ["speed_mm_s"],
    "additionalProperties": False,
}
POSITION_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"position_mm": {"type": "number", "x-mhs-unit": "mm"}},
    "required": ["position_mm"],
    "additionalProperties": False,
}


def capability(
    capability_id: str = CONVEY,
    *,
    input_schema: Mapping[str, Any] = SPEED_SCHEMA,
    output_schema: Mapping[str, Any] = POSITION_SCHEMA,
) -> CapabilityClass:
    document = {"input_schema": input_schema, "output_schema": output_schema}
    return CapabilityClass(
        capability_id=capability_id,
        document=document,
        input=compile_schema(input_schema),
        output=compile_schema(output_schema),
    )


def binding(**changes: Any) -> Binding:
    """A binding that every step of the envelope has something to check of; up to 500 mm/s, behind a door."""
    known = Binding(
        capability_id=CONVEY,
        resource="belt",
        input_schema=SPEED_SCHEMA,
        limits={"speed_mm_s": Limit(10, 500, "mm/s")},
        interlocks=("door_closed",),
        permit="required",
        long_running=False,
        max_duration_ms=120_000,
        max_rate_per_s=10,
        effects=(MOVE,),
        simulation_control=False,
        input=compile_schema(SPEED_SCHEMA),
        capability=capability(),
    )
    return attrs.evolve(known, **changes)


def session(**changes: Any) -> Session:
    known: dict[str, Any] = {
        "session_id": SESSION,
        "principal_id": AGENT["id"],
        "principal": AGENT,
        "role": "client",
        "mode": "simulated",
        "ttl_s": 600,
        "device_ids": (DEVICE,),
        "grants": frozenset({Grant(DEVICE, CONVEY, "belt")}),
        "expires_mono_s": 1000.0,
        "expires_at": LATER,
    }
    return Session(**{**known, **changes})


def attempt(**changes: Any) -> Attempt:
    """A command that nothing stands against at second 100; its deadline is second 110."""
    value = changes.get("input", {"speed_mm_s": 100})
    known: dict[str, Any] = {
        "command_id": COMMAND,
        "capability_id": CONVEY,
        "resource": "belt",
        "input": value,
        "input_digest": digest({"capability_id": CONVEY, "resource": "belt", "input": value}),
        "session": session(),
        "principal": AGENT,
        "device_id": DEVICE,
        "binding": binding(),
        "class_known": True,
        "received_mono_s": 100.0,
        "deadline_mono_s": 110.0,
        "accepted_at": AT,
        "interlocks": {"door_closed": "closed"},
    }
    return Attempt(**{**known, **changes})


def operation(**changes: Any) -> Operation:
    known: dict[str, Any] = {
        "attempt": attempt(),
        "operation_id": OPERATION,
        "receipt_id": RECEIPT,
        "long_running": False,
        "started_mono_s": 101.0,
        "started_at": AT,
        "due_mono_s": 221.0,
    }
    return Operation(**{**known, **changes})


def ending(kind: EndingKind) -> Ending:
    return Ending(kind, f"endpoint:{kind}", AT, OPENED if kind == "interlock" else None)


REGISTRY: Any = referencing.Registry().with_resources(
    [(schema_document(name)["$id"], DRAFT7.create_resource(schema_document(name))) for name in schema_names()]
)
JUDGE = jsonschema.Draft7Validator(schema_document("receipt"), registry=REGISTRY)
"""Judges whole receipts by the shipped schema, with another program than the endpoint's own."""
EVIDENCE = {"seq": 812, "prev_digest": ZEROS, "digest": ZEROS}


STATE: dict[str, dict[str, Any]] = {
    "world": {"estop": "released"},
    "belt": {"speed_mm_s": 100, "measured_mm_s": 99.8},
}


def origin(**changes: Any) -> Origin:
    """A conveyor whose measured speed does not count in its hash."""
    states = {
        "world": {"properties": {"estop": {"enum": ["released", "engaged"]}}, "required": ["estop"]},
        "belt": {
            "properties": {
                "speed_mm_s": {"type": "number", "minimum": 0},
                "measured_mm_s": {"type": "number"},
            },
            "required": ["speed_mm_s", "measured_mm_s"],
        },
    }
    closed = {
        name: {"type": "object", "additionalProperties": False, **each} for name, each in states.items()
    }
    known = Origin(
        device_id=DEVICE,
        instance_id="01J8ZQ3V6Y7M2N4P6R8S0T2V4W",
        mode="simulated",
        fidelity={"determinism": "exact", "gaps": [], "snapshot_restore": True},
        states={name: compile_schema(each) for name, each in closed.items()},
        exclusions={"world": (), "belt": ("/measured_mm_s",)},
    )
    return attrs.evolve(known, **changes)


def restoration(**changes: Any) -> Restoration:
    """A snapshot of the conveyor on its way back into it; `changes` are made to the document, None takes out."""
    document = {**origin().snapshot(STATE, 41, AT), **changes}
    return Restoration({name: value for name, value in document.items() if value is not None}, origin())


@attrs.define
class Shown:
    """What a device shows of itself: a conveyor at revision 41, ready for anything."""

    mode: str = "simulated"
    armed: bool = True
    revision: int = 41
    draining: bool = False
    latched: bool = False
    crashed: Fault | None = None
    unconfirmed: Fault | None = None
    permit_fault: Fault | None = None
    rate_fault: Fault | None = None
    slot_fault: Fault | None = None

    def permit_refusal(self, _: Attempt) -> Fault | None:
        return self.permit_fault

    def rate_refusal(self, _: Attempt) -> Fault | None:
        return self.rate_fault

    def slot_refusal(self, _: Attempt) -> Fault | None:
        return self.slot_fault
