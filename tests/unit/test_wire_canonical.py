"""Canonical bytes are those of RFC 8785, by whichever of the two ways they were made."""

import hashlib
from typing import Any

import pytest
import rfc8785

from mhsd.wire.canonical import NotCanonical, canonical, digest, sha256_text


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def test_the_example_of_rfc_8785_comes_out_as_printed_there() -> None:
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"\u002f",
        "literals": [None, True, False],
    }
    assert (
        canonical(value)
        == (
            '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
            '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        ).encode()
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (-0.0, "0"),
        (0.0, "0"),
        (1e2, "100"),
        (float(2**53 - 1), "9007199254740991"),
        (float(2**53), "9007199254740992"),
        (1e16, "10000000000000000"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1e-4, "0.0001"),
        (9.999e-5, "0.00009999"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (2**53 - 1, "9007199254740991"),
        (-(2**53) + 1, "-9007199254740991"),
        ((1, (2,)), "[1,[2]]"),
        ({"b": 1, "a": {"d": 2, "c": 3}}, '{"a":{"c":3,"d":2},"b":1}'),
        ({}, "{}"),
        ("/\x7f\u2028", '"/\x7f\u2028"'),
        ("\x00\b\t\n\f\r\x1f", '"\\u0000\\b\\t\\n\\f\\r\\u001f"'),
    ],
)
def test_numbers_and_texts_are_written_as_ecmascript_does(value: Any, text: str) -> None:
    assert canonical(value) == text.encode()
    assert rfc8785.dumps(value) == text.encode()


def test_keys_sort_by_utf_16_units_and_not_by_code_points() -> None:
    # U+1F600 is D83D DE00 in UTF-16, so it sorts before U+FB33 although its code point is greater.
    assert canonical({"\ufb33": 1, "\U0001f600": 2, "\u20ac": 3}) == (
        '{"\u20ac":3,"\U0001f600":2,"\ufb33":1}'.encode()
    )


@pytest.mark.parametrize(
    "value",
    [
        2**53,
        -(2**53),
        10**5000,
        float("nan"),
        float("inf"),
        "\ud800",
        {"\udfff": 1},
        {1: "a key that is a number"},
        {True: 1},
        {None: 1},
        {"a": b"bytes"},
        {"a", "b"},
        object(),
        [1e-9, "\ud800"],
        [1e-9, 10**5000],
        [1e-9, {1: 2}],
        [1e-9, float("nan")],
        nested(100_000),
        [1e-9, nested(100_000)],
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises(NotCanonical):
        canonical(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(NotCanonical):
        canonical(loop)


def test_the_refusal_does_not_repeat_the_value() -> None:
    with pytest.raises(NotCanonical) as refusal:
        canonical({"password": 1e-9, "secret-key": {2**60}})
    assert "secret" not in str(refusal.value)
    assert str(2**60) not in str(refusal.value)


def test_the_value_is_left_as_it_was() -> None:
    value = {"b": [1.0, {"c": 2.0}], "a": -0.0}
    canonical(value)
    assert repr(value) == "{'b': [1.0, {'c': 2.0}], 'a': -0.0}"


def test_a_digest_is_the_sha256_of_the_canonical_bytes() -> None:
    value = {"resource": "world", "capability_id": "cap.world.step.v1", "input": {"ticks": 10.0}}
    text = b'{"capability_id":"cap.world.step.v1","input":{"ticks":10},"resource":"world"}'
    assert digest(value) == "sha256:" + hashlib.sha256(text).hexdigest()
    assert sha256_text(text) == digest(value)
