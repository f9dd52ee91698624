"""The endpoint under random programs of many clients, against a simple model [issue of the wire protocol]."""

from hypothesis import given, settings

from tests.property.model.play import play
from tests.property.model.programs import PROGRAMS
from tests.property.model.steps import Step


@settings(max_examples=3 * settings.default.max_examples)
@given(PROGRAMS)
def test_whatever_clients_do_every_rule_holds(program: tuple[Step, ...]) -> None:
    play(program)
