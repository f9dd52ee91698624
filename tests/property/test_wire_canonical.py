"""The fast way to canonical bytes gives the bytes of `rfc8785`, on every document."""

import json
from typing import Any

import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from mhsd.wire.canonical import MAX_SAFE_INTEGER, NotCanonical, canonical

BOUNDED = settings(max_examples=3 * settings().max_examples)

INTEGERS = st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
FLOATS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(2**53, 10**16).map(float),
    st.integers(10**16, 10**22).map(float),
    st.floats(1e-8, 1e-3),
    st.integers(-1000, 1000).map(float),
    st.sampled_from([-0.0, 1e21, 1e-6, 1e-7, 5e-324, 1.7976931348623157e308]),
)
# The letters around the surrogates are where code points and UTF-16 units sort differently.
TEXTS = st.one_of(st.text(max_size=8), st.text("ab\u00e9\ud7ff\ue000\ufb33\U00010000\U0001f600", max_size=4))
LEAVES = st.none() | st.booleans() | INTEGERS | FLOATS | TEXTS
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=6),
    max_leaves=20,
)
ANYTHING = st.recursive(
    LEAVES
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None), max_size=4)
    | st.binary(max_size=2)
    | st.sampled_from(["\ud800", "\udfff", 2**53, -(2**53), 10**400]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TEXTS | st.integers() | st.sampled_from(["\ud800"]), inner, max_size=4)
    ),
    max_leaves=10,
)


def safe_integer_or_double(digits: str) -> int | float:
    return int(digits) if abs(int(digits)) <= MAX_SAFE_INTEGER else float(digits)


@BOUNDED
@given(DOCUMENTS)
def test_canonical_bytes_are_those_of_rfc8785(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


@BOUNDED
@given(DOCUMENTS)
def test_canonical_bytes_mean_the_value_and_are_their_own_canonical_form(value: Any) -> None:
    # JCS knows only doubles: an integral one beyond 2^53-1 is written with digits alone and read as a double.
    read = json.loads(canonical(value), parse_int=safe_integer_or_double)
    assert read == value
    assert canonical(read) == canonical(value)


@BOUNDED
@given(ANYTHING)
def test_a_value_is_refused_exactly_where_rfc8785_refuses_it(value: Any) -> None:
    try:
        expected: bytes | None = rfc8785.dumps(value)
    except (ValueError, TypeError):
        expected = None
    try:
        found: bytes | None = canonical(value)
    except NotCanonical:
        found = None
    assert found == expected
