"""Only strict JSON within the limits is parsed, an e-stop's text is understood as far as it can be."""

import json
from typing import Any

import pytest

from mhsd.base.errors import Fault
from mhsd.wire.json_text import (
    MAX_ITEMS,
    Raw,
    count_items,
    decode,
    decode_lenient,
    encode,
    encode_error,
    encode_reply,
    excerpt,
)

MAX_BYTES = 1 << 20


def strict(data: bytes) -> Any:
    return decode(data, max_bytes=MAX_BYTES)


def refusal(data: bytes, **limits: int) -> Fault:
    with pytest.raises(Fault) as caught:
        decode(data, **{"max_bytes": MAX_BYTES, **limits})
    return caught.value


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "syntax"),
        (b" \r\n", "syntax"),
        (b"{", "syntax"),
        (b'{"a":1,}', "syntax"),
        (b"[1,]", "syntax"),
        (b"{'a':1}", "syntax"),
        (b"01", "syntax"),
        (b"+1", "syntax"),
        (b".5", "syntax"),
        (b"1.", "syntax"),
        (b"nul", "syntax"),
        (b'"a\nb"', "syntax"),
        (b'"\x00"', "syntax"),
        (b'"\\x41"', "syntax"),
        (b'"\\u12g4"', "syntax"),
        (b"// c\n1", "syntax"),
        (b"1 2", "syntax"),
        (b"{} {}", "syntax"),
        (b"{}\x00", "syntax"),
        (b"\x0b1", "syntax"),
        (b"\xc2\xa01", "syntax"),
        (b"\xef\xbb\xbf{}", "bom"),
        ("{}".encode("utf-16"), "utf8"),
        (b'"\xff"', "utf8"),
        (b'"\xed\xa0\x80"', "utf8"),
        (b'"\xc0\x80"', "utf8"),
        (b"NaN", "non_finite"),
        (b"[Infinity]", "non_finite"),
        (b'{"a":-Infinity}', "non_finite"),
        (b"1e999", "non_finite"),
        (b"-1e999", "non_finite"),
        (b"9" * 400 + b".0", "non_finite"),
        (b'{"a":1,"a":1}', "duplicate_key"),
        (b'{"a":1,"\\u0061":2}', "duplicate_key"),
        (b'[{"b":{"":1,"":2}}]', "duplicate_key"),
        (b'{"\\ud83d\\ude00":1,"\xf0\x9f\x98\x80":2}', "duplicate_key"),
        (b"9" * 5000, "integer_digits"),
        (b"[-" + b"9" * 5000 + b"]", "integer_digits"),
        (b'"\\ud800"', "lone_surrogate"),
        (b'"\\uDFFF"', "lone_surrogate"),
        (b'"\\ude00\\ud83d"', "lone_surrogate"),
        (b'{"\\ud800":1}', "lone_surrogate"),
        (b'{"\\ud800":1,"\\ud800":2}', "duplicate_key"),
        (b"[" * 65 + b"]" * 65, "depth"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "depth"),
        (b"[" * 65, "depth"),
    ],
)
def test_text_that_is_not_strict_json_is_a_parse_error(data: bytes, reason: str) -> None:
    fault = refusal(data)
    assert fault.mhs_code == "MHS.PROTOCOL.PARSE_ERROR"
    assert fault.code == -32700
    assert fault.details is not None
    assert fault.details["reason"] == reason
    assert encode_error(None, fault.error())


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b" [1, 2] \r\n\t", [1, 2]),
        (b"9007199254740993", 9007199254740993),
        (b"9" * 4300, int("9" * 4300)),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b'"\\\\ud800"', "\\ud800"),
        (b'"\\u0000"', "\x00"),
        ('"\u00e9\U0001f600"'.encode(), "\u00e9\U0001f600"),
        (b'{"a":{"a":1},"b":{"a":1}}', {"a": {"a": 1}, "b": {"a": 1}}),
        (b"[" * 64 + b"]" * 64, json.loads("[" * 64 + "]" * 64)),
        (b'["[[[[", "{{{{"]', ["[[[[", "{{{{"]),
    ],
    ids=range(10),
)
def test_strict_json_is_read_exactly(data: bytes, value: Any) -> None:
    assert strict(data) == value


@pytest.mark.parametrize(
    ("data", "kind", "shown"),
    [
        (b"1.0", float, "1.0"),
        (b"1e2", float, "100.0"),
        (b"-0.0", float, "-0.0"),
        (b"-0", int, "0"),
        (b"5", int, "5"),
    ],
)
def test_numbers_keep_their_kind(data: bytes, kind: type, shown: str) -> None:
    value = strict(data)
    assert type(value) is kind
    assert repr(value) == shown


def test_brackets_in_strings_are_no_nesting() -> None:
    deep_looking = b'["' + b"[" * 200 + b'","\\"' + b"{" * 200 + b'\\\\"]'
    assert strict(deep_looking) == ["[" * 200, '"' + "{" * 200 + "\\"]


def test_a_long_message_is_refused_before_it_is_looked_at() -> None:
    fault = refusal(b"not json at all", max_bytes=14)
    assert fault.mhs_code == "MHS.LIMIT.PAYLOAD_TOO_LARGE"
    assert fault.details == {"reason": "bytes", "limit": 14}
    assert decode(b"[1, 2]", max_bytes=6) == [1, 2]


def test_a_message_of_too_many_items_is_refused_before_it_is_parsed() -> None:
    fault = refusal(b"[" + b"0," * MAX_ITEMS + b"this is never parsed")
    assert fault.mhs_code == "MHS.LIMIT.PAYLOAD_TOO_LARGE"
    assert fault.details == {"reason": "items", "limit": MAX_ITEMS}


@pytest.mark.parametrize(
    ("data", "items"),
    [
        (b"1", 0),
        (b'"[,,,]"', 0),
        (b"[]", 1),
        (b"{ \n}", 1),
        (b"[ [ ] ]", 3),
        (b'["a"]', 2),
        (b'{"a": [1, 2]}', 5),
        (b'[",", "\\",[", "\\\\", {"k": {}}]', 8),
    ],
)
def test_items_are_containers_and_members_outside_strings(data: bytes, items: int) -> None:
    assert count_items(data) == items
    assert decode(data, max_bytes=MAX_BYTES, max_items=items) == json.loads(data)
    if items:
        assert refusal(data, max_items=items - 1).details == {"reason": "items", "limit": items - 1}


@pytest.mark.parametrize("depth", [1, 64, 65, 200])
@pytest.mark.parametrize("siblings", [0, 300])
def test_the_level_limit_holds_exactly_at_any_width(depth: int, siblings: int) -> None:
    nest = b"[" * depth + b"]" * depth
    data = b"[" + b",".join([b"{}"] * siblings + [nest]) + b"]"
    assert decode(data, max_bytes=MAX_BYTES, max_depth=depth + 1) == json.loads(data)
    assert refusal(data, max_depth=depth).details == {"reason": "depth", "limit": depth}


@pytest.mark.parametrize(
    "data",
    [
        b'"' * 200_000,
        b'"' + b"\\" * 200_001,
        b'"' + b'\\"' * 100_000,
        b"[" * 200_000,
        b"]" * 200_000,
        b'{"a":' * 40_000,
        b"[]" * 100_000,
        b'["",' * 50_000,
        b" " * 200_000,
        b"9" * 200_000,
        b"1e" + b"9" * 200_000,
        b"\\[" * 100_000,
    ],
    ids=lambda data: repr(data[:6]),
)
def test_hostile_text_is_refused_and_never_leaks_another_exception(data: bytes) -> None:
    assert refusal(data).mhs_code in {"MHS.PROTOCOL.PARSE_ERROR", "MHS.LIMIT.PAYLOAD_TOO_LARGE"}
    assert decode_lenient(data) in (None, "", [])


def test_deep_nesting_within_a_generous_limit_is_still_a_parse_error() -> None:
    data = b"[" * 100_000 + b"]" * 100_000
    fault = refusal(data, max_depth=10**6, max_items=10**6)
    assert fault.details == {"reason": "depth", "limit": 10**6}


def test_a_refusal_names_a_duplicate_key_but_not_at_any_length() -> None:
    fault = refusal(b'{"%b":1,"%b":2}' % (b"k" * 5000, b"k" * 5000))
    assert len(fault.message) < 200
    assert fault.details is not None
    assert fault.details["key"] == "k" * 64 + "…"


def test_the_third_key_is_found_when_it_is_the_one_that_is_twice() -> None:
    assert refusal(b'{"a":1,"b":2,"c":3,"b":4}').details == {"reason": "duplicate_key", "key": "b"}


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a":NaN,"b":[Infinity,-Infinity],"c":1e999}', {"a": None, "b": [None, None], "c": None}),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b'\xef\xbb\xbf{"a":1}', {"a": 1}),
        (b' {"a":1} trailing', {"a": 1}),
        (b'{"a":"\xff"}', {"a": "\ufffd"}),
        (b'{"a":"\\ud800x"}', {"a": "?x"}),
        (b'{"a":"\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        (b'{"a":"x\ny"}', {"a": "x\ny"}),
        (b'{"a":' + b"9" * 5000 + b"}", {"a": None}),
        (b'{"a":1.5}', {"a": 1.5}),
    ],
    ids=range(10),
)
def test_an_e_stop_is_read_as_far_as_it_can_be(data: bytes, value: Any) -> None:
    found = decode_lenient(data)
    assert found == value
    assert encode(found)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"mhs.safety.estop", b"\xff\xfe{", b"[" * 65 + b"]" * 65, b"[" + b"0," * MAX_ITEMS + b"0]"],
)
def test_a_hopeless_e_stop_is_nothing_at_all(data: bytes) -> None:
    assert decode_lenient(data) is None


def test_the_lenient_reader_keeps_to_its_limits() -> None:
    assert decode_lenient(b"[1]", max_bytes=3) == [1]
    assert decode_lenient(b"[1]", max_bytes=2) is None
    assert decode_lenient(b"[[1]]", max_depth=1) is None
    assert decode_lenient(b"[1, 2]", max_items=2) is None


def test_encoding_is_compact_utf_8() -> None:
    assert encode({"a": [1, 2.5, None, True], "b": "é\n"}) == '{"a":[1,2.5,null,true],"b":"é\\n"}'.encode()


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], "\ud800"])
def test_what_is_no_json_is_not_encoded(value: Any) -> None:
    with pytest.raises(ValueError, match=r"JSON compliant|surrogates"):
        encode(value)


def test_a_raw_result_is_spliced_byte_for_byte() -> None:
    raw = Raw(b'{ "spacing" : "kept", "a":1, "a":2 }')
    assert (
        encode_reply("x", raw) == b'{"jsonrpc":"2.0","id":"x","result":{ "spacing" : "kept", "a":1, "a":2 }}'
    )


@pytest.mark.parametrize("request_id", ["", 'a"b\\c\n', "é\U0001f600", 0, -1, 2**70])
@pytest.mark.parametrize("result", [None, [], {"a": 1}, "text"])
def test_a_reply_echoes_the_id_and_parses(request_id: str | int, result: Any) -> None:
    assert strict(encode_reply(request_id, result)) == {"jsonrpc": "2.0", "id": request_id, "result": result}
    assert type(strict(encode_reply(request_id, result))["id"]) is type(request_id)


def test_an_error_may_have_no_id() -> None:
    error = Fault("MHS.PROTOCOL.PARSE_ERROR", "no").error()
    assert strict(encode_error(None, error)) == {"jsonrpc": "2.0", "id": None, "error": error}
    assert strict(encode_error(7, error))["id"] == 7


@pytest.mark.parametrize(
    ("text", "shown"), [("a", "a"), ("x" * 64, "x" * 64), ("x" * 65, "x" * 64 + "…"), ("\ud800", "?")]
)
def test_an_excerpt_is_short_and_encodable(text: str, shown: str) -> None:
    assert excerpt(text) == shown
