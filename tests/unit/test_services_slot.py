"""The slot of a device: one mutation at a time, short ones queue in order, the rest is busy [Concurrency]."""

from typing import Any

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from mhsd.base.errors import Fault
from mhsd.core.admission import Attempt
from mhsd.services.slot import QUEUE_PLACES, RETRY_AFTER_MS, Place, Slot
from tests.unit.core_builders import attempt, binding, operation, session

GONE = Fault("MHS.SESSION.CLOSED", "the session ended")


def long_running() -> Attempt:
    return attempt(binding=binding(long_running=True))


def queued(slot: Slot, a: Attempt) -> Place:
    assert slot.refusal(a) is None
    place = slot.take_or_queue(a)
    assert place is not None
    return place


def held(by: Attempt | None = None) -> tuple[Slot, Attempt]:
    slot, holder = Slot(), by or attempt()
    assert slot.free
    assert slot.refusal(holder) is None
    assert slot.take_or_queue(holder) is None
    return slot, holder


def busy(slot: Slot, a: Attempt | None = None) -> str | None:
    fault = slot.refusal(a or attempt())
    if fault is None:
        return None
    assert fault.mhs_code == "MHS.DEVICE.BUSY"
    assert fault.retryable is True
    assert fault.details == {"retry_after_ms": RETRY_AFTER_MS}
    return fault.message


# Taking and leaving.


def test_a_free_slot_is_taken_at_once() -> None:
    slot, holder = held()
    assert not slot.free
    assert slot.refusal(holder) is None
    slot.release(holder)
    assert slot.free


def test_only_its_holder_releases_the_slot() -> None:
    slot, holder = held()
    slot.release(attempt())
    assert not slot.free
    slot.release(holder)
    slot.release(holder)
    assert slot.free


async def test_who_queues_behind_a_short_command_gets_the_slot_when_it_is_done() -> None:
    slot, holder = held()
    second = attempt()
    place = queued(slot, second)
    assert not place.decided.is_set()
    slot.release(holder)
    with trio.fail_after(1):
        await place.decided.wait()
    assert place.granted
    assert place.refused is None
    assert not slot.free
    assert slot.refusal(second) is None


def test_the_queue_is_served_first_in_first_out() -> None:
    slot, holder = held()
    waiting = [attempt() for _ in range(5)]
    places = [queued(slot, a) for a in waiting]
    for turn, next_holder in enumerate([holder, *waiting[:-1]]):
        slot.release(next_holder)
        assert [place.granted for place in places] == [index <= turn for index in range(5)]
    slot.release(waiting[-1])
    assert slot.free


def test_who_leaves_the_queue_is_passed_over() -> None:
    slot, holder = held()
    first, second = queued(slot, attempt()), queued(slot, attempt())
    slot.leave(first)
    slot.release(holder)
    assert not first.granted
    assert not first.decided.is_set()
    assert second.granted


def test_who_leaves_at_the_instant_of_its_turn_hands_the_slot_on() -> None:
    slot, holder = held()
    first, second = queued(slot, attempt()), queued(slot, attempt())
    slot.release(holder)
    assert first.granted
    slot.leave(first)
    assert second.granted
    slot.leave(second)
    assert slot.free


def test_leaving_twice_takes_nothing_from_anybody() -> None:
    slot, holder = held()
    first, second = queued(slot, attempt()), queued(slot, attempt())
    slot.leave(first)
    slot.leave(first)
    slot.release(holder)
    slot.leave(first)
    assert second.granted
    assert not slot.free


# Who may queue.


def test_the_queue_has_sixty_four_places_and_the_next_is_busy() -> None:
    slot, holder = held()
    for _ in range(QUEUE_PLACES):
        queued(slot, attempt())
    assert QUEUE_PLACES == 64
    assert "queue is full" in (busy(slot) or "")
    assert busy(slot, holder) is None
    slot.release(holder)
    assert busy(slot) is None


def test_nobody_queues_behind_a_long_running_command_dispatched_or_not() -> None:
    slot, holder = held(long_running())
    assert "another operation" in (busy(slot) or "")
    slot.dispatched(holder, operation(attempt=holder, long_running=True))
    assert "another operation" in (busy(slot) or "")


def test_a_short_command_is_queued_behind_while_its_caller_waits_and_not_any_more_after() -> None:
    slot, holder = held()
    running = operation(attempt=holder)
    assert busy(slot) is None
    slot.dispatched(holder, running)
    assert busy(slot) is None
    running.interim_id = "01J8ZQ3W1B7M2N4P6R8S0T2V50"
    assert "another operation" in (busy(slot) or "")


def test_the_next_holder_does_not_inherit_that_the_last_callers_answer_was_unknown() -> None:
    slot, holder = held()
    queued(slot, attempt())
    slot.dispatched(holder, operation(attempt=holder, interim_id="01J8ZQ3W1B7M2N4P6R8S0T2V50"))
    slot.release(holder)
    assert busy(slot) is None


def test_a_dispatch_of_somebody_else_does_not_count_as_the_holders() -> None:
    slot, _ = held()
    other = attempt()
    slot.dispatched(other, operation(attempt=other, interim_id="01J8ZQ3W1B7M2N4P6R8S0T2V50"))
    assert busy(slot) is None


def test_a_long_running_command_may_queue_behind_a_short_one_and_then_holds_the_device() -> None:
    slot, holder = held()
    place = queued(slot, long_running())
    assert busy(slot) is None
    slot.release(holder)
    assert place.granted
    assert busy(slot) is not None


# Refusing the queue.


async def test_everything_that_queues_can_be_refused_at_once_and_the_holder_keeps_the_slot() -> None:
    slot, holder = held()
    places = [queued(slot, attempt()) for _ in range(3)]
    slot.refuse_queue(GONE)
    for place in places:
        with trio.fail_after(1):
            await place.decided.wait()
        assert place.refused is GONE
        assert not place.granted
    assert not slot.free
    slot.release(holder)
    assert slot.free


def test_the_queue_of_one_session_is_refused_and_the_others_keep_their_order() -> None:
    slot, holder = held()
    other = session(session_id="mhs_s_other")
    places = [queued(slot, attempt(session=each)) for each in (session(), other, session(), other)]
    slot.refuse_queue(GONE, other.session_id)
    assert [place.refused for place in places] == [None, GONE, None, GONE]
    slot.release(holder)
    assert [place.granted for place in places] == [True, False, False, False]
    slot.release(places[0].attempt)
    assert places[2].granted


def test_a_place_that_has_its_turn_is_not_refused_with_the_queue() -> None:
    slot, holder = held()
    place = queued(slot, attempt())
    slot.release(holder)
    slot.refuse_queue(GONE)
    assert place.granted
    assert place.refused is None


def test_leaving_after_a_refusal_changes_nothing() -> None:
    slot, holder = held()
    place = queued(slot, attempt())
    slot.refuse_queue(GONE)
    slot.leave(place)
    assert not slot.free
    slot.release(holder)
    assert slot.free


# Any order of events.


class AnyOrder(RuleBasedStateMachine):
    """Against a list: the first of it holds the slot, the others queue."""

    inside: Bundle[tuple[Attempt, Place | None]] = Bundle("inside")

    def __init__(self) -> None:
        super().__init__()
        self.slot = Slot()
        self.line: list[Attempt] = []
        self.places: list[Place] = []
        self.refused: list[Place] = []

    @rule(target=inside, own=st.booleans())
    def arrive(self, own: bool) -> tuple[Attempt, Place | None]:
        a = attempt(session=session(session_id="mhs_s_own" if own else "mhs_s_other"))
        assert self.slot.refusal(a) is None
        place = self.slot.take_or_queue(a)
        assert (place is None) == (not self.line)
        self.line.append(a)
        if place is not None:
            self.places.append(place)
        return a, place

    @rule(entry=consumes(inside))
    def go(self, entry: tuple[Attempt, Place | None]) -> None:
        """As a command's own task ends: it leaves its place, then lets go of the slot."""
        a, place = entry
        if place is not None:
            self.slot.leave(place)
        self.slot.release(a)
        self.line = [each for each in self.line if each is not a]

    @rule(own=st.booleans())
    def refuse(self, own: bool) -> None:
        session_id = "mhs_s_own" if own else "mhs_s_other"
        self.slot.refuse_queue(GONE, session_id)
        self.line = self.line[:1] + [a for a in self.line[1:] if a.session.session_id != session_id]

    @invariant()
    def the_first_in_line_and_nobody_else_holds_the_slot(self) -> None:
        assert self.slot.free == (not self.line)
        for place in self.places:
            in_line = any(place.attempt is a for a in self.line)
            holds = bool(self.line) and self.line[0] is place.attempt
            assert not (place.granted and place.refused is not None)
            assert place.decided.is_set() == (place.granted or place.refused is not None)
            if in_line:
                assert place.granted == holds


AnyOrder.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
TestAnyOrder: Any = AnyOrder.TestCase


@pytest.mark.parametrize("places", [1, QUEUE_PLACES])
def test_a_place_that_frees_up_can_be_taken(places: int) -> None:
    slot, _ = held()
    waiting = [queued(slot, attempt()) for _ in range(places)]
    slot.leave(waiting[0])
    assert busy(slot) is None
