"""State hashes: what counts as a device's state and how it is hashed [PROTO-023, MHSD-9a-24].

`hash_exclusions` are JSON pointers into one resource's state. A field that moves without a command (a measured
value, a duty cycle) stands there, so it never moves the device's revision.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mhsd.wire.canonical import digest

_Excluded = dict[str, "_Excluded | None"]
"""By the parts of the pointers; None leaves out what is there as a whole."""


def pointer_parts(pointer: str) -> list[str]:
    """The reference tokens of a JSON pointer, unescaped [RFC 6901]."""
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _excluded(pointers: Iterable[str]) -> _Excluded:
    tree: _Excluded = {}
    for parts in filter(None, map(pointer_parts, pointers)):
        place: _Excluded | None = tree
        for part in parts[:-1]:
            if place is not None:
                place = place.setdefault(part, {})
        if place is not None:
            place[parts[-1]] = None
    return tree


def _without(value: Any, excluded: _Excluded) -> Any:
    if not excluded:
        return value
    if isinstance(value, Mapping):
        return {
            name: _without(member, excluded.get(name) or {})
            for name, member in value.items()
            if excluded.get(name, {}) is not None
        }
    if isinstance(value, list | tuple):
        # All at once: an index means the place in the whole array, whatever else is left out.
        return [
            _without(member, excluded.get(str(index)) or {})
            for index, member in enumerate(value)
            if excluded.get(str(index), {}) is not None
        ]
    return value


def without_exclusions(state: Mapping[str, Any], exclusions: Iterable[str]) -> Any:
    """The state as it is hashed. A pointer that points at nothing, or at the whole, excludes nothing."""
    return _without(state, _excluded(exclusions))


def resource_hash(state: Mapping[str, Any], exclusions: Iterable[str]) -> str:
    """The hash of one resource, as `resource.read` reports it [PROTO-023]."""
    return digest(without_exclusions(state, exclusions))


def device_hash(resources: Mapping[str, Mapping[str, Any]], exclusions: Mapping[str, Iterable[str]]) -> str:
    """The hash of `{resource_id: state}` of a whole device: a receipt's `state_hash_after`."""
    return digest(
        {name: without_exclusions(state, exclusions.get(name, ())) for name, state in resources.items()}
    )
