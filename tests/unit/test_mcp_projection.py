"""Bindings become tools without loss, none shares a name, and the policy withholds what it says [TPT-033]."""

import copy
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from mhsd.base.errors import Fault, StartError
from mhsd.mcp.controls import CONTROL_PROPERTIES
from mhsd.mcp.fixed import FIXED
from mhsd.mcp.policy import Policy
from mhsd.mcp.projection import project
from mhsd.mcp.session import VERSIONS
from mhsd.mcp.tools import default_deadline_ms, projected_schema
from tests.unit.mcp_fixtures import CONVEYOR, ENDPOINT, NAMED, classes, manifest_of, projection_of

CAPABILITIES = [
    "world_step",
    "actuation_valve",
    "actuation_purge",
    "motion_convey",
    "device_configure",
    "sim_door",
    "sim_fault",
    "device_describe",
]


def binding_of(manifest: dict[str, Any], capability_id: str) -> dict[str, Any]:
    found: dict[str, Any] = next(b for b in manifest["bindings"] if b["capability_id"] == capability_id)
    return found


def hardware(mode: str = "hardware") -> dict[str, Any]:
    return {**manifest_of(), "mode": mode}


def test_every_binding_is_a_tool_beside_the_fixed_ones() -> None:
    """[TPT-030, TPT-031, TPT-044]"""
    names = [tool["name"] for tool in projection_of().listed("2025-11-25")]
    assert names == [
        "mhs__devices",
        "mhs__inspect",
        "mhs__read",
        "mhs__safety",
        "mhs__operations",
        "mhs__evidence",
        "mhs__estop",
        *(f"{NAMED}{name}" for name in CAPABILITIES),
    ]


def test_the_same_devices_give_the_same_tools() -> None:
    """[TPT-032]"""
    restarted = {**manifest_of(), "instance_id": "01ARYZ6S41000G40R40M30E209"}
    assert projection_of().listed("2025-11-25") == projection_of(restarted).listed("2025-11-25")


def test_a_tool_stands_for_device_capability_and_resource() -> None:
    """[TPT-036]"""
    tool = projection_of().tools[f"{NAMED}motion_convey"]
    assert (tool.device_id, tool.capability_id, tool.resource) == (CONVEYOR, "cap.motion.convey.v1", "belt")


def test_internal_classes_are_never_projected() -> None:
    """[TPT-031]"""
    manifest = manifest_of()
    manifest["bindings"].append(
        {**binding_of(manifest, "cap.world.step.v1"), "capability_id": "cap.internal.restore.v1"}
    )
    assert projection_of(manifest).tools.keys() == projection_of().tools.keys()


@pytest.mark.parametrize(
    ("one", "other"), [("/lab/psu-1", "/lab/psu_1"), ("/x/lab/psu", "/y/lab/psu"), ("/Lab/psu", "/lab/psu")]
)
def test_two_devices_of_one_slug_end_the_start(one: str, other: str) -> None:
    """[TPT-032]"""
    with pytest.raises(StartError) as caught:
        projection_of(manifest_of(path=one), manifest_of(path=other))
    assert caught.value.exit_code == 1
    assert f"{ENDPOINT}{one}" in caught.value.message
    assert f"{ENDPOINT}{other}" in caught.value.message


@pytest.mark.parametrize(
    ("capability_id", "resource"), [("cap.world.step.v2", "world"), ("cap.world.step.v1", "belt")]
)
def test_two_bindings_of_one_name_end_the_start(capability_id: str, resource: str) -> None:
    """[TPT-032]"""
    manifest = manifest_of()
    twin = {
        **binding_of(manifest, "cap.world.step.v1"),
        "capability_id": capability_id,
        "resource": resource,
    }
    manifest["bindings"].append(twin)
    with pytest.raises(StartError, match=f"{NAMED}world_step: .*, and {capability_id} on {resource} of"):
        projection_of(manifest)


def test_what_the_policy_leaves_out_collides_with_nothing() -> None:
    one, other = manifest_of(path="/lab/psu-1"), manifest_of(path="/lab/psu_1")
    projection = projection_of(one, other, policy=Policy(devices=("/lab/psu_1",)))
    assert list(projection.manifests) == [other["device_id"]]


def test_the_input_schema_is_the_bindings_and_five_optional_controls() -> None:
    """[TPT-033]"""
    manifest = manifest_of()
    for tool in projection_of(manifest).tools.values():
        own = binding_of(manifest, tool.capability_id)["input_schema"]
        shown = copy.deepcopy(dict(tool.shown("2025-11-25")["inputSchema"]))
        controls = {name: shown["properties"].pop(name) for name in CONTROL_PROPERTIES}
        assert shown == own
        assert controls.keys() == {
            "session_id",
            "command_id",
            "expected_revision",
            "permit_id",
            "deadline_ms",
        }
        assert not set(controls) & set(own.get("required", []))


@pytest.mark.parametrize("dialect", [Draft7Validator, Draft202012Validator])
def test_a_projected_schema_holds_for_other_validators(dialect: Any) -> None:
    for tool in projection_of().listed("2025-11-25"):
        dialect.check_schema(tool["inputSchema"])
    schema = projection_of().tools[f"{NAMED}motion_convey"].shown("2025-11-25")["inputSchema"]
    good = {"distance_mm": 5, "speed_mm_s": 600, "deadline_ms": 10}
    assert dialect(schema).is_valid(good)
    assert not dialect(schema).is_valid({**good, "colour": 1})
    assert not dialect(schema).is_valid({"distance_mm": 5})


@pytest.mark.parametrize(
    ("property_schema", "names_the_dialect"),
    [
        ({"type": "array", "items": [{"type": "string"}], "additionalItems": False}, True),
        ({"type": "object", "dependencies": {"a": ["b"]}}, True),
        ({"type": "array", "items": {"type": "string"}}, False),
    ],
)
def test_a_schema_that_2020_12_reads_differently_says_its_dialect(
    property_schema: dict[str, Any], names_the_dialect: bool
) -> None:
    """[TPT-033]"""
    shown = projected_schema({"type": "object", "properties": {"a": property_schema}})
    assert ("$schema" in shown) is names_the_dialect
    assert shown["properties"]["a"] == property_schema


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object", "properties": {"deadline_ms": {"type": "string"}}}, "its input has deadline_ms"),
        ({"type": "array"}, "its input is no object"),
        (None, "its input is no object"),
        ({"type": "object", "minimun": 3}, "its input schema cannot be checked"),
        (
            {"type": "object", "properties": {"a": {"$ref": "other.json"}}},
            "its input schema cannot be checked",
        ),
    ],
)
def test_an_input_that_cannot_be_a_tools_ends_the_start(schema: Any, reason: str) -> None:
    """[TPT-033]"""
    manifest = manifest_of()
    binding_of(manifest, "cap.world.step.v1")["input_schema"] = schema
    with pytest.raises(StartError, match=f"cap.world.step.v1 of {CONVEYOR} cannot be an MCP tool: {reason}"):
        projection_of(manifest)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"mode": None}, "/mode must be of type string"),
        ({"bindings": [{"capability_id": "cap.x.v1"}]}, "/bindings/0 must have the member resource"),
        (
            {"bindings": [{"capability_id": "cap.x.v1", "resource": "r", "effects": {}}]},
            "/bindings/0/effects",
        ),
        ({"resources": [{"kind": "x"}]}, "/resources/0 must have the member resource_id"),
    ],
)
def test_a_manifest_that_is_none_is_named(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(StartError, match=f"the manifest of {CONVEYOR} cannot be projected: {problem}"):
        projection_of({**manifest_of(), **change})


def test_a_capability_that_gives_no_name_ends_the_start() -> None:
    manifest = manifest_of()
    binding_of(manifest, "cap.world.step.v1")["capability_id"] = "cap.größe.v1"
    with pytest.raises(StartError, match="no tool name may have"):
        projection_of(manifest)


def test_a_description_tells_the_physical_meaning_and_what_holds() -> None:
    """[TPT-034, CAP-009]"""
    text = projection_of().tools[f"{NAMED}motion_convey"].listing.description
    for words in (
        "Moves a conveyor forward by a distance at a speed.",
        "Mode: simulated.",
        "Risk: R1",
        "Determinism: exact.",
        "Units: distance_mm in mm; speed_mm_s in mm/s; position_mm in mm (output).",
        "speed_mm_s at most 500 mm/s",
        "Interlock: door_closed must be closed (The guard door of the cell is closed).",
        "Takes long",
        "after 120000 ms",
        "cannot be undone: the belt does not run backwards",
        "Safe state: Belt stopped, valve closed.",
        "Fidelity gaps: no fluid dynamics",
        "Simulation only, not hardware.",
    ):
        assert words in text


def test_every_description_has_what_a_person_must_know() -> None:
    """[TPT-034]"""
    for tool in projection_of().tools.values():
        for label in ("Mode: ", "Risk: R", "Determinism: ", "Units: ", "Fidelity gaps: ", "Safe state: "):
            assert label in tool.listing.description


def test_a_permit_and_a_site_limit_are_told() -> None:
    manifest = manifest_of()
    convey = binding_of(manifest, "cap.motion.convey.v1")
    convey["x-mhs-effective-limits"] = {
        "speed_mm_s": {"min": 5, "min_source": "site", "max": 90, "max_source": "site", "unit": "mm/s"}
    }
    convey["permit"] = "required"
    convey["constraints"]["max_rate_per_s"] = 2
    text = projection_of(manifest).tools[f"{NAMED}motion_convey"].listing.description
    assert "speed_mm_s 5 to 90 mm/s" in text
    assert "Permit: needs a permit_id" in text
    assert "At most 2 times a second." in text


def test_units_inside_of_objects_and_lists_are_named_by_their_place() -> None:
    manifest = manifest_of()
    speed = {"type": "number", "x-mhs-unit": "mm/s"}
    binding_of(manifest, "cap.world.step.v1")["input_schema"] = {
        "type": "object",
        "properties": {
            "steps": {"type": "array", "items": {"type": "object", "properties": {"speed": speed}}},
            "ratio": {"type": "number", "x-mhs-unit": "1"},
        },
    }
    text = projection_of(manifest).tools[f"{NAMED}world_step"].listing.description
    assert "Units: steps[].speed in mm/s; ratio in 1 (no unit); tick in {tick} (output)." in text


def test_what_measures_tells_the_units_of_its_answer() -> None:
    """[TPT-034]"""
    manifest = manifest_of("scpi-psu")
    text = projection_of(manifest).tools["mhs__bench_psu__measure_sample"].listing.description
    assert "Units: voltage_v in V (output); current_a in A (output)." in text


def test_a_class_that_nobody_serves_is_described_by_its_effects() -> None:
    projection = project([manifest_of()], endpoint_id=ENDPOINT, policy=Policy())
    listing = projection.tools[f"{NAMED}actuation_valve"].listing
    assert listing.description.startswith("cap.actuation.valve.v1: the valve opens or closes.")
    assert listing.title == "cap.actuation.valve.v1 - Conveyor workcell"


def test_hardware_is_not_called_a_simulation() -> None:
    policy = Policy(allow_hardware=True)
    text = projection_of(hardware(), policy=policy).tools[f"{NAMED}world_step"].listing.description
    assert "Mode: hardware." in text
    assert "Simulation only" not in text


@pytest.mark.parametrize(
    ("name", "risk_class"),
    [("world_step", "R0"), ("actuation_valve", "R1"), ("actuation_purge", "R2"), ("device_describe", "R0")],
)
def test_programs_can_read_risk_and_mode(name: str, risk_class: str) -> None:
    """[TPT-035]"""
    x_mhs = projection_of().tools[f"{NAMED}{name}"].shown("2025-11-25")["x-mhs"]
    assert x_mhs["risk_class"] == risk_class
    assert x_mhs["mode"] == "simulated"
    assert x_mhs["device_id"] == CONVEYOR
    assert x_mhs["capability_id"].endswith(f"{name.replace('_', '.')}.v1")


@pytest.mark.parametrize("revision", VERSIONS)
def test_a_revision_is_told_only_what_it_knows(revision: str) -> None:
    """[TPT-035, TPT-045]"""
    for tool in projection_of().listed(revision):
        is_capability = tool["name"] not in FIXED
        assert ("annotations" in tool) == (revision >= "2025-03-26")
        assert ("title" in tool) == (revision >= "2025-06-18")
        assert ("_meta" in tool) == (is_capability and revision >= "2025-06-18")
        assert ("x-mhs" in tool) == is_capability
        if "_meta" in tool:
            assert tool["_meta"] == {"x-mhs": tool["x-mhs"]}


@pytest.mark.parametrize(
    ("name", "read_only", "destructive"),
    [
        ("device_describe", True, False),
        ("actuation_valve", False, False),
        ("motion_convey", False, True),
        ("sim_fault", False, False),
    ],
)
def test_annotations_follow_the_effects(name: str, read_only: bool, destructive: bool) -> None:
    hints = projection_of().tools[f"{NAMED}{name}"].shown("2025-11-25")["annotations"]
    assert (hints["readOnlyHint"], hints["destructiveHint"]) == (read_only, destructive)


@pytest.mark.parametrize(
    ("long_running", "max_duration_ms", "most_ms", "expected_ms"),
    [
        (True, 120_000, 600_000, 25_000),
        (True, 120_000, 10_000, 10_000),
        (False, 5_000, 600_000, 7_000),
        (False, 599_000, 600_000, 600_000),
        (False, None, 600_000, 25_000),
    ],
)
def test_a_call_without_a_deadline_has_a_finite_one(
    long_running: bool, max_duration_ms: int | None, most_ms: int, expected_ms: int
) -> None:
    """[TPT-042, MHSD-9a-84]"""
    assert default_deadline_ms(long_running, max_duration_ms, most_ms) == expected_ms


def test_a_read_only_projection_offers_only_what_reads() -> None:
    """[TPT-046]"""
    projection = projection_of(policy=Policy(read_only=True))
    assert list(projection.tools) == [f"{NAMED}device_describe"]
    assert "mhs__estop" in [tool["name"] for tool in projection.listed("2025-11-25")]
    refusal = projection.refusal(f"{NAMED}actuation_valve")
    assert refusal is not None
    assert refusal.mhs_code == "MHS.AUTH.FORBIDDEN"
    assert "read_only=true" in refusal.message


@pytest.mark.parametrize("mode", ["hardware", "hybrid"])
def test_hardware_has_no_tools_without_the_policy(mode: str) -> None:
    """[CORE-130]"""
    projection = projection_of(hardware(mode))
    assert projection.tools == {}
    refusal, reading = projection.refusal(f"{NAMED}world_step"), projection.reading_refusal(CONVEYOR)
    assert refusal is not None
    assert reading is not None
    assert refusal.mhs_code == reading.mhs_code == "MHS.AUTH.HARDWARE_DISABLED"
    assert "allow_hardware=false" in refusal.message
    allowed = projection_of(hardware(mode), policy=Policy(allow_hardware=True))
    assert len(allowed.tools) == len(CAPABILITIES)
    assert allowed.refusal(f"{NAMED}world_step") is None
    assert allowed.reading_refusal(CONVEYOR) is None


def test_only_capabilities_on_the_list_are_offered() -> None:
    """[TPT-046]"""
    projection = projection_of(policy=Policy(capabilities=("cap.actuation.*",)))
    assert list(projection.tools) == [f"{NAMED}actuation_valve", f"{NAMED}actuation_purge"]
    refusal = projection.refusal(f"{NAMED}world_step")
    assert refusal is not None
    assert refusal.mhs_code == "MHS.AUTH.FORBIDDEN"


def test_a_tool_that_nobody_has_is_not_refused_but_unknown() -> None:
    projection = projection_of()
    assert projection.refusal("mhs__nothing") is None
    assert projection.refusal(f"{NAMED}world_step") is None
    assert "mhs__nothing" not in projection.tools


def test_devices_are_listed_with_their_tools() -> None:
    """[TPT-044]"""
    assert projection_of().devices() == {
        "devices": [
            {
                "device_id": CONVEYOR,
                "display_name": "Deterministic conveyor workcell (simulated)",
                "mode": "simulated",
                "risk_class": "R1",
                "resources": ["world", "belt", "valve"],
                "tools": [f"{NAMED}{name}" for name in CAPABILITIES],
            }
        ]
    }


def test_an_inspected_device_has_its_reference_and_limits() -> None:
    """[TPT-044]"""
    manifest = manifest_of()
    shown = projection_of(manifest).inspected(manifest)
    reference = shown.pop("x-mhs-reference")
    assert shown == manifest
    assert "x-mhs-effective-limits" in binding_of(shown, "cap.motion.convey.v1")
    for tool in projection_of(manifest).tools.values():
        assert tool.name in reference
    assert "`belt`: speed_mm_s in mm/s, position_mm in mm, running" in reference


def two() -> tuple[dict[str, Any], dict[str, Any]]:
    other = manifest_of("scpi-psu")
    other["resources"].append(manifest_of()["resources"][0])
    return manifest_of(), other


def test_the_only_device_needs_no_naming() -> None:
    """[TPT-044]"""
    assert projection_of().device_id(None) == CONVEYOR
    assert projection_of().device_id(CONVEYOR) == CONVEYOR


def test_of_several_devices_one_must_be_named() -> None:
    with pytest.raises(Fault) as caught:
        projection_of(*two()).device_id(None)
    assert caught.value.mhs_code == "MHS.PROTOCOL.INVALID_PARAMS"
    assert CONVEYOR in caught.value.message


def test_a_device_that_is_not_there_is_unknown() -> None:
    for asked in ("mhs://localhost:7400/lab/nothing", ""):
        with pytest.raises(Fault) as caught:
            projection_of().device_id(asked)
        assert caught.value.mhs_code == "MHS.DEVICE.UNKNOWN"


def test_a_resource_that_only_one_device_has_names_the_device() -> None:
    """[TPT-044]"""
    both = projection_of(*two())
    assert both.device_of("belt", None) == CONVEYOR
    assert both.device_of("world", CONVEYOR) == CONVEYOR
    third = manifest_of(path="/lab/third")
    third["resources"] = []
    with pytest.raises(Fault, match="several devices have world") as several:
        projection_of(*two(), third).device_of("world", None)
    assert CONVEYOR in several.value.message
    assert third["device_id"] not in several.value.message
    with pytest.raises(Fault) as unknown:
        both.device_of("nothing", None)
    assert unknown.value.mhs_code == "MHS.RESOURCE.UNKNOWN"
    assert "belt" in unknown.value.message


def test_every_class_of_the_catalogue_can_be_a_tool() -> None:
    manifest = manifest_of()
    resource = manifest["resources"][0]["resource_id"]
    manifest["bindings"] = [
        {"capability_id": capability_id, "resource": resource, "input_schema": document["input_schema"]}
        for capability_id, document in classes().items()
    ]
    assert len(projection_of(manifest).tools) == len(classes())
