"""Schemas that can be trusted to be checked as they are written.

fastjsonschema ignores what it does not know: a misspelt keyword, a keyword of a later draft, a neighbour of
`$ref`. This decides which draft-07 schemas are accepted, by a list of keywords; compiling is for `schema`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mhsd.base.units import is_unit
from mhsd.wire.patterns import pattern_problem

DRAFT_07 = "http://json-schema.org/draft-07/schema#"
FORMATS = frozenset({"date", "date-time", "ipv4", "ipv6", "json-pointer", "uri", "uri-reference"})
"""The formats that are checked; each is matched in linear time."""

_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_BESIDE_REF = frozenset({"$ref", "$comment", "description", "title"})


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= 1e300


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_names(value: Any) -> bool:
    return type(value) is list and all(type(name) is str for name in value) and len(set(value)) == len(value)


def _is_types(value: Any) -> bool:
    names = value if type(value) is list else [value]
    return bool(names) and all(type(name) is str and name in _TYPES for name in names)


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_anything(_: Any) -> bool:
    return True


_Rule = tuple[Callable[[Any], bool], str]
_TEXT: _Rule = (_is_text, "a string")
_NUMBER: _Rule = (_is_number, "a number")
_COUNT: _Rule = (_is_count, "an integer of at least 0")
_FLAG: _Rule = (lambda value: type(value) is bool, "true or false")
_ANYTHING: _Rule = (_is_anything, "")

_PLAIN_KEYWORDS: Mapping[str, _Rule] = {
    "$schema": (lambda value: value == DRAFT_07, DRAFT_07),
    "$id": _TEXT,
    "$comment": _TEXT,
    "title": _TEXT,
    "description": _TEXT,
    "default": _ANYTHING,
    "examples": (lambda value: type(value) is list, "an array"),
    "readOnly": _FLAG,
    "writeOnly": _FLAG,
    "type": (_is_types, "a JSON type, or an array of them"),
    "enum": (lambda value: type(value) is list and bool(value), "an array of at least one value"),
    "const": _ANYTHING,
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "exclusiveMinimum": _NUMBER,
    "exclusiveMaximum": _NUMBER,
    "minLength": _COUNT,
    "maxLength": _COUNT,
    "minItems": _COUNT,
    "maxItems": _COUNT,
    "uniqueItems": _FLAG,
    "minProperties": _COUNT,
    "maxProperties": _COUNT,
    "required": (_is_names, "an array of different strings"),
    "format": (lambda value: value in FORMATS, "one of " + ", ".join(sorted(FORMATS))),
    "x-mhs-unit": (lambda value: type(value) is str and is_unit(value), "a UCUM unit, as mm/s or Cel"),
}
_SCHEMA_KEYWORDS = frozenset(
    {"additionalItems", "additionalProperties", "contains", "else", "if", "not", "propertyNames", "then"}
)
_SCHEMA_LIST_KEYWORDS = frozenset({"allOf", "anyOf", "oneOf"})
_SCHEMA_MAP_KEYWORDS = frozenset({"definitions", "patternProperties", "properties"})


def lint(schema: Any) -> list[str]:
    """What is wrong with a draft-07 schema, each as `<JSON pointer>: <sentence>`; empty where it is sound.

    Refuses keywords that nothing would check, values of the wrong type, units that are none, patterns that
    could be made slow and formats that are not checked.
    """
    try:
        return list(_problems(schema, ""))
    except RecursionError:
        return ["/: the schema is nested too deeply"]


def _problems(schema: Any, at: str) -> Iterator[str]:
    if type(schema) is bool:
        return
    if type(schema) is not dict:
        yield _problem(at, "a schema must be an object, true or false")
        return
    if "$ref" in schema:
        yield from _ref_problems(schema, at)
        return
    for keyword, value in schema.items():
        yield from _keyword_problems(keyword, value, f"{at}/{_token(keyword)}")


def _ref_problems(schema: dict[str, Any], at: str) -> Iterator[str]:
    if type(schema["$ref"]) is not str:
        yield _problem(f"{at}/$ref", "must be a string")
    for keyword in schema:
        if keyword not in _BESIDE_REF:
            yield _problem(f"{at}/{_token(keyword)}", "is ignored beside $ref; put both into allOf")


def _keyword_problems(keyword: Any, value: Any, at: str) -> Iterator[str]:
    if keyword in _PLAIN_KEYWORDS:
        fits, expected = _PLAIN_KEYWORDS[keyword]
        if not fits(value):
            yield _problem(at, f"must be {expected}")
    elif keyword == "pattern":
        yield from _pattern_problems(value, at)
    elif keyword in _SCHEMA_KEYWORDS:
        yield from _problems(value, at)
    elif keyword in _SCHEMA_LIST_KEYWORDS or (keyword == "items" and type(value) is list):
        yield from _list_problems(value, at)
    elif keyword == "items":
        yield from _problems(value, at)
    elif keyword in _SCHEMA_MAP_KEYWORDS:
        yield from _map_problems(keyword, value, at)
    elif keyword == "dependencies":
        yield from _dependency_problems(value, at)
    else:
        yield _problem(at, "is no keyword that is checked here")


def _list_problems(value: Any, at: str) -> Iterator[str]:
    if type(value) is not list or not value:
        yield _problem(at, "must be an array of at least one schema")
        return
    for index, schema in enumerate(value):
        yield from _problems(schema, f"{at}/{index}")


def _map_problems(keyword: str, value: Any, at: str) -> Iterator[str]:
    if type(value) is not dict:
        yield _problem(at, "must be an object of schemas")
        return
    if keyword == "definitions":
        yield from _clashes(value, at)
    for name, schema in value.items():
        if keyword == "patternProperties":
            yield from _pattern_problems(name, f"{at}/{_token(name)}")
        yield from _problems(schema, f"{at}/{_token(name)}")


def _clashes(definitions: dict[str, Any], at: str) -> Iterator[str]:
    """Definitions that fastjsonschema would compile to one function, so that one of them checks for both."""
    names: dict[str, str] = {}
    for name in definitions:
        other = names.setdefault(re.sub("[^a-z0-9]", "_", name.lower()), name)
        if other != name:
            yield _problem(f"{at}/{_token(name)}", f"must differ from {other} in more than case and signs")


def _dependency_problems(value: Any, at: str) -> Iterator[str]:
    if type(value) is not dict:
        yield _problem(at, "must be an object")
        return
    for name, needed in value.items():
        place = f"{at}/{_token(name)}"
        if type(needed) is not list:
            yield from _problems(needed, place)
        elif not _is_names(needed):
            yield _problem(place, "must be an array of different strings, or a schema")


def _pattern_problems(pattern: Any, at: str) -> Iterator[str]:
    if type(pattern) is not str:
        yield _problem(at, "must be a string")
        return
    problem = pattern_problem(pattern)
    if problem is not None:
        yield _problem(at, f"the pattern is not accepted: {problem}")


def _problem(at: str, sentence: str) -> str:
    return f"{at or '/'}: {sentence}"


def _token(name: Any) -> str:
    return str(name).replace("~", "~0").replace("/", "~1")
