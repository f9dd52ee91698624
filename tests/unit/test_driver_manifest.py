"""Manifests: what is accepted, what is filled in, and that every refusal names the key and what is allowed."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from jsonschema import Draft7Validator
from referencing import Registry
from referencing.jsonschema import DRAFT7

from mhsd.base.resources import SCHEMA_BASE, drivers_dir, read_toml, schema_document, schema_names
from mhsd.driver.building import build_manifest
from mhsd.driver.checks import Invalid
from mhsd.driver.classes import CapabilityClass, directory_classes, read_class, spec_classes
from mhsd.driver.manifest import Limit, Manifest

CONVEYOR = drivers_dir() / "conveyor_workcell"
Document = dict[str, Any]


def classes() -> dict[str, CapabilityClass]:
    return {**spec_classes(), **directory_classes(CONVEYOR)}


def source() -> Document:
    return copy.deepcopy(read_toml(CONVEYOR / "manifest.toml"))


def build(document: Document, **given: Any) -> Manifest:
    return build_manifest(document, **{"backend": "fake", "classes": classes(), **given})


def binding_of(document: Document, capability_id: str) -> Document:
    found: Document = next(each for each in document["bindings"] if each["capability_id"] == capability_id)
    return found


def test_the_conveyor_binds_what_its_table_says() -> None:
    manifest = build(source())
    table = {
        (each.capability_id, each.resource): (
            each.actuating,
            each.permit,
            each.long_running,
            each.max_duration_ms,
        )
        for each in manifest.bindings
    }
    assert table == {
        ("cap.world.step.v1", "world"): (True, "none", False, 10000),
        ("cap.actuation.valve.v1", "valve"): (True, "none", False, 5000),
        ("cap.actuation.purge.v1", "valve"): (True, "required", False, 15000),
        ("cap.motion.convey.v1", "belt"): (True, "none", True, 120000),
        ("cap.device.configure.v1", "belt"): (True, "none", False, 5000),
        ("cap.device.describe.v1", "world"): (False, "none", False, None),
        ("x-cap.sim.door.v1", "world"): (True, "none", False, 5000),
        ("x-cap.sim.fault.v1", "world"): (False, "none", False, 5000),
    }
    assert {each.capability_id for each in manifest.bindings if each.simulation_control} == {
        "x-cap.sim.door.v1",
        "x-cap.sim.fault.v1",
    }
    assert {each.capability_id for each in manifest.bindings if each.interlocks == ("door_closed",)} == {
        "cap.actuation.valve.v1",
        "cap.actuation.purge.v1",
        "cap.motion.convey.v1",
    }
    assert manifest.safety.interlocks["door_closed"].hard
    assert (manifest.path, manifest.mode, manifest.risk_class) == (
        "/lab/conveyor-workcell",
        "simulated",
        "R1",
    )
    assert manifest.fidelity["determinism"] == "exact"
    assert manifest.fidelity["snapshot_restore"] is True


def test_limits_stand_below_the_schema_and_bind_both_the_motion_and_the_configuration() -> None:
    manifest = build(source())
    convey = manifest.binding("cap.motion.convey.v1", "belt")
    configure = manifest.binding("cap.device.configure.v1", "belt")
    assert convey is not None
    assert configure is not None
    assert convey.limits == {"speed_mm_s": Limit(None, 500, "mm/s", "manifest")}
    assert configure.limits["speed_mm_s"].maximum == 500
    assert convey.input.errors({"distance_mm": 1, "speed_mm_s": 1000}) == []
    assert convey.input.errors({"distance_mm": 1, "speed_mm_s": 1000.5}) != []
    assert convey.input.errors({"distance_mm": 0.5, "speed_mm_s": 1}) != []


def test_the_input_of_configure_is_the_writable_properties_and_at_least_one() -> None:
    configure = build(source()).binding("cap.device.configure.v1", "belt")
    assert configure is not None
    assert set(configure.input_schema["properties"]) == {"speed_mm_s"}
    assert configure.input.errors({"speed_mm_s": 0}) == []
    for wrong in ({}, {"position_mm": 1}, {"speed_mm_s": True}, {"speed_mm_s": 1001}):
        assert configure.input.errors(wrong) != []


def test_a_nested_read_only_member_is_not_writable() -> None:
    document = source()
    belt = document["resources"][1]["state_schema"]["properties"]
    belt["drive"] = {
        "type": "object",
        "additionalProperties": False,
        "required": ["gain", "heat"],
        "properties": {
            "gain": {"type": "number", "x-mhs-unit": "1"},
            "heat": {"type": "number", "x-mhs-unit": "Cel", "readOnly": True},
        },
    }
    configure = build(document).binding("cap.device.configure.v1", "belt")
    assert configure is not None
    assert configure.input.errors({"drive": {"gain": 1}}) == []
    assert configure.input.errors({"drive": {"heat": 1}}) != []


def served_validator() -> Any:
    registry: Any = Registry().with_resources(
        (SCHEMA_BASE + name, DRAFT7.create_resource(schema_document(name))) for name in schema_names()
    )
    return Draft7Validator(schema_document("device"), registry=registry)


@pytest.mark.parametrize("name", ["conveyor_workcell", "scpi_psu"])
def test_the_served_manifest_is_a_valid_manifest_with_every_default_written_out(name: str) -> None:
    directory = drivers_dir() / name
    found = {**spec_classes(), **directory_classes(directory)}
    manifest = build_manifest(read_toml(directory / "manifest.toml"), backend="fake", classes=found)
    served = {
        **json.loads(json.dumps(manifest.document)),
        "device_id": f"mhs://localhost:7400{manifest.path}",
        "instance_id": "01J8ZQ3V6Y7M2N4P6R8S0T2V4W",
        "digest": "sha256:" + "0" * 64,
    }
    served_validator().validate(served)
    assert served["mode"] == "simulated"
    assert all("input_schema" in binding for binding in served["bindings"])
    assert served["bindings"][-1]["capability_id"] == "cap.device.describe.v1"
    assert all("schema" in each for each in served["streams"] if each["stream"] in ("state", "telemetry"))


def test_a_document_is_left_as_it_was_by_being_built() -> None:
    document = source()
    build(document)
    assert document == source()


def test_another_path_can_be_given_for_the_manifests_own() -> None:
    manifest = build(source(), path="/lab/second")
    assert manifest.path == manifest.document["path"] == "/lab/second"


def test_a_device_on_hardware_is_made_safe_at_shutdown_and_a_simulated_one_is_left() -> None:
    found = {**spec_classes()}
    document = read_toml(drivers_dir() / "scpi_psu" / "manifest.toml")
    del document["safety"]["on_shutdown"]
    assert build_manifest(document, backend="hardware", classes=found).safety.on_shutdown == "safe_state"
    assert build_manifest(document, backend="fake", classes=found).safety.on_shutdown == "leave"


def _set(*keys: str | int, value: Any) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        place: Any = document
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


def _binding(capability_id: str, *keys: str, value: Any) -> Callable[[Document], None]:
    return lambda document: _set(*keys, value=value)(binding_of(document, capability_id))


CONVEY = "cap.motion.convey.v1"
STEP = "cap.world.step.v1"
NARROW = {"type": "object", "additionalProperties": False, "required": ["distance_mm", "speed_mm_s"]}
DISTANCE = {"type": "number", "minimum": 1, "x-mhs-unit": "mm"}
SPEED = {"type": "number", "minimum": 1, "x-mhs-unit": "mm/s"}
STOP = {"latching": True, "latency_ms": 100}

REFUSED: dict[str, tuple[Callable[[Document], None], str]] = {
    "a member that is not known": (_set("colour", value="red"), "must not have the member 'colour'"),
    "a member that the endpoint adds": (_set("digest", value="x"), "digest: is added by the endpoint"),
    "no path": (lambda document: document.pop("path"), "must have the member path"),
    "a path that climbs": (_set("path", value="/lab/../etc"), "path: /lab/../etc must be / and names"),
    "a path without names": (_set("path", value="/lab//x"), "path: /lab//x must be / and names"),
    "an unknown risk class": (_set("risk_class", value="R9"), 'risk_class: must be one of "R0", "R1"'),
    "a number without a unit": (
        lambda document: document["resources"][1]["state_schema"]["properties"]["position_mm"].pop(
            "x-mhs-unit"
        ),
        r"resources\[belt\].state_schema.properties.position_mm: a number needs x-mhs-unit",
    ),
    "a unit that is none": (
        _set("resources", 1, "state_schema", "properties", "position_mm", "x-mhs-unit", value="furlongs"),
        r"resources\[belt\].state_schema.properties.position_mm.x-mhs-unit: must be a UCUM unit",
    ),
    "a slow pattern": (
        _set(
            "resources",
            0,
            "state_schema",
            "properties",
            "door",
            value={"type": "string", "pattern": "^(a+)+$"},
        ),
        r"resources\[world\].state_schema.properties.door.pattern: the pattern is not accepted",
    ),
    "an open state": (
        lambda document: document["resources"][2]["state_schema"].pop("additionalProperties"),
        r"resources\[valve\].state_schema: must have type = .*additionalProperties = false",
    ),
    "an exclusion of nothing": (
        _set("resources", 0, "hash_exclusions", value=["/clock"]),
        r"resources\[world\].hash_exclusions: /clock points at nothing",
    ),
    "a resource twice": (
        _set("resources", 2, "resource_id", value="belt"),
        r"resources\[belt\]: stands twice",
    ),
    "an unknown class": (
        _binding(CONVEY, "capability_id", value="cap.motion.fly.v1"),
        r"bindings\[cap.motion.fly.v1\].capability_id: is a class of neither",
    ),
    "an internal class": (
        _binding(CONVEY, "capability_id", value="cap.internal.restore.v1"),
        r"bindings\[cap.internal.restore.v1\].capability_id: is a class of neither",
    ),
    "an unknown resource": (
        _binding(CONVEY, "resource", value="arm"),
        r"bindings\[cap.motion.convey.v1\].resource: arm is none of world, belt, valve",
    ),
    "a binding twice": (
        lambda document: document["bindings"].append(binding_of(document, CONVEY)),
        r"bindings\[cap.motion.convey.v1\]: is bound to belt twice",
    ),
    "describe written down": (
        lambda document: document["bindings"].append(
            {"capability_id": "cap.device.describe.v1", "resource": "world"}
        ),
        r"bindings\[cap.device.describe.v1\]: is bound to every device",
    ),
    "an unknown interlock": (
        _binding(CONVEY, "interlocks", value=["lid"]),
        r"interlocks: lid is none of safety.interlocks: door_closed",
    ),
    "effects without a longest duration": (
        _binding(CONVEY, "constraints", value={}),
        r"bindings\[cap.motion.convey.v1\].constraints.max_duration_ms: is required",
    ),
    "an effect that the class does not have": (
        lambda document: binding_of(document, CONVEY)["effects"][0].update(kind="arm.swing"),
        r"effects: arm.swing is no effect of the class, which has: belt.move",
    ),
    "an irreversible effect without a reason": (
        lambda document: binding_of(document, CONVEY)["effects"][0].pop("irreversible_reason"),
        "must have the member irreversible_reason",
    ),
    "a limit of no input": (
        _binding(CONVEY, "limits", value={"force": {"max": 1, "unit": "N"}}),
        r"limits.force: limits a number of the input: distance_mm, speed_mm_s",
    ),
    "a limit in another unit": (
        _binding(CONVEY, "limits", value={"speed_mm_s": {"max": 0.5, "unit": "m/s"}}),
        r"limits.speed_mm_s.unit: is m/s; the input has the unit mm/s",
    ),
    "a limit that is no range": (
        _binding(CONVEY, "limits", value={"speed_mm_s": {"min": 5, "max": 1, "unit": "mm/s"}}),
        r"limits.speed_mm_s: min = 5 is above max = 1",
    ),
    "a limit without a bound": (
        _binding(CONVEY, "limits", value={"speed_mm_s": {"unit": "mm/s"}}),
        "bindings.3.limits.speed_mm_s: must fit one of the alternatives",
    ),
    "an open input": (
        _binding(CONVEY, "input_schema", value={"type": "object", "properties": {}}),
        r"input_schema: .*additionalProperties = false",
    ),
    "an input that leaves out what the class requires": (
        _binding(
            CONVEY, "input_schema", value={**NARROW, "required": [], "properties": {"speed_mm_s": SPEED}}
        ),
        r"input_schema.required: the class requires distance_mm, speed_mm_s too",
    ),
    "an input that the class does not know": (
        _binding(
            CONVEY,
            "input_schema",
            value={
                **NARROW,
                "properties": {"distance_mm": DISTANCE, "speed_mm_s": SPEED, "jump": {"type": "boolean"}},
            },
        ),
        r"input_schema.properties.jump: the class does not know it; it has distance_mm, speed_mm_s",
    ),
    "an input wider than the class's bound": (
        _binding(
            CONVEY,
            "input_schema",
            value={**NARROW, "properties": {"distance_mm": {**DISTANCE, "minimum": 0}, "speed_mm_s": SPEED}},
        ),
        r"input_schema.properties.distance_mm: wider than the class, which has exclusiveMinimum = 0",
    ),
    "an input without the class's bound": (
        _binding(
            STEP,
            "input_schema",
            value={
                "type": "object",
                "additionalProperties": False,
                "required": ["ticks"],
                "properties": {"ticks": {"type": "integer", "minimum": 1, "x-mhs-unit": "{tick}"}},
            },
        ),
        r"input_schema.properties.ticks: wider than the class, which has maximum = 100000",
    ),
    "an input of another unit than the class's": (
        _binding(
            CONVEY,
            "input_schema",
            value={
                **NARROW,
                "properties": {"distance_mm": {**DISTANCE, "x-mhs-unit": "m"}, "speed_mm_s": SPEED},
            },
        ),
        r"input_schema.properties.distance_mm.x-mhs-unit: the class has the unit mm",
    ),
    "an input of a wider type than the class's": (
        _binding(
            STEP,
            "input_schema",
            value={
                "type": "object",
                "additionalProperties": False,
                "required": ["ticks"],
                "properties": {
                    "ticks": {"type": "number", "minimum": 1, "maximum": 9, "x-mhs-unit": "{tick}"}
                },
            },
        ),
        r"input_schema.properties.ticks.type: wider than the class, which allows integer",
    ),
    "a choice wider than the class's": (
        _binding(
            "x-cap.sim.fault.v1",
            "input_schema",
            value={
                "type": "object",
                "additionalProperties": False,
                "required": ["kind", "times"],
                "properties": {
                    "kind": {"enum": ["busy", "explode"]},
                    "times": {"type": "integer", "minimum": 1, "maximum": 2, "x-mhs-unit": "1"},
                },
            },
        ),
        r"input_schema.properties.kind: wider than the class, which has enum",
    ),
    "a configure input of what cannot be written": (
        _binding(
            "cap.device.configure.v1",
            "input_schema",
            value={
                "type": "object",
                "additionalProperties": False,
                "properties": {"position_mm": {"type": "number", "minimum": 0, "x-mhs-unit": "mm"}},
            },
        ),
        r"input_schema.properties.position_mm: the class does not know it; it has speed_mm_s",
    ),
    "configure of a resource that is all read-only": (
        lambda document: document["bindings"].append(
            {"capability_id": "cap.device.configure.v1", "resource": "valve"}
        ),
        r"bindings\[cap.device.configure.v1\]: nothing in the state_schema of valve can be written",
    ),
    "a safe state that no stop achieves": (
        _set("safety", "safe_state", "achieved_by", value=["hope"]),
        r'safety.safe_state.achieved_by: must be \["driver.stop"\]',
    ),
    "a stop that may not reach the device, without a word about it": (
        lambda document: document["safety"].update(estop={**STOP, "kind": "shared_link"}, notes=""),
        "safety.notes: must say what an e-stop of the kind shared_link cannot do",
    ),
    "an interlock twice": (
        lambda document: document["safety"]["interlocks"].append(document["safety"]["interlocks"][0]),
        r"safety.interlocks\[door_closed\]: stands twice",
    ),
    "a stream of no resource": (
        _set("streams", 0, value={"stream": "state"}),
        r"streams\[state\].resource_id: is required; one of world, belt, valve",
    ),
    "a stream of an unknown resource": (
        _set("streams", 0, value={"stream": "state", "resource_id": "arm"}),
        r"streams\[state\].resource_id: arm is none of world, belt, valve",
    ),
    "a simulation control on a device that is not simulated": (
        _set("modes", "fake", value="hybrid"),
        r"simulation_control: is for simulated devices; this backend's mode is hybrid",
    ),
    "an option whose default is refused": (
        _set("options", value={"gain": {"schema": {"type": "string"}, "default": 5}}),
        "options.gain.default: must be of type string",
    ),
    "an option of a backend that the driver does not have": (
        _set("options", value={"gain": {"schema": {"type": "string"}, "backends": ["hardware"]}}),
        "options.gain.backends: the driver has no backend hardware; it has: fake",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_manifest_is_refused_with_the_key_and_what_is_allowed(name: str) -> None:
    change, expected = REFUSED[name]
    document = source()
    change(document)
    with pytest.raises(Invalid, match=expected):
        build(document)


def test_a_backend_that_the_driver_does_not_have_is_refused_with_those_it_has() -> None:
    with pytest.raises(Invalid, match="modes: there is no hardware backend; there is: fake"):
        build(source(), backend="hardware")


def test_a_binding_may_be_narrower_than_its_class() -> None:
    document = source()
    binding_of(document, STEP)["input_schema"] = {
        "type": "object",
        "additionalProperties": False,
        "required": ["ticks"],
        "properties": {"ticks": {"type": "integer", "minimum": 2, "maximum": 10, "x-mhs-unit": "{tick}"}},
    }
    step = build(document).binding(STEP, "world")
    assert step is not None
    assert step.input.errors({"ticks": 1}) != []
    assert step.input.errors({"ticks": 10}) == []


def test_a_binding_lasts_as_long_as_it_says_or_else_as_its_class_says(tmp_path: Path) -> None:
    """[PROTO-011]"""
    path = tmp_path / f"{STEP}.json"
    document = {**spec_classes()[STEP].document, "constraints": {"max_duration_ms": 7000}}
    path.write_text(json.dumps(document))
    given = {**classes(), STEP: read_class(path)}
    device = source()
    binding_of(device, STEP)["constraints"] = {"max_rate_per_s": 5}
    step = build(device, classes=given).binding(STEP, "world")
    assert step is not None
    assert (step.max_duration_ms, step.max_rate_per_s) == (7000, 5)
    binding_of(device, STEP)["constraints"] = {"max_duration_ms": 300}
    step = build(device, classes=given).binding(STEP, "world")
    assert step is not None
    assert step.max_duration_ms == 300


def test_every_class_of_the_catalogue_is_a_valid_document_whose_schemas_carry_units() -> None:
    catalogue = spec_classes()
    assert {"cap.world.step.v1", "cap.device.configure.v1", "cap.measure.sample.v1"} <= set(catalogue)
    registry: Any = Registry().with_resources(
        (SCHEMA_BASE + name, DRAFT7.create_resource(schema_document(name))) for name in schema_names()
    )
    validator = Draft7Validator(schema_document("capability"), registry=registry)
    for capability in catalogue.values():
        validator.validate(capability.document)
        for key in ("input_schema", "output_schema"):
            jsonschema.Draft7Validator.check_schema(capability.document[key])
