"""A schema is accepted only where every part of it will be checked as it is written."""

from typing import Any

import pytest

from mhsd.base.resources import read_json, schema_document, schema_names, spec_file
from mhsd.wire.schema import compile_schema, lint

CAPABILITY_FILES = sorted(path.name for path in spec_file("capabilities").glob("*.json"))


@pytest.mark.parametrize(
    "schema",
    [
        True,
        False,
        {},
        {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "x", "title": "t", "$comment": "c"},
        {"$ref": "#/definitions/a", "description": "kept for readers"},
        {"type": ["integer", "null"], "minimum": -1.5, "x-mhs-unit": "mm/s", "readOnly": True},
        {
            "enum": [{"any": {"$ref": 5}}],
            "const": {"unknownKeyword": 1},
            "default": {"tpye": 1},
            "examples": [],
        },
        {"properties": {"minimun": {"type": "string"}, "$ref": {}}, "required": ["minimun"]},
        {"items": [{}, True], "additionalItems": False, "contains": {}, "uniqueItems": True},
        {"dependencies": {"a": ["b"], "c": {"type": "object"}}},
        {"if": {}, "then": {}, "else": {}, "not": {}, "allOf": [{}], "anyOf": [{}], "oneOf": [True]},
        {"patternProperties": {"^[a-z]+$": {}}, "propertyNames": {"pattern": "^a"}, "format": "date-time"},
    ],
)
def test_a_sound_schema_has_no_problems(schema: Any) -> None:
    assert lint(schema) == []


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ([], "/"),
        (None, "/"),
        ({"minimun": 5}, "/minimun"),
        ({"properties": {"a": {"tpye": "string"}}}, "/properties/a/tpye"),
        ({"unevaluatedProperties": False}, "/unevaluatedProperties"),
        ({"prefixItems": [{}]}, "/prefixItems"),
        ({"dependentRequired": {}}, "/dependentRequired"),
        ({"$defs": {}}, "/$defs"),
        ({"$anchor": "a"}, "/$anchor"),
        ({"contentMediaType": "application/json"}, "/contentMediaType"),
        ({"x-mhs-unti": "mm"}, "/x-mhs-unti"),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema"}, "/$schema"),
        ({"$ref": "#/a", "minimum": 5}, "/minimum"),
        ({"$ref": 5}, "/$ref"),
        ({"type": "float"}, "/type"),
        ({"type": []}, "/type"),
        ({"enum": []}, "/enum"),
        ({"minimum": "5"}, "/minimum"),
        ({"minimum": True}, "/minimum"),
        ({"maximum": float("nan")}, "/maximum"),
        ({"maximum": 1e301}, "/maximum"),
        ({"multipleOf": 0}, "/multipleOf"),
        ({"minLength": -1}, "/minLength"),
        ({"maxItems": 1.5}, "/maxItems"),
        ({"required": "a"}, "/required"),
        ({"required": ["a", "a"]}, "/required"),
        ({"required": [1]}, "/required"),
        ({"uniqueItems": 1}, "/uniqueItems"),
        ({"readOnly": "yes"}, "/readOnly"),
        ({"format": "email"}, "/format"),
        ({"x-mhs-unit": "furlong"}, "/x-mhs-unit"),
        ({"x-mhs-unit": 5}, "/x-mhs-unit"),
        ({"pattern": "^(a+)+$"}, "/pattern"),
        ({"pattern": 5}, "/pattern"),
        ({"patternProperties": {"^(a+)+$": {}}}, "/patternProperties/^(a+)+$"),
        ({"patternProperties": {"^a/b$": {"tpye": 1}}}, "/patternProperties/^a~1b$/tpye"),
        ({"items": 5}, "/items"),
        ({"items": [5]}, "/items/0"),
        ({"items": []}, "/items"),
        ({"allOf": {}}, "/allOf"),
        ({"anyOf": []}, "/anyOf"),
        ({"oneOf": [{}, {"a~b": 1}]}, "/oneOf/1/a~0b"),
        ({"properties": []}, "/properties"),
        ({"properties": {"a": 5}}, "/properties/a"),
        ({"additionalProperties": 5}, "/additionalProperties"),
        ({"dependencies": []}, "/dependencies"),
        ({"dependencies": {"a": [1]}}, "/dependencies/a"),
        ({"dependencies": {"a": {"tpye": 1}}}, "/dependencies/a/tpye"),
        ({"definitions": {"deviceId": {}, "device_id": {}, "deviceid": {}}}, "/definitions/deviceid"),
        ({"if": {"not": {"tpye": 1}}}, "/if/not/tpye"),
    ],
)
def test_a_problem_is_told_with_its_place(schema: Any, place: str) -> None:
    (problem,) = lint(schema)
    assert problem.startswith(f"{place}: ")


def test_every_problem_is_told() -> None:
    assert len(lint({"tpye": 1, "properties": {"a": {"minimun": 1}, "b": {"maximun": 1}}})) == 3


def test_a_schema_without_end_is_a_problem_and_no_error() -> None:
    schema: dict[str, Any] = {}
    for _ in range(10_000):
        schema = {"not": schema}
    assert any("nested too deeply" in problem for problem in lint(schema))


def test_clashing_definitions_are_why_lint_looks_for_them() -> None:
    # Both names become the function validate___definitions_a_b, and one definition checks for both.
    schema = {
        "definitions": {"a-b": {"type": "string"}, "a_b": {"type": "integer"}},
        "properties": {"s": {"$ref": "#/definitions/a-b"}, "i": {"$ref": "#/definitions/a_b"}},
    }
    assert lint(schema)
    assert compile_schema(schema).errors({"s": "text", "i": 1}) != []


@pytest.mark.parametrize("name", schema_names())
def test_every_shipped_schema_is_sound(name: str) -> None:
    assert lint(schema_document(name)) == []


@pytest.mark.parametrize("file_name", CAPABILITY_FILES)
@pytest.mark.parametrize("side", ["input_schema", "output_schema"])
def test_the_schemas_of_every_shipped_class_are_sound(file_name: str, side: str) -> None:
    assert lint(read_json(spec_file("capabilities", file_name))[side]) == []
