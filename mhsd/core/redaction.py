"""Redaction: what a manifest declares as secret is taken out of a receipt before it is recorded [EVID-002, PROTO-042].

Only what a driver has written can hold a secret of the device: its output and the details of its errors. The rest of
a receipt is the endpoint's own word and stays, and the schema of manifests allows pointers to nothing else.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mhsd.core.hashes import pointer_parts

_MIRROR = ("error", "data")
"""An error's details stand twice in a receipt: in `error` and in its `data`."""


def redacted(body: dict[str, Any], pointers: Sequence[str]) -> dict[str, Any]:
    """The body without what the JSON pointers name; `redacted_fields` lists those that named something."""
    found = []
    for pointer in pointers:
        parts = pointer_parts(pointer)
        without = _without(body, parts)
        if without is body:
            continue
        found.append(pointer)
        body = _without(without, [*_MIRROR, *parts[1:]]) if parts[0] == "error" else without
    return {**body, "redacted_fields": found} if found else body


def _without(value: Any, parts: Sequence[str]) -> Any:
    """A copy without the member at `parts`, or `value` itself where there is none."""
    name, rest = parts[0], parts[1:]
    if isinstance(value, Mapping) and name in value:
        if not rest:
            return {key: member for key, member in value.items() if key != name}
        member = _without(value[name], rest)
        return value if member is value[name] else {**value, name: member}
    if isinstance(value, list | tuple) and name.isdecimal() and int(name) < len(value):
        index = int(name)
        if not rest:
            # A gap would shift what comes after it, so the place stays and is empty.
            return [*value[:index], None, *value[index + 1 :]]
        member = _without(value[index], rest)
        return value if member is value[index] else [*value[:index], member, *value[index + 1 :]]
    return value
