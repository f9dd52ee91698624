"""The envelope under any number of failures at once: the lowest rung answers, whatever else is wrong."""

from hypothesis import given
from hypothesis import strategies as st

from mhsd.core.admission import Step
from tests.unit.core_rungs import CODES, answer, broken

RUNGS = st.lists(st.sampled_from(list(Step)), unique=True)


@given(RUNGS)
def test_of_any_failures_the_first_in_the_order_answers(rungs: list[Step]) -> None:
    assert answer(*broken(*rungs)) == (CODES[min(rungs)] if rungs else None)


@given(RUNGS, st.sampled_from(list(Step)), st.sampled_from(list(Step)))
def test_a_part_of_the_envelope_sees_what_lies_in_it_and_nothing_else(
    rungs: list[Step], one: Step, other: Step
) -> None:
    # Without a binding nothing behind that rung can be looked at.
    rungs = [rung for rung in rungs if rung is not Step.BINDING]
    first, last = min(one, other), max(one, other)
    within = [rung for rung in rungs if first <= rung <= last]
    assert answer(*broken(*rungs), first, last) == (CODES[min(within)] if within else None)
