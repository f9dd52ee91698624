"""The shipped schemas: valid draft-07, complete in themselves, and judged alike by two validators."""

import copy
import json
from collections.abc import Callable
from typing import Any

import fastjsonschema
import jsonschema
import pytest
import referencing
from referencing.jsonschema import DRAFT7

from mhsd.base.errors import Fault
from mhsd.base.resources import SCHEMA_BASE, read_json, schema_document, schema_names, spec_file

ZEROS = "sha256:" + "0" * 64
RECEIPT: dict[str, Any] = {
    "receipt_id": "01J8ZQ3W1B7M2N4P6R8S0T2V4Z",
    "command_id": "01J8ZQ3V6Y7M2N4P6R8S0T2V4Y",
    "session_id": "mhs_s_01J8ZQ3V6Y",
    "endpoint_id": "mhs://localhost:7400",
    "device_id": "mhs://localhost:7400/lab/conveyor-workcell",
    "capability_id": "cap.world.step.v1",
    "resource_ids": ["world"],
    "input_digest": "sha256:0b57d3a0f13f8f4d6f0b6e2a8f5f9c7d2a4e6b8c0d1f3a5b7c9d1e3f5a7b9c1d",
    "status": "completed",
    "mode": "simulated",
    "principal": {"id": "agent:openai4s/session-7", "kind": "agent"},
    "accepted_at": "2026-10-20T07:46:58.900Z",
    "started_at": "2026-10-20T07:46:58.902Z",
    "ended_at": "2026-10-20T07:46:59.221Z",
    "state_revision_before": 76,
    "state_revision_after": 77,
    "state_hash_after": ZEROS,
    "output": {"tick": 77, "state_hash": ZEROS},
    "effects": [
        {
            "kind": "simulation.advance",
            "summary": "simulated 1 ms tick",
            "reversible": False,
            "severity": "R0",
            "irreversible_reason": "simulated time cannot be un-spent, though restore can rewind",
        }
    ],
    "progress": {"ticks": 1, "percent": 100},
    "replayed": False,
    "seed": 0,
    "evidence": {"seq": 812, "prev_digest": ZEROS, "digest": ZEROS},
}
"""The example of MHS-002 section 10.3."""

OPERATION = "op_01J8ZQ3W1B7M2N4P6R8S0T2V4Z"


def _resource(uri: str) -> Any:
    return schema_document(uri)


def _both(name: str) -> Callable[[Any], list[bool]]:
    """Judges a value by fastjsonschema and by jsonschema: `[True, True]` when both accept it."""
    document = schema_document(name)
    # It writes absolute references into what it compiles, and the documents are shared by the whole process.
    fast = fastjsonschema.compile(
        copy.deepcopy(document),
        handlers={"https": lambda uri: copy.deepcopy(_resource(uri))},
        use_default=False,
    )
    registry: Any = referencing.Registry().with_resources(
        (SCHEMA_BASE + file_name, DRAFT7.create_resource(schema_document(file_name)))
        for file_name in schema_names()
    )
    slow = jsonschema.Draft7Validator(document, registry=registry)

    def judge(value: Any) -> list[bool]:
        before = json.dumps(value)
        try:
            fast(value)
        except fastjsonschema.JsonSchemaValueException:
            accepted = False
        else:
            accepted = True
        assert json.dumps(value) == before
        return [accepted, slow.is_valid(value)]

    return judge


@pytest.fixture(scope="module")
def receipt_judge() -> Callable[[Any], list[bool]]:
    return _both("receipt")


def _receipt(*without: str, **changes: Any) -> dict[str, Any]:
    changed = {**copy.deepcopy(RECEIPT), **changes}
    return {key: value for key, value in changed.items() if key not in without}


def _refused(mhs_code: str, **extra: Any) -> dict[str, Any]:
    return Fault(mhs_code, "refused", **extra).receipt_error()


def test_every_schema_file_is_valid_draft_07_under_its_own_name() -> None:
    files = [path.name for path in spec_file("schemas").iterdir()]
    assert sorted(files) == list(schema_names())
    for file_name in files:
        document = read_json(spec_file("schemas", file_name))
        jsonschema.Draft7Validator.check_schema(document)
        assert document["$id"] == SCHEMA_BASE + file_name
        assert document["$schema"] == "http://json-schema.org/draft-07/schema#"
        assert document["title"]
        assert document["description"]


@pytest.mark.parametrize("file_name", schema_names())
def test_every_keyword_is_one_that_the_fast_validator_knows(file_name: str) -> None:
    known = {
        *("$schema", "$id", "$ref", "title", "description", "definitions", "type", "enum", "const", "format"),
        *(
            "properties",
            "patternProperties",
            "additionalProperties",
            "propertyNames",
            "required",
            "dependencies",
        ),
        *("minProperties", "maxProperties", "items", "additionalItems", "contains", "minItems", "maxItems"),
        *("uniqueItems", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
    }
    by_name = {"properties", "patternProperties", "definitions", "dependencies"}

    def walk(schema: Any, where: str) -> None:
        if isinstance(schema, list):
            for index, part in enumerate(schema):
                walk(part, f"{where}/{index}")
        if not isinstance(schema, dict):
            return
        unknown = {key for key in schema if key not in known}
        assert not unknown, f"{where}: {unknown}"
        for key, part in schema.items():
            if key in by_name:
                for name, member in part.items():
                    walk(member, f"{where}/{key}/{name}")
            elif key not in ("enum", "const", "required"):
                walk(part, f"{where}/{key}")

    walk(schema_document(file_name), file_name)


@pytest.mark.parametrize("file_name", schema_names())
def test_every_reference_of_a_schema_leads_to_a_shipped_definition(file_name: str) -> None:
    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [ref for member in value.values() for ref in references(member)]
        if isinstance(value, list):
            return [ref for member in value for ref in references(member)]
        return []

    for ref in references(schema_document(file_name)):
        target, _, pointer = ref.partition("#")
        node = schema_document(target or file_name)
        for part in pointer.split("/")[1:]:
            node = node[part]
        assert isinstance(node, dict), ref


@pytest.mark.parametrize("file_name", schema_names())
def test_every_schema_compiles_and_refuses_a_number(file_name: str) -> None:
    if file_name != "defs.schema.json":
        assert _both(file_name)(1) == [False, False]


@pytest.mark.parametrize("ref", ["receipt", "receipt.schema.json", f"{SCHEMA_BASE}receipt.schema.json"])
def test_a_schema_is_found_by_short_name_file_name_and_id(ref: str) -> None:
    assert schema_document(ref)["title"] == "MHS receipt"


@pytest.mark.parametrize(
    "ref",
    [
        *("", "nothing", "../errors.toml", "../../pyproject", "/etc/passwd", "~/x", "C:\\x.schema.json"),
        *("schemas/receipt.schema.json", "./receipt.schema.json", "https://example.org/receipt.schema.json"),
        *("file:///etc/passwd", "receipt.schema.json/..", f"{SCHEMA_BASE}../receipt.schema.json", "RECEIPT"),
    ],
)
def test_a_reference_to_anything_but_a_shipped_schema_is_refused(ref: str) -> None:
    with pytest.raises(KeyError):
        schema_document(ref)


GOOD_RECEIPTS: dict[str, dict[str, Any]] = {
    "the example of MHS-002": RECEIPT,
    "a chained body without evidence": _receipt("evidence"),
    "a refusal of an id that is no capability id": _receipt(
        "output",
        "effects",
        status="rejected",
        capability_id="Banana!",
        error=_refused("MHS.CAPABILITY.UNKNOWN"),
    ),
    "a refusal with the current revision": _receipt(
        "output", status="rejected", effects=[], error=_refused("MHS.CONFLICT.REVISION", current_revision=41)
    ),
    "a refusal with interlocks": _receipt(
        "output",
        "effects",
        status="rejected",
        error=_refused("MHS.SAFETY.INTERLOCK_OPEN", interlocks=[{"id": "door_closed", "state": "open"}]),
    ),
    "a failure": _receipt(
        "output",
        status="failed",
        error=_refused("MHS.DEVICE.FAULT", details={"native_code": "SIM_FAULT"}),
    ),
    "an interim unknown": _receipt(
        "output", status="unknown", operation_id=OPERATION, error=_refused("MHS.OUTCOME.TIMEOUT")
    ),
    "a running snapshot": _receipt("output", "evidence", status="running", operation_id=OPERATION),
    "a cancellation": _receipt(
        "output",
        status="cancelled",
        cancellation={
            "requested_at": "2026-10-20T07:46:59.000Z",
            "requested_by": "endpoint:estop",
            "reason": "estop",
            "safe_state_achieved": True,
        },
    ),
    "a cancellation by max_duration": _receipt(
        "output",
        status="cancelled",
        error=_refused("MHS.OUTCOME.TIMEOUT", details={"reason": "max_duration_exceeded"}),
        cancellation={
            "requested_at": "2026-10-20T07:46:59Z",
            "requested_by": "endpoint:max_duration",
            "safe_state_achieved": False,
        },
    ),
    "an e-stop without a session, not on disk yet": _receipt(
        session_id=None, capability_id="cap.internal.safety_estop.v1", evidence={"pending": True}
    ),
    "vendor data, approvals, artifacts and redaction": _receipt(
        **{"x-vendor": {"reconciles": "01J8ZQ3W1B7M2N4P6R8S0T2V4Z", "estop": {"devices": []}}},
        approvals=[
            {"principal": {"id": "human:ana", "kind": "human"}, "approved_at": "2026-10-20T07:00:00Z"}
        ],
        artifacts=[{"uri": f"mhs+artifact://{ZEROS}", "digest": ZEROS, "size_bytes": 12}],
        redacted_fields=["/output/serial"],
    ),
}


@pytest.mark.parametrize("name", GOOD_RECEIPTS)
def test_a_receipt_that_tells_what_happened_is_valid(
    name: str, receipt_judge: Callable[[Any], list[bool]]
) -> None:
    assert receipt_judge(GOOD_RECEIPTS[name]) == [True, True]


_EFFECT = RECEIPT["effects"][0]
BAD_RECEIPTS: dict[str, Any] = {
    "no object": [],
    "an unknown member": _receipt(note="hello"),
    "a vendor member under another name": _receipt(**{"x-other": {}}),
    "x-vendor that is no object": _receipt(**{"x-vendor": "text"}),
    "completed without output": _receipt("output"),
    "completed with an error": _receipt(error=_refused("MHS.DEVICE.FAULT")),
    "rejected without an error": _receipt("output", "effects", status="rejected"),
    "rejected with an effect": _receipt(status="rejected", error=_refused("MHS.DEVICE.BUSY")),
    "failed without an error": _receipt(status="failed"),
    "cancelled without a cancellation": _receipt(status="cancelled"),
    "cancelled without saying whether it is safe": _receipt(
        status="cancelled", cancellation={"requested_at": "2026-10-20T07:46:59Z", "requested_by": "agent:a"}
    ),
    "unknown without an error": _receipt(status="unknown"),
    "unknown with another code": _receipt(status="unknown", error=_refused("MHS.DEVICE.FAULT")),
    "running without an operation": _receipt("evidence", status="running"),
    "accepted without an operation": _receipt("evidence", status="accepted"),
    "running with evidence": _receipt(status="running", operation_id=OPERATION),
    "completed with an id that is no capability id": _receipt(capability_id="Banana!"),
    "an unknown status": _receipt(status="done"),
    "an unknown mode": _receipt(mode="real"),
    "a lower-case ULID": _receipt(receipt_id=RECEIPT["receipt_id"].lower()),
    "a ULID with a letter that is none of its alphabet": _receipt(command_id="01J8ZQ3V6Y7M2N4P6R8S0T2V4U"),
    "a ULID beyond 128 bits": _receipt(command_id="81J8ZQ3V6Y7M2N4P6R8S0T2V4Y"),
    "a session id of another kind": _receipt(session_id="session-1"),
    "an empty session id": _receipt(session_id=""),
    "a truncated operation id": _receipt(operation_id="op_01J8ZQ3V6Y"),
    "a digest without its prefix": _receipt(input_digest="0" * 64),
    "an upper-case digest": _receipt(input_digest="sha256:" + "A" * 64),
    "a local time": _receipt(accepted_at="2026-10-20T07:46:58.900+02:00"),
    "a date only": _receipt(accepted_at="2026-10-20"),
    "a negative revision": _receipt(state_revision_before=-1),
    "a revision that is a boolean": _receipt(state_revision_before=True),
    "a revision that is no integer": _receipt(state_revision_before=1.5),
    "a revision beyond exact integers": _receipt(state_revision_before=2**53),
    "an output that is no object": _receipt(output=[1]),
    "replayed that is a number": _receipt(replayed=0),
    "an irreversible effect without its reason": _receipt(
        effects=[{key: value for key, value in _EFFECT.items() if key != "irreversible_reason"}]
    ),
    "an effect without a severity": _receipt(
        effects=[{"kind": "valve.set", "summary": "valve opened", "reversible": True}]
    ),
    "an effect with an unknown member": _receipt(effects=[{**_EFFECT, "note": ""}]),
    "an unknown severity": _receipt(effects=[{**_EFFECT, "severity": "R9"}]),
    "progress beyond 100 %": _receipt(progress={"percent": 101}),
    "progress without a percentage": _receipt(progress={"ticks": 1}),
    "half an evidence": _receipt(evidence={"seq": 1}),
    "evidence that is not pending": _receipt(evidence={"pending": False}),
    "evidence from seq 0": _receipt(evidence={"seq": 0, "prev_digest": ZEROS, "digest": ZEROS}),
    "an error without data": _receipt(
        status="failed",
        error={k: v for k, v in _refused("MHS.DEVICE.FAULT").items() if k != "data"},
    ),
    "an error without retryable": _receipt(
        status="failed",
        error={k: v for k, v in _refused("MHS.DEVICE.FAULT").items() if k != "retryable"},
    ),
    "an error with an unknown member": _receipt(
        status="failed", error={**_refused("MHS.DEVICE.FAULT"), "traceback": "..."}
    ),
    "a principal of an unknown kind": _receipt(principal={"id": "x", "kind": "robot"}),
    **{f"no {name}": _receipt(name) for name in schema_document("receipt")["required"]},
}


@pytest.mark.parametrize("name", BAD_RECEIPTS)
def test_a_receipt_that_leaves_out_or_invents_something_is_invalid(
    name: str, receipt_judge: Callable[[Any], list[bool]]
) -> None:
    assert receipt_judge(BAD_RECEIPTS[name]) == [False, False]


NOTICE = {"certified": False, "notice": "MHS.SAFETY.NOT_CERTIFIED"}
SUMMARY = {
    "device_id": "mhs://localhost:7400/lab/conveyor-workcell",
    "instance_id": "01J8ZQ3V6Y7M2N4P6R8S0T2V4W",
    "display_name": "Deterministic conveyor workcell (simulated)",
    "mode": "simulated",
    "risk_class": "R1",
}
SERVER = {"name": "mhsd", "version": "0.1.0"}
ESTOP = {"engaged": False, "latching": True, "kind": "independent_link", "latency_ms": 50}
CONTEXT = {
    "risk_class": "R1",
    "estop": ESTOP,
    "interlocks": [{"id": "door_closed", "state": "closed"}],
    "permits": [],
}
NOW = "2026-10-20T07:45:00.000Z"
DOCUMENTS: dict[str, dict[str, Any]] = {
    "conformance-report": {
        "report_version": "1.0.0",
        "profile": "core",
        "subject": {"id": "mhs://localhost:7400", "kind": "endpoint", "implementation": SERVER},
        "mhs_version": "1.0",
        "spec_version": "0.9",
        "runner": SERVER,
        "created_at": NOW,
        "level_requested": "CL2",
        "level_achieved": "CL1",
        "coverage": {"total": 2, "passed": 1, "failed": 1, "warned": 0, "skipped": 0},
        "tests": [
            {"id": "PROTO-001", "level": "CL1", "verdict": "pass"},
            {"id": "OP-003", "level": "CL2", "verdict": "fail", "detail": "the replay ran again"},
        ],
        "capping": ["OP-003"],
        "disclaimers": ["not_certified", "self_issued"],
        "digest": "sha256:" + "0" * 64,
    },
    "error": Fault("MHS.CONFLICT.REVISION", "stale", current_revision=3).data(),
    "server-info": {
        "server": SERVER,
        "implementation": SERVER,
        "spec_version": "0.9",
        "mhs_version": "1.0",
        "protocol_versions": ["1.0"],
        "endpoint_id": "mhs://localhost:7400",
        "devices": [SUMMARY],
        "limits": {
            "max_request_bytes": 1048576,
            "max_batch": 64,
            "max_subscriptions": 64,
            "max_rate_per_s": 50,
            "session_max_ttl_s": 86400,
            "receipt_retention_days": 30,
            "max_receipt_retention_s": 2592000,
            "receipt_store": "memory",
            "max_command_deadline_ms": 600000,
        },
        "time": {"now": NOW, "mono_ms": 102334},
        "started_at": NOW,
        "conformance": [],
        "features": ["MHS.SAFETY.NOT_CERTIFIED", "batch", "http"],
        "safety": NOTICE,
    },
    "session-grant": {
        "session_id": "mhs_s_01J8ZQ3V6Y",
        "granted": [
            {"device_id": SUMMARY["device_id"], "capability_id": "cap.world.step.v1", "resource": "world"}
        ],
        "expires_at": NOW,
        "safety_context": CONTEXT,
        "mode": "simulated",
        "limits": {"max_open_operations": 8, "max_subscriptions": 64, "max_rate_per_s": 50},
    },
    "session-extension": {"expires_at": NOW, "safety_context": CONTEXT},
    "session-summary": {
        "closed_at": NOW,
        "summary": {
            "commands": 3,
            "completed": 1,
            "rejected": 1,
            "failed": 0,
            "cancelled": 0,
            "receipts_head": ZEROS,
            "cancellation_pending": True,
            "operation_ids": [OPERATION],
        },
    },
    "state-document": {"revision": 0, "state": {"tick": 0}, "state_hash": ZEROS, "sampled_at": NOW},
    "snapshot": {
        "device_id": RECEIPT["device_id"],
        "instance_id": OPERATION.removeprefix("op_"),
        "mode": "simulated",
        "fidelity_digest": ZEROS,
        "revision": 77,
        "state_hash": ZEROS,
        "snapshot": {"world": {"tick": 77}},
        "state": {"world": {"tick": 77}},
        "snapshot_digest": ZEROS,
        "created_at": NOW,
    },
    "event": {
        "subscription_id": "sub_01J8ZQ3W0A7M2N4P6R8S0T2V4Z",
        "seq": 1042,
        "ts": NOW,
        "stream": "state",
        "device_id": RECEIPT["device_id"],
        "resource_id": "world",
        "revision": 77,
        "state_hash": ZEROS,
        "payload": {"tick": 77, "door": "closed", "estop": "released"},
    },
    "subscription-grant": {
        "subscription_id": "sub_01J8ZQ3W0A7M2N4P6R8S0T2V4Z",
        "seq_start": 1,
        "streams": [{"stream": "state", "device_id": RECEIPT["device_id"], "resource_id": "world"}],
        "expires_at": NOW,
    },
    "subscription-end": {"seq_end": 12, "delivered": 10, "dropped": 2},
    "operation-list": {
        "operations": [
            {
                "operation_id": OPERATION,
                "device_id": RECEIPT["device_id"],
                "capability_id": "cap.motion.convey.v1",
                "state": "running",
                "progress": {"percent": 40, "ticks": 4, "message": "40 of 100 mm"},
                "accepted_at": NOW,
            }
        ],
        "truncation": {"reason": "limit", "shown": 1},
    },
    "schema-result": {
        "schema": {},
        "digest": ZEROS,
        "ref": "receipt.schema.json",
        "media_type": "application/schema+json",
    },
    "safety-status": {**CONTEXT, "safe_state": {"description": "belt stopped", "achieved_by": ["stop"]}},
    "permit": {
        "permit_id": "permit_01J8ZQ3W1B7M2N4P6R8S0T2V4Z",
        "scope": {
            "device_id": SUMMARY["device_id"],
            "capability_id": "cap.actuation.purge.v1",
            "resource": "valve",
            "input_digest": ZEROS,
            "principal": "agent:a",
        },
        "expires_at": NOW,
        "single_use": True,
    },
    "evidence-bundle": {
        "bundle_version": "1.0.0",
        "endpoint_info": {
            "endpoint_id": "mhs://localhost:7400",
            "mhs_version": "1.0",
            "server": SERVER,
            "genesis": {"endpoint_id": "mhs://localhost:7400", "created_at": NOW, "mhs_version": "1.0"},
            "genesis_digest": ZEROS,
        },
        "created_at": NOW,
        "receipts": [RECEIPT],
        "head_digest": ZEROS,
        "telemetry": [],
        "truncation": {"reason": "page_limit", "next_since_receipt": RECEIPT["receipt_id"], "remaining": 7},
        "signature": None,
    },
    "verification-report": {
        "valid": False,
        "checked": 2,
        "head_digest": ZEROS,
        "errors": [{"seq": 2, "mhs_code": "MHS.EVIDENCE.CHAIN_BROKEN", "detail": "digest differs"}],
        "from_seq": 1,
        "contiguous": True,
        "signature": {
            "state": "invalid",
            "detail": "the signature is not of that key",
            "seq": 2,
            "public_key": "A" * 43 + "=",
            "unsigned_receipts": 2,
            "checkpoint": "none",
        },
    },
    "endpoint-descriptor": {
        "descriptor_version": "1.0.0",
        "endpoint_id": "mhs://localhost:7400",
        "mhs_version": "1.0",
        "protocol_versions": ["1.0"],
        "spec_version": "0.9",
        "server": SERVER,
        "implementation": SERVER,
        "transports": {
            "http": {
                "url": "http://127.0.0.1:7400",
                "rpc": "http://127.0.0.1:7400/mhs/v1/rpc",
                "schema": "http://127.0.0.1:7400/mhs/v1/schema/{ref}",
            }
        },
        "auth": ["bearer"],
        "devices": [SUMMARY],
        "features": ["MHS.SAFETY.NOT_CERTIFIED", "http"],
        "safety": NOTICE,
    },
    "endpoints": {
        "endpoints": [
            {"name": "bench", "url": "http://127.0.0.1:7400", "token_file": "bench.token"},
            {"url": "mhs://lab-pc"},
            {"url": "stdio:mhsd --stdio conveyor-workcell", "cwd": "."},
        ]
    },
    "registry": {
        "entries": [
            {
                "name": "stage",
                "kind": "driver",
                "summary": "XY stage",
                "target": "./stage",
                "tags": ["motion"],
            },
            {
                "name": "psu-2",
                "kind": "device",
                "endpoint": "bench",
                "device": "/bench/psu",
                "risk_class": "R2",
            },
        ]
    },
    "ledger": {
        "ledger_version": "1.0.0",
        "script": "sweep.py",
        "script_digest": ZEROS,
        "client": "mhsd 0.1.0",
        "started_at": "2026-10-20T07:46:58.900Z",
        "endpoint_id": "mhs://localhost:7400",
        "ended_at": None,
        "outcome": None,
        "exit_code": None,
        "receipts": [
            {
                "n": 1,
                "receipt_id": RECEIPT["receipt_id"],
                "command_id": RECEIPT["command_id"],
                "status": "running",
                "seq": None,
                "digest": None,
                "link": ZEROS,
            }
        ],
        "chain_digest": ZEROS,
    },
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_document_of_a_schema_is_valid_and_every_required_member_is_missed(name: str) -> None:
    judge = _both(name)
    document = DOCUMENTS[name]
    assert judge(document) == [True, True]
    assert judge({**document, "surprise": 1}) == [False, False]
    for member in schema_document(name)["required"]:
        assert judge({k: v for k, v in document.items() if k != member}) == [False, False], member


def test_every_schema_but_the_device_documents_has_an_example_here() -> None:
    elsewhere = {"defs", "device", "capability", "device-list", "receipt"}
    assert {name.removesuffix(".schema.json") for name in schema_names()} - elsewhere == set(DOCUMENTS)


def test_hello_without_the_safety_notice_is_invalid() -> None:
    judge = _both("server-info")
    hello = DOCUMENTS["server-info"]
    assert judge({**hello, "features": ["batch"]}) == [False, False]
    assert judge({**hello, "safety": {"certified": True, "notice": NOTICE["notice"]}}) == [False, False]


def test_a_bundle_takes_no_receipt_outside_the_chain() -> None:
    judge = _both("evidence-bundle")
    bundle = DOCUMENTS["evidence-bundle"]
    for receipt in (_receipt("evidence"), _receipt(evidence={"pending": True}), _receipt("output")):
        assert judge({**bundle, "receipts": [receipt]}) == [False, False]


@pytest.mark.parametrize(
    "url", ["", "stdio:", "ftp://host", "http://", "mhs://", "lab-pc:7400", "HTTP://127.0.0.1:7400"]
)
def test_an_endpoints_file_takes_only_the_forms_that_discovery_knows(url: str) -> None:
    assert _both("endpoints")({"endpoints": [{"url": url}]}) == [False, False]


def test_a_pending_cancellation_names_its_operations() -> None:
    judge = _both("session-summary")
    summary = DOCUMENTS["session-summary"]
    counts = {k: v for k, v in summary["summary"].items() if k != "operation_ids"}
    assert judge({**summary, "summary": counts}) == [False, False]
    assert judge({**summary, "summary": {**counts, "cancellation_pending": False}}) == [True, True]


@pytest.mark.parametrize(
    ("capability_id", "accepted"),
    [
        ("cap.world.step.v1", True),
        ("x-cap.sim.door.v12", True),
        ("cap.internal.safety_estop.v1", True),
        ("cap.v1", False),
        ("cap.world.step", False),
        ("cap.world.step.v0", False),
        ("cap.World.step.v1", False),
        ("cap..v1", False),
        ("other.world.step.v1", False),
        ("cap.world.step.v1 ", False),
    ],
)
def test_capability_ids_follow_one_pattern(
    capability_id: str, accepted: bool, receipt_judge: Callable[[Any], list[bool]]
) -> None:
    assert receipt_judge(_receipt(capability_id=capability_id)) == [accepted, accepted]
