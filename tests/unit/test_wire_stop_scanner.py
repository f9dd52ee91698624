"""The scanner finds the stops of a message that nobody parses, and takes nothing else for one [CORE-076, MHSD-9a]."""

import json
from typing import Any

import pytest

from mhsd.wire.stop_scanner import LONGEST_TEXT_BYTES, StopScanner

STOP = {"jsonrpc": "2.0", "id": 1, "method": "mhs.safety.estop", "params": {"reason": "smoke"}}
COMMAND = {
    "jsonrpc": "2.0",
    "id": 2,
    "method": "mhs.command",
    "params": {"capability_id": "cap.motion.estop.v1", "device_id": "d", "input": {"reason": "fire"}},
}
OTHER = {"jsonrpc": "2.0", "id": 3, "method": "mhs.hello", "params": {}}


def scan(text: bytes, size: int | None = None) -> list[dict[str, str]]:
    scanner = StopScanner()
    size = size or max(1, len(text))
    return [stop for start in range(0, len(text), size) for stop in scanner.feed(text[start : start + size])]


def scanned(value: Any) -> list[dict[str, str]]:
    return scan(json.dumps(value).encode())


def test_a_stop_is_found_with_its_parameters() -> None:
    assert scanned(STOP) == [{"reason": "smoke"}]
    params = {
        "device_id": "d",
        "session_id": "s",
        "command_id": "c",
        "reason": "r",
        "deadline_ms": 5,
        "x": "y",
    }
    assert scanned({**STOP, "params": params}) == [
        {"device_id": "d", "session_id": "s", "command_id": "c", "reason": "r"}
    ]


def test_a_command_of_the_stop_class_is_a_stop_with_the_reason_of_its_input() -> None:
    assert scanned(COMMAND) == [{"device_id": "d", "reason": "fire"}]


def test_the_order_of_members_does_not_matter() -> None:
    backwards = {name: STOP[name] for name in reversed(STOP)}
    assert scanned(backwards) == [{"reason": "smoke"}]


def test_every_stop_of_a_batch_is_found_in_order() -> None:
    assert scanned([OTHER, STOP, COMMAND, [STOP], "text", 1, None, STOP]) == [
        {"reason": "smoke"},
        {"device_id": "d", "reason": "fire"},
        {"reason": "smoke"},
    ]


@pytest.mark.parametrize(
    "params",
    [None, [], ["mhs.safety.estop"], "text", 5, True, {}, {"reason": 5}, {"reason": {"reason": "x"}}],
    ids=repr,
)
def test_a_stop_whose_parameters_are_useless_is_one_without_any(params: Any) -> None:
    assert scanned({**STOP, "params": params}) == [{}]


@pytest.mark.parametrize(
    "decoy",
    [
        OTHER | {"params": STOP},
        OTHER | {"params": {"input": STOP, "capability_id": "cap.motion.estop.v1"}},
        OTHER | {"x": STOP, "method": ["mhs.safety.estop"]},
        OTHER | {"method": {"method": "mhs.safety.estop"}},
        OTHER | {"params": {"reason": json.dumps(STOP)}},
        OTHER | {json.dumps(STOP): json.dumps([STOP])},
        OTHER | {"mhs.safety.estop": "method"},
        COMMAND | {"params": {"input": {"capability_id": "cap.motion.estop.v1"}}},
        COMMAND | {"params": {"capability_id": ["cap.motion.estop.v1"]}},
        COMMAND | {"params": [{"capability_id": "cap.motion.estop.v1"}]},
        COMMAND | {"method": "mhs.resource.write"},
        [[STOP], {"a": [STOP]}, [[[STOP]]]],
        "mhs.safety.estop",
        ["mhs.safety.estop", "method"],
        17,
    ],
    ids=lambda decoy: json.dumps(decoy)[:50],
)
def test_what_only_looks_like_a_stop_is_none(decoy: Any) -> None:
    for size in (None, 1, 7):
        assert scan(json.dumps(decoy).encode(), size) == []


def test_of_duplicate_members_the_last_one_counts() -> None:
    method = b'"method":"mhs.safety.estop"'
    assert scan(b'{"method":"mhs.hello",%b}' % method) == [{}]
    assert scan(b'{%b,"method":"mhs.hello"}' % method) == []
    assert scan(b'{%b,"method":5}' % method) == []
    assert scan(b'{%b,"params":{"reason":"a"},"params":{"reason":"b"}}' % method) == [{"reason": "b"}]
    assert scan(b'{%b,"params":{"reason":"a"},"params":[]}' % method) == [{}]
    assert scan(b'{%b,"params":{"device_id":"a","device_id":7}}' % method) == [{}]
    command = b'{"method":"mhs.command","params":{"capability_id":"cap.motion.estop.v1",%b}}'
    assert scan(command % b'"input":{"reason":"a"},"input":{}') == [{}]
    assert scan(command % b'"input":{"reason":"a"},"input":3') == [{}]
    assert scan(command % b'"capability_id":"cap.world.step.v1"') == []


def test_names_and_values_may_be_written_with_escapes() -> None:
    text = rb'{"\u006dethod":"mhs.s\u0061fety.estop","p\u0061rams":{"re\u0061son":"a\nb \"c\" \ud83d\ude00 \ud800"}}'
    for size in (None, 1, 2, 3, 5):
        assert scan(text, size) == [{"reason": 'a\nb "c" \U0001f600 ?'}]


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "-0.0", "1E+2"])
def test_numbers_of_any_spelling_are_passed_over(number: str) -> None:
    text = f'{{"id":{number},"params":{{"deadline_ms":{number},"reason":"r"}},"method":"mhs.safety.estop"}}'
    assert scan(text.encode()) == [{"reason": "r"}]


def test_what_follows_the_message_means_nothing() -> None:
    stop = json.dumps(STOP).encode()
    assert scan(b"{}" + stop) == []
    assert scan(b"[]" + stop) == []
    assert scan(b"3 " + stop) == []
    assert scan(b'"x"' + stop) == []
    assert scan(b"\xef\xbb\xbf \r\n\t" + stop + stop) == [{"reason": "smoke"}]


def test_the_end_of_the_message_is_known() -> None:
    scanner = StopScanner()
    scanner.feed(b'[{"a":[}')
    assert not scanner.has_ended
    scanner = StopScanner()
    scanner.feed(b"[{}]")
    assert scanner.has_ended


def test_a_stop_is_told_as_soon_as_its_call_ends() -> None:
    scanner = StopScanner()
    assert scanner.feed(b"[" + json.dumps(STOP).encode()[:-1]) == []
    assert scanner.feed(b"}") == [{"reason": "smoke"}]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'{"method":"mhs.safety.estop"', [{}]),
        (b'{"method":"mhs.safety.estop","params":{"reason":"a","x":[[[{', [{"reason": "a"}]),
        (b'[{},{"method":"mhs.safety.estop","params":{"reason":"a', [{}]),
        (b'{"method":"mhs.command","params":{"capability_id":"cap.motion.estop.v1","input":{"a":1', [{}]),
        (b'{"method":"mhs.safety.estop","method":', []),
        (b'{"method":"mhs.safety.esto', []),
        (b'[{"method":"mhs.hello"},', []),
        (b"", []),
    ],
)
def test_a_message_that_is_cut_off_keeps_the_stop_that_was_seen(
    text: bytes, found: list[dict[str, str]]
) -> None:
    scanner = StopScanner()
    assert scanner.feed(text) == []
    assert scanner.finish() == found
    assert scanner.finish() == []


def test_long_texts_are_cut_at_a_whole_character_and_not_kept() -> None:
    scanner = StopScanner()
    scanner.feed(b'{"params":{"reason":"')
    for _ in range(100):
        scanner.feed(rb"\u00e9" * 1000)
        assert scanner._text is not None
        assert len(scanner._text) <= LONGEST_TEXT_BYTES
    assert scanner.feed(b'"},"method":"mhs.safety.estop"}') == [{"reason": "é" * (LONGEST_TEXT_BYTES // 6)}]


def test_a_long_text_that_nobody_wants_is_not_kept_at_all() -> None:
    scanner = StopScanner()
    scanner.feed(b'{"params":{"x":"' + b"x" * 100_000)
    assert scanner._text is None


@pytest.mark.parametrize(
    "junk", [b"[" * 200_000, b"]}" * 50_000, b'"\\' * 50_000, b"{:,:,}" * 30_000, b"\x00\xff" * 9999]
)
def test_text_that_is_no_json_does_no_harm(junk: bytes) -> None:
    for size in (None, 4096):
        scan(b'{"x":' + junk, size)
        scan(junk, size)
