"""Values are checked against schemas without being changed, repeated or able to raise."""

import copy
from typing import Any

import pytest

from mhsd.base.resources import schema_document, schema_names
from mhsd.wire.schema import SchemaError, compile_schema

STEP = {
    "type": "object",
    "additionalProperties": False,
    "required": ["speed_mm_s"],
    "properties": {
        "speed_mm_s": {"type": "number", "minimum": 0, "maximum": 500, "x-mhs-unit": "mm/s"},
        "ratio": {"type": "number", "exclusiveMaximum": 1, "x-mhs-unit": "1"},
        "ticks": {"type": "integer", "default": 7},
        "a.b[0]/c~": {
            "type": "array",
            "items": {"type": "object", "properties": {"kind": {"enum": ["x", "y"]}}},
        },
    },
}


def errors(schema: dict[str, Any], value: Any) -> list[dict[str, str]]:
    return compile_schema(schema).errors(value)


def only_error(schema: dict[str, Any], value: Any) -> dict[str, str]:
    (error,) = errors(schema, value)
    return error


@pytest.mark.parametrize(
    "value", [{"speed_mm_s": 0}, {"speed_mm_s": 500.0}, {"speed_mm_s": 1, "ticks": 1.0, "a.b[0]/c~": []}]
)
def test_a_value_that_fits_has_no_errors_and_is_left_alone(value: dict[str, Any]) -> None:
    before = copy.deepcopy(value)
    assert errors(STEP, value) == []
    assert value == before


@pytest.mark.parametrize(
    ("value", "path", "rule", "message"),
    [
        ({"speed_mm_s": 501}, "/speed_mm_s", "maximum", "must be at most 500 mm/s"),
        ({"speed_mm_s": -1}, "/speed_mm_s", "minimum", "must be at least 0 mm/s"),
        ({"speed_mm_s": 1, "ratio": 1}, "/ratio", "exclusiveMaximum", "must be less than 1"),
        ({"speed_mm_s": True}, "/speed_mm_s", "type", "must be of type number"),
        ({"speed_mm_s": "5"}, "/speed_mm_s", "type", "must be of type number"),
        ({"speed_mm_s": 1, "ticks": 1.5}, "/ticks", "type", "must be of type integer"),
        ({}, "", "required", "must have the member speed_mm_s"),
        ({"speed_m_s": 1}, "", "required", "must have the member speed_mm_s, and not 'speed_m_s'"),
        (
            {"speed_mm_s": 1, "sped": 2},
            "",
            "additionalProperties",
            "must not have the member 'sped'; allowed are: speed_mm_s, ratio, ticks, a.b[0]/c~",
        ),
        (
            {"speed_mm_s": 1, "a.b[0]/c~": [{}, {"kind": "z"}]},
            "/a.b[0]~1c~0/1/kind",
            "enum",
            'must be one of "x", "y"',
        ),
        ([], "", "type", "must be of type object"),
        (None, "", "type", "must be of type object"),
    ],
)
def test_an_error_says_where_which_rule_and_what_is_allowed(
    value: Any, path: str, rule: str, message: str
) -> None:
    assert errors(STEP, value) == [{"path": path, "rule": rule, "message": message}]


@pytest.mark.parametrize(
    ("schema", "value", "rule", "message"),
    [
        ({"const": {"a": 1}}, 2, "const", 'must be {"a":1}'),
        ({"const": "x" * 300}, 2, "const", "must be the one value of the schema"),
        ({"enum": list(range(1000))}, -1, "enum", "must be one of the 1000 values of the schema"),
        ({"type": ["string", "null"]}, 2, "type", "must be of type string or null"),
        ({"exclusiveMinimum": 0, "x-mhs-unit": "Cel"}, 0, "exclusiveMinimum", "must be more than 0 Cel"),
        ({"multipleOf": 0.1}, 0.25, "multipleOf", "must be a multiple of 0.1"),
        ({"minLength": 2}, "a", "minLength", "must have at least 2 characters"),
        ({"maxLength": 2}, "abc", "maxLength", "must have at most 2 characters"),
        ({"pattern": "^[a-z]+$"}, "A", "pattern", "must match the pattern ^[a-z]+$"),
        ({"pattern": "^[a-z]+$"}, "a\n", "pattern", "must match the pattern ^[a-z]+$"),
        ({"format": "date-time"}, "yesterday", "format", "must have the format date-time"),
        ({"minItems": 1}, [], "minItems", "must have at least 1 items"),
        ({"maxItems": 1}, [1, 2], "maxItems", "must have at most 1 items"),
        ({"uniqueItems": True}, [1, 1.0], "uniqueItems", "must not have equal items"),
        ({"contains": {"type": "string"}}, [1], "contains", "must have an item of the required kind"),
        ({"items": [{}], "additionalItems": False}, [1, 2], "items", "has more items than allowed"),
        ({"items": False}, [1], "items", "has more items than allowed"),
        ({"minProperties": 1}, {}, "minProperties", "must have at least 1 members"),
        ({"maxProperties": 0}, {"a": 1}, "maxProperties", "must have at most 0 members"),
        ({"required": ["a", "b"]}, {}, "required", "must have the members a, b"),
        (
            {"propertyNames": {"pattern": "^a"}},
            {"b": 1},
            "propertyNames",
            "has a member whose name is not allowed",
        ),
        ({"dependencies": {"a": ["b"]}}, {"a": 1}, "dependencies", "lacks a member that another one needs"),
        ({"anyOf": [{"type": "null"}]}, 1, "anyOf", "must fit one of the alternatives"),
        ({"oneOf": [{}, {}]}, 1, "oneOf", "must fit exactly one of the alternatives"),
        ({"not": {"type": "integer"}}, 1, "not", "must not be of the excluded kind"),
        ({"properties": {"a": False}}, {"a": 1}, "false", "must not be there"),
        (
            {"patternProperties": {"^x": {}}, "additionalProperties": False},
            {"x1": 1, "y": 1},
            "additionalProperties",
            "must not have the member 'y'; allowed are: none",
        ),
        ({"if": {"type": "integer"}, "then": {"minimum": 5}}, 1, "minimum", "must be at least 5"),
    ],
)
def test_every_rule_has_words(schema: dict[str, Any], value: Any, rule: str, message: str) -> None:
    error = only_error(schema, value)
    assert (error["rule"], error["message"]) == (rule, message)


@pytest.mark.parametrize("value", [True, False, 0.5, "1", None, [], {}], ids=lambda value: repr(value))
def test_an_integer_is_no_boolean_and_has_no_fraction(value: Any) -> None:
    assert only_error({"type": "integer"}, value)["rule"] == "type"
    assert errors({"type": "integer"}, 1.0) == []


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), ""),
        (float("inf"), ""),
        ({"a": [1, float("-inf")]}, "/a/1"),
        ({"a/b": {"c": float("nan")}}, "/a~1b/c"),
        ({1: 2}, ""),
        ([{"a": b"bytes"}], "/0/a"),
        ([{1, 2}], "/0"),
    ],
)
def test_what_is_no_finite_json_is_refused_under_every_schema(value: Any, path: str) -> None:
    assert only_error({}, value) == {"path": path, "rule": "json", "message": "must be a finite JSON value"}


def test_a_tuple_is_an_array() -> None:
    schema = {"type": "array", "items": {"type": "array", "items": {"maximum": 1}}}
    assert errors(schema, ((1,),)) == []
    assert only_error(schema, ((1, 2),))["path"] == "/0/1"


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"multipleOf": 0.5}, 10**400),
        ({"multipleOf": 0.5}, 10**5000),
        ({"anyOf": [{"multipleOf": 0.5}, {"type": "integer"}]}, 10**5000),
        ({"multipleOf": 1e-300}, 1e300),
        (
            {"definitions": {"a": {"items": {"$ref": "#/definitions/a"}}}, "$ref": "#/definitions/a"},
            nested(5000),
        ),
        ({}, nested(100_000)),
    ],
    ids=range(6),
)
def test_values_that_fastjsonschema_cannot_bear_are_errors_and_nothing_more(
    schema: dict[str, Any], value: Any
) -> None:
    assert [error["path"] for error in errors(schema, value)] == [""]


def test_an_error_never_repeats_the_value() -> None:
    secret = "hunter2" * 10
    schema = {
        "properties": {
            "a": {"type": "integer"},
            "b": {"enum": [1]},
            "c": {"maxLength": 1},
            "d": {"pattern": "^x"},
            "e": {"format": "uri"},
            "f": {"anyOf": [{"type": "null"}]},
            "g": {"const": 1},
        }
    }
    for name in "abcdefg":
        error = only_error(schema, {name: secret})
        assert error["path"] == f"/{name}"
        assert "hunter2" not in str(error)


def test_a_name_in_a_path_or_message_is_shortened() -> None:
    name = "k" * 5000
    error = only_error({"additionalProperties": {"type": "integer"}}, {name: "x"})
    assert error["path"] == "/" + "k" * 64 + "…"
    assert len(only_error({"additionalProperties": False}, {name: "x"})["message"]) < 200


def test_compiling_changes_neither_the_schema_nor_later_its_digest() -> None:
    schema = {
        "$id": "https://example.org/x.json",
        "definitions": {"a": {"type": "integer", "default": 1}},
        "properties": {"b": {"$ref": "#/definitions/a"}},
    }
    before = copy.deepcopy(schema)
    compile_schema(schema).errors({})
    assert schema == before


def test_an_equal_schema_is_compiled_once() -> None:
    assert compile_schema({"type": "string", "maxLength": 3}) is compile_schema(
        {"maxLength": 3, "type": "string"}
    )
    assert compile_schema({"maxLength": 3}) is not compile_schema({"maxLength": 4})


def test_references_are_resolved_by_the_caller_alone() -> None:
    documents = {"https://example.org/defs.json": {"definitions": {"n": {"type": "integer"}}}}
    schema = {
        "$id": "https://example.org/main.json",
        "properties": {"a": {"$ref": "defs.json#/definitions/n"}},
    }
    before = copy.deepcopy(documents)
    validator = compile_schema(schema, resolve=documents.__getitem__)
    assert validator.errors({"a": 1}) == []
    assert [error["path"] for error in validator.errors({"a": "x"})] == ["/a"]
    assert documents == before


@pytest.mark.parametrize(
    "uri",
    [
        "http://127.0.0.1:9/x.json",
        "https://example.org/x.json",
        "file:///etc/hostname",
        "ftp://127.0.0.1/x",
        "data:application/json,{}",
        "other.json",
    ],
)
@pytest.mark.parametrize("resolve", [None, {}.__getitem__])
def test_nothing_is_fetched(uri: str, resolve: Any) -> None:
    with pytest.raises(SchemaError, match="not at hand"):
        compile_schema({"$ref": uri}, resolve=resolve)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strin"},
        {"pattern": "("},
        {"properties": []},
        {"$ref": "#/definitions/none"},
        {"$schema": "https://json-schema.org/draft/2020-12/schema"},
        {"maximum": "5"},
        {"required": ["a", "a"]},
        {"items": 5},
        {"default": float("nan")},
        {"const": 2**60},
    ],
    ids=repr,
)
def test_a_schema_that_cannot_be_compiled_is_a_schema_error(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        compile_schema(schema)


def test_a_schema_without_a_draft_is_draft_07() -> None:
    # `duration` is a format of 2019-09 only; draft-07 ignores it.
    assert errors({"format": "duration"}, "no duration") == []


@pytest.mark.parametrize("name", schema_names())
def test_every_shipped_schema_compiles(name: str) -> None:
    validator = compile_schema(schema_document(name), resolve=schema_document)
    assert validator.errors(5) or name == "defs.schema.json"
