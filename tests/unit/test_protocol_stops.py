"""Emergency stops are found whatever a message looks like, and the search never fails [CORE-076, CORE-183]."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhsd.protocol.stops import STOP_CLASS, STOP_METHOD, Stop, find_stops, mentions_stop
from mhsd.wire.json_text import decode_lenient
from mhsd.wire.params import SafetyEstopParams
from mhsd.wire.structure import structure

DEVICE = "mhs://localhost:7400/lab/conveyor-workcell"
STOP = {"jsonrpc": "2.0", "id": "s1", "method": STOP_METHOD, "params": {"reason": "smoke"}}
COMMAND = {
    "jsonrpc": "2.0",
    "id": 7,
    "method": "mhs.command",
    "params": {
        "session_id": "mhs_s_1",
        "device_id": DEVICE,
        "capability_id": STOP_CLASS,
        "resource": "belt",
        "input": {"reason": "smoke", "colour": "red"},
        "command_id": "01J8ZQ3V6Y7M2N4P6R8S0T2V4Y",
        "deadline_ms": 5000,
    },
}
HELLO = {"jsonrpc": "2.0", "id": 1, "method": "mhs.hello", "params": {}}


def only_stop(value: Any) -> Stop:
    (stop,) = find_stops(value)
    return stop


def without(message: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name not in names}


# Finding.


def test_a_stop_is_found_with_its_id_and_parameters() -> None:
    assert only_stop(STOP) == Stop(
        "s1", {"reason": "smoke"}, notification=False, defect=None, in_batch=False, index=0
    )


def test_a_command_of_the_stop_class_is_a_stop_and_keeps_what_a_stop_can_use() -> None:
    stop = only_stop(COMMAND)
    assert stop.id == 7
    assert stop.defect is None
    assert stop.params == {
        "session_id": "mhs_s_1",
        "device_id": DEVICE,
        "command_id": "01J8ZQ3V6Y7M2N4P6R8S0T2V4Y",
        "reason": "smoke",
    }


@pytest.mark.parametrize("stop_input", [None, "smoke", [], 7, {}, {"colour": "red"}])
def test_a_stop_command_needs_no_usable_input(stop_input: Any) -> None:
    message = {**COMMAND, "params": {"capability_id": STOP_CLASS, "input": stop_input}}
    assert only_stop(message).params == {}
    assert only_stop({**COMMAND, "params": {"capability_id": STOP_CLASS}}).params == {}


@pytest.mark.parametrize(
    "message",
    [
        HELLO,
        {**COMMAND, "params": {**COMMAND["params"], "capability_id": "cap.motion.convey.v1"}},  # type: ignore[dict-item]
        {**COMMAND, "params": {"input": STOP_CLASS}},
        {**COMMAND, "params": [STOP_CLASS]},
        {**COMMAND, "params": STOP_CLASS},
        {**COMMAND, "method": "mhs.resource.write"},
        {**STOP, "method": "mhs.safety.reset"},
        {**STOP, "method": STOP_METHOD.upper()},
        {**STOP, "method": [STOP_METHOD]},
        {"params": STOP},
        [[STOP]],
        STOP_METHOD,
        None,
        7,
        math.nan,
        True,
        [],
        {},
    ],
)
def test_what_only_mentions_a_stop_is_none(message: Any) -> None:
    assert find_stops(message) == []


# Defective envelopes.


@pytest.mark.parametrize(
    ("message", "answered_id", "code", "reason"),
    [
        (without(STOP, "jsonrpc"), "s1", "MHS.PROTOCOL.INVALID_REQUEST", "jsonrpc"),
        ({**STOP, "jsonrpc": "1.0"}, "s1", "MHS.PROTOCOL.INVALID_REQUEST", "jsonrpc"),
        ({**STOP, "jsonrpc": 2.0}, "s1", "MHS.PROTOCOL.INVALID_REQUEST", "jsonrpc"),
        ({**STOP, "jsonrpc": math.nan}, "s1", "MHS.PROTOCOL.INVALID_REQUEST", "jsonrpc"),
        ({**STOP, "id": 1.5}, None, "MHS.PROTOCOL.INVALID_REQUEST", "id"),
        ({**STOP, "id": True}, None, "MHS.PROTOCOL.INVALID_REQUEST", "id"),
        ({**STOP, "id": None}, None, "MHS.PROTOCOL.INVALID_REQUEST", "id"),
        ({**STOP, "id": math.nan}, None, "MHS.PROTOCOL.INVALID_REQUEST", "id"),
        ({**STOP, "id": {}}, None, "MHS.PROTOCOL.INVALID_REQUEST", "id"),
        ({**STOP, "params": ["smoke"]}, "s1", "MHS.PROTOCOL.INVALID_PARAMS", "not_an_object"),
        ({**STOP, "params": None}, "s1", "MHS.PROTOCOL.INVALID_PARAMS", "not_an_object"),
        ({**STOP, "params": "smoke"}, "s1", "MHS.PROTOCOL.INVALID_PARAMS", "not_an_object"),
        ({**STOP, "colour": "red"}, "s1", "MHS.PROTOCOL.INVALID_REQUEST", "unknown_member"),
        (without(STOP, "jsonrpc", "id"), None, "MHS.PROTOCOL.INVALID_REQUEST", "jsonrpc"),
        (without(COMMAND, "jsonrpc"), 7, "MHS.PROTOCOL.INVALID_REQUEST", "jsonrpc"),
    ],
)
def test_a_stop_in_a_defective_envelope_is_found_with_its_defect(
    message: dict[str, Any], answered_id: Any, code: str, reason: str
) -> None:
    stop = only_stop(message)
    assert stop.id == answered_id
    assert not stop.notification
    assert stop.defect is not None
    assert stop.defect.mhs_code == code
    assert stop.defect.details is not None
    assert stop.defect.details["reason"] == reason


@pytest.mark.parametrize("message", [STOP, COMMAND])
def test_a_stop_without_an_id_is_served_and_never_answered(message: dict[str, Any]) -> None:
    stop = only_stop(without(message, "id"))
    assert stop.notification
    assert stop.id is None
    assert stop.defect is None


def test_a_notification_whose_parameters_are_no_object_is_served_and_never_answered_either() -> None:
    stop = only_stop({**without(STOP, "id"), "params": ["smoke"]})
    assert stop.notification
    assert stop.defect is None


def test_a_stop_without_parameters_is_a_stop() -> None:
    stop = only_stop(without(STOP, "params"))
    assert stop.defect is None
    assert structure(STOP_METHOD, stop.params, max_deadline_ms=1) == SafetyEstopParams()


# Batches.


def test_stops_of_a_batch_keep_their_places_and_their_order() -> None:
    batch = [HELLO, STOP, "noise", None, COMMAND, [STOP], {**STOP, "id": 1.5}]
    stops = find_stops(batch)
    assert [stop.index for stop in stops] == [1, 4, 6]
    assert [stop.id for stop in stops] == ["s1", 7, None]
    assert all(stop.in_batch for stop in stops)


def test_a_batch_of_one_is_a_batch() -> None:
    assert only_stop([STOP]).in_batch
    assert not only_stop(STOP).in_batch


def test_a_batch_of_any_length_gives_all_of_its_stops() -> None:
    assert len(find_stops([STOP] * 1000)) == 1000


# Any JSON at all.

KEYS = st.sampled_from(
    ["jsonrpc", "id", "method", "params", "capability_id", "device_id", "input", "reason", "x"]
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["2.0", STOP_METHOD, STOP_CLASS, "mhs.command"]),
)
JSON = st.recursive(
    LEAVES,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(KEYS, children, max_size=6),
    max_leaves=20,
)
STOP_PARTS = st.fixed_dictionaries(
    {"method": st.just(STOP_METHOD)}, optional={"jsonrpc": JSON, "id": JSON, "params": JSON, "x": JSON}
)


@given(JSON)
def test_no_json_makes_the_search_fail(value: Any) -> None:
    for stop in find_stops(value):
        assert type(stop.id) in (str, int, type(None))
        assert not (stop.notification and stop.id is not None)
        assert stop.defect is not None or stop.notification or stop.id is not None
        structure(STOP_METHOD, stop.params, max_deadline_ms=1)


@given(STOP_PARTS)
def test_no_envelope_hides_a_stop(message: dict[str, Any]) -> None:
    assert len(find_stops(message)) == 1
    assert len(find_stops([1, message, message])) == 2


@given(STOP_PARTS)
def test_every_stop_that_is_found_is_one_that_the_byte_search_sees(message: dict[str, Any]) -> None:
    assert mentions_stop(json.dumps(message).encode())


@given(st.binary(max_size=200))
def test_no_bytes_make_reading_and_searching_fail(body: bytes) -> None:
    for prefix in (b"", b'{"method":"mhs.safety.estop","params":', b"[", b'[{"method":"mhs.safety.estop"},'):
        mentions_stop(prefix + body)
        find_stops(decode_lenient(prefix + body))


def test_a_stop_with_numbers_that_are_no_json_is_found_with_null_in_their_place() -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"mhs.safety.estop","params":{"reason":"x","deadline_ms":NaN}}'
    stop = only_stop(decode_lenient(body))
    assert stop.params == {"reason": "x", "deadline_ms": None}
    assert stop.defect is None


@pytest.mark.parametrize(
    "body", [json.dumps(STOP).encode(), json.dumps(COMMAND).encode(), STOP_METHOD.encode()]
)
def test_bytes_that_name_the_stop_mention_it_anywhere(body: bytes) -> None:
    assert mentions_stop(body)
    assert mentions_stop(b"\x00\xff" * 500 + body + b"]]]}")


@pytest.mark.parametrize(
    "body", [b"", b"{}", json.dumps(HELLO).encode(), b"mhs.safety.status", b"cap.motion.estop"]
)
def test_other_bytes_mention_no_stop(body: bytes) -> None:
    assert not mentions_stop(body)
