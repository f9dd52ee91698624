"""The scanner agrees with the parser on every message, however it is cut [CORE-076, CORE-183]."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mhsd.protocol.stops import STOP_CLASS, STOP_METHOD, find_stops
from mhsd.wire.json_text import decode_lenient
from mhsd.wire.stop_scanner import StopScanner
from mhsd.wire.structure import structure

BOUNDED = settings(max_examples=5 * settings().max_examples)

WORDS = st.sampled_from(
    [
        STOP_METHOD,
        STOP_CLASS,
        "mhs.command",
        "mhs.hello",
        "smoke",
        "",
        '"',
        "\\",
        "é",
        "\U0001f600",
        "{",
        "}]",
    ]
)
KEYS = st.sampled_from(
    [
        "method",
        "params",
        "input",
        "capability_id",
        "device_id",
        "session_id",
        "command_id",
        "reason",
        "id",
        "x",
    ]
)
SPACE = st.sampled_from(["", "", "", " ", "\n\t", "\r\n  "])
NUMBERS = st.sampled_from(["0", "-1.5e3", "NaN", "Infinity", "1e999", "true", "false", "null"])


def spelled(word: str, mask: int) -> str:
    """The word as a JSON string with some of its characters written as escapes."""
    characters = [
        "".join(f"\\u{unit:04x}" for unit in _units(character))
        if mask >> (place % 16) & 1
        else json.dumps(character, ensure_ascii=False)[1:-1]
        for place, character in enumerate(word)
    ]
    return f'"{"".join(characters)}"'


def _units(character: str) -> list[int]:
    data = character.encode("utf-16-be")
    return [int.from_bytes(data[place : place + 2], "big") for place in range(0, len(data), 2)]


STRINGS = st.builds(spelled, WORDS, st.sampled_from([0, 0, 0, 0b1010, 0xFFFF]))
NAMES = st.builds(spelled, KEYS, st.sampled_from([0, 0, 0, 0b1, 0xFFFF]))


def an_array(items: list[str], space: str) -> str:
    return "[" + space + f"{space},".join(items) + space + "]"


def an_object(members: list[tuple[str, str]], space: str) -> str:
    return (
        "{" + space + f",{space}".join(f"{key}{space}:{space}{value}" for key, value in members) + space + "}"
    )


def containers(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds(an_array, st.lists(values, max_size=4), SPACE),
        # Members are not unique: the last one of a name wins.
        st.builds(an_object, st.lists(st.tuples(NAMES, values), max_size=6), SPACE),
    )


VALUES = st.recursive(st.one_of(STRINGS, STRINGS, NUMBERS), containers, max_leaves=25)


def calls(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Objects that are calls more often than not, many of them stops."""
    noise = st.tuples(NAMES, values)
    wanted = st.tuples(
        st.sampled_from(['"device_id"', '"session_id"', '"command_id"', '"reason"']),
        st.one_of(STRINGS, values),
    )
    inner_input = st.tuples(
        st.just('"input"'), st.builds(an_object, st.lists(st.one_of(wanted, noise), max_size=3), SPACE)
    )
    classes = st.sampled_from([f'"{STOP_CLASS}"', f'"{STOP_CLASS}"', '"cap.world.step.v1"'])
    inner = st.one_of(st.tuples(st.just('"capability_id"'), classes), inner_input, wanted, noise)
    params = st.builds(an_object, st.lists(inner, min_size=1, max_size=6), SPACE)
    methods = st.sampled_from([f'"{STOP_METHOD}"', '"mhs.command"', '"mhs.command"', '"mhs.hello"'])
    members = st.one_of(
        st.tuples(st.just('"method"'), methods), st.tuples(st.just('"params"'), params), noise
    )
    return st.builds(an_object, st.lists(members, min_size=1, max_size=6), SPACE)


MESSAGES = st.one_of(
    VALUES,
    calls(VALUES),
    st.builds(an_array, st.lists(st.one_of(calls(VALUES), VALUES), max_size=4), SPACE),
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


def usable(params: Any) -> Any:
    """What a stop does with its parameters."""
    stop = structure(STOP_METHOD, params, max_deadline_ms=1)
    return stop.device_id, stop.session_id, stop.command_id, stop.reason


@BOUNDED
@given(MESSAGES, SPACE, st.sampled_from(["", "", "\ufeff"]), st.lists(st.integers(0, 5000), max_size=20))
def test_the_stops_are_those_that_the_parser_finds(
    message: str, space: str, mark: str, places: list[int]
) -> None:
    data = (mark + space + message + space).encode()
    expected = [usable(stop.params) for stop in find_stops(decode_lenient(data))]
    scanner = StopScanner()
    found = [usable(params) for chunk in cut(data, places) for params in scanner.feed(chunk)]
    assert found == expected
    assert scanner.finish() == []


@given(st.binary(max_size=200), st.lists(st.integers(0, 5000), max_size=10))
def test_bytes_of_any_kind_are_scanned_alike_however_they_are_cut(data: bytes, places: list[int]) -> None:
    whole, pieces = StopScanner(), StopScanner()
    found = [stop for chunk in cut(data, places) for stop in pieces.feed(chunk)]
    assert found == whole.feed(data)
    assert pieces.finish() == whole.finish()
