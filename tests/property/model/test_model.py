"""The endpoint under random programs of many clients, against a simple model [issue of the wire protocol]."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.model.play import play
from tests.property.model.programs import PROGRAMS
from tests.property.model.steps import Step


@settings(max_examples=3 * settings.default.max_examples)
@given(st.random_module(), PROGRAMS)
def test_whatever_clients_do_every_rule_holds(order: object, program: tuple[Step, ...]) -> None:
    # `order` seeds the order in which Trio runs the tasks of one instant.
    play(program)
