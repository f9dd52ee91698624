"""Devices, manifests and schemas: what a client learns before it opens a session."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.behaviour.conftest import BENCH
from tests.documents import digest, schema, schema_names
from tests.lab import CONVEYOR, HttpWire, Lab, Session

SCHEMA_IDS = "https://mhs.openai4s.org/schema/0.9/"

CONVEYOR_BINDINGS = {
    ("cap.world.step.v1", "world"),
    ("cap.actuation.valve.v1", "valve"),
    ("cap.actuation.purge.v1", "valve"),
    ("cap.motion.convey.v1", "belt"),
    ("cap.device.configure.v1", "belt"),
    ("cap.device.describe.v1", "world"),
    ("x-cap.sim.door.v1", "world"),
    ("x-cap.sim.fault.v1", "world"),
}


def manifest_digest(manifest: dict[str, Any]) -> str:
    """The digest of a manifest as a client recomputes it."""
    left_out = ("digest", "instance_id")
    document = {name: value for name, value in manifest.items() if name not in left_out}
    document["resources"] = [
        {name: value for name, value in resource.items() if name != "state"}
        for resource in document["resources"]
    ]
    return digest(document)


# mhs.devices.list


def test_a_summary_has_what_a_client_chooses_by(lab: Lab) -> None:
    """[PROTO-020]"""
    (summary,) = lab.call("mhs.devices.list")["devices"]
    assert summary["device_id"] == CONVEYOR
    assert (summary["mode"], summary["risk_class"]) == ("simulated", "R1")
    assert summary["profile"].keys() == {"title", "tags"}
    assert summary["display_name"]
    assert summary == lab.call("mhs.devices.list", detail="summary")["devices"][0]


def test_every_device_stands_below_the_endpoint_and_is_served(pair: Lab) -> None:
    """[PROTO-020]"""
    endpoint_id = pair.hello()["endpoint_id"]
    devices = pair.call("mhs.devices.list")["devices"]
    assert [device["device_id"] for device in devices] == [CONVEYOR, BENCH]
    for device in devices:
        assert device["device_id"].startswith(f"{endpoint_id}/")
        assert pair.call("mhs.devices.get", device_id=device["device_id"])["device_id"] == device["device_id"]


def test_the_full_list_has_the_manifests_of_devices_get(pair: Lab) -> None:
    """[PROTO-020, PROTO-021]"""
    listed = pair.call("mhs.devices.list", detail="full")["devices"]
    got = [pair.call("mhs.devices.get", device_id=d["device_id"], include_state=False) for d in listed]
    assert listed == got


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, [CONVEYOR, BENCH]),
        ({"mode": "simulated"}, [CONVEYOR, BENCH]),
        ({"mode": "hardware"}, []),
        ({"risk_class": "R1"}, [CONVEYOR]),
        ({"risk_class": "R3"}, [BENCH]),
        ({"capability": "cap.motion.convey.v1"}, [CONVEYOR]),
        ({"capability": "cap.device.describe.v1"}, [CONVEYOR, BENCH]),
        ({"capability": "cap.motion.convey.v2"}, []),
        ({"tag": "reference"}, [CONVEYOR]),
        ({"tag": "test"}, [BENCH]),
        ({"tag": "ref"}, []),
        ({"risk_class": "R1", "tag": "test"}, []),
        ({"risk_class": "R3", "tag": "test", "mode": "simulated"}, [BENCH]),
    ],
    ids=str,
)
def test_a_filter_lists_what_matches_all_of_it(pair: Lab, wanted: dict[str, str], found: list[str]) -> None:
    """[PROTO-020]"""
    for detail in ("summary", "full"):
        devices = pair.call("mhs.devices.list", detail=detail, filter=wanted)["devices"]
        assert [device["device_id"] for device in devices] == found


@pytest.mark.parametrize("wanted", [{"mode": "real"}, {"risk_class": "R9"}, {"vendor": "x"}], ids=str)
def test_a_filter_that_cannot_match_anything_is_refused(lab: Lab, wanted: dict[str, str]) -> None:
    """[PROTO-020]"""
    refused = lab.refused("mhs.devices.list", filter=wanted)
    assert refused.code == "MHS.PROTOCOL.INVALID_PARAMS"
    assert refused.details["field"] == f"filter.{next(iter(wanted))}"


# mhs.devices.get


def test_a_manifest_lists_every_binding_of_the_device(lab: Lab) -> None:
    """[PROTO-021]"""
    manifest = lab.call("mhs.devices.get", device_id=CONVEYOR)
    bindings = {(each["capability_id"], each["resource"]) for each in manifest["bindings"]}
    assert bindings == CONVEYOR_BINDINGS
    assert manifest["mode"] == "simulated"
    assert manifest["fidelity"]["determinism"] == "exact"
    assert manifest["safety"]["interlocks"][0]["id"] == "door_closed"


def test_a_manifest_comes_with_the_states_unless_they_are_declined(lab: Lab, session: Session) -> None:
    """[PROTO-021]"""
    manifest = lab.call("mhs.devices.get", device_id=CONVEYOR)
    for resource in manifest["resources"]:
        assert resource["state"] == session.read(resource["resource_id"])["state"]
    assert manifest == lab.call("mhs.devices.get", device_id=CONVEYOR, include_state=True)
    without = lab.call("mhs.devices.get", device_id=CONVEYOR, include_state=False)
    assert all("state" not in resource for resource in without["resources"])
    assert without["digest"] == manifest["digest"]


@pytest.mark.parametrize("device_id", [CONVEYOR, BENCH])
def test_the_digest_of_a_manifest_recomputes(pair: Lab, device_id: str) -> None:
    """[PROTO-012, PROTO-021]"""
    manifest = pair.call("mhs.devices.get", device_id=device_id)
    assert manifest["digest"] == manifest_digest(manifest)


@pytest.mark.parametrize("device_id", [CONVEYOR, BENCH])
def test_describe_reports_the_digest_of_the_manifest(pair: Lab, device_id: str) -> None:
    """[PROTO-021]"""
    session = pair.open(device_id=device_id)
    described = session.completed("cap.device.describe.v1", {})
    assert described["output"] == {"digest": pair.call("mhs.devices.get", device_id=device_id)["digest"]}
    session.close()


@pytest.mark.parametrize(
    "device_id", ["mhs://localhost:7400/lab/other", "mhs://elsewhere:7400/lab/conveyor-workcell", "../x"]
)
def test_a_device_that_is_not_served_is_unknown(lab: Lab, device_id: str) -> None:
    """[PROTO-020]"""
    assert lab.refused("mhs.devices.get", device_id=device_id).code == "MHS.DEVICE.UNKNOWN"


# mhs.schema.get


@pytest.mark.parametrize("name", schema_names())
def test_a_shipped_schema_is_served_by_its_name_and_by_its_id(lab: Lab, name: str) -> None:
    """[PROTO-012, PROTO-022]"""
    by_name = lab.call("mhs.schema.get", ref=name)
    by_id = lab.call("mhs.schema.get", ref=SCHEMA_IDS + name)
    assert by_name["schema"] == by_id["schema"] == schema(name)
    assert by_name["digest"] == by_id["digest"] == digest(schema(name))
    assert (by_name["ref"], by_id["ref"]) == (name, SCHEMA_IDS + name)
    assert by_name["media_type"] == "application/schema+json"


@pytest.mark.parametrize("capability_id", sorted({capability_id for capability_id, _ in CONVEYOR_BINDINGS}))
def test_the_class_of_every_bound_capability_is_served(lab: Lab, capability_id: str) -> None:
    """[PROTO-014, PROTO-022]"""
    result = lab.call("mhs.schema.get", ref=capability_id)
    assert result["schema"]["capability_id"] == capability_id
    assert result["schema"]["input_schema"]["type"] == "object"
    assert result["schema"]["output_schema"]["type"] == "object"
    assert result["digest"] == digest(result["schema"])


def test_a_binding_has_the_schema_that_its_input_is_checked_against(lab: Lab, session: Session) -> None:
    """[PROTO-022, PROTO-027]"""
    where = {"device_id": CONVEYOR, "resource": "belt"}
    effective = lab.call("mhs.schema.get", ref="cap.motion.convey.v1", **where)["schema"]["input_schema"]
    manifest = lab.call("mhs.devices.get", device_id=CONVEYOR)
    bound = next(b for b in manifest["bindings"] if b["capability_id"] == "cap.motion.convey.v1")
    assert effective == bound["input_schema"]
    assert effective["properties"]["distance_mm"]["maximum"] == 100_000
    refused = session.command("cap.motion.convey.v1", {"distance_mm": 100_001, "speed_mm_s": 1})
    assert refused["error"]["details"]["errors"][0]["rule"] == "maximum"


def test_the_configure_binding_takes_the_writable_properties(lab: Lab) -> None:
    """[PROTO-022, PROTO-025a]"""
    where = {"device_id": CONVEYOR, "resource": "belt"}
    document = lab.call("mhs.schema.get", ref="cap.device.configure.v1", **where)["schema"]
    assert document["input_schema"]["properties"].keys() == {"speed_mm_s"}


REFUSED_REFS = [
    "no-such.schema.json",
    "../schemas/receipt.schema.json",
    "./receipt.schema.json",
    "/etc/passwd",
    "~/receipt.schema.json",
    "C:\\receipt.schema.json",
    "schemas/receipt.schema.json",
    "receipt.schema.json/../device.schema.json",
    "receipt.schema.json\x00",
    "%2e%2e/errors.toml",
    "file:///etc/passwd",
    "https://example.com/receipt.schema.json",
    f"{SCHEMA_IDS}../0.9/receipt.schema.json",
    f"{SCHEMA_IDS}receipt.schema.json#/definitions/error",
    "errors.toml",
    "manifest.toml",
    "",
    "x" * 600,
    "cap.internal.restore.v1",
    "cap.electrical.output.v1",
    "cap.motion.convey.v2",
    "x-cap.nobody.v1",
    "cap.*",
]


@pytest.mark.parametrize("ref", REFUSED_REFS, ids=lambda ref: repr(ref)[:40])
def test_a_reference_that_is_not_on_the_shelf_is_refused_by_name(lab: Lab, ref: str) -> None:
    """[PROTO-022]"""
    refused = lab.refused("mhs.schema.get", ref=ref)
    assert refused.code == "MHS.PROTOCOL.INVALID_PARAMS"
    assert refused.details["ref"] == ref


def test_a_class_is_served_only_where_the_device_binds_it(pair: Lab) -> None:
    """[PROTO-022]"""
    ref = "cap.electrical.output.v1"
    assert pair.call("mhs.schema.get", ref=ref, device_id=BENCH, resource="left")["schema"]
    assert pair.refused("mhs.schema.get", ref=ref, device_id=CONVEYOR).details["ref"] == ref
    assert pair.refused("mhs.schema.get", ref=ref, device_id=BENCH, resource="axis").details["ref"] == ref
    assert pair.refused("mhs.schema.get", ref=ref, device_id=BENCH + "/x").code == "MHS.DEVICE.UNKNOWN"


def test_over_http_a_schema_is_a_document_with_its_digest_as_etag(shared: Callable[[str], Lab]) -> None:
    """[PROTO-022, TPT-012]"""
    wire = shared("http").wire
    assert isinstance(wire, HttpWire)
    status, headers, body = wire.get("/mhs/v1/schema/receipt.schema.json")
    assert (status, headers["Content-Type"]) == (200, "application/schema+json")
    assert digest(schema("receipt.schema.json")) in headers["ETag"]
    assert body
    assert wire.get("/mhs/v1/schema/..%2ferrors.toml")[0] in (400, 404)
