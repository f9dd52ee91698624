"""The text of an event, and the log of a subscription in its plain cases."""

import json

import pytest

from mhsd.core.eventlog import EventLog, Gap, seq_value
from mhsd.core.events import (
    EventFilter,
    Selection,
    backpressure_tail,
    covers,
    event_head,
    event_message,
    event_tail,
    gap_tail,
    payload_schema,
)
from tests.documents import check

NOW = "2026-10-20T07:46:59.221Z"


def message_of(seq: int, tail: bytes) -> dict[str, object]:
    message = json.loads(event_message(event_head("sub_01J8ZQ3W0A"), seq, tail))
    assert message.keys() == {"jsonrpc", "method", "params"}
    assert message["method"] == "mhs.event"
    params: dict[str, object] = message["params"]
    check("event", params)
    return params


def test_an_event_is_one_notification_with_the_members_that_it_has() -> None:
    """[EVT-005, PROTO-006]"""
    tail = event_tail(
        "telemetry", NOW, b'{"t":1}', device_id="mhs://localhost:7400/a", resource_id="r", revision=None
    )
    assert message_of(7, tail) == {
        "subscription_id": "sub_01J8ZQ3W0A",
        "seq": 7,
        "ts": NOW,
        "stream": "telemetry",
        "device_id": "mhs://localhost:7400/a",
        "resource_id": "r",
        "payload": {"t": 1},
    }


@pytest.mark.parametrize(("seq", "wire"), [(1, 1), (2**53, 2**53), (2**53 + 1, str(2**53 + 1))])
def test_a_seq_above_2_to_the_53_is_a_decimal_string(seq: int, wire: int | str) -> None:
    """[EVT-001]"""
    assert seq_value(seq) == wire
    assert message_of(seq, backpressure_tail(3, NOW))["seq"] == wire


def test_a_gap_names_its_ends_and_how_much_is_lost() -> None:
    """[EVT-006, EVT-008]"""
    gap = Gap(4, 9)
    event = message_of(gap.last, gap_tail(gap, NOW))
    assert (event["stream"], event["type"], event["payload"]) == ("control", "gap", {})
    assert (event["seq"], event["from"], event["to"], event["dropped"]) == (9, 4, 9, 6)


def test_a_gap_is_told_once_in_its_place_and_names_nothing_that_is_still_delivered() -> None:
    """[EVT-006]"""
    log = EventLog(1, max_events=3)
    cursor = log.cursor()
    for number in range(1, 8):
        log.append(b"%d" % number)
    assert list(log.read(cursor, 1)) == [Gap(1, 4), (5, b"5")]
    assert list(log.read(cursor, 100)) == [(6, b"6"), (7, b"7")]
    for number in range(8, 13):
        log.append(b"%d" % number)
    assert list(log.read(cursor, 100)) == [Gap(8, 9), (10, b"10"), (11, b"11"), (12, b"12")]
    assert list(log.read(cursor, 100)) == []
    assert (log.delivered, log.dropped) == (6, 6)


def test_a_lag_is_told_once_until_the_consumer_has_caught_up() -> None:
    """[EVT-006]"""
    log = EventLog(1, max_events=2)
    cursor = log.cursor()
    for _ in range(5):
        log.append(b"event")
    assert log.note_lag(cursor, backpressure_of)
    assert not log.note_lag(cursor, backpressure_of)
    assert list(log.read(cursor, 100)) == [Gap(1, 4), (5, b"event"), (6, b"4 lost")]
    assert not log.note_lag(cursor, backpressure_of)
    for _ in range(5):
        log.append(b"event")
    assert log.note_lag(cursor, backpressure_of)


def test_who_comes_late_is_told_of_the_gap_and_takes_no_event_from_the_log() -> None:
    """[EVT-006, TPT-018]"""
    log = EventLog(1, max_events=2)
    for _ in range(5):
        log.append(b"event")
    for after in (None, 0, 2):
        late = log.cursor(after)
        assert not log.note_lag(late, backpressure_of)
        assert list(log.read(late, 100)) == [Gap((after or 0) + 1, 3), (4, b"event"), (5, b"event")]
    assert list(log.read(log.cursor(after=4), 100)) == [(5, b"event")], "who can go on, goes on"
    for _ in range(3):
        log.append(b"event")
    assert log.note_lag(late, backpressure_of), "from now on it is slow"


def backpressure_of(dropped: int) -> bytes:
    return b"%d lost" % dropped


def test_an_event_that_is_longer_than_the_whole_log_is_a_gap() -> None:
    """[EVT-006]"""
    log = EventLog(1, max_events=10, max_bytes=100)
    cursor = log.cursor()
    log.append(b"x" * 101)
    log.append(b"short")
    assert list(log.read(cursor, 1000)) == [Gap(1, 1), (2, b"short")]


def test_a_consumer_that_resumes_goes_on_behind_what_it_names() -> None:
    """[TPT-018]"""
    log = EventLog(10, max_events=10)
    for number in range(10, 15):
        log.append(b"%d" % number)
    assert list(log.read(log.cursor(after=12), 100)) == [(13, b"13"), (14, b"14")]
    assert list(log.read(log.cursor(after=99), 100)) == []
    assert next(iter(log.read(log.cursor(after=0), 100))) == (10, b"10")


def test_what_a_filter_leaves_out_it_takes() -> None:
    """[EVT-002]"""
    wanted = EventFilter(kinds=frozenset({"permit.used"}), min_level=30, operation_id="op_1")
    assert wanted.takes_kind("permit.used")
    assert not wanted.takes_kind("permit.issued")
    assert (wanted.takes_level(30), wanted.takes_level(20)) == (True, False)
    assert wanted.takes_operation("op_1", "any")
    assert not wanted.takes_operation("op_2", "any")
    assert EventFilter().takes_operation(None, None)


def test_a_selection_covers_what_it_does_not_narrow() -> None:
    """[EVT-002]"""
    whole = Selection("progress", "d")
    narrow = Selection("progress", "d", "belt", "cap.motion.convey.v1")
    assert covers([whole], "cap.x.v1", "world")
    assert covers([narrow], "cap.motion.convey.v1", "belt")
    assert not covers([narrow], "cap.motion.convey.v1", "world")
    assert narrow.wire() == {
        "stream": "progress",
        "device_id": "d",
        "resource_id": "belt",
        "capability_id": "cap.motion.convey.v1",
    }


def test_the_payload_schemas_that_manifests_repeat_refer_to_nothing() -> None:
    """[EVT-005]"""
    for stream in ("events", "log", "progress"):
        assert "$ref" not in json.dumps(payload_schema(stream))
