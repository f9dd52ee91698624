"""What a patch may touch: unknown and readOnly fields are refused at any depth [PROTO-025, CORE-022].

A patch is walked beside the resource's state schema. Every subschema that can describe a value counts, whether it is
reached through properties, patternProperties, items, $ref, allOf, anyOf, oneOf, then, else or dependencies: a field is
known when one of them names it and not writable when one of them says readOnly.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mhsd.base.errors import Fault
from mhsd.core.hashes import pointer_parts
from mhsd.wire.json_text import excerpt

_COMBINERS = ("allOf", "anyOf", "oneOf")
_BRANCHES = ("then", "else")
_LONGEST_CHAIN = 32
_MOST_NAMED = 32
"""Fields that a refusal names; a hostile patch may have thousands, and receipts are kept."""


class _Unresolvable(Exception):
    """A $ref that points outside the schema or in a circle."""


def _target(ref: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The subschema that a local reference names; one that is true or false describes nothing."""
    if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
        raise _Unresolvable
    target: Any = root
    for name in pointer_parts(ref):
        if isinstance(target, list):
            target = {str(index): part for index, part in enumerate(target)}
        if not isinstance(target, Mapping) or name not in target:
            raise _Unresolvable
        target = target[name]
    if isinstance(target, bool):
        return {}
    if not isinstance(target, Mapping):
        raise _Unresolvable
    return target


def _resolve(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    for _ in range(_LONGEST_CHAIN):
        if "$ref" not in schema:
            return schema
        schema = _target(schema["$ref"], root)
    raise _Unresolvable


def _facets(
    schema: Any, root: Mapping[str, Any], above: tuple[Mapping[str, Any], ...] = ()
) -> Iterator[Mapping[str, Any]]:
    """The schema and every subschema that describes the same value."""
    if not isinstance(schema, Mapping):
        return
    resolved = _resolve(schema, root)
    if any(resolved is each for each in above):
        raise _Unresolvable
    yield resolved
    parts = [part for keyword in _COMBINERS for part in resolved.get(keyword, ())]
    parts += [resolved[keyword] for keyword in _BRANCHES if keyword in resolved]
    parts += resolved.get("dependencies", {}).values()
    for part in parts:
        yield from _facets(part, root, (*above, resolved))


def _member_schemas(facets: list[Mapping[str, Any]], name: str) -> list[Any]:
    found: list[Any] = []
    for facet in facets:
        properties = facet.get("properties", {})
        named = [properties[name]] if name in properties else []
        named += [
            sub for pattern, sub in facet.get("patternProperties", {}).items() if re.search(pattern, name)
        ]
        extra = facet.get("additionalProperties")
        if not named and isinstance(extra, Mapping):
            named = [extra]
        found += named
    return found


def _names_members(facet: Mapping[str, Any]) -> bool:
    """Whether the schema says which members there are, so that any other one is unknown."""
    return (
        "properties" in facet
        or "patternProperties" in facet
        or facet.get("additionalProperties", True) is not True
    )


def _item_schemas(facets: list[Mapping[str, Any]], index: int) -> list[Any]:
    found: list[Any] = []
    for facet in facets:
        items = facet.get("items")
        if isinstance(items, Mapping):
            found.append(items)
        elif isinstance(items, list):
            found.append(items[index] if index < len(items) else facet.get("additionalItems", {}))
    return found


_Path = tuple[str, ...]


class _Walk:
    """Collects the paths of what a patch must not touch; the empty path is the whole resource."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.unknown: list[_Path] = []
        self.read_only: list[_Path] = []

    def visit(self, value: Any, schemas: list[Any], path: _Path) -> None:
        facets = [facet for schema in schemas for facet in _facets(schema, self.root)]
        if any(facet.get("readOnly") is True for facet in facets):
            self.read_only.append(path)
        elif isinstance(value, Mapping):
            self._visit_members(value, facets, path)
        elif isinstance(value, list):
            for index, member in enumerate(value):
                self.visit(member, _item_schemas(facets, index), (*path, str(index)))

    def _visit_members(self, value: Mapping[str, Any], facets: list[Mapping[str, Any]], path: _Path) -> None:
        closed = not path or any(_names_members(facet) for facet in facets)
        for name, member in value.items():
            members = _member_schemas(facets, name)
            if members:
                self.visit(member, members, (*path, name))
            elif closed:
                self.unknown.append((*path, name))


def _shown(paths: list[_Path]) -> tuple[str, list[str]]:
    """The paths as `speed_mm_s` or `axis/speed_mm_s`, for a message and for `details.fields`, cut short."""
    named = [excerpt("/".join(path)) for path in paths[:_MOST_NAMED]]
    more = f" and {len(paths) - len(named)} more" if len(paths) > len(named) else ""
    return ", ".join(named) + more, named


def patch_refusal(patch: Any, state_schema: Mapping[str, Any]) -> Fault | None:
    """FIELD_UNKNOWN or NOT_WRITABLE with `details.fields` (paths), or None when every field may be written."""
    walk = _Walk(state_schema)
    try:
        walk.visit(patch, [state_schema], ())
    except _Unresolvable:
        return Fault(
            "MHS.RESOURCE.NOT_WRITABLE",
            "the resource's state schema has a $ref that cannot be resolved, so the patch cannot be judged",
            details={"reason": "unresolvable_ref", "fields": _shown(_names(patch))[1]},
        )
    if walk.unknown:
        text, fields = _shown(walk.unknown)
        return Fault(
            "MHS.RESOURCE.FIELD_UNKNOWN", f"the resource has no field {text}", details={"fields": fields}
        )
    if walk.read_only:
        whole = walk.read_only == [()]
        text, fields = _shown(_names(patch) if whole else walk.read_only)
        return Fault(
            "MHS.RESOURCE.NOT_WRITABLE",
            "the whole resource is read-only" if whole else f"read-only: {text}",
            details={"fields": fields, "reason": "read_only"},
        )
    return None


def _names(patch: Any) -> list[_Path]:
    return [(name,) for name in patch] if isinstance(patch, Mapping) else []
