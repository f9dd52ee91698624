"""Sessions and grants: what is asked for, offered and allowed, and nothing more [SESS-001, CORE-024]."""

from typing import Any

import attrs
import pytest

from mhsd.core.sessions import Grant, grants_for, pattern_matches
from mhsd.wire.elements import CapabilityRequest
from tests.unit.core_builders import DEVICE, LATER, SESSION, session

OTHER = f"{DEVICE}-2"


@attrs.frozen
class Offered:
    """A binding as grants see it."""

    capability_id: str
    resource: str
    actuating: bool = True


STEP = Offered("cap.world.step.v1", "world")
VALVE = Offered("cap.actuation.valve.v1", "valve")
PURGE = Offered("cap.actuation.purge.v1", "valve")
BELT_SETTINGS = Offered("cap.device.configure.v1", "belt")
VALVE_SETTINGS = Offered("cap.device.configure.v1", "valve")
DESCRIBE = Offered("cap.device.describe.v1", "world", actuating=False)
DOOR = Offered("x-cap.sim.door.v1", "world")
ALL = (STEP, VALVE, PURGE, BELT_SETTINGS, VALVE_SETTINGS, DESCRIBE, DOOR)


def granted(
    *wanted: Any, role: str = "client", token_patterns: Any = None, offered: Any = ALL
) -> set[tuple[str, str]]:
    """Class and resource of every grant on the one device."""
    grants = grants_for(wanted, {DEVICE: offered}, role=role, token_patterns=token_patterns)
    assert all(grant.device_id == DEVICE for grant in grants)
    return {(grant.capability_id, grant.resource) for grant in grants}


def pairs(*offered: Offered) -> set[tuple[str, str]]:
    return {(each.capability_id, each.resource) for each in offered}


# Patterns.


@pytest.mark.parametrize(
    ("pattern", "capability_id"),
    [
        ("cap.world.step.v1", "cap.world.step.v1"),
        ("cap.world.*.v1", "cap.world.step.v1"),
        ("cap.*.v1", "cap.world.step.v1"),
        ("*", "cap.world.step.v1"),
        ("**", "cap.world.step.v1"),
        ("*.v1", "cap.world.step.v1"),
        ("cap*", "cap.world.step.v1"),
        ("cap.world.step.v1*", "cap.world.step.v1"),
        ("*cap.world.step.v1*", "cap.world.step.v1"),
        ("c*p*w*s*1", "cap.world.step.v1"),
        ("*sim*door*", "x-cap.sim.door.v1"),
        ("*", ""),
        ("", ""),
    ],
)
def test_a_star_stands_for_any_characters_dots_included(pattern: str, capability_id: str) -> None:
    assert pattern_matches(pattern, capability_id)


@pytest.mark.parametrize(
    ("pattern", "capability_id"),
    [
        ("cap.world.step", "cap.world.step.v1"),
        ("world", "cap.world.step.v1"),
        ("cap.world.step.v2", "cap.world.step.v1"),
        ("cap.*.v2", "cap.world.step.v1"),
        ("x-*", "cap.world.step.v1"),
        ("CAP.*", "cap.world.step.v1"),
        ("cap?world.step.v1", "cap.world.step.v1"),
        ("cap.world.step.v[0-9]", "cap.world.step.v1"),
        ("capXworld.step.v1", "cap.world.step.v1"),
        ("cap.world.step.v1*v1", "cap.world.step.v1"),
        ("*step*step*", "cap.world.step.v1"),
        ("*v1*step*", "cap.world.step.v1"),
        ("aa*a", "aa"),
        ("", "cap.world.step.v1"),
    ],
)
def test_every_other_character_of_a_pattern_stands_for_itself(pattern: str, capability_id: str) -> None:
    assert not pattern_matches(pattern, capability_id)


def test_a_pattern_of_many_stars_does_not_hold_up_the_endpoint() -> None:
    # As a regular expression each of these would try more ways than there are atoms.
    assert not pattern_matches("*" * 500 + "x", "cap.motion.convey.v1")
    assert not pattern_matches("*a" * 250 + "*b", "a" * 128)
    assert pattern_matches("*a" * 128, "a" * 128)


# What is asked for.


def test_a_class_id_asks_for_each_of_its_bindings() -> None:
    assert granted("cap.device.configure.v1") == pairs(BELT_SETTINGS, VALVE_SETTINGS)


def test_an_object_asks_for_the_binding_on_its_resource_only() -> None:
    assert granted(CapabilityRequest(capability_id="cap.device.configure.v1", resource="belt")) == pairs(
        BELT_SETTINGS
    )


def test_an_object_without_a_resource_asks_as_its_class_id_does() -> None:
    assert granted(CapabilityRequest(capability_id="cap.device.configure.v1")) == pairs(
        BELT_SETTINGS, VALVE_SETTINGS
    )


def test_a_resource_that_the_class_is_not_bound_to_is_granted_nothing() -> None:
    assert granted(CapabilityRequest(capability_id="cap.world.step.v1", resource="belt")) == set()


def test_the_sum_of_all_that_is_asked_for_is_granted() -> None:
    wanted = ("cap.world.*.v1", CapabilityRequest(capability_id="cap.actuation.purge.v1", resource="valve"))
    assert granted(*wanted, "cap.nothing.v1") == pairs(STEP, PURGE)


def test_asking_for_everything_grants_every_binding_once() -> None:
    assert granted("*", "*", "cap.world.step.v1") == pairs(*ALL)


def test_asking_for_nothing_is_granted_nothing() -> None:
    assert granted() == set()


def test_each_device_grants_its_own_bindings() -> None:
    grants = grants_for(
        ["cap.world.*", "cap.actuation.*"],
        {DEVICE: (STEP,), OTHER: (VALVE,)},
        role="client",
        token_patterns=None,
    )
    assert grants == {
        Grant(DEVICE, "cap.world.step.v1", "world"),
        Grant(OTHER, "cap.actuation.valve.v1", "valve"),
    }


# What is allowed.


@pytest.mark.parametrize("wanted", ["*", "cap.internal.*", "cap.internal.safety_reset.v1"])
@pytest.mark.parametrize("role", ["reader", "client", "operator"])
def test_an_internal_class_is_granted_to_nobody_however_it_is_asked_for(wanted: str, role: str) -> None:
    internal = Offered("cap.internal.safety_reset.v1", "world", actuating=False)
    assert granted(wanted, role=role, offered=(internal,)) == set()
    asked = CapabilityRequest(capability_id=wanted, resource="world")
    assert granted(asked, role=role, offered=(internal,)) == set()


def test_a_reader_is_granted_only_what_moves_nothing() -> None:
    assert granted("*", role="reader") == pairs(DESCRIBE)
    assert granted("cap.world.step.v1", role="reader") == set()
    asked = CapabilityRequest(capability_id="cap.world.step.v1", resource="world")
    assert granted(asked, role="reader") == set()


@pytest.mark.parametrize("role", ["client", "operator"])
def test_clients_and_operators_are_granted_what_moves_something(role: str) -> None:
    assert granted("*", role=role) == pairs(*ALL)


@pytest.mark.parametrize(
    ("token_patterns", "expected"),
    [
        (None, pairs(*ALL)),
        (("*",), pairs(*ALL)),
        (("cap.world.*",), pairs(STEP)),
        (("cap.world.*", "x-cap.*"), pairs(STEP, DOOR)),
        (("cap.nothing.v1",), set()),
        ((), set()),
    ],
)
def test_a_token_allows_no_more_than_its_patterns(token_patterns: Any, expected: set[Any]) -> None:
    assert granted("*", token_patterns=token_patterns) == expected


def test_a_token_gives_nothing_that_was_not_asked_for() -> None:
    assert granted("cap.actuation.*", token_patterns=("cap.world.*", "cap.actuation.valve.v1")) == pairs(
        VALVE
    )


# The session itself.


def test_a_session_may_what_it_was_granted_and_nothing_else() -> None:
    s = session(grants=frozenset({Grant(DEVICE, "cap.actuation.valve.v1", "valve")}))
    assert s.may(DEVICE, "cap.actuation.valve.v1", "valve")
    assert not s.may(OTHER, "cap.actuation.valve.v1", "valve")
    assert not s.may(DEVICE, "cap.actuation.purge.v1", "valve")
    assert not s.may(DEVICE, "cap.actuation.valve.v1", "belt")
    assert not s.may(DEVICE, "cap.actuation.valve.v1", "")


@pytest.mark.parametrize(
    ("state", "now_mono_s", "code"),
    [
        ("open", 999.999, None),
        ("open", 1000.0, "MHS.SESSION.EXPIRED"),
        ("open", 1001.0, "MHS.SESSION.EXPIRED"),
        ("expired", 0.0, "MHS.SESSION.EXPIRED"),
        ("closed", 0.0, "MHS.SESSION.CLOSED"),
        ("closed", 2000.0, "MHS.SESSION.CLOSED"),
    ],
)
def test_a_session_refuses_from_its_end_on_and_says_which_end(
    state: Any, now_mono_s: float, code: str | None
) -> None:
    fault = session(state=state, expires_mono_s=1000.0).refusal(now_mono_s)
    assert (fault.mhs_code if fault is not None else None) == code
    if fault is not None:
        assert SESSION in fault.message
        assert fault.retryable is True


def test_an_expired_session_says_when_it_expired() -> None:
    fault = session(expires_mono_s=1.0).refusal(2.0)
    assert fault is not None
    assert LATER in fault.message


def test_a_summary_counts_every_command_and_each_of_the_four_outcomes() -> None:
    s = session()
    s.commands = 7
    s.outcomes.update(["completed", "completed", "rejected", "failed", "cancelled", "unknown"])
    assert s.summary("sha256:head") == {
        "commands": 7,
        "completed": 2,
        "rejected": 1,
        "failed": 1,
        "cancelled": 1,
        "receipts_head": "sha256:head",
    }


def test_a_summary_of_a_session_without_commands_is_all_zeros() -> None:
    assert session().summary("sha256:genesis") == {
        "commands": 0,
        "completed": 0,
        "rejected": 0,
        "failed": 0,
        "cancelled": 0,
        "receipts_head": "sha256:genesis",
    }


def test_a_grant_on_the_wire_names_device_class_and_resource() -> None:
    assert Grant(DEVICE, "cap.world.step.v1", "world").wire() == {
        "device_id": DEVICE,
        "capability_id": "cap.world.step.v1",
        "resource": "world",
    }
