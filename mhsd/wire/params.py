"""The parameters of every method, as they stand on the wire, and how they are read.

The lists are those of MHS-002 sections 4 to 14; names are the wire's and carry its units. Decides only
shape: whether a session lives, an id is a ULID or a device exists is for admission and the handlers.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import attrs

from mhsd.base.errors import Fault
from mhsd.wire.canonical import MAX_SAFE_INTEGER
from mhsd.wire.converter import Hook, Misfit, Rule, hook_for
from mhsd.wire.json_text import excerpt

LONGEST_IDENTIFIER = 256
"""Characters in an id, a name or a reference; long ones would only swell receipts and logs."""
LONGEST_TEXT = 1024
"""Characters in a text for people, as a reason or a note."""
LONGEST_LEASE = 128
MOST_STREAMS = 256
"""Entries in the `streams` of one subscription."""

_TIMESTAMP = re.compile(r"[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9](\.[0-9]{1,9})?Z")
_DIGEST = re.compile("sha256:[0-9a-f]{64}")


def _at_most(characters: int) -> Rule:
    return Rule(f"a string of at most {characters} characters", lambda text: len(text) <= characters)


def _from(minimum: int) -> Rule:
    return Rule(f"an integer from {minimum} to 2^53-1", lambda number: minimum <= number <= MAX_SAFE_INTEGER)


Identifier = Annotated[
    str,
    Rule(
        f"a string of 1 to {LONGEST_IDENTIFIER} characters",
        lambda text: 1 <= len(text) <= LONGEST_IDENTIFIER,
    ),
]
Timestamp = Annotated[
    str, Rule("RFC 3339 in UTC, as 2026-10-20T07:45:00Z", lambda text: _TIMESTAMP.fullmatch(text) is not None)
]
Text = Annotated[str, _at_most(LONGEST_TEXT)]
Lease = Annotated[str, _at_most(LONGEST_LEASE)]
Seconds = Annotated[int, _from(1)]
Revision = Annotated[int, _from(0)]
Digest = Annotated[
    str, Rule("sha256: and 64 lowercase hex digits", lambda text: _DIGEST.fullmatch(text) is not None)
]
Identifiers = tuple[Identifier, ...]
SomeIdentifiers = Annotated[Identifiers, Rule("an array of at least one string", bool)]


@attrs.frozen(kw_only=True)
class PrincipalRef:
    """Who somebody is, by id and kind."""

    id: Identifier
    kind: Literal["agent", "human", "service"]


@attrs.frozen(kw_only=True)
class PrincipalClaim:
    """Who the caller says it is. The authenticated identity wins; this is kept only as a claim."""

    id: Identifier
    kind: Identifier
    display_name: Text | None = None
    contact: Text | None = None


@attrs.frozen(kw_only=True)
class Approval:
    """A person's consent."""

    principal: PrincipalRef
    approved_at: Timestamp | None = None
    note: Text | None = None


@attrs.frozen(kw_only=True)
class ClientInfo:
    """The program that calls."""

    name: Identifier
    version: Identifier
    transport: Identifier | None = None


@attrs.frozen(kw_only=True)
class CapabilityRequest:
    """One binding that a session asks for: a class, and the resource it acts on."""

    capability_id: Identifier
    resource: Identifier | None = None


@attrs.frozen(kw_only=True)
class DeviceFilter:
    """Which devices to list; every member that is given must hold."""

    mode: Literal["simulated", "hardware", "hybrid", "replay"] | None = None
    risk_class: Literal["R0", "R1", "R2", "R3"] | None = None
    capability: Identifier | None = None
    tag: Identifier | None = None


@attrs.frozen(kw_only=True)
class RevisionFilter:
    """Which recorded revision to read, on a replay device."""

    revision: Revision


@attrs.frozen(kw_only=True)
class _Traced:
    """`trace_id` is accepted everywhere; it is for logs and never routes."""

    trace_id: Identifier | None = None


@attrs.frozen(kw_only=True)
class HelloParams(_Traced):
    """`mhs.hello` [PROTO-013]."""

    client: ClientInfo
    protocol_versions: Identifiers
    features: Identifiers = ()


@attrs.frozen(kw_only=True)
class DevicesListParams(_Traced):
    """`mhs.devices.list`."""

    detail: Literal["summary", "full"] = "summary"
    filter: DeviceFilter | None = None


@attrs.frozen(kw_only=True)
class DevicesGetParams(_Traced):
    """`mhs.devices.get`."""

    device_id: Identifier
    include_state: bool = True


@attrs.frozen(kw_only=True)
class SchemaGetParams(_Traced):
    """`mhs.schema.get`; `device_id` and `resource` choose the binding whose schema is wanted.

    Any text is a reference: what cannot be resolved is answered with `details.ref` [PROTO-022].
    """

    ref: str
    device_id: Identifier | None = None
    resource: Identifier | None = None


@attrs.frozen(kw_only=True)
class SessionOpenParams(_Traced):
    """`mhs.session.open`; `capabilities` holds class ids, patterns and single bindings, or is empty."""

    device_ids: SomeIdentifiers
    capabilities: tuple[Identifier | CapabilityRequest, ...]
    mode: Identifier
    ttl_s: Seconds
    principal: PrincipalClaim | None = None
    client_info: ClientInfo | None = None
    approvals: tuple[Approval, ...] = ()


@attrs.frozen(kw_only=True)
class SessionHeartbeatParams(_Traced):
    """`mhs.session.heartbeat`."""

    session_id: Identifier
    device_id: Identifier | None = None


@attrs.frozen(kw_only=True)
class SessionCloseParams(_Traced):
    """`mhs.session.close`."""

    session_id: Identifier
    reason: Text | None = None
    device_id: Identifier | None = None


@attrs.frozen(kw_only=True)
class ResourceReadParams(_Traced):
    """`mhs.resource.read`."""

    session_id: Identifier
    resource_id: Identifier
    deadline_ms: int
    device_id: Identifier | None = None
    fields: Identifiers | None = None
    filter: RevisionFilter | None = None


@attrs.frozen(kw_only=True)
class ResourceWriteParams(_Traced):
    """`mhs.resource.write`; a `capability_id` other than the configure class is refused by the handler."""

    session_id: Identifier
    resource_id: Identifier
    patch: dict[str, Any]
    command_id: Identifier
    deadline_ms: int
    device_id: Identifier | None = None
    expected_revision: Revision | None = None
    permit_id: Identifier | None = None
    capability_id: Identifier | None = None


@attrs.frozen(kw_only=True)
class CommandParams(_Traced):
    """`mhs.command`; `input` is any JSON value, and judging it gives a receipt [PROTO-027]."""

    session_id: Identifier
    capability_id: Identifier
    input: Any
    command_id: Identifier
    deadline_ms: int
    device_id: Identifier | None = None
    resource: Identifier | None = None
    expected_revision: Revision | None = None
    permit_id: Identifier | None = None
    lease: Lease | None = None


@attrs.frozen(kw_only=True)
class OperationsGetParams(_Traced):
    """`mhs.operations.get`, by `operation_id` or by `command_id`, so that a lost answer can be looked up."""

    session_id: Identifier
    deadline_ms: int
    operation_id: Identifier | None = None
    command_id: Identifier | None = None
    device_id: Identifier | None = None

    def __attrs_post_init__(self) -> None:
        _need_exactly_one(operation_id=self.operation_id, command_id=self.command_id)


@attrs.frozen(kw_only=True)
class OperationsListParams(_Traced):
    """`mhs.operations.list`; `state` is the status of a receipt [PROTO-031]."""

    session_id: Identifier
    device_id: Identifier | None = None
    state: (
        Literal["accepted", "running", "completed", "failed", "rejected", "cancelled", "unknown"] | None
    ) = None


@attrs.frozen(kw_only=True)
class OperationsCancelParams(_Traced):
    """`mhs.operations.cancel`."""

    session_id: Identifier
    operation_id: Identifier
    deadline_ms: int
    device_id: Identifier | None = None


Stream = Literal["state", "telemetry", "events", "log", "progress"]
"""What can be subscribed to; `control` comes with every subscription, and `safety` is a type of it [CORE-184]."""

LogLevel = Literal["debug", "info", "warning", "error"]

EventKind = Literal[
    "operation.dispatched",
    "operation.ended",
    "interlock.opened",
    "interlock.closed",
    "permit.issued",
    "permit.used",
    "session.opened",
    "session.ended",
    "device.unreadable",
    "device.readable",
    "device.unconfirmed",
    "device.confirmed",
    "device.crashed",
]
"""What the `events` stream tells of."""


@attrs.frozen(kw_only=True)
class StreamRequest:
    """One stream that is subscribed to. What is left out, is every one that the session covers [EVT-002]."""

    stream: Stream
    device_id: Identifier | None = None
    resource_id: Identifier | None = None
    capability_id: Identifier | None = None


@attrs.frozen(kw_only=True)
class EventsFilter:
    """Which events of the streams are wanted; each member narrows the streams that it makes sense for."""

    kinds: tuple[EventKind, ...] | None = None
    min_level: LogLevel | None = None
    operation_id: Identifier | None = None
    command_id: Identifier | None = None


@attrs.frozen(kw_only=True)
class SubscribeParams(_Traced):
    """`mhs.subscribe` [EVT-001, EVT-002]."""

    session_id: Identifier
    streams: Annotated[
        tuple[StreamRequest, ...],
        Rule(f"an array of 1 to {MOST_STREAMS} streams", lambda streams: 1 <= len(streams) <= MOST_STREAMS),
    ]
    deadline_ms: int
    filter: EventsFilter | None = None
    rate_hz: Annotated[float, Rule("a number above 0 (Hz)", lambda rate: rate > 0)] | None = None
    device_id: Identifier | None = None


@attrs.frozen(kw_only=True)
class UnsubscribeParams(_Traced):
    """`mhs.unsubscribe` [EVT-004]."""

    session_id: Identifier
    subscription_id: Identifier
    device_id: Identifier | None = None


@attrs.frozen(kw_only=True)
class SnapshotParams(_Traced):
    """`mhs.snapshot` [PROTO-034]."""

    session_id: Identifier
    device_id: Identifier
    deadline_ms: int


@attrs.frozen(kw_only=True)
class RestoreParams(_Traced):
    """`mhs.restore`; what stands in `snapshot` is judged with a receipt [PROTO-035]."""

    session_id: Identifier
    device_id: Identifier
    snapshot: dict[str, Any]
    command_id: Identifier
    deadline_ms: int
    expected_revision: Revision | None = None


@attrs.frozen(kw_only=True)
class SafetyStatusParams(_Traced):
    """`mhs.safety.status`, which needs no session [SAFE-001]."""

    deadline_ms: int
    session_id: Identifier | None = None
    device_id: Identifier | None = None


@attrs.frozen(kw_only=True)
class SafetyEstopParams(_Traced):
    """`mhs.safety.estop`: what could be understood of it; nothing in its parameters can refuse a stop."""

    reason: str | None = None
    device_id: str | None = None
    session_id: str | None = None
    command_id: str | None = None
    deadline_ms: int | None = None


@attrs.frozen(kw_only=True)
class SafetyResetParams(_Traced):
    """`mhs.safety.reset`."""

    session_id: Identifier
    device_id: Identifier
    deadline_ms: int


@attrs.frozen(kw_only=True)
class SafetyPermitParams(_Traced):
    """`mhs.safety.permit`; `session_id` names the session that will use the permit [SAFE-004]."""

    session_id: Identifier
    capability_id: Identifier
    input_digest: Digest
    ttl_s: Seconds
    resource: Identifier | None = None
    approvals: tuple[Approval, ...] = ()
    device_id: Identifier | None = None


@attrs.frozen(kw_only=True)
class EvidenceExportParams(_Traced):
    """`mhs.evidence.export`, which needs no session [EVID-002]; `since_receipt` is exclusive."""

    session_id: Identifier | None = None
    device_id: Identifier | None = None
    since_receipt: Identifier | None = None
    include_telemetry: bool = False


@attrs.frozen(kw_only=True)
class EvidenceVerifyParams(_Traced):
    """`mhs.evidence.verify` of a bundle or of a reference to one."""

    bundle: dict[str, Any] | None = None
    bundle_ref: Identifier | None = None

    def __attrs_post_init__(self) -> None:
        _need_exactly_one(bundle=self.bundle, bundle_ref=self.bundle_ref)


@attrs.frozen(kw_only=True)
class ConformanceReportParams(_Traced):
    """`mhs.conformance.report`, which needs no session."""

    profile: Identifier | None = None
    level: Literal["CL0", "CL1", "CL2", "CL3", "CL4"] | None = None


def _need_exactly_one(**members: object) -> None:
    given = [name for name, value in members.items() if value is not None]
    if len(given) != 1:
        # With both given the second is the one too many; with neither the first is the one to send.
        raise Misfit(
            "the only one given of " + " and ".join(members),
            field=given[1] if given else next(iter(members)),
            reason="invalid" if given else "missing",
        )


PARAMS: Mapping[str, type] = {
    "mhs.hello": HelloParams,
    "mhs.devices.list": DevicesListParams,
    "mhs.devices.get": DevicesGetParams,
    "mhs.schema.get": SchemaGetParams,
    "mhs.session.open": SessionOpenParams,
    "mhs.session.heartbeat": SessionHeartbeatParams,
    "mhs.session.close": SessionCloseParams,
    "mhs.resource.read": ResourceReadParams,
    "mhs.resource.write": ResourceWriteParams,
    "mhs.command": CommandParams,
    "mhs.operations.get": OperationsGetParams,
    "mhs.operations.list": OperationsListParams,
    "mhs.operations.cancel": OperationsCancelParams,
    "mhs.subscribe": SubscribeParams,
    "mhs.unsubscribe": UnsubscribeParams,
    "mhs.snapshot": SnapshotParams,
    "mhs.restore": RestoreParams,
    "mhs.safety.status": SafetyStatusParams,
    "mhs.safety.estop": SafetyEstopParams,
    "mhs.safety.reset": SafetyResetParams,
    "mhs.safety.permit": SafetyPermitParams,
    "mhs.evidence.export": EvidenceExportParams,
    "mhs.evidence.verify": EvidenceVerifyParams,
    "mhs.conformance.report": ConformanceReportParams,
}
"""The class of each method's parameters."""


def structure(method: str, params: Mapping[str, Any], *, max_deadline_ms: int) -> Any:
    """`params` as the class that PARAMS has for `method`, read strictly.

    Raises Fault DEADLINE_INVALID, before anything else, where a blocking method's `deadline_ms` is missing,
    not an integer of at least 1, or above `max_deadline_ms` [PROTO-010]; Fault INVALID_PARAMS for an unknown,
    missing or wrongly typed member, named in `details.field`. An e-stop's parameters never raise.
    """
    if method == "mhs.safety.estop":
        return _stop_params(params)
    shape, read, blocking = _READERS[method]
    if blocking:
        deadline_ms = params.get("deadline_ms")
        if type(deadline_ms) is not int or not 1 <= deadline_ms <= max_deadline_ms:
            raise _deadline_fault(method, params, max_deadline_ms)
    try:
        return read(params, shape)
    except Misfit as misfit:
        raise _params_fault(method, misfit) from None


def _stop_params(params: Any) -> SafetyEstopParams:
    """Whatever is usable. A member that is not, is None: a stop that names no usable device stops more."""
    if type(params) is not dict:
        return SafetyEstopParams()
    found: dict[str, Any] = {}
    for name in ("device_id", "session_id", "command_id", "trace_id"):
        value = params.get(name)
        if type(value) is str and len(value) <= LONGEST_IDENTIFIER:
            found[name] = value
    reason, deadline_ms = params.get("reason"), params.get("deadline_ms")
    if type(reason) is str:
        found["reason"] = reason[:LONGEST_TEXT]
    if type(deadline_ms) is int and deadline_ms >= 1:
        found["deadline_ms"] = deadline_ms
    return SafetyEstopParams(**found)


def _deadline_fault(method: str, params: Mapping[str, Any], max_deadline_ms: int) -> Fault:
    value = params.get("deadline_ms")
    if "deadline_ms" not in params:
        reason = "missing"
    elif type(value) is not int:
        reason = "not_an_integer"
    else:
        reason = "too_small" if value < 1 else "too_large"
    return Fault(
        "MHS.PROTOCOL.DEADLINE_INVALID",
        f"{method} needs deadline_ms, an integer from 1 to {max_deadline_ms} (milliseconds).",
        details={"field": "deadline_ms", "reason": reason, "minimum": 1, "maximum": max_deadline_ms},
    )


def _params_fault(method: str, misfit: Misfit) -> Fault:
    field = excerpt(misfit.field) if misfit.field else "params"
    details: dict[str, Any] = {"field": field, "reason": misfit.reason}
    if misfit.reason == "unknown_member":
        details["allowed"] = list(misfit.allowed)
        message = f"{method} has no parameter {field!r}; allowed here: {', '.join(misfit.allowed)}."
    else:
        details["expected"] = misfit.expected
        asked = f"needs {field!r}:" if misfit.reason == "missing" else f"takes {field!r} only as"
        message = f"{method} {asked} {misfit.expected}."
    return Fault("MHS.PROTOCOL.INVALID_PARAMS", message, details=details)


def _reader(shape: type) -> tuple[type, Hook, bool]:
    deadline = attrs.fields_dict(shape).get("deadline_ms")
    return shape, hook_for(shape), deadline is not None and deadline.default is attrs.NOTHING


_READERS = {method: _reader(shape) for method, shape in PARAMS.items()}
