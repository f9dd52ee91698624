"""Strict reading agrees with the standard library on what is JSON, and its limits with a count of the tree."""

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mhsd.base.errors import Fault
from mhsd.wire.json_text import count_items, decode, decode_lenient, encode

BOUNDED = settings(max_examples=3 * settings().max_examples)

MAX_BYTES = 1 << 20
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.text('[]{},:"\\/ud8', max_size=8)
)
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4), inner, max_size=5),
    max_leaves=30,
)
FRAGMENTS = st.sampled_from(
    [
        *'[]{},:" \n\\',
        '"a"',
        '"\\u0061"',
        '"\\ud800"',
        '\\"',
        "1",
        "-0",
        "1e999",
        "NaN",
        "null",
        "\ufeff",
        "é",
    ]
)
NEARLY_JSON = st.one_of(
    st.lists(FRAGMENTS, max_size=25).map(lambda parts: "".join(parts).encode()),
    st.binary(max_size=20),
    st.tuples(DOCUMENTS.map(encode), st.integers(0, 200), st.binary(max_size=2)).map(
        lambda cut: cut[0][: cut[1]] + cut[2] + cut[0][cut[1] :]
    ),
)


def items_in(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + len(value) + sum(items_in(member) for member in value.values())
    if isinstance(value, list):
        return 1 + len(value) + sum(items_in(element) for element in value)
    return 0


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max((depth_of(member) for member in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((depth_of(element) for element in value), default=0)
    return 0


def exactly(value: Any) -> str:
    """A text that tells 1 from 1.0 and from true, and 0.0 from -0.0."""
    return repr(value)


def read(data: bytes) -> Any:
    """The value, or the fault."""
    try:
        return decode(data, max_bytes=MAX_BYTES)
    except Fault as fault:
        return fault


@BOUNDED
@given(DOCUMENTS)
def test_what_is_encoded_is_read_back_exactly(value: Any) -> None:
    assert exactly(decode(encode(value), max_bytes=MAX_BYTES)) == exactly(value)


@BOUNDED
@given(DOCUMENTS)
def test_the_lenient_reader_reads_good_text_as_the_strict_one(value: Any) -> None:
    assert exactly(decode_lenient(encode(value))) == exactly(value)


@BOUNDED
@given(DOCUMENTS, st.sampled_from([None, 2]), st.booleans())
def test_items_and_levels_are_counted_as_in_the_tree(
    value: Any, indent: int | None, ascii_only: bool
) -> None:
    data = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    items, depth = items_in(value), depth_of(value)
    assert count_items(data) == items
    assert decode(data, max_bytes=MAX_BYTES, max_items=items, max_depth=depth) == value
    assume(items > 0)
    with pytest.raises(Fault, match="JSON items"):
        decode(data, max_bytes=MAX_BYTES, max_items=items - 1)
    with pytest.raises(Fault, match="nested deeper"):
        decode(data, max_bytes=MAX_BYTES, max_depth=depth - 1)


@BOUNDED
@given(NEARLY_JSON)
def test_reading_raises_nothing_but_a_fault_and_accepts_nothing_but_json(data: bytes) -> None:
    found = read(data)
    if isinstance(found, Fault):
        assert found.mhs_code == "MHS.PROTOCOL.PARSE_ERROR"
    else:
        assert exactly(found) == exactly(json.loads(data))
        assert json.loads(encode(found)) == found


@BOUNDED
@given(NEARLY_JSON)
def test_the_lenient_reader_never_raises_and_gives_what_can_be_sent(data: bytes) -> None:
    found, strict = decode_lenient(data), read(data)
    assert encode(found)
    assert isinstance(strict, Fault) or exactly(found) == exactly(strict)
