"""Ids sort in the order in which they were made, whatever the clock does, and are hard to guess."""

import re
from collections.abc import Callable

import pytest

from mhsd.base.ids import ULID_PATTERN, Ids, is_ulid

NOON_S = 1_792_482_300.0


def fixed_clock(*readings_s: float) -> Callable[[], float]:
    """A clock that gives these readings, then the last one for ever."""
    left = list(readings_s)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def test_a_ulid_is_its_milliseconds_and_its_randomness_in_base32() -> None:
    # The time is the example of the ULID specification, whose first ten characters are 01ARYZ6S41.
    ids = Ids(fixed_clock(1469918176.385), lambda size: bytes(range(size)))
    assert ids.ulid() == "01ARYZ6S41000G40R40M30E209"


def test_the_largest_ulid_is_the_one_of_the_specification() -> None:
    ids = Ids(fixed_clock((2**48 - 1) / 1000 + 0.0004), lambda size: b"\xff" * size)
    assert ids.ulid() == "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"


def test_ids_of_one_millisecond_keep_their_order() -> None:
    ids = Ids(fixed_clock(NOON_S))
    made = [ids.ulid() for _ in range(2000)]
    assert made == sorted(set(made))


def test_ids_keep_their_order_when_the_clock_steps_back() -> None:
    ids = Ids(fixed_clock(NOON_S, NOON_S - 3600, NOON_S - 7200, NOON_S + 1))
    made = [ids.ulid() for _ in range(4)]
    assert made == sorted(set(made))


def test_ids_keep_their_order_when_the_random_part_overflows() -> None:
    ids = Ids(fixed_clock(NOON_S, NOON_S, NOON_S + 0.001), lambda size: b"\xff" * size)
    made = [ids.ulid() for _ in range(3)]
    assert made == sorted(set(made))
    assert all(is_ulid(text) for text in made)


def test_a_new_millisecond_takes_new_randomness() -> None:
    drawn: list[int] = []

    def entropy(size: int) -> bytes:
        drawn.append(size)
        return bytes(size)

    ids = Ids(fixed_clock(NOON_S, NOON_S, NOON_S + 1), entropy)
    for _ in range(3):
        ids.ulid()
    assert drawn == [10, 10]


@pytest.mark.parametrize(
    ("mint", "pattern"),
    [
        (Ids.session_id, r"mhs_s_[0-7][0-9A-HJKMNP-TV-Z]{51}"),
        (Ids.operation_id, r"op_[0-7][0-9A-HJKMNP-TV-Z]{25}"),
        (Ids.permit_id, r"permit_[0-7][0-9A-HJKMNP-TV-Z]{25}"),
        (Ids.instance_id, r"[0-7][0-9A-HJKMNP-TV-Z]{25}"),
    ],
)
def test_an_id_has_the_form_of_its_kind(mint: Callable[[Ids], str], pattern: str) -> None:
    ids = Ids()
    first, second = mint(ids), mint(ids)
    assert re.fullmatch(pattern, first)
    assert first != second


def test_a_session_id_ends_in_randomness_of_its_own() -> None:
    ids = Ids(fixed_clock(NOON_S))
    first, second = ids.session_id(), ids.session_id()
    assert first[-26:] != second[-26:]


@pytest.mark.parametrize("text", ["01J8ZQ3V6Y7M2N4P6R8S0T2V4X", "0" * 26, "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"])
def test_a_ulid_is_known_by_its_canonical_spelling(text: str) -> None:
    assert is_ulid(text)
    assert re.search(ULID_PATTERN, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "01J8ZQ3V6Y",
        "01j8zq3v6y7m2n4p6r8s0t2v4x",
        "01J8ZQ3V6Y7M2N4P6R8S0T2V4U",
        "81J8ZQ3V6Y7M2N4P6R8S0T2V4X",
        "01J8ZQ3V6Y7M2N4P6R8S0T2V4X\n",
        "01J8ZQ3V6Y7M2N4P6R8S0T2V4XX",
        "\u06601J8ZQ3V6Y7M2N4P6R8S0T2V4X",
    ],
)
def test_anything_else_is_no_ulid(text: str) -> None:
    assert not is_ulid(text)
