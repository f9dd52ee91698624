"""The endpoint under random programs of many clients, against a simple model of what it promised them."""

from random import Random

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.property.model.play import faults_of, play
from tests.property.model.programs import make_program, shorten

PER_PROFILE = 4
"""Programs per example of the profile: each is one of very many, and takes a few hundredths of a second."""


@settings(
    max_examples=PER_PROFILE * settings.default.max_examples,
    phases=[Phase.generate],  # A smaller seed is no smaller program: `shorten` does that.
)
@given(st.integers(0, 2**63))
def test_whatever_clients_do_every_rule_holds(seed: int) -> None:
    program = make_program(Random(seed))
    if faults_of(program, seed):
        program = shorten(program, lambda shorter: bool(faults_of(shorter, seed)))
        # The names of the steps are a test already: see the regressions.
        raise AssertionError(f"{faults_of(program, seed)[:10]} in order {seed} of {program}")


def test_a_program_is_played() -> None:
    world = play((), 0)
    assert [native.how for native in world.natives] == ["returned", "returned"]
