"""Commands: the envelope's refusals, what happens, and what the receipt says of it."""

import json
from typing import Any

import pytest

from tests.behaviour.conftest import BENCH, BENCH_TARGET, Start
from tests.documents import digest, input_digest
from tests.lab import CONVEYOR, Lab, Session, ask_until, request, ulid

STEP = "cap.world.step.v1"
VALVE = "cap.actuation.valve.v1"
PURGE = "cap.actuation.purge.v1"
CONVEY = "cap.motion.convey.v1"
CONFIGURE = "cap.device.configure.v1"
DESCRIBE = "cap.device.describe.v1"
DOOR = "x-cap.sim.door.v1"
FAULT = "x-cap.sim.fault.v1"
WAIT = {"deadline_ms": 30_000}


def manifest_of(lab: Lab) -> dict[str, Any]:
    manifest: dict[str, Any] = lab.call("mhs.devices.get", device_id=CONVEYOR)
    return manifest


def state_of(session: Session) -> dict[str, Any]:
    """The device's state as `{resource_id: state}`."""
    return {name: session.read(name)["state"] for name in ("world", "belt", "valve")}


def permit(session: Session, capability_id: str, resource: str, value: Any) -> str:
    granted = session.call(
        "mhs.safety.permit",
        capability_id=capability_id,
        resource=resource,
        input_digest=input_digest(capability_id, resource, value),
        ttl_s=60,
        approvals=[],
    )
    permit_id: str = granted["permit_id"]
    return permit_id


def refused_by(session: Session, capability_id: str, value: Any, **more: Any) -> dict[str, Any]:
    """The error of a rejected receipt; a refusal moves nothing."""
    before = session.revision()
    receipt = session.command(capability_id, value, **more)
    assert receipt["status"] == "rejected", receipt
    assert receipt["state_revision_before"] == receipt["state_revision_after"] == before
    assert receipt["effects"] == []
    assert "output" not in receipt
    assert "operation_id" not in receipt
    assert session.revision() == before
    error: dict[str, Any] = receipt["error"]
    return error


# Every capability of the fixture.


COMMANDS = [
    (STEP, "world", {"ticks": 3}),
    (VALVE, "valve", {"open": True}),
    (PURGE, "valve", {"duration_ms": 20}),
    (CONVEY, "belt", {"distance_mm": 10, "speed_mm_s": 500}),
    (CONFIGURE, "belt", {"speed_mm_s": 42}),
    (DOOR, "world", {"closed": False}),
    (DESCRIBE, "world", {}),
    (FAULT, "world", {"kind": "fail", "times": 1}),
]


@pytest.fixture(scope="module", params=["stdio", "http"])
def ready(request: pytest.FixtureRequest, shared: Any) -> Session:
    """Everything in its initial position: the commands below all change something, but for the last two."""
    lab: Lab = shared(request.param)
    session = lab.open()
    session.completed(VALVE, {"open": False})
    session.completed(CONFIGURE, {"speed_mm_s": 0})
    return session


@pytest.mark.parametrize(("capability_id", "resource", "value"), COMMANDS, ids=[c for c, _, _ in COMMANDS])
def test_a_command_is_done_and_its_receipt_says_what_happened(
    ready: Session, capability_id: str, resource: str, value: dict[str, Any]
) -> None:
    """[PROTO-027, PROTO-036, PROTO-037, OP-007, OP-009]"""
    lab = ready.lab
    before = ready.revision()
    permits = {"permit_id": permit(ready, PURGE, resource, value)} if capability_id == PURGE else {}
    command_id = ulid()
    receipt = ready.completed(capability_id, value, command_id=command_id, **permits)
    after = state_of(ready)

    assert receipt["command_id"] == command_id
    assert (receipt["session_id"], receipt["device_id"]) == (ready.id, CONVEYOR)
    assert (receipt["capability_id"], receipt["resource_ids"]) == (capability_id, [resource])
    assert receipt["mode"] == "simulated"
    assert receipt["input_digest"] == input_digest(capability_id, resource, value)
    assert receipt["accepted_at"] <= receipt["started_at"] <= receipt["ended_at"]
    assert receipt["operation_id"].startswith("op_")
    assert receipt["progress"]["percent"] == 100
    assert receipt["replayed"] is False

    bound = next(b for b in manifest_of(lab)["bindings"] if b["capability_id"] == capability_id)
    assert receipt["effects"] == bound["effects"]
    # A purge ends as it began, with the valve closed: its effects stay, the state does not change.
    changes = bool(bound["effects"]) and capability_id != PURGE
    assert receipt["state_revision_before"] == before
    assert receipt["state_revision_after"] == before + int(changes)
    if bound["effects"]:
        assert receipt["state_hash_after"] == digest(after)
    assert ready.revision() == receipt["state_revision_after"]

    assert (
        receipt["output"]
        == {
            STEP: {"tick": after["world"]["tick"], "state_hash": digest(after)},
            VALVE: {"open": True},
            PURGE: {"open": False, "duration_ms": 20},
            CONVEY: {"position_mm": after["belt"]["position_mm"]},
            CONFIGURE: {"applied": value, "revision": before + 1},
            DOOR: {"closed": False},
            DESCRIBE: {"digest": manifest_of(lab)["digest"]},
            FAULT: value,
        }[capability_id]
    )
    if capability_id == VALVE:
        ready.completed(VALVE, {"open": False})
    elif capability_id == DOOR:
        ready.completed(DOOR, {"closed": True})
    elif capability_id == FAULT:
        assert ready.command(STEP, {"ticks": 1})["status"] == "failed"


def test_a_command_that_changes_nothing_keeps_the_revision_and_completes(session: Session) -> None:
    """[OP-007, OP-009]"""
    session.completed(VALVE, {"open": False})
    before = session.revision()
    receipt = session.completed(VALVE, {"open": False})
    assert receipt["state_revision_before"] == receipt["state_revision_after"] == before
    assert receipt["output"] == {"open": False}


def test_step_changes_nothing_but_the_tick(session: Session) -> None:
    """[OP-007]"""
    before = state_of(session)
    session.completed(STEP, {"ticks": 1234})
    after = state_of(session)
    before["world"]["tick"] += 1234
    assert after == before


def test_convey_moves_the_belt_by_its_distance(session: Session) -> None:
    """[PROTO-037]"""
    before = state_of(session)["belt"]
    session.completed(CONVEY, {"distance_mm": 12.5, "speed_mm_s": 500})
    after = state_of(session)["belt"]
    assert after == {**before, "position_mm": before["position_mm"] + 12.5}


# What the envelope refuses.


@pytest.mark.parametrize(
    ("capability_id", "code"),
    [
        ("cap.nobody.knows.v1", "MHS.CAPABILITY.UNKNOWN"),
        ("cap.world.step.v2", "MHS.CAPABILITY.UNKNOWN"),
        ("cap.world.step", "MHS.CAPABILITY.UNKNOWN"),
        ("step", "MHS.CAPABILITY.UNKNOWN"),
        ("cap.electrical.output.v1", "MHS.CAPABILITY.NOT_BOUND"),
    ],
)
def test_a_class_that_is_not_there_is_a_rejected_receipt(
    session: Session, capability_id: str, code: str
) -> None:
    """[PROTO-014, PROTO-028, OP-002, OP-008]"""
    assert refused_by(session, capability_id, {})["mhs_code"] == code


@pytest.mark.parametrize(
    "capability_id",
    [
        "cap.internal.restore.v1",
        "cap.internal.safety_estop.v1",
        "cap.internal.safety_reset.v1",
        "cap.internal.operation_cancel.v1",
        "cap.internal.composition_run.v1",
    ],
)
def test_an_internal_class_cannot_be_commanded(session: Session, capability_id: str) -> None:
    """[PROTO-038]"""
    assert refused_by(session, capability_id, {})["mhs_code"] in (
        "MHS.CAPABILITY.UNKNOWN",
        "MHS.CAPABILITY.NOT_BOUND",
    )
    assert session.lab.call("mhs.safety.status", **WAIT)["estop"]["engaged"] is False


def test_a_resource_to_which_the_class_is_not_bound_is_a_rejected_receipt(session: Session) -> None:
    """[PROTO-028]"""
    error = refused_by(session, STEP, {"ticks": 1}, resource="belt")
    assert error["mhs_code"] == "MHS.CAPABILITY.NOT_BOUND"
    assert error["details"]["resource"] == "belt"


def test_naming_the_only_resource_changes_nothing(session: Session) -> None:
    """[PROTO-036]"""
    command_id = ulid()
    first = session.completed(STEP, {"ticks": 1}, command_id=command_id)
    again = session.command(STEP, {"ticks": 1}, command_id=command_id, resource="world")
    assert again == {**first, "replayed": True}


def test_a_class_bound_to_several_resources_needs_one_to_be_named(pair: Lab) -> None:
    """[PROTO-028]"""
    session = pair.open(device_id=BENCH)
    command = {"capability_id": "cap.electrical.output.v1", "input": {"enabled": True}}
    refused = session.refused("mhs.command", **command, command_id=ulid(), **WAIT)
    assert refused.code == "MHS.PROTOCOL.INVALID_PARAMS"
    assert refused.details["reason"] == "resource_required"
    assert sorted(refused.details["resources"]) == ["left", "right"]
    receipt = session.command("cap.electrical.output.v1", {"enabled": True}, resource="right")
    assert receipt["status"] == "completed"
    assert session.read("right")["state"]["enabled"] is True
    assert session.read("left")["state"]["enabled"] is False
    not_bound = session.command("cap.electrical.output.v1", {"enabled": True}, resource="axis")
    assert not_bound["error"]["mhs_code"] == "MHS.CAPABILITY.NOT_BOUND"
    session.close()


@pytest.mark.parametrize(
    ("value", "path", "rule"),
    [
        ({}, "", "required"),
        ({"ticks": 0}, "/ticks", "minimum"),
        ({"ticks": 100_001}, "/ticks", "maximum"),
        ({"ticks": 1.5}, "/ticks", "type"),
        ({"ticks": True}, "/ticks", "type"),
        ({"ticks": "1"}, "/ticks", "type"),
        ({"ticks": None}, "/ticks", "type"),
        ({"ticks": 1, "speed": 2}, "", "additionalProperties"),
        ([], "", "type"),
        ("ticks", "", "type"),
        (7, "", "type"),
        (None, "", "type"),
        (False, "", "type"),
    ],
    ids=repr,
)
def test_input_that_does_not_match_its_schema_is_a_rejected_receipt(
    session: Session, value: Any, path: str, rule: str
) -> None:
    """[PROTO-027, PROTO-028]"""
    error = refused_by(session, STEP, value)
    assert error["mhs_code"] == "MHS.CAPABILITY.INPUT_INVALID"
    assert [(each["path"], each["rule"]) for each in error["details"]["errors"]] == [(path, rule)]


def test_the_digest_of_a_refused_input_is_that_of_the_input_as_sent(session: Session) -> None:
    """[PROTO-036]"""
    for capability_id, resource in ((STEP, "world"), ("cap.nobody.knows.v1", None)):
        receipt = session.command(capability_id, [1, {"a": None}])
        assert receipt["input_digest"] == input_digest(capability_id, resource, [1, {"a": None}])


def test_a_value_above_its_limit_is_refused_and_not_clamped(session: Session) -> None:
    """[PROTO-029]"""
    before = state_of(session)
    error = refused_by(session, CONVEY, {"distance_mm": 10, "speed_mm_s": 501})
    assert error["mhs_code"] == "MHS.SAFETY.ENVELOPE_VIOLATION"
    assert error["details"] == {
        "field": "speed_mm_s",
        "value": 501,
        "limit": 500,
        "unit": "mm/s",
        "source": "manifest",
    }
    assert state_of(session) == before


@pytest.mark.parametrize("number", [2**53, -(2**53), 10**400])
def test_an_input_without_canonical_json_is_an_error_and_reaches_nothing(
    session: Session, number: int
) -> None:
    """[PROTO-027, PROTO-036]"""
    command_id = ulid()
    refused = session.refused(
        "mhs.command", capability_id=STEP, input={"ticks": number}, command_id=command_id, **WAIT
    )
    assert refused.code == "MHS.CAPABILITY.INPUT_INVALID"
    assert refused.details["reason"] == "not_canonical_json"
    assert session.completed(STEP, {"ticks": 1}, command_id=command_id)["replayed"] is False


@pytest.mark.parametrize("spelled", ["1e2", "100.0", "1.0E+2", "100"])
def test_a_number_is_the_same_input_however_it_is_spelled(session: Session, spelled: str) -> None:
    """[PROTO-012, PROTO-036]"""
    before = session.read("world")["state"]["tick"]
    message = request(
        "mhs.command",
        session_id=session.id,
        capability_id=STEP,
        input={"ticks": "HERE"},
        command_id=ulid(),
        **WAIT,
    )
    receipt = session.lab.wire.exchange_bytes(json.dumps(message).replace('"HERE"', spelled).encode())[
        "result"
    ]
    assert receipt["status"] == "completed"
    assert receipt["input_digest"] == input_digest(STEP, "world", {"ticks": 100})
    assert json.dumps(session.read("world")["state"]["tick"]) == str(before + 100)


def test_members_of_the_input_have_no_order(session: Session) -> None:
    """[PROTO-036]"""
    command_id = ulid()
    first = session.completed(CONVEY, {"distance_mm": 1, "speed_mm_s": 500}, command_id=command_id)
    again = session.command(CONVEY, {"speed_mm_s": 500, "distance_mm": 1}, command_id=command_id)
    assert again == {**first, "replayed": True}


def test_a_revision_that_is_not_the_expected_one_is_a_conflict(session: Session) -> None:
    """[OP-005]"""
    revision = session.revision()
    command_id = ulid()
    error = refused_by(session, STEP, {"ticks": 1}, expected_revision=revision - 1, command_id=command_id)
    assert error["mhs_code"] == "MHS.CONFLICT.REVISION"
    assert error["current_revision"] == error["data"]["current_revision"] == revision
    assert error["retryable"] is True
    receipt = session.completed(STEP, {"ticks": 1}, expected_revision=revision, command_id=command_id)
    assert receipt["replayed"] is False, "the refusal was not recorded as the command's outcome"
    assert receipt["state_revision_after"] == revision + 1


def test_a_binding_runs_no_faster_than_its_rate(pair: Lab) -> None:
    """[PROTO-029]"""
    session = pair.open(device_id=BENCH)
    session.completed("x-cap.test.seldom.v1", {})
    receipt = session.command("x-cap.test.seldom.v1", {})
    assert receipt["error"]["mhs_code"] == "MHS.LIMIT.RATE_EXCEEDED"
    assert receipt["error"]["details"]["retry_after_ms"] > 0
    session.close()


def test_a_gated_capability_needs_a_permit(session: Session) -> None:
    """[PROTO-029]"""
    error = refused_by(session, PURGE, {"duration_ms": 1})
    assert error["mhs_code"] == "MHS.SAFETY.APPROVAL_REQUIRED"


def test_a_lease_is_accepted_and_has_no_effect(session: Session) -> None:
    """[PROTO-003]"""
    assert session.completed(STEP, {"ticks": 1}, lease="l" * 128)["status"] == "completed"


def test_the_trace_id_stands_in_the_receipt(session: Session) -> None:
    """[PROTO-003]"""
    receipt = session.completed(STEP, {"ticks": 1}, trace_id="00-abc")
    assert receipt["x-vendor"]["trace_id"] == "00-abc"


def test_the_first_rung_that_refuses_answers(session: Session) -> None:
    """[PROTO-029]"""
    stale = {"expected_revision": session.revision() + 1}
    session.completed(DOOR, {"closed": False})
    order = [
        ("cap.nobody.knows.v1", {"x": 1}, "MHS.CAPABILITY.UNKNOWN"),
        ("cap.electrical.output.v1", {"x": 1}, "MHS.CAPABILITY.NOT_BOUND"),
        (CONVEY, {"x": 1}, "MHS.CAPABILITY.INPUT_INVALID"),
        (CONVEY, {"distance_mm": 1, "speed_mm_s": 600}, "MHS.SAFETY.ENVELOPE_VIOLATION"),
        (CONVEY, {"distance_mm": 1, "speed_mm_s": 1}, "MHS.SAFETY.INTERLOCK_OPEN"),
        (PURGE, {"duration_ms": 1}, "MHS.SAFETY.INTERLOCK_OPEN"),
    ]
    for capability_id, value, code in order:
        assert refused_by(session, capability_id, value, **stale)["mhs_code"] == code
    session.completed(DOOR, {"closed": True})
    stale = {"expected_revision": session.revision() + 1}
    assert refused_by(session, PURGE, {"duration_ms": 1}, **stale)["mhs_code"] == "MHS.CONFLICT.REVISION"


# What the driver does, and what becomes of it.


def faulty(session: Session, kind: str) -> Any:
    """The receipt of a step that ends as the injected fault says."""
    session.completed(FAULT, {"kind": kind, "times": 1})
    return session.command(STEP, {"ticks": 1})


def test_a_device_that_is_busy_refuses_and_can_be_asked_again(session: Session) -> None:
    """[PROTO-028, OP-001, OP-002]"""
    before = session.revision()
    session.completed(FAULT, {"kind": "busy", "times": 1})
    command_id = ulid()
    receipt = session.command(STEP, {"ticks": 1}, command_id=command_id)
    assert receipt["status"] == "rejected"
    assert receipt["error"]["mhs_code"] == "MHS.DEVICE.BUSY"
    assert receipt["error"]["retryable"] is True
    assert receipt["error"]["details"]["retry_after_ms"] > 0
    assert session.revision() == before
    again = session.completed(STEP, {"ticks": 1}, command_id=command_id)
    assert again["replayed"] is False
    assert again["receipt_id"] != receipt["receipt_id"]


def test_a_fault_of_the_device_is_a_failed_receipt_with_its_native_code(session: Session) -> None:
    """[PROTO-028, PROTO-041]"""
    before = session.revision()
    receipt = faulty(session, "fail")
    assert receipt["status"] == "failed"
    assert receipt["error"]["mhs_code"] == "MHS.DEVICE.FAULT"
    assert receipt["error"]["details"]["native_code"] == "SIM_FAULT"
    assert receipt["error"]["retryable"] is False
    assert receipt["effects"] == []
    assert session.revision() == receipt["state_revision_after"] == before


def test_an_outcome_that_the_driver_does_not_know_is_unknown(session: Session) -> None:
    """[OP-013, OP-014]"""
    receipt = faulty(session, "outcome_unknown")
    assert (receipt["status"], receipt["error"]["mhs_code"]) == ("unknown", "MHS.OUTCOME.UNKNOWN")
    assert receipt["error"]["retryable"] is False
    assert "output" not in receipt
    again = session.command(STEP, {"ticks": 1}, command_id=receipt["command_id"])
    assert again == {**receipt, "replayed": True}, "it is final, and never executed again"


def test_a_driver_that_breaks_is_a_failure_that_tells_the_type_only(session: Session) -> None:
    """[PROTO-042]"""
    receipt = faulty(session, "raise")
    assert (receipt["status"], receipt["error"]["mhs_code"]) == ("failed", "MHS.ADAPTER.SHIM_FAILED")
    assert receipt["error"]["message"] == "driver raised RuntimeError"
    assert receipt["error"]["details"] == {"exception_type": "RuntimeError"}
    assert "simulated fault" not in json.dumps(receipt)
    session.completed(STEP, {"ticks": 1})


def test_an_output_that_violates_its_schema_is_a_failure_with_its_effect(session: Session) -> None:
    """[OP-007, OP-014]"""
    before = session.read("world")
    receipt = faulty(session, "bad_output")
    assert (receipt["status"], receipt["error"]["mhs_code"]) == ("failed", "MHS.CAPABILITY.OUTPUT_INVALID")
    assert receipt["error"]["details"]["errors"]
    assert "output" not in receipt
    assert session.read("world")["state"]["tick"] == before["state"]["tick"] + 1
    assert receipt["state_revision_after"] == before["revision"] + 1
    assert [effect["kind"] for effect in receipt["effects"]] == ["simulation.advance"]


def test_a_fault_counts_the_calls_of_other_bindings(session: Session) -> None:
    """[PROTO-028]"""
    session.completed(FAULT, {"kind": "fail", "times": 2})
    session.read("world")
    session.completed(DOOR, {"closed": True})
    statuses = [session.command(STEP, {"ticks": 1})["status"] for _ in range(3)]
    assert statuses == ["failed", "failed", "completed"]


def test_a_command_that_hangs_is_cancelled(session: Session) -> None:
    """[OP-011, PROTO-032]"""
    session.completed(FAULT, {"kind": "hang", "times": 1})
    pending, running = session.started(STEP, {"ticks": 1})
    receipt = session.cancel(running["operation_id"])
    assert receipt["status"] == "cancelled"
    assert pending.result() == receipt


def test_an_execution_that_passes_its_longest_duration_is_cancelled(pair: Lab) -> None:
    """[PROTO-011, OP-011]"""
    session = pair.open(device_id=BENCH)
    before = session.read("axis")
    receipt = session.command("x-cap.test.overrun.v1", {})
    assert receipt["status"] == "cancelled"
    assert receipt["cancellation"]["requested_by"] == "endpoint:max_duration"
    assert receipt["cancellation"]["safe_state_achieved"] is True
    assert receipt["error"]["mhs_code"] == "MHS.OUTCOME.TIMEOUT"
    assert receipt["error"]["details"]["reason"] == "max_duration_exceeded"
    assert receipt["state_revision_after"] == before["revision"] + 1, "it had moved"
    session.close()


def test_hardware_that_is_not_armed_is_only_looked_at(fresh: Start, tmp_path: Any) -> None:
    """[PROTO-029]"""
    lab = fresh(
        "--backend",
        "hardware",
        "--allow-hardware",
        "--state-dir",
        str(tmp_path / "s"),
        targets=[BENCH_TARGET],
    )
    human = [{"principal": {"id": "human:h", "kind": "human"}}]
    session = lab.open(device_id=BENCH, mode="hardware", approvals=human)
    session.completed(DESCRIBE, {})
    receipt = session.command("cap.electrical.output.v1", {"enabled": True}, resource="left")
    assert (receipt["status"], receipt["mode"]) == ("rejected", "hardware")
    assert receipt["error"]["mhs_code"] == "MHS.AUTH.HARDWARE_DISABLED"


# One mutation at a time.


def test_commands_in_flight_are_done_in_the_order_in_which_they_were_sent(shared: Any) -> None:
    """[PROTO-008, OP-007]"""
    # Only one connection has an order.
    lab: Lab = shared("stdio")
    session = lab.open()
    before = session.read("world")
    receipts = [each.result() for each in [session.begin(STEP, {"ticks": n}) for n in range(1, 65)]]
    assert {receipt["status"] for receipt in receipts} == {"completed"}
    first = before["revision"]
    assert [r["state_revision_before"] for r in receipts] == list(range(first, first + 64))
    assert [r["state_revision_after"] for r in receipts] == list(range(first + 1, first + 65))
    ticks = before["state"]["tick"]
    assert [r["output"]["tick"] for r in receipts] == [ticks + n * (n + 1) // 2 for n in range(1, 65)]
    assert len({r["evidence"]["seq"] for r in receipts}) == 64
    session.close()


def test_commands_that_come_at_once_are_done_one_after_the_other(session: Session) -> None:
    """[PROTO-008, OP-007]"""
    before = session.read("world")
    receipts = [each.result() for each in [session.begin(STEP, {"ticks": 1}) for _ in range(64)]]
    assert {receipt["status"] for receipt in receipts} == {"completed"}
    steps = sorted(
        (r["state_revision_before"], r["state_revision_after"], r["output"]["tick"]) for r in receipts
    )
    first, tick = before["revision"], before["state"]["tick"]
    assert steps == [(first + n, first + n + 1, tick + n + 1) for n in range(64)]


def test_what_finds_the_queue_full_is_busy(session: Session) -> None:
    """[PROTO-028]"""
    session.completed(FAULT, {"kind": "hang", "times": 1})
    held, running = session.started(STEP, {"ticks": 1})
    queued = [session.begin(STEP, {"ticks": 1}) for _ in range(65)]
    busy = ask_until(lambda: [each for each in queued if each.done], bool)
    assert len(busy) == 1
    receipt = busy[0].result()
    assert (receipt["status"], receipt["error"]["mhs_code"]) == ("rejected", "MHS.DEVICE.BUSY")
    assert receipt["error"]["details"]["retry_after_ms"] > 0
    assert not any(each.done for each in queued if each is not busy[0])
    session.cancel(running["operation_id"])
    assert held.result()["status"] == "cancelled"
    statuses = sorted(each.result()["status"] for each in queued)
    assert statuses == ["completed"] * 64 + ["rejected"]


def test_what_finds_a_long_running_operation_is_busy(session: Session) -> None:
    """[PROTO-028, PROTO-041]"""
    _, running = session.started(CONVEY, {"distance_mm": 10_000, "speed_mm_s": 100})
    for capability_id, value in ((STEP, {"ticks": 1}), (CONVEY, {"distance_mm": 1, "speed_mm_s": 1})):
        receipt = session.command(capability_id, value)
        assert (receipt["status"], receipt["error"]["mhs_code"]) == ("rejected", "MHS.DEVICE.BUSY")
        assert receipt["error"]["retryable"] is True
    assert session.write("belt", {"speed_mm_s": 1})["error"]["mhs_code"] == "MHS.DEVICE.BUSY"
    session.completed(DESCRIBE, {})
    assert session.read("belt")["state"]["running"] is True, "reads and non-actuating commands never queue"
    session.cancel(running["operation_id"])
    session.completed(STEP, {"ticks": 1})


def test_two_devices_work_at_the_same_time(pair: Lab) -> None:
    """[PROTO-008]"""
    conveyor, bench = pair.open(), pair.open(device_id=BENCH)
    _, running = conveyor.started(CONVEY, {"distance_mm": 10_000, "speed_mm_s": 100})
    receipt = bench.command("cap.electrical.output.v1", {"enabled": True}, resource="left")
    assert receipt["status"] == "completed"
    assert conveyor.get(running["operation_id"])["status"] == "running"
    for session in (conveyor, bench):
        session.close()
