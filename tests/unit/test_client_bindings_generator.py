"""The generator of typed bindings: names, types, and manifests that try to write code of their own."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Mapping
from typing import Any

import pytest

from mhsd.client.bindings_generator import python_module

HOSTILE = 'x"""\nimport os; os.system("false")\n\\'


def manifest(*bindings: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "device_id": "mhs://localhost:7400/lab/one-arm",
        "display_name": "One arm",
        "digest": "sha256:" + "0" * 64,
        "mode": "simulated",
        "risk_class": "R1",
        "fidelity": {"determinism": "exact", "gaps": []},
        "resources": [],
        "bindings": list(bindings),
        **more,
    }


def binding(properties: Mapping[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {
        "capability_id": "cap.arm.move.v1",
        "resource": "arm",
        "input_schema": {"type": "object", "properties": properties, "required": list(required)},
        **more,
    }


class Recorder:
    """A session that keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: tuple[Any, ...] = ()
        self.options: dict[str, Any] = {}

    def invoke(self, *arguments: Any, **options: Any) -> str:
        self.asked, self.options = arguments, options
        return "a receipt"

    write = invoke

    def read(self, resource_id: str, **options: Any) -> dict[str, Any]:
        return {"state": {resource_id: options}}


def loaded(document: Mapping[str, Any], classes: Mapping[str, Any] | None = None) -> types.ModuleType:
    module = types.ModuleType("generated")
    exec(compile(python_module(document, classes or {}), "generated.py", "exec"), module.__dict__)
    return module


def device(document: Mapping[str, Any], recorder: Recorder, name: str = "OneArm") -> Any:
    return getattr(loaded(document), name)(recorder)


def kind(schema: Any) -> str:
    """The type of a required field of this schema."""
    tree = ast.parse(python_module(manifest(binding({"field": schema}, "field")), {}))
    (method,) = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "arm_move"
    ]
    annotation = next(each.annotation for each in method.args.kwonlyargs if each.arg == "field")
    assert annotation is not None
    return ast.unparse(annotation)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer"}, "int"),
        ({"type": "number", "x-mhs-unit": "mm"}, "float"),
        ({"type": "string"}, "str"),
        ({"type": "boolean"}, "bool"),
        ({"type": ["number", "null"]}, "float | None"),
        ({"enum": ["on", "off"]}, "Literal['on', 'off']"),
        ({"enum": [1, True, None]}, "Literal[1, True, None]"),
        ({"enum": [1.5, 2.5]}, "float"),
        ({"const": "on"}, "Literal['on']"),
        ({"type": "array", "items": {"type": "integer"}}, "list[int]"),
        ({"type": "array"}, "list[Any]"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "str | int"),
        ({"oneOf": [{"type": "string"}, {}]}, "Any"),
        ({"type": "object"}, "Mapping[str, Any]"),
        ({"type": "object", "properties": {"x": {"type": "number"}}}, "ArmMoveField"),
        ({}, "Any"),
        (True, "Any"),
        ({"$ref": "#/definitions/other"}, "Any"),
        ({"enum": []}, "Any"),
        ({"enum": {"on": 1}}, "Any"),
        ({"anyOf": []}, "Any"),
        ({"type": []}, "Any"),
    ],
)
def test_the_type_of_a_field_is_that_of_its_schema(schema: Any, expected: str) -> None:
    """[TPT-054]"""
    assert kind(schema) == expected


def test_a_method_sends_its_fields_and_hands_the_options_on() -> None:
    recorder = Recorder()
    arm = device(
        manifest(binding({"x_mm": {"type": "number"}, "slow": {"type": "boolean"}}, "x_mm")), recorder
    )
    assert arm.arm_move(x_mm=2.5, deadline_ms=100) == "a receipt"
    assert recorder.asked == ("cap.arm.move.v1", {"x_mm": 2.5})
    assert recorder.options == {"resource": "arm", "device_id": arm.device_id, "deadline_ms": 100}
    arm.arm_move(x_mm=1, slow=False)
    assert recorder.asked[1] == {"x_mm": 1, "slow": False}


def test_what_is_configured_is_written_and_what_is_there_is_read() -> None:
    recorder = Recorder()
    configured = binding({"speed": {"type": "number"}}, capability_id="cap.device.configure.v1")
    resources = [{"resource_id": "arm", "state_schema": {"type": "object"}}]
    arm = device(manifest(configured, resources=resources), recorder)
    arm.write_arm(speed=3)
    assert recorder.asked == ("arm", {"speed": 3})
    assert arm.read_arm() == {"arm": {"device_id": "mhs://localhost:7400/lab/one-arm"}}


def test_the_class_documents_say_what_a_method_means() -> None:
    document = {
        "summary": "Moves the arm.",
        "output_schema": {"properties": {"x_mm": {"x-mhs-unit": "mm", "description": "Where it stands."}}},
    }
    move = binding(
        {"x_mm": {"minimum": 0, "maximum": 9, "x-mhs-unit": "mm", "description": "How far."}},
        "x_mm",
        limits={"x_mm": {"max": 5, "unit": "mm"}},
        interlocks=["door_closed"],
        permit="required",
        long_running=True,
    )
    module = loaded(manifest(move), {"cap.arm.move.v1": document})
    lines = inspect.getdoc(module.OneArm.arm_move)
    assert lines is not None
    assert lines.split("\n") == [
        "Moves the arm.",
        "",
        "x_mm: 0..5 mm; How far.",
        "output x_mm: mm; Where it stands.",
        "needs closed: door_closed",
        "needs a permit_id",
        "takes long: give wait=True, or follow the receipt with session.wait",
    ]


@pytest.mark.parametrize(
    ("properties", "required"),
    [
        ({"two words": {"type": "integer"}}, ()),
        ({"class": {"type": "integer"}}, ()),
        ({"wait": {"type": "boolean"}}, ("wait",)),
        ({"maybe": {"type": ["integer", "null"]}}, ()),
        ({"größe": {"type": "integer"}}, ("größe",)),
        ({"__secret": {"type": "integer"}}, ("__secret",)),
    ],
)
def test_fields_that_can_be_no_parameters_are_given_as_one_object(
    properties: dict[str, Any], required: tuple[str, ...]
) -> None:
    recorder = Recorder()
    arm = device(manifest(binding(properties, *required)), recorder)
    arm.arm_move({"given": 1})
    assert recorder.asked == ("cap.arm.move.v1", {"given": 1})


def test_two_bindings_of_one_capability_get_different_names() -> None:
    both = manifest(
        binding({}), binding({}, resource="hand-2"), binding({}, capability_id="x-cap.arm.move.v2")
    )
    methods = {name for name in vars(loaded(both).OneArm) if name.startswith("arm_move")}
    assert methods == {"arm_move_arm_v1", "arm_move_hand_2_v1", "arm_move_arm_v2"}


def test_a_command_that_is_called_like_a_reading_keeps_the_reading() -> None:
    resources = [{"resource_id": "arm", "state_schema": {"type": "object"}}]
    module = loaded(manifest(binding({}, capability_id="cap.read.arm.v1"), resources=resources))
    assert {"read_arm", "read_arm_arm_v1"} <= vars(module.OneArm).keys()


@pytest.mark.parametrize(
    "path", ["/lab/2-axis", "/lab/class", "/lab/---", "/lab/größe", "/lab/receipt", "/lab/none"]
)
def test_a_device_of_any_name_becomes_a_class(path: str) -> None:
    document = manifest(binding({}, resource="class"), device_id=f"mhs://localhost:7400{path}")
    classes = [
        each
        for each in vars(loaded(document)).values()
        if isinstance(each, type) and hasattr(each, "arm_move")
    ]
    assert len(classes) == 1


def defined(document: Mapping[str, Any]) -> list[str]:
    """Every class and method of a module, as often as it is written."""
    tree = ast.parse(python_module(document, {}))
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def test_what_sounds_alike_is_told_apart() -> None:
    state = {
        "type": "object",
        "properties": {
            "a_b": {"type": "object", "properties": {"x": {"type": "integer"}}},
            "aB": {"type": "object", "properties": {"x": {"type": "string"}}},
        },
    }
    document = manifest(
        binding({}, resource="left.arm"),
        binding({}, resource="left-arm"),
        device_id="mhs://localhost:7400/lab/arm-state",
        resources=[{"resource_id": each, "state_schema": state} for each in ("arm", "x.y", "x-y")],
    )
    names = defined(document)
    assert len(names) == len(set(names))
    assert {"read_x_y", "read_x_y_2", "arm_move_left_arm_v1", "arm_move_left_arm_v1_2"} <= set(names)
    assert {"ArmState", "ArmStateDevice", "ArmStateAB", "ArmStateAB2", "XYState", "XYState2"} <= set(names)
    loaded(document)


@pytest.mark.parametrize("name", ["list", "int", "float", "str", "bool"])
def test_no_method_hides_a_type_from_those_after_it(name: str) -> None:
    fields = {"some": {"type": "array", "items": {"type": "integer"}}, "other": {"type": ["string", "null"]}}
    module = loaded(manifest(binding({}, capability_id=f"cap.{name}.v1"), binding(fields)))
    assert {f"{name}_arm_v1", "arm_move"} <= vars(module.OneArm).keys()


@pytest.mark.parametrize("required", [None, 7, {"x": 1}, "x"])
def test_what_a_schema_requires_is_a_list(required: Any) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": required}
    recorder = Recorder()
    device(manifest(binding({}, input_schema=schema)), recorder).arm_move()
    assert recorder.asked == ("cap.arm.move.v1", {})


@pytest.mark.parametrize("resources", [None, 7, [7], [{}]])
def test_a_manifest_of_any_shape_becomes_a_module(resources: Any) -> None:
    document = manifest({"resource": "arm"}, resources=resources)
    assert "OneArm" in defined(document)


def test_a_manifest_writes_no_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a manifest says stays inside of names, strings and docstrings."""
    document = manifest(
        binding(
            {HOSTILE: {"enum": [HOSTILE], "description": HOSTILE, "x-mhs-unit": HOSTILE}},
            capability_id=f"cap.{HOSTILE}.v1",
            resource=HOSTILE,
            interlocks=[HOSTILE],
            limits={HOSTILE: {"min": HOSTILE, "unit": HOSTILE}},
        ),
        device_id=f"mhs://localhost:7400/{HOSTILE}",
        display_name=HOSTILE,
        digest=HOSTILE,
        mode=HOSTILE,
        risk_class=HOSTILE,
        fidelity={"gaps": [HOSTILE]},
        resources=[{"resource_id": HOSTILE, "state_schema": {"type": "object", "properties": {HOSTILE: {}}}}],
    )
    text = python_module(document, {f"cap.{HOSTILE}.v1": {"summary": HOSTILE, "output_schema": {}}})
    ran: list[Any] = []
    monkeypatch.setattr("os.system", ran.append)
    exec(compile(text, "generated.py", "exec"), types.ModuleType("generated").__dict__)
    assert ran == []
    imported = [
        name.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for name in node.names
    ]
    assert imported == []
