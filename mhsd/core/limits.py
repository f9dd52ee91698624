"""Limits: a value outside is refused with the limit, its unit and where it was set, never clamped."""

from collections.abc import Mapping
from typing import Any, Protocol

from mhsd.base.errors import Fault
from mhsd.wire.canonical import MAX_SAFE_INTEGER


class LimitFacts(Protocol):
    """One field's allowed range; None means that this side is open."""

    @property
    def minimum(self) -> float | None: ...
    @property
    def maximum(self) -> float | None: ...
    @property
    def unit(self) -> str: ...
    @property
    def minimum_source(self) -> str: ...
    @property
    def maximum_source(self) -> str: ...


def _outside(value: float, limit: LimitFacts) -> tuple[str, float, str] | None:
    if limit.minimum is not None and value < limit.minimum:
        return "below", limit.minimum, limit.minimum_source
    if limit.maximum is not None and value > limit.maximum:
        return "above", limit.maximum, limit.maximum_source
    return None


def _recordable(value: float) -> float | str:
    """The value as a receipt can hold it: what is written with more digits than a double keeps becomes a text."""
    return value if abs(value) <= MAX_SAFE_INTEGER else repr(float(value))


def limit_refusal(values: Any, limits: Mapping[str, LimitFacts]) -> Fault | None:
    """The first field outside its limits as MHS.SAFETY.ENVELOPE_VIOLATION, or None. Boundary values are inside."""
    if not isinstance(values, Mapping):
        return None
    for field, limit in limits.items():
        value = values.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        outside = _outside(value, limit)
        if outside is not None:
            side, bound, source = outside
            return Fault(
                "MHS.SAFETY.ENVELOPE_VIOLATION",
                f"{field} = {value} {limit.unit} is {side} the {source} limit of {bound} {limit.unit}",
                details={
                    "field": field,
                    "value": _recordable(value),
                    "limit": bound,
                    "unit": limit.unit,
                    "source": source,
                },
            )
    return None
