"""Patches against a plain tree: however a schema is written down, the same fields are refused [PROTO-025]."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mhsd.core.patches import patch_refusal

NAMES = st.sampled_from("abcd")
WRITABLE, FIXED = "writable", "fixed"
TREES = st.recursive(
    st.sampled_from([WRITABLE, FIXED]), lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=10
)
"""What a state is: writable and fixed values in named members."""
ROOTS = st.dictionaries(NAMES, TREES, max_size=4)

WAYS = (
    "plain",
    "allOf",
    "anyOf",
    "oneOf",
    "then",
    "else",
    "dependencies",
    "$ref",
    "$ref in allOf",
    "$ref through an array",
)


def plain(tree: Any, draw: st.DrawFn, definitions: dict[str, Any]) -> dict[str, Any]:
    if tree == WRITABLE:
        return {"type": "number"}
    if tree == FIXED:
        return {"type": "number", "readOnly": True}
    parts = {name: written(part, draw, definitions) for name, part in tree.items()}
    if draw(st.booleans()):
        return {"patternProperties": {f"^{name}$": part for name, part in parts.items()}}
    return {"type": "object", "properties": parts, "additionalProperties": False}


def written(tree: Any, draw: st.DrawFn, definitions: dict[str, Any]) -> dict[str, Any]:
    """The tree as a schema, in one of many ways that mean the same."""
    schema, way = plain(tree, draw, definitions), draw(st.sampled_from(WAYS))
    if way in ("allOf", "anyOf", "oneOf"):
        return {way: [schema]}
    if way in ("then", "else"):
        return {"if": {}, way: schema}
    if way == "dependencies":
        return {"dependencies": {"x": schema}}
    if way == "plain":
        return schema
    name = f"d~/{len(definitions)}"
    reference = "#/definitions/" + name.replace("~", "~0").replace("/", "~1")
    if way == "$ref through an array":
        definitions[name] = {"allOf": [{}, schema]}
        return {"$ref": f"{reference}/allOf/1"}
    definitions[name] = schema
    return {"$ref": reference} if way == "$ref" else {"allOf": [{"$ref": reference}]}


PATCHES = st.dictionaries(
    NAMES,
    st.recursive(st.integers(0, 9), lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=8),
    max_size=4,
)


def findings(patch: dict[str, Any], tree: Any, at: str = "") -> tuple[list[str], list[str]]:
    """Unknown and fixed fields of the patch, by walking the tree."""
    unknown: list[str] = []
    fixed: list[str] = []
    for name, value in patch.items():
        path = f"{at}{name}"
        if name not in tree:
            unknown.append(path)
        elif tree[name] == FIXED:
            fixed.append(path)
        elif isinstance(tree[name], dict) and isinstance(value, dict):
            below = findings(value, tree[name], f"{path}/")
            unknown += below[0]
            fixed += below[1]
    return unknown, fixed


@st.composite
def schemas(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    tree, definitions = draw(ROOTS), {}
    schema = written(tree, draw, definitions)
    return tree, {"allOf": [schema], "definitions": definitions}


@given(schemas(), PATCHES)
def test_the_fields_of_a_patch_are_judged_by_what_the_schema_means_not_by_how_it_says_it(
    case: tuple[dict[str, Any], dict[str, Any]], patch: dict[str, Any]
) -> None:
    tree, schema = case
    unknown, fixed = findings(patch, tree)
    fault = patch_refusal(patch, schema)
    if unknown:
        expected = ("MHS.RESOURCE.FIELD_UNKNOWN", unknown)
    elif fixed:
        expected = ("MHS.RESOURCE.NOT_WRITABLE", fixed)
    else:
        assert fault is None
        return
    assert fault is not None
    assert fault.details is not None
    assert (fault.mhs_code, fault.details["fields"]) == expected


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(schemas(), ANYTHING)
def test_no_json_makes_the_walk_fail(case: tuple[dict[str, Any], dict[str, Any]], patch: Any) -> None:
    patch_refusal(patch, case[1])


@given(schemas(), PATCHES)
def test_nothing_of_a_resource_that_is_read_only_as_a_whole_is_writable(
    case: tuple[dict[str, Any], dict[str, Any]], patch: dict[str, Any]
) -> None:
    fault = patch_refusal(patch, {**case[1], "readOnly": True})
    assert fault is not None
    assert fault.mhs_code == "MHS.RESOURCE.NOT_WRITABLE"
    assert fault.details is not None
    assert fault.details["fields"] == list(patch)
