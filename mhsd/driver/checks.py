"""What schemas must say beyond being schemas: units on numbers, and no binding wider than its class.

Everything here is a function of the documents. A finding is `Invalid`, whose key names the place in the
document and whose text says what is allowed there; the reader of the file adds the file's name.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mhsd.wire.schema import SchemaError, compile_schema, lint

UNIT = "x-mhs-unit"


class Invalid(Exception):
    """A document that is refused: the key of the offending member, and what is allowed."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(f"{key}: {text}" if key else text)


_SINGLE = ("items", "additionalItems", "additionalProperties", "not", "if", "then", "else", "contains")
_NAMED = ("properties", "patternProperties", "definitions")
_LISTED = ("allOf", "anyOf", "oneOf", "items")


def subschemas(schema: Mapping[str, Any], key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The schema and every schema inside it, each with its key."""
    yield key, schema
    for keyword in _SINGLE:
        if isinstance(schema.get(keyword), Mapping):
            yield from subschemas(schema[keyword], f"{key}.{keyword}")
    for keyword in _NAMED:
        for name, part in schema.get(keyword, {}).items():
            if isinstance(part, Mapping):
                yield from subschemas(part, f"{key}.{keyword}.{name}")
    for keyword in _LISTED:
        if isinstance(schema.get(keyword), list):
            for index, part in enumerate(schema[keyword]):
                if isinstance(part, Mapping):
                    yield from subschemas(part, f"{key}.{keyword}[{index}]")


def types_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that `type` allows; empty where it is not given."""
    types = schema.get("type", ())
    return frozenset([types] if isinstance(types, str) else types)


def check_schema(schema: Mapping[str, Any], key: str) -> None:
    """The schema is one this program checks as it is written, and every number in it carries a UCUM unit.

    A number without a dimension says so with the unit 1.
    """
    problems = lint(schema)
    if problems:
        pointer, _, sentence = problems[0].partition(": ")
        raise Invalid(f"{key}{pointer.replace('/', '.')}".rstrip("."), sentence)
    try:
        compile_schema(schema)
    except SchemaError as error:
        raise Invalid(key, str(error)) from error
    for place, part in subschemas(schema, key):
        numeric = types_of(part) & {"number", "integer"} and "enum" not in part and "const" not in part
        if numeric and UNIT not in part:
            raise Invalid(place, f'a number needs {UNIT} with its UCUM unit, or "1" where it has none')


def check_closed_object(schema: Mapping[str, Any], key: str) -> None:
    """An input or a state is an object that names all of its members."""
    if types_of(schema) != {"object"} or schema.get("additionalProperties") is not False:
        raise Invalid(key, 'must have type = "object" and additionalProperties = false')


_LOWER = ("minimum", "exclusiveMinimum")
_UPPER = ("maximum", "exclusiveMaximum")


_Tightest = Callable[[list[tuple[float, str]]], tuple[float, str]]


def _bound(
    schema: Mapping[str, Any], keywords: Sequence[str], tightest: _Tightest
) -> tuple[float, str] | None:
    bounds = [(schema[keyword], keyword) for keyword in keywords if keyword in schema]
    return tightest(bounds) if bounds else None


def _check_bounds(binding: Mapping[str, Any], cls: Mapping[str, Any], key: str) -> None:
    for keywords, tightest, sign in ((_LOWER, max, 1), (_UPPER, min, -1)):
        allowed = _bound(cls, keywords, tightest)
        if allowed is None:
            continue
        given = _bound(binding, keywords, tightest)
        excludes = given is not None and (given[1] == keywords[1] or allowed[1] == keywords[0])
        if given is None or sign * given[0] < sign * allowed[0] or (given[0] == allowed[0] and not excludes):
            raise Invalid(key, f"wider than the class, which has {allowed[1]} = {allowed[0]}")


def _check_member(binding: Mapping[str, Any], cls: Mapping[str, Any], key: str) -> None:
    allowed = types_of(cls)
    as_numbers = allowed | {"integer"} if "number" in allowed else allowed
    if allowed and not (types_of(binding) and types_of(binding) <= as_numbers):
        raise Invalid(f"{key}.type", f"wider than the class, which allows {', '.join(sorted(allowed))}")
    if "enum" in cls:
        values = binding.get("enum", [binding["const"]] if "const" in binding else None)
        if values is None or any(value not in cls["enum"] for value in values):
            raise Invalid(key, f"wider than the class, which has enum = {cls['enum']}")
    if cls.get(UNIT) != binding.get(UNIT):
        raise Invalid(f"{key}.{UNIT}", f"the class has the unit {cls.get(UNIT)}")
    _check_bounds(binding, cls, key)


def check_narrower(binding: Mapping[str, Any], cls: Mapping[str, Any], key: str) -> None:
    """A binding accepts no input that its class refuses, as far as the top level shows.

    Checked are: closed, the class's required members required, no member that a closed class does not name,
    and for each member type, enum, unit and numeric bounds. What this cannot see (patterns, lengths, nested
    members) is refused at run time all the same: an input is validated against both schemas [PROTO-027].
    """
    check_closed_object(binding, key)
    members = binding.get("properties", {})
    missing = [name for name in cls.get("required", ()) if name not in binding.get("required", ())]
    if missing:
        raise Invalid(f"{key}.required", f"the class requires {', '.join(missing)} too")
    known = cls.get("properties", {})
    for name, member in members.items():
        if name in known:
            _check_member(member, known[name], f"{key}.properties.{name}")
        elif cls.get("additionalProperties") is False:
            allowed = ", ".join(sorted(known)) or "no members"
            raise Invalid(f"{key}.properties.{name}", f"the class does not know it; it has {allowed}")


def writable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a state schema that a write may set: everything readOnly left out, nothing required.

    At least one member must be given. [PROTO-025a]
    """
    members = {}
    for name, member in schema.get("properties", {}).items():
        if member.get("readOnly") is True:
            continue
        members[name] = writable(member) if "properties" in member else member
    kept = {name: value for name, value in schema.items() if name not in ("required", "properties")}
    return {**kept, "additionalProperties": False, "minProperties": 1, "properties": members}
