"""What a patch may touch: unknown and readOnly fields are refused at any depth [PROTO-025, CORE-022].

A patch is walked beside the resource's state schema. Every subschema that can describe a value counts, whether it is
reached through properties, patternProperties, items, $ref, allOf, anyOf, oneOf, then or else: a field is known when
one of them names it and not writable when one of them says readOnly.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mhsd.base.errors import Fault

_COMBINERS = ("allOf", "anyOf", "oneOf")
_BRANCHES = ("then", "else")


class _Unresolvable(Exception):
    """A $ref that points outside the schema or in a circle."""


def _resolve(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    for _ in range(32):
        ref = schema.get("$ref")
        if ref is None:
            return schema
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise _Unresolvable
        target: Any = root
        for part in ref[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or name not in target:
                raise _Unresolvable
            target = target[name]
        if not isinstance(target, Mapping):
            raise _Unresolvable
        schema = target
    raise _Unresolvable


def _facets(schema: Any, root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The schema and every subschema that describes the same value."""
    if not isinstance(schema, Mapping):
        return
    resolved = _resolve(schema, root)
    yield resolved
    for keyword in _COMBINERS:
        for part in resolved.get(keyword, ()):
            yield from _facets(part, root)
    for keyword in _BRANCHES:
        if keyword in resolved:
            yield from _facets(resolved[keyword], root)


def _member_schemas(facets: list[Mapping[str, Any]], name: str) -> list[Any]:
    found: list[Any] = []
    for facet in facets:
        properties = facet.get("properties", {})
        if name in properties:
            found.append(properties[name])
        found.extend(
            sub for pattern, sub in facet.get("patternProperties", {}).items() if re.search(pattern, name)
        )
        extra = facet.get("additionalProperties")
        if isinstance(extra, Mapping) and name not in properties:
            found.append(extra)
    return found


def _item_schemas(facets: list[Mapping[str, Any]], index: int) -> list[Any]:
    found: list[Any] = []
    for facet in facets:
        items = facet.get("items")
        if isinstance(items, Mapping):
            found.append(items)
        elif isinstance(items, list):
            found.append(items[index] if index < len(items) else facet.get("additionalItems", {}))
    return found


def _below(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


class _Walk:
    """Collects the paths of what a patch must not touch, as `speed_mm_s` or `axis/speed_mm_s`."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.unknown: list[str] = []
        self.read_only: list[str] = []

    def visit(self, value: Any, schemas: list[Any], path: str) -> None:
        facets = [facet for schema in schemas for facet in _facets(schema, self.root)]
        if any(facet.get("readOnly") is True for facet in facets):
            self.read_only.append(path)
            return
        if isinstance(value, Mapping):
            described = any(
                "properties" in facet
                or "patternProperties" in facet
                or isinstance(facet.get("additionalProperties"), Mapping)
                for facet in facets
            )
            for name, member in value.items():
                members = _member_schemas(facets, name)
                if members:
                    self.visit(member, members, _below(path, name))
                elif described or not path:
                    self.unknown.append(_below(path, name))
        elif isinstance(value, list):
            for index, member in enumerate(value):
                self.visit(member, _item_schemas(facets, index), _below(path, str(index)))


def patch_refusal(patch: Any, state_schema: Mapping[str, Any]) -> Fault | None:
    """FIELD_UNKNOWN or NOT_WRITABLE with `details.fields` (paths), or None when every field may be written."""
    walk = _Walk(state_schema)
    try:
        walk.visit(patch, [state_schema], "")
    except _Unresolvable:
        return Fault(
            "MHS.RESOURCE.NOT_WRITABLE",
            "the resource's state schema has a $ref that cannot be resolved, so nothing in it can be written",
            details={"reason": "unresolvable_ref", "fields": []},
        )
    if walk.unknown:
        return Fault(
            "MHS.RESOURCE.FIELD_UNKNOWN",
            f"the resource has no field {', '.join(walk.unknown)}",
            details={"fields": walk.unknown},
        )
    if walk.read_only:
        return Fault(
            "MHS.RESOURCE.NOT_WRITABLE",
            f"read-only: {', '.join(walk.read_only)}",
            details={"fields": walk.read_only, "reason": "read_only"},
        )
    return None
