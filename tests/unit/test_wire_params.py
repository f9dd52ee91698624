"""Parameters are read strictly, and a refusal names the member and what is allowed."""

import json
from typing import Any

import attrs
import pytest

from mhsd.base.errors import Fault
from mhsd.base.resources import read_toml, spec_file
from mhsd.wire.elements import (
    Approval,
    CapabilityRequest,
    ClientInfo,
    DeviceFilter,
    PrincipalClaim,
    PrincipalRef,
    RevisionFilter,
)
from mhsd.wire.params import (
    PARAMS,
    CommandParams,
    DevicesListParams,
    EvidenceExportParams,
    EvidenceVerifyParams,
    HelloParams,
    ResourceReadParams,
    SafetyEstopParams,
    SessionOpenParams,
)
from mhsd.wire.structure import structure

MAX_DEADLINE_MS = 600_000
DIGEST = "sha256:" + "0a" * 32

VALID: dict[str, dict[str, Any]] = {
    "mhs.hello": {"client": {"name": "c", "version": "1"}, "protocol_versions": ["1.0"]},
    "mhs.devices.list": {},
    "mhs.devices.get": {"device_id": "d"},
    "mhs.schema.get": {"ref": "device.schema.json"},
    "mhs.session.open": {"device_ids": ["d"], "capabilities": ["*"], "mode": "simulated", "ttl_s": 600},
    "mhs.session.heartbeat": {"session_id": "s"},
    "mhs.session.close": {"session_id": "s"},
    "mhs.resource.read": {"session_id": "s", "resource_id": "r", "deadline_ms": 1},
    "mhs.resource.write": {
        "session_id": "s",
        "resource_id": "r",
        "patch": {"speed_mm_s": 5},
        "command_id": "c",
        "deadline_ms": 1,
    },
    "mhs.command": {
        "session_id": "s",
        "capability_id": "cap.world.step.v1",
        "input": {"ticks": 10},
        "command_id": "c",
        "deadline_ms": 1,
    },
    "mhs.operations.get": {"session_id": "s", "operation_id": "o", "deadline_ms": 1},
    "mhs.operations.cancel": {"session_id": "s", "operation_id": "o", "deadline_ms": 1},
    "mhs.operations.list": {"session_id": "s"},
    "mhs.subscribe": {"session_id": "s", "streams": [{"stream": "state"}], "deadline_ms": 1},
    "mhs.unsubscribe": {"session_id": "s", "subscription_id": "u"},
    "mhs.snapshot": {"session_id": "s", "device_id": "d", "deadline_ms": 1},
    "mhs.restore": {"session_id": "s", "device_id": "d", "snapshot": {}, "command_id": "c", "deadline_ms": 1},
    "mhs.safety.status": {"deadline_ms": 1},
    "mhs.safety.estop": {"reason": "smoke"},
    "mhs.safety.reset": {"session_id": "s", "device_id": "d", "deadline_ms": 1},
    "mhs.safety.permit": {"session_id": "s", "capability_id": "c", "input_digest": DIGEST, "ttl_s": 1},
    "mhs.evidence.export": {},
    "mhs.evidence.verify": {"bundle": {}},
    "mhs.conformance.report": {},
}
"""The least that each method takes."""

STRICT = sorted(VALID.keys() - {"mhs.safety.estop"})
REQUIRED = [(method, name) for method in STRICT for name in VALID[method]]


def read(method: str, params: dict[str, Any]) -> Any:
    return structure(method, params, max_deadline_ms=MAX_DEADLINE_MS)


def refusal(method: str, params: dict[str, Any]) -> Fault:
    with pytest.raises(Fault) as caught:
        read(method, params)
    assert caught.value.code == -32602
    return caught.value


def details(fault: Fault) -> dict[str, Any]:
    assert fault.details is not None
    return fault.details


def test_every_served_method_has_parameters_and_only_those() -> None:
    methods = read_toml(spec_file("methods.toml"))["methods"]
    assert {name for name, row in methods.items() if row["served"]} <= PARAMS.keys() <= methods.keys()


def test_a_method_needs_a_deadline_exactly_where_its_row_says_so() -> None:
    methods = read_toml(spec_file("methods.toml"))["methods"]
    needing = set()
    for method in PARAMS:
        params = {name: value for name, value in VALID[method].items() if name != "deadline_ms"}
        try:
            read(method, params)
        except Fault:
            needing.add(method)
    assert needing == {method for method in PARAMS if methods[method]["deadline"]}


@pytest.mark.parametrize("method", sorted(VALID))
def test_the_least_that_a_method_takes_is_enough(method: str) -> None:
    found = read(method, VALID[method])
    assert type(found) is PARAMS[method]
    assert found.trace_id is None


@pytest.mark.parametrize("method", sorted(VALID))
def test_trace_id_is_accepted_everywhere(method: str) -> None:
    assert read(method, {**VALID[method], "trace_id": "00-4bf9-00f0-01"}).trace_id == "00-4bf9-00f0-01"


@pytest.mark.parametrize("method", STRICT)
def test_an_unknown_member_is_named_with_those_that_are_allowed(method: str) -> None:
    fault = refusal(method, {**VALID[method], "sesion_id": "s"})
    assert fault.mhs_code == "MHS.PROTOCOL.INVALID_PARAMS"
    assert details(fault)["field"] == "sesion_id"
    assert details(fault)["reason"] == "unknown_member"
    allowed = details(fault)["allowed"]
    assert set(allowed) == set(attrs.fields_dict(PARAMS[method]))
    assert "'sesion_id'" in fault.message
    assert all(name in fault.message for name in allowed)


@pytest.mark.parametrize(("method", "name"), REQUIRED)
def test_a_missing_member_is_named(method: str, name: str) -> None:
    fault = refusal(method, {key: value for key, value in VALID[method].items() if key != name})
    assert details(fault)["field"] == name
    assert details(fault)["reason"] == "missing"
    expected = "DEADLINE_INVALID" if name == "deadline_ms" else "INVALID_PARAMS"
    assert fault.mhs_code == f"MHS.PROTOCOL.{expected}"


@pytest.mark.parametrize("method", [method for method in STRICT if "deadline_ms" in VALID[method]])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "not_an_integer"),
        (True, "not_an_integer"),
        (5.0, "not_an_integer"),
        ("5", "not_an_integer"),
        ([5], "not_an_integer"),
        (0, "too_small"),
        (-1, "too_small"),
        (MAX_DEADLINE_MS + 1, "too_large"),
        (10**5000, "too_large"),
    ],
    ids=range(9),
)
def test_a_deadline_that_is_no_integer_in_bounds_is_refused(method: str, value: Any, reason: str) -> None:
    fault = refusal(method, {**VALID[method], "deadline_ms": value})
    assert fault.mhs_code == "MHS.PROTOCOL.DEADLINE_INVALID"
    assert fault.details == {
        "field": "deadline_ms",
        "reason": reason,
        "minimum": 1,
        "maximum": MAX_DEADLINE_MS,
    }


@pytest.mark.parametrize("deadline_ms", [1, MAX_DEADLINE_MS])
def test_a_deadline_at_its_bounds_is_accepted(deadline_ms: int) -> None:
    assert read("mhs.safety.status", {"deadline_ms": deadline_ms}).deadline_ms == deadline_ms


def test_the_deadline_is_judged_before_everything_else() -> None:
    assert refusal("mhs.command", {"bogus": 1}).mhs_code == "MHS.PROTOCOL.DEADLINE_INVALID"


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("mhs.command", "session_id", 5),
        ("mhs.command", "session_id", None),
        ("mhs.command", "capability_id", ["c"]),
        ("mhs.command", "command_id", 1),
        ("mhs.command", "device_id", None),
        ("mhs.command", "resource", None),
        ("mhs.command", "expected_revision", True),
        ("mhs.command", "expected_revision", 5.0),
        ("mhs.command", "expected_revision", "5"),
        ("mhs.command", "expected_revision", -1),
        ("mhs.command", "expected_revision", 2**53),
        ("mhs.command", "permit_id", 1),
        ("mhs.command", "lease", "x" * 129),
        ("mhs.command", "trace_id", {}),
        ("mhs.command", "capability_id", "c" * 513),
        ("mhs.resource.write", "patch", [1]),
        ("mhs.resource.write", "patch", None),
        ("mhs.resource.write", "patch", "{}"),
        ("mhs.resource.read", "fields", "tick"),
        ("mhs.resource.read", "fields", {"tick": 1}),
        ("mhs.resource.read", "filter", []),
        ("mhs.devices.list", "detail", "ful"),
        ("mhs.devices.list", "detail", 1),
        ("mhs.devices.get", "include_state", 1),
        ("mhs.devices.get", "include_state", "true"),
        ("mhs.session.open", "device_ids", []),
        ("mhs.session.open", "device_ids", "d"),
        ("mhs.session.open", "capabilities", None),
        ("mhs.session.open", "mode", 1),
        ("mhs.session.open", "ttl_s", 0),
        ("mhs.session.open", "ttl_s", True),
        ("mhs.session.open", "ttl_s", 1.0),
        ("mhs.session.open", "ttl_s", 2**53),
        ("mhs.session.open", "principal", "p"),
        ("mhs.session.close", "reason", "x" * 1025),
        ("mhs.safety.permit", "input_digest", "sha256:" + "0A" * 32),
        ("mhs.safety.permit", "input_digest", DIGEST + "\n"),
        ("mhs.safety.permit", "input_digest", "0a" * 32),
        ("mhs.safety.permit", "ttl_s", 0),
        ("mhs.evidence.export", "include_telemetry", 0),
        ("mhs.evidence.export", "since_receipt", 1),
        ("mhs.evidence.verify", "bundle", []),
        ("mhs.hello", "protocol_versions", "1.0"),
        ("mhs.hello", "features", None),
    ],
)
def test_a_member_of_the_wrong_type_is_named_and_nothing_is_coerced(
    method: str, name: str, value: Any
) -> None:
    fault = refusal(method, {**VALID[method], name: value})
    assert fault.mhs_code == "MHS.PROTOCOL.INVALID_PARAMS"
    assert details(fault)["field"] == name
    assert details(fault)["reason"] == "invalid"
    assert details(fault)["expected"] in fault.message


@pytest.mark.parametrize(
    ("method", "change", "field"),
    [
        ("mhs.hello", {"client": {"name": "c"}}, "client.version"),
        ("mhs.hello", {"client": {"name": "c", "version": 1}}, "client.version"),
        ("mhs.hello", {"client": {"name": "c", "version": "1", "title": "t"}}, "client.title"),
        ("mhs.hello", {"protocol_versions": ["1.0", 2]}, "protocol_versions[1]"),
        ("mhs.devices.list", {"filter": {"mode": "real"}}, "filter.mode"),
        ("mhs.devices.list", {"filter": {"risk_class": "R4"}}, "filter.risk_class"),
        ("mhs.devices.list", {"filter": {"tags": "x"}}, "filter.tags"),
        ("mhs.resource.read", {"filter": {}}, "filter.revision"),
        ("mhs.resource.read", {"filter": {"revision": "7"}}, "filter.revision"),
        ("mhs.resource.read", {"fields": ["a", None]}, "fields[1]"),
        ("mhs.session.open", {"device_ids": ["d", 1]}, "device_ids[1]"),
        ("mhs.session.open", {"capabilities": ["*", 5]}, "capabilities[1]"),
        ("mhs.session.open", {"capabilities": [{"resource": "r"}]}, "capabilities[0].capability_id"),
        (
            "mhs.session.open",
            {"capabilities": [{"capability_id": "c", "resorce": "r"}]},
            "capabilities[0].resorce",
        ),
        ("mhs.session.open", {"capabilities": ["x" * 513]}, "capabilities[0]"),
        ("mhs.session.open", {"principal": {"id": "a"}}, "principal.kind"),
        (
            "mhs.session.open",
            {"approvals": [{"principal": {"id": "a", "kind": 1}}]},
            "approvals[0].principal.kind",
        ),
        ("mhs.safety.permit", {"approvals": [{}]}, "approvals[0].principal"),
    ],
)
def test_a_defect_further_down_is_named_by_its_path(method: str, change: dict[str, Any], field: str) -> None:
    fault = refusal(method, {**VALID[method], **change})
    assert fault.mhs_code == "MHS.PROTOCOL.INVALID_PARAMS"
    assert details(fault)["field"] == field


@pytest.mark.parametrize(
    ("method", "params", "field", "reason"),
    [
        ("mhs.operations.get", {}, "operation_id", "missing"),
        ("mhs.operations.get", {"operation_id": "o", "command_id": "c"}, "command_id", "invalid"),
        ("mhs.evidence.verify", {}, "bundle", "missing"),
        ("mhs.evidence.verify", {"bundle": {}, "bundle_ref": "x"}, "bundle_ref", "invalid"),
    ],
)
def test_one_of_two_members_is_needed_and_no_more(
    method: str, params: dict[str, Any], field: str, reason: str
) -> None:
    common = {"session_id": "s", "deadline_ms": 1} if method == "mhs.operations.get" else {}
    fault = refusal(method, {**common, **params})
    assert (details(fault)["field"], details(fault)["reason"]) == (field, reason)


def test_a_lost_command_is_looked_up_by_its_own_id() -> None:
    found = read(
        "mhs.operations.get", {"session_id": "s", "command_id": "c", "device_id": "d", "deadline_ms": 1}
    )
    assert (found.operation_id, found.command_id, found.device_id) == (None, "c", "d")


def test_a_refusal_never_repeats_a_value_and_shortens_a_name() -> None:
    for fault in (
        refusal("mhs.command", {**VALID["mhs.command"], "lease": "secret" * 50}),
        refusal("mhs.command", {**VALID["mhs.command"], "k" * 5000: "secret"}),
    ):
        text = json.dumps(fault.error())
        assert "secret" not in text
        assert len(text) < 1500


@pytest.mark.parametrize("value", [None, True, 0, 1.5, "text", [], [1], {}, {"ticks": 10}])
def test_the_input_of_a_command_is_any_json_value(value: Any) -> None:
    assert read("mhs.command", {**VALID["mhs.command"], "input": value}).input == value


def test_a_whole_command_is_read() -> None:
    members = {
        "session_id": "s",
        "device_id": "d",
        "capability_id": "c",
        "resource": "r",
        "input": {"ticks": 1},
        "command_id": "i",
        "expected_revision": 0,
        "deadline_ms": 5000,
        "permit_id": "p",
        "lease": "x" * 128,
        "trace_id": "t",
    }
    assert read("mhs.command", members) == CommandParams(**members)


def test_a_whole_session_open_is_read() -> None:
    found = read(
        "mhs.session.open",
        {
            "principal": {"id": "agent:x", "kind": "agent", "display_name": "X", "contact": "x@example.org"},
            "device_ids": ["a", "b"],
            "capabilities": [
                "cap.world.*.v1",
                {"capability_id": "c", "resource": "r"},
                {"capability_id": "c"},
            ],
            "mode": "hardware",
            "ttl_s": 600,
            "client_info": {"name": "n", "version": "v", "transport": "http"},
            "approvals": [
                {
                    "principal": {"id": "h", "kind": "human"},
                    "approved_at": "2026-10-20T07:45:00Z",
                    "note": "ok",
                }
            ],
        },
    )
    assert found == SessionOpenParams(
        principal=PrincipalClaim(id="agent:x", kind="agent", display_name="X", contact="x@example.org"),
        device_ids=("a", "b"),
        capabilities=(
            "cap.world.*.v1",
            CapabilityRequest(capability_id="c", resource="r"),
            CapabilityRequest(capability_id="c"),
        ),
        mode="hardware",
        ttl_s=600,
        client_info=ClientInfo(name="n", version="v", transport="http"),
        approvals=(
            Approval(
                principal=PrincipalRef(id="h", kind="human"), approved_at="2026-10-20T07:45:00Z", note="ok"
            ),
        ),
    )


def test_a_session_may_ask_for_no_capabilities() -> None:
    assert read("mhs.session.open", {**VALID["mhs.session.open"], "capabilities": []}).capabilities == ()


def test_defaults_are_those_of_the_wire() -> None:
    assert read("mhs.devices.list", {}) == DevicesListParams(detail="summary", filter=None)
    assert read("mhs.devices.get", {"device_id": "d"}).include_state is True
    assert read("mhs.evidence.export", {}) == EvidenceExportParams()
    assert read("mhs.hello", VALID["mhs.hello"]) == HelloParams(
        client=ClientInfo(name="c", version="1"), protocol_versions=("1.0",), features=()
    )


def test_filters_are_read() -> None:
    listed = read(
        "mhs.devices.list",
        {"filter": {"mode": "replay", "risk_class": "R0", "capability": "c", "tag": "t"}, "detail": "full"},
    )
    assert listed == DevicesListParams(
        detail="full", filter=DeviceFilter(mode="replay", risk_class="R0", capability="c", tag="t")
    )
    sought = read(
        "mhs.resource.read", {**VALID["mhs.resource.read"], "filter": {"revision": 7}, "fields": []}
    )
    assert sought == ResourceReadParams(
        session_id="s", resource_id="r", deadline_ms=1, filter=RevisionFilter(revision=7), fields=()
    )


def test_a_bundle_reference_is_read() -> None:
    assert read("mhs.evidence.verify", {"bundle_ref": "mhs+artifact://x"}) == EvidenceVerifyParams(
        bundle_ref="mhs+artifact://x"
    )


@pytest.mark.parametrize("params", [None, [], "stop", 5, {"reason": 5}, {"device_id": ["d"]}, {"bogus": {}}])
def test_no_parameters_can_refuse_a_stop(params: Any) -> None:
    assert read("mhs.safety.estop", params) == SafetyEstopParams()


def test_a_stop_keeps_what_is_usable() -> None:
    found = read(
        "mhs.safety.estop",
        {
            "reason": "r" * 5000,
            "device_id": "d",
            "session_id": 7,
            "command_id": "no ulid",
            "deadline_ms": -1,
            "trace_id": "x" * 513,
        },
    )
    assert found == SafetyEstopParams(reason="r" * 1024, device_id="d", command_id="no ulid")
    assert read("mhs.safety.estop", {"deadline_ms": 5}).deadline_ms == 5
    assert read("mhs.safety.estop", {"deadline_ms": True}).deadline_ms is None


@pytest.mark.parametrize("text", ["", "x" * 257], ids=["empty", "257 characters"])
@pytest.mark.parametrize("member", ["capability_id", "resource", "device_id"])
def test_an_id_that_no_receipt_could_carry_is_refused_before_one_is_made(member: str, text: str) -> None:
    """[PROTO-028]"""
    params = {"session_id": "s", "capability_id": "c", "input": {}, "command_id": "k", "deadline_ms": 1}
    with pytest.raises(Fault) as refused:
        structure("mhs.command", {**params, member: text}, max_deadline_ms=10)
    assert refused.value.mhs_code == "MHS.PROTOCOL.INVALID_PARAMS"
    assert (refused.value.details or {})["field"] == member


@pytest.mark.parametrize(
    "approval",
    [
        {"principal": {"id": "h", "kind": "robot"}},
        {"principal": {"id": "", "kind": "human"}},
        {"principal": {"id": "h", "kind": "human"}, "approved_at": "now"},
    ],
)
def test_an_approval_that_no_receipt_could_carry_is_refused(approval: dict[str, object]) -> None:
    """[SAFE-004]"""
    digest = "sha256:" + "0" * 64
    params = {"session_id": "s", "capability_id": "c", "input_digest": digest, "ttl_s": 1}
    with pytest.raises(Fault) as refused:
        structure("mhs.safety.permit", {**params, "approvals": [approval]}, max_deadline_ms=10)
    assert refused.value.mhs_code == "MHS.PROTOCOL.INVALID_PARAMS"
