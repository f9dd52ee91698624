"""Interlocks fail closed: what is not read as closed is open."""

from typing import Any

import pytest

from mhsd.core.interlocks import interlock_refusal, interlock_states

CLOSED = {"door": "closed", "lid": "closed"}


def test_interlocks_that_read_closed_refuse_nothing() -> None:
    assert interlock_refusal(("door", "lid"), CLOSED) is None


def test_no_required_interlock_needs_no_reading() -> None:
    assert interlock_refusal((), None) is None


@pytest.mark.parametrize("reading", [None, {}, {"lid": "closed"}])
def test_an_interlock_without_a_reading_is_open(reading: Any) -> None:
    assert interlock_states(("door",), reading) == [{"id": "door", "state": "open"}]
    fault = interlock_refusal(("door",), reading)
    assert fault is not None
    assert fault.mhs_code == "MHS.SAFETY.INTERLOCK_OPEN"
    assert fault.interlocks == [{"id": "door", "state": "open"}]


@pytest.mark.parametrize("state", ["open", "Closed", "CLOSED", "", " closed", None, True, 1, ["closed"]])
def test_anything_but_the_word_closed_is_open(state: Any) -> None:
    assert interlock_states(("door",), {"door": state}) == [{"id": "door", "state": "open"}]
    assert interlock_refusal(("door",), {"door": state}) is not None


def test_only_the_open_ones_are_named_and_in_the_order_of_the_binding() -> None:
    reading = {"a": "open", "b": "closed", "c": "open"}
    fault = interlock_refusal(("c", "b", "a"), reading)
    assert fault is not None
    assert fault.interlocks == [{"id": "c", "state": "open"}, {"id": "a", "state": "open"}]
    assert "b" not in fault.message.removeprefix("interlock open: ")


def test_an_interlock_that_is_not_required_may_be_open() -> None:
    assert interlock_refusal(("door",), {**CLOSED, "lid": "open"}) is None


def test_what_could_not_be_read_is_told_apart_from_an_open_door() -> None:
    unread = interlock_refusal(("door",), None)
    opened = interlock_refusal(("door",), {"door": "open"})
    assert unread is not None
    assert opened is not None
    assert unread.details == {"reason": "unreadable"}
    assert "readable" in unread.message
    assert opened.details is None
    assert "readable" not in opened.message
    assert unread.remediation != opened.remediation


def test_an_open_door_beside_an_unread_one_asks_for_the_door_to_be_closed() -> None:
    fault = interlock_refusal(("door", "lid"), {"door": "open"})
    assert fault is not None
    assert fault.details is None
    assert fault.message.endswith("not readable, which counts as open: lid")
