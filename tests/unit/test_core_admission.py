"""The envelope: its order, what each kind of command skips, and the last look before the driver [CORE-060]."""

from itertools import combinations
from typing import Any

import attrs
import pytest

from mhsd.base.errors import Fault
from mhsd.core.admission import (
    CONFIGURE,
    ENVELOPE,
    RESTORE_RUNGS,
    Step,
    deadline_refusal,
    last_refusal,
    prior_refusal,
    refusal,
)
from mhsd.core.snapshots import Restoration
from mhsd.wire.schema import compile_schema
from tests.unit.core_builders import (
    DEVICE,
    MOVE,
    Shown,
    attempt,
    binding,
    capability,
    origin,
    restoration,
    session,
)
from tests.unit.core_rungs import (
    CODES,
    RUNGS,
    Break,
    answer,
    availability,
    broken,
    draining,
    interlocks,
    latch,
    permit,
)


def test_the_table_has_one_check_for_every_step_in_its_order() -> None:
    assert [step for step, _ in ENVELOPE] == list(Step)
    assert len(RUNGS) == len(Step)


def test_nothing_stands_against_a_command_that_fails_nowhere() -> None:
    assert answer(*broken()) is None


@pytest.mark.parametrize("rung", range(len(RUNGS)), ids=CODES)
def test_each_rung_refuses_with_its_own_code(rung: int) -> None:
    assert answer(*broken(rung)) == CODES[rung]


@pytest.mark.parametrize(
    ("earlier", "later"),
    list(combinations(range(len(RUNGS)), 2)),
    ids=lambda rung: CODES[rung].split(".", 1)[1],
)
def test_of_two_failures_the_earlier_one_answers(earlier: int, later: int) -> None:
    assert answer(*broken(earlier, later)) == CODES[earlier]
    assert answer(*broken(later, earlier)) == CODES[earlier]


@pytest.mark.parametrize("rung", range(len(RUNGS)), ids=CODES)
def test_a_part_of_the_envelope_answers_its_own_rungs_only(rung: int) -> None:
    a, d = broken(rung)
    here = Step(rung)
    assert answer(a, d, here, here) == CODES[rung]
    if rung > 0:
        assert answer(a, d, Step.CLASS, Step(rung - 1)) is None
    # Without a binding the rungs behind BINDING have nothing to look at, and are never walked.
    if rung < Step.CONCURRENCY and here is not Step.BINDING:
        assert answer(a, d, Step(rung + 1), Step.CONCURRENCY) is None


SKIPPED_WHEN_MEASURING = {
    Step.MODE,
    Step.ARMED,
    Step.LATCH,
    Step.INTERLOCKS,
    Step.PERMIT,
    Step.CONCURRENCY,
}
SKIPPED_BY_SIMULATION_CONTROLS = {Step.LATCH, Step.INTERLOCKS, Step.CONCURRENCY}


@pytest.mark.parametrize("step", list(Step), ids=lambda step: step.name)
def test_measuring_skips_what_only_guards_motion_and_nothing_else(step: Step) -> None:
    a, d = broken(binding=binding(effects=()))
    RUNGS[step][1](a, d)
    assert answer(a, d) == (None if step in SKIPPED_WHEN_MEASURING else CODES[step])


@pytest.mark.parametrize("step", list(Step), ids=lambda step: step.name)
def test_a_simulation_control_skips_latch_interlocks_and_slot_and_nothing_else(step: Step) -> None:
    a, d = broken(binding=binding(simulation_control=True))
    RUNGS[step][1](a, d)
    assert answer(a, d) == (None if step in SKIPPED_BY_SIMULATION_CONTROLS else CODES[step])


@pytest.mark.parametrize("step", list(Step), ids=lambda step: step.name)
def test_a_restore_is_checked_on_its_own_rungs_and_no_other(step: Step) -> None:
    """[PROTO-035]"""
    own = {
        Step.MODE,
        Step.AVAILABLE,
        Step.DRAINING,
        Step.LATCH,
        Step.INTERLOCKS,
        Step.SNAPSHOT,
        Step.REVISION,
        Step.CONCURRENCY,
    }
    a, d = broken(restoration=restoration(), rungs=RESTORE_RUNGS)
    if step is Step.BINDING:
        a.capability_id = "cap.internal.restore.v1"
    else:
        RUNGS[step][1](a, d)
    assert answer(a, d) == (CODES[step] if step in own else None)


@pytest.mark.parametrize("mode", ["hardware", "hybrid", "replay"])
def test_only_a_simulated_device_is_restored(mode: str) -> None:
    """[PROTO-035, PROTO-035a]"""
    a = attempt(restoration=Restoration(restoration().document, origin(mode=mode)), rungs=RESTORE_RUNGS)
    expected = "MHS.MODE.READ_ONLY" if mode == "replay" else "MHS.MODE.RESTORE_UNSUPPORTED"
    assert answer(a, Shown(mode=mode)) == expected
    assert answer(a, Shown(mode=mode, latched=True)) == expected


def test_measuring_works_on_a_device_whose_state_is_unconfirmed_and_driving_does_not() -> None:
    doubt = Fault("MHS.DEVICE.UNCONFIRMED", "not confirmed")
    assert answer(attempt(), Shown(unconfirmed=doubt)) == "MHS.DEVICE.UNCONFIRMED"
    assert answer(attempt(binding=binding(effects=())), Shown(unconfirmed=doubt)) is None


def test_nothing_works_on_a_crashed_device_which_is_told_before_its_doubt() -> None:
    crash = Fault("MHS.ADAPTER.CRASHED", "crashed")
    doubt = Fault("MHS.DEVICE.UNCONFIRMED", "not confirmed")
    measuring = attempt(binding=binding(effects=()))
    assert answer(attempt(), Shown(crashed=crash, unconfirmed=doubt)) == "MHS.ADAPTER.CRASHED"
    assert answer(measuring, Shown(crashed=crash)) == "MHS.ADAPTER.CRASHED"


def test_a_replay_device_still_answers_what_changes_nothing() -> None:
    measuring = attempt(binding=binding(effects=()))
    assert answer(measuring, Shown(mode="replay")) is None


@pytest.mark.parametrize("mode", ["simulated", "hardware", "hybrid"])
def test_only_replay_is_read_only(mode: str) -> None:
    assert answer(attempt(), Shown(mode=mode)) is None


def test_an_unarmed_device_tells_how_it_is_armed() -> None:
    fault = refusal(*broken(Step.ARMED), Step.CLASS, Step.CONCURRENCY)
    assert fault is not None
    assert fault.details == {"reason": "not_armed"}
    assert "--arm" in fault.remediation


@pytest.mark.parametrize(
    ("device_id", "capability_id", "resource"),
    [
        (f"{DEVICE}-2", "cap.motion.convey.v1", "belt"),
        (DEVICE, "cap.motion.convey.v2", "belt"),
        (DEVICE, "cap.motion.convey.v1", "valve"),
    ],
)
def test_a_grant_holds_for_one_binding_of_one_device(
    device_id: str, capability_id: str, resource: str
) -> None:
    a = attempt(device_id=device_id, capability_id=capability_id, resource=resource)
    assert answer(a, Shown()) == "MHS.SESSION.CAPABILITY_NOT_GRANTED"


@pytest.mark.parametrize(
    ("resource", "where"), [("valve", "not bound to resource valve on"), (None, "v1 is not bound on")]
)
def test_what_is_not_bound_names_the_resource_where_one_was_asked_for(
    resource: str | None, where: str
) -> None:
    fault = refusal(attempt(binding=None, resource=resource), Shown(), Step.BINDING, Step.BINDING)
    assert fault is not None
    assert where in fault.message
    assert fault.details == {"capability_id": "cap.motion.convey.v1", "resource": resource}


# The input.


@pytest.mark.parametrize(("value", "where"), [({"speed_mm_s": "fast"}, ": /speed_mm_s: "), ("fast", ": /: ")])
def test_a_refused_input_names_the_class_and_the_place_of_the_first_error(value: Any, where: str) -> None:
    fault = refusal(attempt(input=value), Shown(), Step.INPUT, Step.INPUT)
    assert fault is not None
    assert f"cap.motion.convey.v1{where}" in fault.message


@pytest.mark.parametrize("value", [None, True, 7, 1.5, "fast", [], [1], {}])
def test_an_input_of_any_json_type_is_judged_by_the_schema(value: Any) -> None:
    fault = refusal(attempt(input=value), Shown(), Step.INPUT, Step.INPUT)
    assert fault is not None
    assert fault.mhs_code == "MHS.CAPABILITY.INPUT_INVALID"
    assert fault.details is not None
    assert fault.details["errors"]


@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_is_no_number_for_the_input_schema(value: bool) -> None:
    fault = refusal(attempt(input={"speed_mm_s": value}), Shown(), Step.INPUT, Step.LIMITS)
    assert fault is not None
    assert fault.mhs_code == "MHS.CAPABILITY.INPUT_INVALID"


def test_an_input_must_fit_the_schema_of_the_class_too() -> None:
    narrow = {**binding().capability.document["input_schema"], "maxProperties": 0}
    a = attempt(binding=binding(capability=capability(input_schema=narrow)))
    assert answer(a, Shown()) == "MHS.CAPABILITY.INPUT_INVALID"


def test_an_input_error_of_hostile_depth_stays_a_short_message() -> None:
    value: Any = "bottom"
    for _ in range(60):
        value = {"k" * 200: value}
    deep = {"type": "object", "additionalProperties": {"$ref": "#/definitions/deep"}}
    schema = {"definitions": {"deep": deep}, **deep}
    fault = refusal(
        attempt(input=value, binding=binding(input=compile_schema(schema))), Shown(), Step.INPUT, Step.INPUT
    )
    assert fault is not None
    assert fault.details is not None
    assert fault.details["errors"][0]["path"].count("/") == 60
    assert len(fault.message) < 1000


STATE_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "speed_mm_s": {"type": "number", "minimum": 0, "maximum": 1000, "x-mhs-unit": "mm/s"},
        "position_mm": {"type": "number", "x-mhs-unit": "mm", "readOnly": True},
    },
}


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        ({"position_mm": 3}, "MHS.RESOURCE.NOT_WRITABLE"),
        ({"colour": "red"}, "MHS.RESOURCE.FIELD_UNKNOWN"),
        ({"speed_mm_s": "fast"}, "MHS.CAPABILITY.INPUT_INVALID"),
        ({"speed_mm_s": 501}, "MHS.SAFETY.ENVELOPE_VIOLATION"),
        ({"speed_mm_s": 5}, "MHS.SAFETY.ENVELOPE_VIOLATION"),
        ("no object", "MHS.CAPABILITY.INPUT_INVALID"),
        ({"speed_mm_s": 100}, None),
    ],
)
def test_a_write_is_checked_as_a_patch_where_the_input_schema_stands(patch: Any, code: str | None) -> None:
    may = session(grants=frozenset({attrs.evolve(g, capability_id=CONFIGURE) for g in session().grants}))
    a = attempt(capability_id=CONFIGURE, input=patch, session=may, state_schema=STATE_SCHEMA)
    assert answer(a, Shown()) == code
    assert answer(a, Shown(latched=True)) == "MHS.SAFETY.ESTOP_LATCHED"


def test_only_a_write_is_checked_as_a_patch() -> None:
    a = attempt(input={"speed_mm_s": 100}, state_schema={**STATE_SCHEMA, "readOnly": True})
    assert answer(a, Shown()) is None


# The revision.


def test_a_stale_revision_names_the_current_one_as_an_integer() -> None:
    fault = refusal(attempt(expected_revision=40), Shown(revision=41), Step.REVISION, Step.REVISION)
    assert fault is not None
    assert fault.current_revision == 41
    assert fault.data()["current_revision"] == 41
    assert answer(attempt(expected_revision=41), Shown(revision=41)) is None


def test_revision_zero_is_a_revision_like_any_other() -> None:
    assert answer(attempt(expected_revision=0), Shown(revision=0)) is None
    assert answer(attempt(expected_revision=0), Shown(revision=1)) == "MHS.CONFLICT.REVISION"


# The interlocks.


def test_an_interlock_that_was_never_read_is_open() -> None:
    assert answer(attempt(interlocks=None), Shown()) == "MHS.SAFETY.INTERLOCK_OPEN"


def test_a_binding_without_interlocks_needs_no_reading() -> None:
    assert answer(attempt(interlocks=None, binding=binding(interlocks=())), Shown()) is None


# The last look before the driver.

LAST_LOOK: tuple[tuple[str, Break], ...] = (
    ("MHS.SESSION.CLOSED", lambda a, _: setattr(a.session, "state", "closed")),
    ("MHS.ADAPTER.CRASHED", availability),
    ("MHS.TRANSPORT.UNAVAILABLE", draining),
    ("MHS.SAFETY.ESTOP_LATCHED", latch),
    ("MHS.SAFETY.INTERLOCK_OPEN", interlocks),
    ("MHS.SAFETY.APPROVAL_REQUIRED", permit),
    ("MHS.OUTCOME.TIMEOUT", lambda a, _: setattr(a, "deadline_mono_s", 105.0)),
)


def last(*rungs: int) -> str | None:
    a, d = attempt(), Shown()
    for rung in rungs:
        LAST_LOOK[rung][1](a, d)
    fault = last_refusal(a, d, 105.0)
    return fault.mhs_code if fault is not None else None


def test_the_last_look_lets_pass_what_nothing_happened_to() -> None:
    assert last() is None


@pytest.mark.parametrize("rung", range(len(LAST_LOOK)), ids=[code for code, _ in LAST_LOOK])
def test_the_last_look_sees_everything_that_may_have_changed_while_the_intent_was_written(rung: int) -> None:
    assert last(rung) == LAST_LOOK[rung][0]


@pytest.mark.parametrize(("earlier", "later"), list(combinations(range(len(LAST_LOOK)), 2)))
def test_the_last_look_answers_in_the_same_order(earlier: int, later: int) -> None:
    assert last(earlier, later) == LAST_LOOK[earlier][0]


def test_the_last_look_at_an_expired_session_refuses() -> None:
    fault = last_refusal(attempt(session=session(expires_mono_s=105.0)), Shown(), 105.0)
    assert fault is not None
    assert fault.mhs_code == "MHS.SESSION.EXPIRED"


def test_the_last_look_never_stops_a_measurement_for_the_latch() -> None:
    a, d = attempt(binding=binding(effects=())), Shown(latched=True)
    a.interlocks = {"door_closed": "open"}
    assert last_refusal(a, d, 105.0) is None


# Deadlines and prior uses.


@pytest.mark.parametrize(("now_mono_s", "refused"), [(109.999, False), (110.0, True), (111.0, True)])
def test_a_deadline_that_passed_before_dispatch_is_refused_and_worth_a_retry(
    now_mono_s: float, refused: bool
) -> None:
    fault = deadline_refusal(attempt(), now_mono_s)
    assert (fault is not None) == refused
    if fault is not None:
        assert fault.mhs_code == "MHS.OUTCOME.TIMEOUT"
        assert fault.details == {"reason": "deadline_exceeded_before_dispatch"}
        assert fault.retryable is True


def test_the_same_command_of_the_same_principal_is_replayed() -> None:
    a = attempt()
    assert prior_refusal(a.input_digest, a.session.principal_id, a) == "replay"


@pytest.mark.parametrize(
    ("prior_digest", "prior_principal"),
    [("sha256:other", "agent:openai4s/session-7"), (attempt().input_digest, "human:alice"), ("", "")],
)
def test_a_command_id_of_another_input_or_principal_is_reuse_and_tells_nothing_of_the_other(
    prior_digest: str, prior_principal: str
) -> None:
    a = attempt()
    prior = prior_refusal(prior_digest, prior_principal, a)
    assert isinstance(prior, Fault)
    assert prior.mhs_code == "MHS.CONFLICT.COMMAND_ID_REUSE"
    assert prior.details == {"command_id": a.command_id}
    told = repr(prior.error())
    assert "sha256:" not in told
    assert "alice" not in told


# What an attempt is.


@pytest.mark.parametrize(
    ("effects", "simulation_control", "actuating", "guarded"),
    [((MOVE,), False, True, True), ((MOVE,), True, True, False), ((), False, False, False)],
)
def test_what_is_guarded_moves_something_and_is_no_simulation_control(
    effects: Any, simulation_control: bool, actuating: bool, guarded: bool
) -> None:
    a = attempt(binding=binding(effects=effects, simulation_control=simulation_control))
    assert (a.actuating, a.guarded) == (actuating, guarded)


def test_a_command_without_binding_is_neither_actuating_nor_a_simulation_control() -> None:
    a = attempt(binding=None)
    assert not a.actuating
    assert not a.simulation_control
    assert not a.guarded


def test_a_permits_scope_names_the_session_s_principal_and_the_exact_input() -> None:
    a = attempt()
    assert a.permit_scope() == {
        "device_id": DEVICE,
        "capability_id": "cap.motion.convey.v1",
        "resource": "belt",
        "input_digest": a.input_digest,
        "principal": "agent:openai4s/session-7",
    }
