"""Patches: unknown and read-only fields are found at any depth of the schema [PROTO-025, CORE-022]."""

from typing import Any

import pytest

from mhsd.base.errors import Fault
from mhsd.core.patches import patch_refusal

NUMBER = {"type": "number"}
FIXED = {"type": "number", "readOnly": True}
UNKNOWN, READ_ONLY = "MHS.RESOURCE.FIELD_UNKNOWN", "MHS.RESOURCE.NOT_WRITABLE"


def judged(patch: Any, schema: dict[str, Any]) -> tuple[str, list[str]] | None:
    """Code and fields of the refusal, or None where every field may be written."""
    fault = patch_refusal(patch, schema)
    if fault is None:
        return None
    assert fault.details is not None
    return fault.mhs_code, fault.details["fields"]


def members(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


FLAT = members(speed=NUMBER, position=FIXED)


def test_a_writable_field_may_be_written() -> None:
    assert judged({"speed": 3}, FLAT) is None
    assert judged({}, FLAT) is None


def test_an_unknown_field_is_named() -> None:
    assert judged({"speed": 3, "colour": 1, "size": 2}, FLAT) == (UNKNOWN, ["colour", "size"])


def test_a_read_only_field_is_named() -> None:
    assert judged({"speed": 3, "position": 1}, FLAT) == (READ_ONLY, ["position"])


def test_an_unknown_field_is_told_before_a_read_only_one() -> None:
    assert judged({"position": 1, "colour": 2}, FLAT) == (UNKNOWN, ["colour"])


def test_read_only_false_is_writable() -> None:
    assert judged({"a": 1}, members(a={**NUMBER, "readOnly": False})) is None


@pytest.mark.parametrize("patch", [None, True, 7, "text", [], [1, {"a": 1}]])
def test_a_patch_that_is_no_object_is_left_to_the_schema(patch: Any) -> None:
    assert patch_refusal(patch, FLAT) is None


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"additionalProperties": True}])
def test_a_resource_whose_schema_names_no_field_has_none(schema: dict[str, Any]) -> None:
    assert judged({"a": 1}, schema) == (UNKNOWN, ["a"])


# Depth: each way to reach a subschema, with one writable, one read-only and, where closed, no other member.

INSIDE = members(w=NUMBER, r=FIXED)
REACHED = {
    "properties": (members(a=INSIDE), "a"),
    "deeper properties": (members(a=members(b=INSIDE)), "a/b"),
    "patternProperties": ({"patternProperties": {"^a[0-9]$": INSIDE}}, "a1"),
    "additionalProperties": ({"additionalProperties": INSIDE}, "any"),
    "allOf": (members(a={"allOf": [NUMBER, INSIDE]}), "a"),
    "anyOf": (members(a={"anyOf": [INSIDE, NUMBER]}), "a"),
    "oneOf": (members(a={"oneOf": [NUMBER, INSIDE]}), "a"),
    "then": (members(a={"if": {"type": "object"}, "then": INSIDE}), "a"),
    "else": (members(a={"if": {"type": "number"}, "else": INSIDE}), "a"),
    "dependencies": (members(a={"dependencies": {"w": INSIDE, "x": ["w"]}}), "a"),
    "combiners in combiners": (members(a={"allOf": [{"anyOf": [{"oneOf": [INSIDE]}]}]}), "a"),
    "root allOf": ({"allOf": [members(a=INSIDE)]}, "a"),
    "root then": ({"if": {}, "then": members(a=INSIDE)}, "a"),
    "$ref": ({**members(a={"$ref": "#/definitions/inside"}), "definitions": {"inside": INSIDE}}, "a"),
    "$ref to $ref": (
        {
            **members(a={"$ref": "#/definitions/one"}),
            "definitions": {"one": {"$ref": "#/definitions/two"}, "two": INSIDE},
        },
        "a",
    ),
    "$ref with escapes": (
        {**members(a={"$ref": "#/definitions/x~1y~0z"}), "definitions": {"x/y~z": INSIDE}},
        "a",
    ),
    "$ref through an array": (
        {**members(a={"$ref": "#/definitions/all/allOf/1"}), "definitions": {"all": {"allOf": [{}, INSIDE]}}},
        "a",
    ),
    "$ref of the root": (
        {"$ref": "#/definitions/root", "definitions": {"root": members(a=INSIDE)}},
        "a",
    ),
    "$ref inside allOf": (
        {**members(a={"allOf": [{"$ref": "#/definitions/inside"}]}), "definitions": {"inside": INSIDE}},
        "a",
    ),
    "items": (members(a={"items": INSIDE}), "a/0"),
    "tuple items": (members(a={"items": [INSIDE]}), "a/0"),
    "later tuple items": (members(a={"items": [NUMBER, NUMBER, INSIDE]}), "a/2"),
    "additionalItems": (members(a={"items": [NUMBER], "additionalItems": INSIDE}), "a/1"),
    "items in combiners": (members(a={"allOf": [{"items": {"anyOf": [INSIDE]}}]}), "a/0"),
}


def patch_at(path: str, value: Any) -> Any:
    """A patch with `value` at `path`; a number in the path is a place in an array, behind plain numbers."""
    for name in reversed(path.split("/")):
        value = [*range(int(name)), value] if name.isdigit() else {name: value}
    return value


@pytest.mark.parametrize(("schema", "path"), list(REACHED.values()), ids=list(REACHED))
def test_fields_are_found_however_the_schema_reaches_them(schema: dict[str, Any], path: str) -> None:
    assert judged(patch_at(path, {"w": 1}), schema) is None
    assert judged(patch_at(path, {"w": 1, "r": 1}), schema) == (READ_ONLY, [f"{path}/r"])
    assert judged(patch_at(path, {"w": 1, "u": 1}), schema) == (UNKNOWN, [f"{path}/u"])


def test_a_schema_that_refers_to_itself_is_followed_as_deep_as_the_patch() -> None:
    schema = members(next={"$ref": "#"}, w=NUMBER, r=FIXED)
    assert judged({"next": {"next": {"next": {"w": 1}}}}, schema) is None
    assert judged({"next": {"next": {"r": 1}}}, schema) == (READ_ONLY, ["next/next/r"])
    assert judged({"next": {"next": {"u": 1}}}, schema) == (UNKNOWN, ["next/next/u"])


def test_a_field_is_known_when_one_of_several_schemas_names_it() -> None:
    schema = {"allOf": [members(a=NUMBER), members(b=NUMBER)]}
    assert judged({"a": 1, "b": 2}, schema) is None
    assert judged({"a": 1, "c": 2}, schema) == (UNKNOWN, ["c"])


def test_a_field_is_read_only_when_one_of_several_schemas_says_so() -> None:
    assert judged({"a": 1}, {"anyOf": [members(a=NUMBER), members(a=FIXED)]}) == (READ_ONLY, ["a"])
    assert judged({"a": 1}, {**members(a=NUMBER), "patternProperties": {"^a": FIXED}}) == (READ_ONLY, ["a"])


def test_a_read_only_object_is_refused_as_a_whole() -> None:
    schema = members(a={**members(w=NUMBER), "readOnly": True})
    assert judged({"a": {"w": 1, "u": 2}}, schema) == (READ_ONLY, ["a"])
    assert judged({"a": {}}, schema) == (READ_ONLY, ["a"])


def test_a_read_only_array_item_is_named_by_its_place() -> None:
    schema = members(a={"items": [NUMBER, FIXED]})
    assert judged({"a": [1]}, schema) is None
    assert judged({"a": [1, 2]}, schema) == (READ_ONLY, ["a/1"])


# What names members, and what leaves them open.


@pytest.mark.parametrize("inner", [{}, {"type": "object"}, {"additionalProperties": True}])
def test_an_object_that_the_schema_leaves_open_has_no_unknown_members(inner: dict[str, Any]) -> None:
    assert judged({"a": {"anything": {"goes": 1}}}, members(a=inner)) is None


@pytest.mark.parametrize(
    "inner",
    [
        {"additionalProperties": False},
        {"properties": {}},
        {"patternProperties": {"^x-": {}}},
        {"properties": {}, "additionalProperties": True},
    ],
)
def test_an_object_that_the_schema_closes_or_describes_has_no_other_members(inner: dict[str, Any]) -> None:
    assert judged({"a": {"b": 1}}, members(a=inner)) == (UNKNOWN, ["a/b"])


def test_a_member_that_may_be_anything_is_known() -> None:
    assert judged({"a": {"b": 1}}, members(a=True)) is None
    assert judged({"a": [1, {"b": 1}]}, members(a={"items": [True], "additionalItems": True})) is None


def test_additional_properties_describe_only_what_is_named_nowhere_else() -> None:
    schema = {
        "properties": {"a": NUMBER},
        "patternProperties": {"^b": NUMBER},
        "additionalProperties": FIXED,
    }
    assert judged({"a": 1, "b1": 2}, schema) is None
    assert judged({"c": 1}, schema) == (READ_ONLY, ["c"])


# The root, and references that lead nowhere.


@pytest.mark.parametrize(
    "schema",
    [
        {**FLAT, "readOnly": True},
        {"allOf": [{**FLAT, "readOnly": True}]},
        {"$ref": "#/definitions/root", "definitions": {"root": {**FLAT, "readOnly": True}}},
    ],
)
def test_nothing_of_a_read_only_resource_can_be_written(schema: dict[str, Any]) -> None:
    assert judged({"speed": 1, "colour": 2}, schema) == (READ_ONLY, ["speed", "colour"])
    assert judged({}, schema) == (READ_ONLY, [])
    assert judged("no object", schema) == (READ_ONLY, [])


def test_a_field_without_a_name_is_no_root() -> None:
    assert judged({"": 1}, members(**{"": FIXED})) == (READ_ONLY, [""])
    assert judged({"": {"a": 1}}, members(**{"": {}})) is None


@pytest.mark.parametrize(
    "ref",
    [
        "#/definitions/missing",
        "#/definitions/list/2",
        "#/definitions/list/-1",
        "#/definitions/list/00",
        "#/definitions/text",
        "#/definitions/list",
        "#/definitions/text/deeper",
        "#inside",
        "other.json#/definitions/inside",
        "https://mhs.openai4s.org/schema/0.9/defs.schema.json",
        "",
        7,
        None,
        ["#"],
    ],
)
def test_a_reference_that_leads_nowhere_makes_the_field_unwritable(ref: Any) -> None:
    schema = {
        **members(a={"$ref": ref}, b=NUMBER),
        "definitions": {"inside": INSIDE, "list": [INSIDE, INSIDE], "text": "text"},
    }
    fault = patch_refusal({"a": {"w": 1}}, schema)
    assert fault is not None
    assert fault.mhs_code == READ_ONLY
    assert fault.details == {"reason": "unresolvable_ref", "fields": ["a"]}
    assert patch_refusal({"b": 1}, schema) is None


@pytest.mark.parametrize(
    "circle",
    [
        {"$ref": "#/definitions/circle"},
        {"allOf": [{"$ref": "#/definitions/circle"}]},
        {"anyOf": [NUMBER, {"then": {"$ref": "#/definitions/circle"}}]},
    ],
)
def test_a_reference_in_a_circle_makes_the_field_unwritable(circle: dict[str, Any]) -> None:
    schema = {**members(a={"$ref": "#/definitions/circle"}), "definitions": {"circle": circle}}
    assert judged({"a": 1}, schema) == (READ_ONLY, ["a"])


def test_the_same_subschema_twice_is_no_circle() -> None:
    twice = {"allOf": [{"$ref": "#/definitions/inside"}, {"$ref": "#/definitions/inside"}]}
    schema = {**members(a=twice), "definitions": {"inside": INSIDE}}
    assert judged({"a": {"w": 1}}, schema) is None


@pytest.mark.parametrize("target", [True, False])
def test_a_reference_to_a_boolean_schema_is_resolved(target: bool) -> None:
    schema = {**members(a={"$ref": "#/definitions/any"}), "definitions": {"any": target}}
    assert judged({"a": {"b": 1}}, schema) is None


# What a refusal shows.


def test_a_refusal_says_what_is_wrong_with_which_field() -> None:
    unknown, fixed = patch_refusal({"colour": 1}, FLAT), patch_refusal({"position": 1}, FLAT)
    assert isinstance(unknown, Fault)
    assert isinstance(fixed, Fault)
    assert "colour" in unknown.message
    assert "position" in fixed.message
    assert fixed.details == {"fields": ["position"], "reason": "read_only"}
    assert unknown.retryable is False
    assert fixed.retryable is False


def test_a_refusal_of_a_hostile_patch_stays_small_and_says_how_much_more_there_was() -> None:
    fault = patch_refusal({f"{number}" + "x" * 10_000: 1 for number in range(1000)}, FLAT)
    assert fault is not None
    assert fault.details is not None
    assert len(fault.message) < 4000
    assert len(str(fault.details)) < 4000
    assert fault.message.endswith("and 968 more")


@pytest.mark.parametrize(("count", "tail"), [(32, "f31"), (33, "and 1 more")])
def test_a_refusal_names_every_field_that_fits_and_counts_only_what_does_not(count: int, tail: str) -> None:
    fault = patch_refusal({f"f{number}": 1 for number in range(count)}, FLAT)
    assert fault is not None
    assert fault.message.endswith(tail)
