"""Programs that once broke a rule, each named for what holds now; every order of tasks that is tried must keep it."""

import pytest

from tests.property.model.play import faults_of
from tests.property.model.steps import (
    CONFIGURE,
    FIRE,
    SAMPLE,
    TOGGLE,
    TRAVEL,
    Again,
    Batch,
    Cancel,
    Close,
    Command,
    Conduct,
    DiskFull,
    Gate,
    Get,
    Lose,
    Open,
    Permit,
    Reset,
    Restart,
    Step,
    Stop,
    Wait,
)

ORDERS = 6
"""Tasks that could run in any order run in this many different ones."""


def holds(*program: Step) -> None:
    for order in range(ORDERS):
        faults = faults_of(program, order)
        assert not faults, (order, faults[:5])


# Stops and resets.


def test_a_stop_is_recorded_when_its_caller_is_gone() -> None:
    """[OP-001, SAFE-002] The receipts of a stop do not depend on the connection that it came by."""
    holds(Stop(), Lose())


def test_a_stop_of_two_devices_moves_each_revision_in_the_order_of_the_chain() -> None:
    """[OP-007] What changes one of them meanwhile stands before the stop's receipt or after it."""
    toggles = [step for _ in range(6) for step in (Wait(200), Command(what=TOGGLE))]
    holds(Command(), Wait(100), Conduct(1, "read", "slow"), Stop(), *toggles, Wait(1000))


def test_a_refused_command_does_not_hide_what_a_stop_has_changed() -> None:
    """[OP-007] Its look at the device is not the state before the stop."""
    holds(Restart("crash"), Wait(100), Command(), Stop())


def test_a_state_that_could_not_be_read_is_not_taken_for_the_one_before() -> None:
    """[OP-009]"""
    holds(Stop(), Conduct(0, "read", "fail"), Command(), Wait(100), Reset())


def test_a_reset_ends_when_its_caller_is_gone() -> None:
    """[SAFE-003] Half a reset would leave the device let go behind an engaged latch."""
    holds(Stop(), Wait(100), Conduct(0, "reset", "half"), Reset(), Wait(100), Lose(), Wait(1000))


@pytest.mark.parametrize("ticks", range(5))
def test_a_stop_after_a_reset_was_sent_holds(ticks: int) -> None:
    """[CORE-082] The reset looks at the latch as it was when it was checked."""
    holds(Stop(), Wait(100), Reset(), *[Wait(0)] * ticks, Stop(), Wait(1000))


def test_a_reset_that_fails_leaves_the_device_stopped() -> None:
    """[CORE-087] No further reset comes between, and none succeeds while the device is stopped again."""
    holds(
        *(Stop(), Wait(100), Conduct(0, "reset", "half"), Conduct(0, "stop", "slow"), Reset(deadline_ms=300)),
        *(Wait(400), Conduct(0, "reset", "ok"), Reset(), Wait(1000)),
    )


def test_a_reset_keeps_its_deadline_while_the_safe_state_is_not_reached() -> None:
    """[PROTO-011]"""
    holds(
        *(Conduct(0, "stop", "hang"), Command(what=TRAVEL, takes_ms=12_000), Wait(100), Cancel(), Wait(5000)),
        *(Stop(0), Wait(5000), Reset(deadline_ms=300), Wait(1000)),
    )


def test_two_resets_at_once_both_leave_the_latch_file() -> None:
    """[CORE-081] A restart finds what was reset released."""
    holds(Stop(), Wait(100), Reset(1), Reset(0), Wait(1000), Restart("drain"), Wait(100))


def test_two_stops_at_once_both_reach_the_latch_file() -> None:
    """[CORE-080]"""
    holds(Stop(1), Stop(0), Wait(1), Restart("crash"), Wait(100))


# Commands.


def test_an_id_runs_once_when_an_attempt_before_it_was_refused() -> None:
    """[OP-001] The end of a refused attempt does not free the id that a later attempt has taken."""
    holds(Conduct(0, "read", "slow"), Command(expected=1), Again(), Wait(1000), Again(), Wait(3000))


def test_a_permit_is_used_once_when_it_was_given_back_meanwhile() -> None:
    """[SAFE-004] Who finds it free at last keeps it for itself."""
    taken = Command(FIRE, permit=0, expected=1)
    holds(Permit(), taken, Command(FIRE, permit=0), Wait(100), Command(FIRE, permit=0), Wait(100))


def test_a_rate_holds_for_commands_of_one_instant() -> None:
    """[MHSD-4] It is looked at when the command is dispatched, too."""
    holds(Command(SAMPLE), Command(SAMPLE), Wait(100))


def test_commands_that_change_one_resource_at_once_miss_no_change() -> None:
    """[OP-007] The look of one is not the state before the other."""
    holds(
        *(Command(), Wait(100), Command(takes_ms=1000), Wait(600), Command(TOGGLE, takes_ms=200, amount=0)),
        *(Wait(1000), Command(TOGGLE, takes_ms=1000), Wait(100), Command(takes_ms=200), Wait(2000)),
    )


@pytest.mark.parametrize("how", ["gap", "raise"])
def test_a_reading_that_says_nothing_refuses_and_is_no_defect(how: str) -> None:
    """[PROTO-024]"""
    holds(Conduct(0, "read", how), Command(), Command(CONFIGURE), Stop(), Wait(100), Reset(), Wait(100))


@pytest.mark.parametrize("ticks", range(12))
def test_what_is_ended_in_the_instant_in_which_it_returns_has_returned(ticks: int) -> None:
    """[OP-014]"""
    holds(Command(), *[Wait(0)] * ticks, Restart("drain"), Wait(100))


@pytest.mark.parametrize("what", [TRAVEL, SAMPLE])
def test_an_operation_that_the_device_refuses_late_stays_known(what: str) -> None:
    """[PROTO-030] Its receipt is the refusal, and names the interim one."""
    holds(
        Command(what, how="busy_late", takes_ms=1000, deadline_ms=100), Wait(5000), Get(), Again(), Wait(5000)
    )


@pytest.mark.parametrize("ticks", range(10))
def test_nobody_is_told_of_an_operation_that_can_be_lost(ticks: int) -> None:
    """[PROTO-030] A look-up waits for the disk."""
    holds(Command(), *[Wait(0)] * ticks, Get(by_command=True), Restart("crash"), Wait(100))


@pytest.mark.parametrize("ticks", range(8))
def test_nobody_is_told_of_a_receipt_that_can_be_lost(ticks: int) -> None:
    """[PROTO-029, OP-003] While the disk has not taken it, a repetition waits for it as well."""
    holds(Command(takes_ms=1), Wait(1), *[Wait(0)] * ticks, DiskFull(), Again(), Get(), Wait(100))


@pytest.mark.parametrize("ticks", range(10))
def test_a_command_that_is_refused_at_the_last_moment_is_known_by_its_operation(ticks: int) -> None:
    """[PROTO-030]"""
    holds(Command(), *[Wait(0)] * ticks, Get(by_command=True), Stop(), Wait(100))


def test_a_restart_reconciles_no_receipt_of_an_earlier_attempt() -> None:
    """[OP-013]"""
    first = Command(how="busy_late", takes_ms=3000, deadline_ms=500)
    holds(first, Wait(5000), Again(), Wait(100), Restart("crash"), Wait(100))


# Sessions and the end of the process.


@pytest.mark.parametrize("ticks", range(10))
def test_an_orderly_end_leaves_no_command_open(ticks: int) -> None:
    """[TPT-008] Not even one that is refused when its intent is on the disk already."""
    holds(Close(1), Close(2), Close(0), Command(), *[Wait(0)] * ticks, Restart("drain"), Wait(100))


@pytest.mark.parametrize("end", [(Close(1), Wait(100)), (Wait(900), Wait(200))])
def test_nothing_begins_while_a_device_is_brought_to_its_safe_state(end: tuple[Step, ...]) -> None:
    """[SESS-004, SESS-006] Another session's command waits until the device is safe."""
    slow = Conduct(0, "stop", "slow")
    holds(
        Open(ttl_s=1),
        Command(),
        slow,
        Wait(100),
        Command(session=1),
        Wait(50),
        *end,
        Command(session=2),
        Wait(2000),
    )


def test_a_closed_session_keeps_no_timer() -> None:
    """[SESS-006] Sessions that come and go leave nothing behind."""
    holds(Open(), Close(), Open(), Close(), Wait(100))


def test_a_gate_that_opens_over_a_slow_link_ends_what_moves() -> None:
    """[SAFE-001]"""
    holds(
        *(
            Command(TRAVEL, takes_ms=12_000),
            Wait(100),
            Conduct(0, "read", "slow"),
            Gate(0, "open"),
            Wait(3000),
        ),
        *(Gate(0), Wait(1000)),
    )


def test_a_batch_answers_within_its_longest_deadline() -> None:
    """[PROTO-011]"""
    batch = Batch((Command(deadline_ms=1, takes_ms=3000), Command(deadline_ms=1), Again(deadline_ms=1)))
    holds(batch, Wait(100))
