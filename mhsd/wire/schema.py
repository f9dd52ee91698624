"""Checking values against draft-07 schemas, and saying what is wrong without repeating the value.

Decides how fastjsonschema is used so that it is safe with hostile data: the caller's schema and value are
never changed, nothing is fetched, no value makes it raise, and what it cannot see (NaN, values that are no
JSON) is refused before it looks. Which schemas may be used at all is for `lint`.

What it still does differently from a full draft-07 program: the first defect only; a number like 1.0 is an
integer; `\\d` in its own date formats matches digits of every script.
"""

import copy
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import fastjsonschema
from fastjsonschema import JsonSchemaValueException

from mhsd.wire.canonical import NotCanonical, digest
from mhsd.wire.json_text import encode, excerpt
from mhsd.wire.lint import DRAFT_07, lint

__all__ = ["SchemaError", "Validator", "compile_schema", "lint"]

Resolve = Callable[[str], Mapping[str, Any]]

_MOST_CACHED = 512
_LONGEST_CHOICES = 200


class SchemaError(ValueError):
    """The schema cannot be compiled; the message says why."""


class Validator:
    """One compiled schema; make it with `compile_schema`."""

    def __init__(self, schema: Mapping[str, Any], check: Callable[[Any], Any]) -> None:
        self.schema = schema
        self._check = check

    def errors(self, value: Any) -> list[dict[str, str]]:
        """The first defect of `value` as `{path, rule, message}`, or an empty list; never raises.

        `path` is a JSON pointer into the value, `rule` the keyword that it breaks (`json` where it is no
        finite JSON value, `size` where it is too large to be checked). The message names what is allowed and
        members by their names, never a value [PROTO-042].
        """
        try:
            return self._defects(value)
        except Exception:
            # The generated code meets hostile values: an integer of 400 digits overflows under multipleOf,
            # one of 5000 has no decimal text, deep data exhausts the stack. None of them is valid.
            return [_defect("", "size", "has a number or a nesting that is too large to be checked")]

    def _defects(self, value: Any) -> list[dict[str, str]]:
        place = _place_of_non_json(value)
        if place is not None:
            return [_defect(place, "json", "must be a finite JSON value")]
        try:
            self._check(value)
        except JsonSchemaValueException as error:
            return [_explained(error, value)]
        return []


def compile_schema(schema: Mapping[str, Any], *, resolve: Resolve | None = None) -> Validator:
    """The validator of a draft-07 `schema`; the same one for an equal schema. Takes milliseconds at first.

    `resolve(uri)` gives the documents that `$ref` names beside the schema itself, a KeyError where there is
    none; nothing is ever fetched. Raises SchemaError for what cannot be compiled.
    """
    try:
        key = (digest(schema), resolve)
    except NotCanonical as error:
        raise SchemaError(f"the schema is no JSON: {error}") from None
    known = _compiled.get(key)
    if known is None:
        if len(_compiled) >= _MOST_CACHED:
            del _compiled[next(iter(_compiled))]
        known = _compiled[key] = Validator(schema, _compile(schema, resolve))
    return known


_compiled: dict[tuple[str, Resolve | None], Validator] = {}


class _Documents(dict[str, Callable[[str], Any]]):
    """A handler for every URI scheme; fastjsonschema opens what it has none for, files and URLs alike."""

    def __init__(self, resolve: Resolve | None) -> None:
        super().__init__()
        self._resolve = resolve

    def __contains__(self, _: object) -> bool:
        return True

    def __missing__(self, _: str) -> Callable[[str], Any]:
        return self._document

    def _document(self, uri: str) -> Any:
        missing = SchemaError(f"the schema refers to {uri}, which is not at hand")
        if self._resolve is None:
            raise missing
        try:
            return copy.deepcopy(dict(self._resolve(uri)))
        except KeyError:
            raise missing from None


def _compile(schema: Mapping[str, Any], resolve: Resolve | None) -> Callable[[Any], Any]:
    # fastjsonschema rewrites $ref in the schema that it is given, and reads one without $schema as 2019-09.
    own = copy.deepcopy(dict(schema))
    if own.setdefault("$schema", DRAFT_07) != DRAFT_07:
        raise SchemaError(f"$schema must be {DRAFT_07}")
    try:
        return fastjsonschema.compile(own, handlers=_Documents(resolve), use_default=False)
    except SchemaError:
        raise
    except Exception as error:
        # Whatever its generator stumbles over is a defect of the schema; its author needs one kind of answer.
        raise SchemaError(f"the schema cannot be compiled: {error}") from error


def _place_of_non_json(value: Any) -> str | None:
    """The pointer to the first part of `value` that is no finite JSON; None where there is none."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return None
    if kind is float:
        return None if math.isfinite(value) else ""
    if kind is dict:
        parts = value.items()
    elif kind is list or kind is tuple:
        parts = enumerate(value)
    else:
        return ""
    for name, part in parts:
        if kind is dict and type(name) is not str:
            return ""
        below = _place_of_non_json(part)
        if below is not None:
            return f"/{_token(name)}{below}"
    return None


def _defect(path: str, rule: str, message: str) -> dict[str, str]:
    return {"path": path, "rule": rule, "message": message}


def _explained(error: JsonSchemaValueException, value: Any) -> dict[str, str]:
    definition = error.definition if isinstance(error.definition, dict) else {}
    rule = error.rule or "false"
    wording = _WORDINGS.get(rule)
    message = wording(definition, error.value) if wording else "must not be there"
    return _defect(_pointer(error.name or "", value), rule, message)


def _pointer(name: str, value: Any) -> str:
    """fastjsonschema's `data.a[0]` as the JSON pointer `/a/0`.

    Its names are not escaped, so the members that the value really has decide where one ends.
    """
    rest, place, pointer = name.removeprefix("data"), value, ""
    while rest:
        index = re.match(r"\[([0-9]+)\]", rest)
        if isinstance(place, (list, tuple)) and index and int(index[1]) < len(place):
            rest, place = rest[index.end() :], place[int(index[1])]
            pointer += f"/{index[1]}"
        elif isinstance(place, dict) and (key := _leading_member(place, rest)) is not None:
            rest, place = rest[len(key) + 1 :], place[key]
            pointer += f"/{_token(key)}"
        else:
            break
    return pointer


def _leading_member(members: Mapping[str, Any], path: str) -> str | None:
    """The longest member that `path`, which is `.name` and more, can start with."""
    fitting = [
        key for key in members if path.startswith(f".{key}") and path[len(key) + 1 :][:1] in ("", ".", "[")
    ]
    return max(fitting, key=len, default=None)


def _token(name: object) -> str:
    return excerpt(str(name)).replace("~", "~0").replace("/", "~1")


Wording = Callable[[dict[str, Any], Any], str]


def _bound(words: str, rule: str) -> Wording:
    def say(definition: dict[str, Any], _: Any) -> str:
        unit = definition.get("x-mhs-unit")
        return f"must be {words} {definition[rule]}" + (f" {unit}" if unit and unit != "1" else "")

    return say


def _count(words: str, rule: str, of: str) -> Wording:
    return lambda definition, _: f"must have {words} {definition[rule]} {of}"


def _fixed(words: str) -> Wording:
    return lambda _definition, _: words


def _say_type(definition: dict[str, Any], _: Any) -> str:
    types = definition["type"]
    return "must be of type " + (types if isinstance(types, str) else " or ".join(types))


def _say_choices(definition: dict[str, Any], _: Any) -> str:
    choices = ", ".join(encode(choice).decode() for choice in definition["enum"])
    if len(choices) > _LONGEST_CHOICES:
        return f"must be one of the {len(definition['enum'])} values of the schema"
    return f"must be one of {choices}"


def _say_const(definition: dict[str, Any], _: Any) -> str:
    only = encode(definition["const"]).decode()
    return f"must be {only}" if len(only) <= _LONGEST_CHOICES else "must be the one value of the schema"


def _say_missing(definition: dict[str, Any], value: Any) -> str:
    missing = [name for name in definition["required"] if name not in value]
    words = "must have the member" + ("s " if len(missing) > 1 else " ") + ", ".join(missing)
    # What is missing was often sent under another name.
    unknown = _unknown(definition, value) if definition.get("additionalProperties") is False else None
    return words if unknown is None else f"{words}, and not {excerpt(unknown)!r}"


def _say_unknown(definition: dict[str, Any], value: Any) -> str:
    allowed = ", ".join(definition.get("properties", {})) or "none"
    return f"must not have the member {excerpt(_unknown(definition, value) or '')!r}; allowed are: {allowed}"


def _unknown(definition: dict[str, Any], value: Any) -> str | None:
    """The first member that the schema does not name."""
    known = definition.get("properties", {})
    patterns = [re.compile(pattern) for pattern in definition.get("patternProperties", {})]
    named = (name for name in value if name not in known)
    return next((name for name in named if not any(pattern.search(name) for pattern in patterns)), None)


_WORDINGS: Mapping[str, Wording] = {
    "type": _say_type,
    "enum": _say_choices,
    "const": _say_const,
    "minimum": _bound("at least", "minimum"),
    "maximum": _bound("at most", "maximum"),
    "exclusiveMinimum": _bound("more than", "exclusiveMinimum"),
    "exclusiveMaximum": _bound("less than", "exclusiveMaximum"),
    "multipleOf": _bound("a multiple of", "multipleOf"),
    "minLength": _count("at least", "minLength", "characters"),
    "maxLength": _count("at most", "maxLength", "characters"),
    "minItems": _count("at least", "minItems", "items"),
    "maxItems": _count("at most", "maxItems", "items"),
    "minProperties": _count("at least", "minProperties", "members"),
    "maxProperties": _count("at most", "maxProperties", "members"),
    "pattern": lambda definition, _: f"must match the pattern {definition['pattern']}",
    "format": lambda definition, _: f"must have the format {definition['format']}",
    "required": _say_missing,
    "additionalProperties": _say_unknown,
    "propertyNames": _fixed("has a member whose name is not allowed"),
    "dependencies": _fixed("lacks a member that another one needs"),
    "items": _fixed("has more items than allowed"),
    "uniqueItems": _fixed("must not have equal items"),
    "contains": _fixed("must have an item of the required kind"),
    "anyOf": _fixed("must fit one of the alternatives"),
    "oneOf": _fixed("must fit exactly one of the alternatives"),
    "not": _fixed("must not be of the excluded kind"),
}
