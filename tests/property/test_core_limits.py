"""Limits over all numbers: refused exactly when outside, and by a bound that is broken."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mhsd.core.limits import limit_refusal
from mhsd.driver.manifest import Limit
from mhsd.wire.canonical import stays_canonical

FINITE = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = FINITE | st.integers(-(2**53) + 1, 2**53 - 1)
BOUNDS = st.none() | st.floats(-1e9, 1e9) | st.integers(-(10**9), 10**9)
SOURCES = st.sampled_from(["manifest", "site"])
LIMITS = st.builds(Limit, BOUNDS, BOUNDS, st.just("mm/s"), SOURCES, SOURCES)


@given(NUMBERS, LIMITS)
def test_a_number_is_refused_exactly_when_it_lies_outside(value: Any, limit: Limit) -> None:
    below = limit.minimum is not None and value < limit.minimum
    above = limit.maximum is not None and value > limit.maximum
    fault = limit_refusal({"speed": value}, {"speed": limit})
    assert (fault is not None) == (below or above)
    if fault is not None:
        assert fault.details is not None
        assert fault.details["limit"] == (limit.minimum if below else limit.maximum)
        assert fault.details["source"] == (limit.minimum_source if below else limit.maximum_source)
        assert float(fault.details["value"]) == value
        assert stays_canonical(fault.receipt_error())


@given(LIMITS)
def test_the_bounds_themselves_are_inside_where_there_is_an_inside(limit: Limit) -> None:
    bounds = [bound for bound in (limit.minimum, limit.maximum) if bound is not None]
    if len(bounds) == 2 and bounds[0] > bounds[1]:
        return
    for bound in bounds:
        assert limit_refusal({"speed": bound}, {"speed": limit}) is None


ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(ANYTHING | st.fixed_dictionaries({"speed": ANYTHING}), LIMITS)
def test_no_input_makes_the_check_fail_and_only_numbers_are_refused(value: Any, limit: Limit) -> None:
    fault = limit_refusal(value, {"speed": limit})
    if fault is not None:
        assert type(value["speed"]) in (int, float)
