"""The parameters of every method, as they stand on the wire.

The lists are those of MHS-002 sections 4 to 14; names are the wire's and carry its units. Decides only
shape: whether a session lives, an id is a ULID or a device exists is for admission and the handlers.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import attrs

from mhsd.wire.converter import Misfit, Rule
from mhsd.wire.elements import (
    MOST_STREAMS,
    Approval,
    CapabilityRequest,
    ClientInfo,
    DeviceFilter,
    Digest,
    EventsFilter,
    Identifier,
    Identifiers,
    Lease,
    PrincipalClaim,
    Revision,
    RevisionFilter,
    Seconds,
    SomeIdentifiers,
    StreamRequest,
    Text,
)


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
