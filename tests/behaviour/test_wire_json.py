"""Which bytes are a message at all, and what the others are answered with."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.behaviour.conftest import LIMITS
from tests.documents import check_error
from tests.lab import HttpWire, Lab, Session, StdioWire, request, ulid

BOM = b"\xef\xbb\xbf"


def text_of(**params: Any) -> bytes:
    """The bytes of a good request."""
    return json.dumps(request("mhs.devices.list", **params)).encode()


def refusal(lab: Lab, body: bytes) -> dict[str, Any]:
    """The error that answers bytes which are no message; it has no id to carry."""
    answer = lab.wire.exchange_bytes(body)
    assert answer["id"] is None
    check_error(answer["error"])
    error: dict[str, Any] = answer["error"]
    return error


NOT_STRICT = {
    "a duplicate key": b'{"jsonrpc":"2.0","id":"a","id":"b","method":"mhs.devices.list"}',
    "a duplicate key, once with an escape": b'{"jsonrpc":"2.0","id":"a","\\u0069d":"b","method":"mhs.devices.list"}',
    "a duplicate key deep inside": (
        b'{"jsonrpc":"2.0","id":"a","method":"mhs.devices.list","params":{"filter":{"tag":"a","tag":"b"}}}'
    ),
    "NaN": b'{"jsonrpc":"2.0","id":"a","method":"mhs.devices.list","params":{"trace_id":NaN}}',
    "Infinity": b'{"jsonrpc":"2.0","id":"a","method":"mhs.devices.list","params":{"trace_id":Infinity}}',
    "-Infinity": b'{"jsonrpc":"2.0","id":"a","method":"mhs.devices.list","params":{"trace_id":-Infinity}}',
    "1e999": b'{"jsonrpc":"2.0","id":"a","method":"mhs.devices.list","params":{"trace_id":1e999}}',
    "-1e999": b'{"jsonrpc":"2.0","id":"a","method":"mhs.devices.list","params":{"trace_id":-1e999}}',
    "a byte order mark": BOM + b'{"jsonrpc":"2.0","id":"a","method":"mhs.devices.list"}',
    "a second value behind it": b'{"jsonrpc":"2.0","id":"a","method":"mhs.devices.list"} {}',
    "a letter behind it": b'{"jsonrpc":"2.0","id":"a","method":"mhs.devices.list"}x',
    "bytes that are no UTF-8": b'{"jsonrpc":"2.0","id":"a","method":"mhs.devices.list","params":{"trace_id":"\xff"}}',
    "half a surrogate pair": b'{"jsonrpc":"2.0","id":"a","method":"mhs.devices.list","params":{"trace_id":"\\ud800"}}',
    "an open brace": b"{",
    "a bare word": b"hello",
    "a trailing comma": b'{"jsonrpc":"2.0","id":"a","method":"mhs.devices.list",}',
    "single quotes": b"{'jsonrpc':'2.0'}",
    "a comment": b'{"jsonrpc":"2.0"/* two */,"id":"a","method":"mhs.devices.list"}',
    "a leading zero": b'{"jsonrpc":"2.0","id":01,"method":"mhs.devices.list"}',
}


@pytest.mark.parametrize("body", NOT_STRICT.values(), ids=NOT_STRICT.keys())
def test_what_is_not_strict_json_is_a_parse_error(lab: Lab, body: bytes) -> None:
    """[PROTO-001]"""
    if lab.binding == "ws" and b"\xff" in body:
        pytest.skip("WebSocket knows no such text: the connection is closed with 1007")
    error = refusal(lab, body)
    assert (error["code"], error["data"]["mhs_code"]) == (-32700, "MHS.PROTOCOL.PARSE_ERROR")


def test_the_connection_serves_on_after_a_parse_error(lab: Lab) -> None:
    """[PROTO-001]"""
    refusal(lab, b"{")
    assert lab.call("mhs.devices.list")["devices"]


def test_unicode_text_arrives_however_it_is_spelled(lab: Lab) -> None:
    """[PROTO-001, PROTO-004]"""
    for spelled in (b'"caf\xc3\xa9 \xf0\x9f\x94\xac %d"', b'"caf\\u00e9 \\ud83d\\udd2c %d"'):
        request_id = spelled % id(spelled)
        answer = lab.wire.exchange_bytes(
            b'{"jsonrpc":"2.0","id":%b,"method":"mhs.devices.list"}' % request_id
        )
        assert answer["id"] == json.loads(request_id)
        assert answer["id"].startswith("café 🔬")
        assert answer["result"]["devices"]


def test_white_space_around_the_value_is_no_content(lab: Lab) -> None:
    """[PROTO-001]"""
    answer = lab.wire.exchange_bytes(b" \t" + text_of() + b" \t ")
    assert answer["result"]["devices"]


def nested(levels: int) -> Any:
    return [nested(levels - 1)] if levels > 1 else []


def deep_command(session: Session, levels: int) -> dict[str, Any]:
    """A command that is nested this deep: its envelope and its params are two levels."""
    return request(
        "mhs.command",
        session_id=session.id,
        capability_id="cap.world.step.v1",
        input=nested(levels - 2),
        command_id=ulid(),
        deadline_ms=30_000,
    )


def test_64_levels_of_nesting_are_read(lab: Lab, session: Session) -> None:
    """[PROTO-001, PROTO-027]"""
    answer = lab.wire.exchange(deep_command(session, 64))
    assert answer["result"]["error"]["mhs_code"] == "MHS.CAPABILITY.INPUT_INVALID"


def test_65_levels_of_nesting_are_a_parse_error(lab: Lab, session: Session) -> None:
    """[PROTO-001]"""
    error = refusal(lab, json.dumps(deep_command(session, 65)).encode())
    assert error["data"]["mhs_code"] == "MHS.PROTOCOL.PARSE_ERROR"


def test_thousands_of_levels_are_a_parse_error_like_any_other(lab: Lab) -> None:
    """[PROTO-001]"""
    assert refusal(lab, b"[" * 9_000)["data"]["mhs_code"] == "MHS.PROTOCOL.PARSE_ERROR"


def test_more_items_than_advertised_are_too_large(lab: Lab) -> None:
    """[PROTO-043]"""
    limit = lab.hello()["limits"]["max_json_items"]
    error = refusal(lab, text_of(filter={"tag": [0] * limit}))
    assert error["data"]["mhs_code"] == "MHS.LIMIT.PAYLOAD_TOO_LARGE"
    assert error["data"]["details"]["limit"] == limit


def test_brackets_in_a_string_are_neither_items_nor_levels(lab: Lab) -> None:
    """[PROTO-043]"""
    answer = lab.wire.exchange_bytes(
        json.dumps(request("mhs.schema.get", ref="[{" * 200 + '\\"' * 20)).encode()
    )
    assert answer["error"]["data"]["mhs_code"] == "MHS.PROTOCOL.INVALID_PARAMS"


def padded(size: int) -> bytes:
    """A good request of exactly this many bytes."""
    body = text_of()
    return body[:-1] + b" " * (size - len(body)) + body[-1:]


def test_a_message_of_exactly_the_limit_is_served_and_one_byte_more_is_not(limited: Lab) -> None:
    """[PROTO-043, TPT-006]"""
    limit = LIMITS["max_request_bytes"]
    assert limited.wire.exchange_bytes(padded(limit))["result"]["devices"]
    error = refusal(limited, padded(limit + 1))
    assert error["data"]["mhs_code"] == "MHS.LIMIT.PAYLOAD_TOO_LARGE"
    assert limited.call("mhs.devices.list")["devices"], "the endpoint serves on"


def test_the_default_limit_is_a_mebibyte(lab: Lab) -> None:
    """[PROTO-043]"""
    assert lab.wire.exchange_bytes(padded(1 << 20))["result"]["devices"]


def test_http_says_beside_the_error_what_became_of_the_message(shared: Callable[[str], Lab]) -> None:
    """[PROTO-001, TPT-012]"""
    wire = shared("http").wire
    assert isinstance(wire, HttpWire)
    batch = json.dumps([request("mhs.devices.list")] * 65).encode()
    assert wire.post(b"{")[0] == 400
    assert wire.post(b"")[0] == 400
    assert wire.post(b"[]")[0] == 400
    assert wire.post(batch)[0] == 400
    assert wire.post(text_of(surprise=1))[0] == 200
    assert wire.post(b'{"jsonrpc":"2.0","method":"mhs.devices.list"}') == (204, b"")
    assert wire.post(b'[{"jsonrpc":"2.0","method":"mhs.devices.list"}]') == (204, b"")


def test_on_stdio_lines_may_end_in_crlf_and_empty_ones_are_skipped(shared: Callable[[str], Lab]) -> None:
    """[PROTO-001, EVT-010]"""
    lab = shared("stdio")
    assert isinstance(lab.wire, StdioWire)
    for nothing in (b"", b"\r", b""):
        lab.wire.send(nothing)
    assert lab.wire.exchange_bytes(text_of() + b"\r")["result"]["devices"]
    assert lab.wire.unclaimed() == []
