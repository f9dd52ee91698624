"""State hashes: what counts as a device's state and how it is hashed [PROTO-023, contract: state hashes].

`hash_exclusions` are JSON pointers into one resource's state. A field that moves without a command (a measured
value, a duty cycle) stands there, so it never moves the device's revision.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mhsd.wire.canonical import digest


def _pointer_parts(pointer: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _without_one(value: Any, parts: list[str]) -> Any:
    head, *rest = parts
    if isinstance(value, Mapping) and head in value:
        if not rest:
            return {key: member for key, member in value.items() if key != head}
        return {**value, head: _without_one(value[head], rest)}
    if isinstance(value, list) and rest and head.isdigit() and int(head) < len(value):
        index = int(head)
        return [*value[:index], _without_one(value[index], rest), *value[index + 1 :]]
    return value


def without_exclusions(state: Mapping[str, Any], exclusions: Iterable[str]) -> Any:
    """The state as it is hashed. A pointer that points at nothing excludes nothing."""
    kept: Any = state
    for pointer in exclusions:
        kept = _without_one(kept, _pointer_parts(pointer))
    return kept


def resource_hash(state: Mapping[str, Any], exclusions: Iterable[str]) -> str:
    """The hash of one resource, as `resource.read` reports it [PROTO-023]."""
    return digest(without_exclusions(state, exclusions))


def device_hash(resources: Mapping[str, Mapping[str, Any]], exclusions: Mapping[str, Iterable[str]]) -> str:
    """The hash of `{resource_id: state}` of a whole device: a receipt's `state_hash_after`."""
    return digest(
        {name: without_exclusions(state, exclusions.get(name, ())) for name, state in resources.items()}
    )
