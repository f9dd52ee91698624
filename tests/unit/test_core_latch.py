"""The latch: engaged at once, the first reason kept, never cleared under a newer stop."""

import pytest

from mhsd.core.latch import SafetyState

BELT, OVEN = "mhs://localhost:7400/belt", "mhs://localhost:7400/oven"
AT, LATER = "2026-10-20T07:46:58.900Z", "2026-10-20T07:46:59.221Z"


def latched_state() -> SafetyState:
    safety = SafetyState()
    safety.engage([BELT], "smoke", AT)
    return safety


def test_nothing_is_latched_at_first() -> None:
    safety = SafetyState()
    assert not safety.latched(BELT)
    assert safety.latch_of(BELT) is None
    assert safety.epoch_of(BELT) == 0
    assert safety.snapshot() == {}


def test_a_stop_latches_the_devices_that_it_names_and_no_others() -> None:
    safety = latched_state()
    assert safety.latched(BELT)
    assert not safety.latched(OVEN)


def test_a_second_stop_keeps_the_first_reason_and_time_and_raises_the_epoch() -> None:
    safety = latched_state()
    before = safety.epoch_of(BELT)
    safety.engage([BELT, OVEN], "flood", LATER)
    latch = safety.latch_of(BELT)
    assert latch is not None
    assert (latch.reason, latch.engaged_at) == ("smoke", AT)
    assert latch.epoch > before
    assert safety.snapshot() == {
        BELT: {"reason": "smoke", "engaged_at": AT},
        OVEN: {"reason": "flood", "engaged_at": LATER},
    }


def test_a_latch_is_cleared_for_the_epoch_in_which_it_was_looked_at() -> None:
    safety = latched_state()
    assert safety.clear(BELT, safety.epoch_of(BELT))
    assert not safety.latched(BELT)
    assert safety.snapshot() == {}


def test_a_latch_is_not_cleared_after_a_newer_stop() -> None:
    safety = latched_state()
    looked_at = safety.epoch_of(BELT)
    safety.engage([BELT], "again", LATER)
    assert not safety.clear(BELT, looked_at)
    assert safety.latched(BELT)
    assert safety.clear(BELT, safety.epoch_of(BELT))


def test_a_stop_of_a_device_that_was_just_reset_is_newer_than_every_earlier_look() -> None:
    safety = latched_state()
    first = safety.epoch_of(BELT)
    safety.clear(BELT, first)
    safety.engage([BELT], "again", LATER)
    assert safety.epoch_of(BELT) != first
    assert not safety.clear(BELT, first)
    assert safety.latch_of(BELT) is not None
    latch = safety.latch_of(BELT)
    assert latch is not None
    assert latch.reason == "again"


def test_a_stop_between_the_look_and_the_clearing_is_noticed_when_nothing_was_latched_before() -> None:
    safety = SafetyState()
    looked_at = safety.epoch_of(BELT)
    safety.engage([BELT], "smoke", AT)
    assert not safety.clear(BELT, looked_at)
    assert safety.latched(BELT)


def test_a_stop_of_another_device_does_not_hold_up_a_reset() -> None:
    safety = latched_state()
    looked_at = safety.epoch_of(BELT)
    safety.engage([OVEN], "flood", LATER)
    assert safety.clear(BELT, looked_at)
    assert safety.latched(OVEN)


@pytest.mark.parametrize("stops", [1, 2, 3])
def test_a_stop_path_is_pending_until_the_last_of_its_runs_has_ended(stops: int) -> None:
    safety = SafetyState()
    assert not safety.stop_pending(BELT)
    for _ in range(stops):
        safety.stop_begins(BELT)
    for _ in range(stops):
        assert safety.stop_pending(BELT)
        assert not safety.stop_pending(OVEN)
        safety.stop_ends(BELT)
    assert not safety.stop_pending(BELT)


def test_a_snapshot_is_not_changed_by_what_happens_later() -> None:
    safety = latched_state()
    taken = safety.snapshot()
    safety.clear(BELT, safety.epoch_of(BELT))
    assert taken == {BELT: {"reason": "smoke", "engaged_at": AT}}
