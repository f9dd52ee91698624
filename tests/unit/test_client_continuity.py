"""The numbers of a subscription's events: nothing twice, nothing missing without a word."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhsd.client.continuity import Backlog, Continuity, is_gap, number, resources_of, state_event


def event(seq: Any, **more: Any) -> dict[str, Any]:
    return {
        "subscription_id": "sub_1",
        "seq": seq,
        "ts": f"at {seq}",
        "stream": "state",
        "payload": {},
        **more,
    }


def gap(first: int, last: int) -> dict[str, Any]:
    return event(
        last, stream="control", type="gap", **{"from": first, "to": last, "dropped": last - first + 1}
    )


def test_events_in_order_pass_as_they_are() -> None:
    seen = Continuity(7)
    assert [seen.take(event(seq)) for seq in (7, 8)] == [[event(7)], [event(8)]]
    assert seen.last == 8


def test_what_was_seen_before_a_reconnect_is_left_out() -> None:
    seen = Continuity(1)
    seen.take(event(1))
    seen.take(event(2))
    assert [seen.take(event(seq)) for seq in (1, 2, 3)] == [[], [], [event(3)]]


def test_missing_numbers_are_a_gap_that_says_that_the_client_made_it() -> None:
    """[TPT-063]"""
    seen = Continuity(1)
    seen.take(event(1))
    made, passed = seen.take(event(5))
    assert is_gap(made)
    assert (made["from"], made["to"], made["seq"], made["dropped"]) == (2, 4, 4, 3)
    assert made["payload"] == {"client": True}
    assert made["ts"] == "at 5"
    assert passed == event(5)


def test_a_gap_of_the_endpoint_is_passed_on_and_closes_the_hole() -> None:
    seen = Continuity(1)
    assert seen.take(gap(1, 9)) == [gap(1, 9)]
    assert seen.take(event(10)) == [event(10)]


def test_a_gap_is_told_as_far_as_it_is_news() -> None:
    seen = Continuity(1)
    for seq in (1, 2, 3):
        seen.take(event(seq))
    assert seen.take(gap(1, 3)) == []
    assert seen.take(gap(1, 6)) == [gap(4, 6)]


def test_numbers_beyond_what_a_float_holds_are_decimal_text() -> None:
    """[EVT-001]"""
    seen = Continuity(str(2**53 + 1))
    assert seen.take(event(str(2**53 + 1))) == [event(str(2**53 + 1))]


@pytest.mark.parametrize("seq", [None, True, 1.0, "", "-1", "\u0661"])
def test_anything_else_is_no_number(seq: Any) -> None:
    with pytest.raises(ValueError, match="no sequence number"):
        number(seq)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30), st.integers(0, 5))))
def test_whatever_comes_the_ranges_that_leave_are_contiguous(arrivals: list[tuple[bool, int, int]]) -> None:
    seen = Continuity(1)
    expected = 1
    for as_gap, first, more in arrivals:
        for each in seen.take(gap(first, first + more) if as_gap else event(first)):
            assert (each["from"] if is_gap(each) else each["seq"]) == expected
            if is_gap(each):
                assert each["dropped"] == each["to"] - each["from"] + 1
            expected = each["seq"] + 1


def taken(backlog: Backlog) -> list[dict[str, Any]]:
    found = []
    while (each := backlog.pop()) is not None:
        found.append(each)
    return found


def test_what_is_not_taken_in_time_becomes_one_gap() -> None:
    """[EVT-006]"""
    backlog = Backlog(1, most=3)
    for seq in range(1, 11):
        backlog.put(event(seq))
    lost, *rest = taken(backlog)
    assert (lost["from"], lost["to"], lost["dropped"], lost["payload"]) == (1, 8, 8, {"client": True})
    assert rest == [event(9), event(10)]


def test_what_was_on_its_way_when_a_connection_broke_is_never_lost_silently() -> None:
    """[TPT-063]"""
    backlog = Backlog(1)
    backlog.put(event(1))
    backlog.interrupt({"subscription_id": "sub_1", "ts": "now"})
    backlog.put(event(4))
    first, broken, lost, last = taken(backlog)
    assert (first, last) == (event(1), event(4))
    assert is_gap(broken)
    assert (broken["from"], broken["to"], broken["dropped"], broken["ts"]) == (2, 1, 0, "now")
    assert (lost["from"], lost["to"]) == (2, 3)


def test_an_interruption_that_lost_nothing_is_followed_by_the_next_event() -> None:
    backlog = Backlog(1)
    backlog.interrupt({"subscription_id": "sub_1", "ts": "now"})
    backlog.put(event(1))
    assert [is_gap(each) for each in taken(backlog)] == [True, False]


def test_after_a_gap_the_state_is_unknown_until_it_was_read() -> None:
    """[EVT-007, EVT-008]"""
    kept = Backlog(1)
    kept.put(event(1))
    kept.put(event(4))
    assert (kept.pop(), kept.state_is_unknown, kept.taken) == (event(1), False, 1)
    kept.pop()
    assert (kept.state_is_unknown, kept.taken) == (True, 3)
    with pytest.raises(OSError, match="cut"), kept.reconciled():
        raise OSError("cut")
    assert kept.state_is_unknown
    with kept.reconciled() as taken:
        assert taken == 3
    assert not kept.state_is_unknown


def test_a_gap_that_comes_while_the_state_is_read_leaves_it_unknown() -> None:
    """[EVT-007]"""
    kept = Backlog(1)
    with kept.reconciled():
        kept.interrupt(event(0))
        kept.pop()
    assert kept.state_is_unknown


def test_what_is_read_is_whatever_values_are_subscribed_to_once() -> None:
    """[EVT-007]"""
    streams = [
        {"stream": "state", "device_id": "one", "resource_id": "belt"},
        {"stream": "telemetry", "device_id": "one", "resource_id": "belt"},
        {"stream": "telemetry", "device_id": "two", "resource_id": "lamp"},
        {"stream": "log", "device_id": "one"},
        "nonsense",
    ]
    assert resources_of({"streams": streams}) == [("one", "belt"), ("two", "lamp")]
    assert resources_of({}) == resources_of({"streams": 5}) == []


def test_what_was_read_looks_like_an_event_of_the_client() -> None:
    """[EVT-007]"""
    reading = {"revision": 7, "state": {"speed": 1}, "state_hash": "sha256:00", "sampled_at": "now"}
    assert state_event("sub_1", 3, "one", "belt", reading) == {
        "subscription_id": "sub_1",
        "seq": 3,
        "ts": "now",
        "stream": "state",
        "device_id": "one",
        "resource_id": "belt",
        "revision": 7,
        "state_hash": "sha256:00",
        "payload": {"speed": 1},
        "client": True,
    }
