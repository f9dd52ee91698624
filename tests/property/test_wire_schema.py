"""Checking agrees with the reference program for draft-07, and neither schemas nor values make it raise.

Left out because fastjsonschema differs there, as `mhsd.wire.schema` says: formats, digits of other scripts,
numbers that overflow, and `multipleOf` with fractions that a double cannot hold.
"""

from typing import Any

import jsonschema
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mhsd.wire.json_text import encode
from mhsd.wire.schema import SchemaError, compile_schema, lint

BOUNDED = settings(max_examples=2 * settings().max_examples)

NAMES = st.sampled_from(["a", "b", "a.b", "x1", "c[0]", "~/"])
NUMBERS = st.integers(-3, 4) | st.sampled_from([0.5, -1.5, 2.0, 0.0])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text("ab1", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
COUNTS = st.integers(0, 3)
PATTERNS = st.sampled_from(["^a", "^a*$", "b$", "^[a-b]+1$"])


def schemas_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    maps = st.dictionaries(NAMES, inner, max_size=3)
    lists = st.lists(inner, min_size=1, max_size=3)
    names = st.lists(NAMES, max_size=2, unique=True)
    return st.fixed_dictionaries(
        {},
        optional={
            "properties": maps,
            "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
            "additionalProperties": inner,
            "propertyNames": inner,
            "required": names,
            "dependencies": st.dictionaries(NAMES, inner | names, max_size=2),
            # The reference raises TypeError for a boolean here where additionalItems stands beside it.
            "items": inner.filter(lambda schema: isinstance(schema, dict)) | lists,
            "additionalItems": inner,
            "contains": inner,
            "allOf": lists,
            "anyOf": lists,
            "oneOf": lists,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
        },
    )


TYPES = ["array", "boolean", "integer", "null", "number", "object", "string"]
SIMPLE = st.booleans() | st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(TYPES)
        | st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
        "minimum": NUMBERS,
        "maximum": NUMBERS,
        "exclusiveMinimum": NUMBERS,
        "exclusiveMaximum": NUMBERS,
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "minLength": COUNTS,
        "maxLength": COUNTS,
        "pattern": PATTERNS,
        "minItems": COUNTS,
        "maxItems": COUNTS,
        "uniqueItems": st.booleans(),
        "minProperties": COUNTS,
        "maxProperties": COUNTS,
    },
)
SCHEMAS = st.recursive(SIMPLE, schemas_of, max_leaves=6).filter(lambda schema: isinstance(schema, dict))
HOSTILE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from([10**400]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@BOUNDED
@given(SCHEMAS, st.lists(VALUES, min_size=1, max_size=4))
def test_values_are_accepted_exactly_where_the_reference_accepts_them(
    schema: dict[str, Any], values: list[Any]
) -> None:
    try:
        validator = compile_schema(schema)
    except SchemaError:
        assume(False)
    reference = jsonschema.Draft7Validator(schema)
    for value in values:
        errors = validator.errors(value)
        assert (errors == []) is reference.is_valid(value), errors


@BOUNDED
@given(SCHEMAS, st.lists(HOSTILE, min_size=1, max_size=4))
def test_no_value_makes_checking_raise_and_errors_can_be_sent(
    schema: dict[str, Any], values: list[Any]
) -> None:
    try:
        validator = compile_schema(schema)
    except SchemaError:
        assume(False)
    for value in values:
        for error in validator.errors(value):
            assert set(error) == {"path", "rule", "message"}
            assert encode(error)


def compile_problem(schema: dict[str, Any]) -> str | None:
    try:
        compile_schema(schema)
    except SchemaError as error:
        return str(error)
    return None


@BOUNDED
@given(
    SCHEMAS | HOSTILE | st.dictionaries(st.sampled_from(["properties", "items", "pattern", "not"]), HOSTILE)
)
def test_lint_and_compiling_never_raise_anything_else(schema: Any) -> None:
    problems = lint(schema)
    assert all(problem.startswith("/") for problem in problems)
    if isinstance(schema, dict):
        found = compile_problem(schema)
        # What lint finds sound compiles, but for a member that is required and forbidden at once.
        assert problems or found is None or "are required but not allowed" in found
