"""Deadlines, operations that go on without their caller, and how to look them up and end them."""

import json
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.behaviour.conftest import BENCH, LIMITS, SECOND
from tests.behaviour.test_commands import permit
from tests.lab import CONVEYOR, HttpWire, Lab, Session, ask_until, request, ulid

STEP = "cap.world.step.v1"
CONVEY = "cap.motion.convey.v1"
PURGE = "cap.actuation.purge.v1"
FAULT = "x-cap.sim.fault.v1"
OUTPUT = "cap.electrical.output.v1"
STUBBORN = "x-cap.test.stubborn.v1"
RELEASE = "x-cap.test.release.v1"
READS = "x-cap.test.reads.v1"
FAR = {"distance_mm": 10_000, "speed_mm_s": 100}
WAIT = {"deadline_ms": 30_000}
BEFORE_DISPATCH = "deadline_exceeded_before_dispatch"


def outlasting(session: Session, capability_id: str, value: Any, **more: Any) -> Any:
    """The receipt of a dispatched command that outlasts its deadline, which grows until it is long enough."""
    for deadline_ms in (50, 500, 5000):
        receipt = session.command(capability_id, value, deadline_ms=deadline_ms, **more)
        if receipt["status"] != "rejected":
            return receipt
        assert receipt["error"]["details"]["reason"] == BEFORE_DISPATCH, receipt
    raise AssertionError("the machine is too slow to dispatch a command in 5 s")


def receipts_of(lab: Lab, command_id: str) -> list[Any]:
    """Every receipt of a command in the chain, in its order."""
    found: list[Any] = []
    params: dict[str, Any] = {}
    while True:
        bundle = lab.call("mhs.evidence.export", **params)
        found += [receipt for receipt in bundle["receipts"] if receipt["command_id"] == command_id]
        if bundle["truncation"] is None:
            return found
        params = {"since_receipt": bundle["truncation"]["next_since_receipt"]}


# Deadlines.


def test_a_long_running_command_answers_running_when_its_deadline_passes(session: Session) -> None:
    """[PROTO-011, OP-010, PROTO-030]"""
    receipt = outlasting(session, CONVEY, FAR)
    assert receipt["status"] == "running"
    assert receipt["operation_id"].startswith("op_")
    assert receipt["progress"]["percent"] < 100
    assert "evidence" not in receipt
    now = session.get(receipt["operation_id"])
    assert now["status"] == "running", "the deadline ended the waiting only"
    assert (now["receipt_id"], now["command_id"]) == (receipt["receipt_id"], receipt["command_id"])
    session.cancel(receipt["operation_id"])


def test_its_final_receipt_is_found_by_its_operation_id(session: Session) -> None:
    """[PROTO-030, OP-001]"""
    before = session.revision()
    pending, running = session.started(CONVEY, {"distance_mm": 60, "speed_mm_s": 200})
    final = session.follow(running["operation_id"])
    assert final["status"] == "completed"
    assert final["receipt_id"] == running["receipt_id"]
    assert final["state_revision_after"] == before + 1
    assert pending.result() == final == session.look_up(running["command_id"])
    assert receipts_of(session.lab, running["command_id"]) == [final]


def test_progress_never_falls(session: Session) -> None:
    """[PROTO-030]"""
    _, running = session.started(CONVEY, {"distance_mm": 200, "speed_mm_s": 400})
    seen: list[Any] = [running]
    ask_until(
        lambda: seen.append(session.get(running["operation_id"])) or seen[-1]["status"],
        lambda status: status != "running",
    )
    percents = [receipt["progress"]["percent"] for receipt in seen]
    assert percents == sorted(percents)
    assert percents[-1] == 100
    ticks = [receipt["progress"].get("ticks", 0) for receipt in seen]
    assert ticks == sorted(ticks)
    assert ticks[-1] == 500


def test_a_short_command_whose_deadline_passes_is_unknown_and_reconciled_later(session: Session) -> None:
    """[PROTO-011, PROTO-041, OP-010, OP-001]"""
    lab, value = session.lab, {"duration_ms": 6000}
    before = session.revision()
    interim = outlasting(session, PURGE, value, permit_id=permit(session, PURGE, "valve", value))
    assert (interim["status"], interim["error"]["mhs_code"]) == ("unknown", "MHS.OUTCOME.TIMEOUT")
    assert interim["error"]["retryable"] is False
    assert interim["error"]["details"]["operation_id"] == interim["operation_id"]
    assert interim["state_revision_after"] == before

    live = session.get(interim["operation_id"])
    assert live["status"] == "running", "it runs on"
    assert live["receipt_id"] != interim["receipt_id"]
    replay = session.command(PURGE, value, command_id=interim["command_id"])
    assert (replay["status"], replay["replayed"]) == ("running", True), "a replay reports the operation"

    receipt = session.command(STEP, {"ticks": 1})
    assert receipt["error"]["mhs_code"] == "MHS.DEVICE.BUSY", "nobody queues behind what nobody waits for"

    session.cancel(interim["operation_id"])
    final = session.follow(interim["operation_id"])
    assert final["status"] == "cancelled"
    assert final["receipt_id"] == live["receipt_id"]
    assert final["x-vendor"]["reconciles"] == interim["receipt_id"]
    assert receipts_of(lab, interim["command_id"]) == [interim, final]
    session.completed(STEP, {"ticks": 1})


def test_what_outlasts_its_deadline_still_completes(session: Session) -> None:
    """[PROTO-011, OP-010]"""
    value = {"duration_ms": 400}
    for deadline_ms in (100, 200, 300):
        permit_id = permit(session, PURGE, "valve", value)
        interim = session.command(PURGE, value, permit_id=permit_id, deadline_ms=deadline_ms)
        if interim["status"] != "rejected":
            break
    assert interim["status"] == "unknown"
    final = session.follow(interim["operation_id"])
    assert final["status"] == "completed"
    assert final["output"] == {"open": False, "duration_ms": 400}
    assert final["x-vendor"]["reconciles"] == interim["receipt_id"]
    assert session.look_up(interim["command_id"]) == final
    assert session.command(PURGE, value, command_id=interim["command_id"]) == {**final, "replayed": True}


def test_a_deadline_that_passes_before_dispatch_dispatches_nothing(session: Session) -> None:
    """[OP-012]"""
    session.completed(FAULT, {"kind": "hang", "times": 1})
    held, running = session.started(STEP, {"ticks": 1})
    before = session.read("world")
    command_id = ulid()
    receipt = session.command(STEP, {"ticks": 1}, deadline_ms=50, command_id=command_id)
    assert (receipt["status"], receipt["error"]["mhs_code"]) == ("rejected", "MHS.OUTCOME.TIMEOUT")
    assert receipt["error"]["details"]["reason"] == BEFORE_DISPATCH
    assert receipt["error"]["retryable"] is True
    session.cancel(running["operation_id"])
    assert held.result()["status"] == "cancelled"
    assert session.read("world")["state"]["tick"] == before["state"]["tick"]
    assert session.completed(STEP, {"ticks": 1}, command_id=command_id)["replayed"] is False


def test_a_permit_is_given_back_when_nothing_was_dispatched(session: Session) -> None:
    """[OP-012]"""
    session.completed(FAULT, {"kind": "hang", "times": 1})
    held, running = session.started(STEP, {"ticks": 1})
    value = {"duration_ms": 1}
    permit_id = permit(session, PURGE, "valve", value)
    receipt = session.command(PURGE, value, permit_id=permit_id, deadline_ms=50)
    assert receipt["error"]["details"]["reason"] == BEFORE_DISPATCH
    session.cancel(running["operation_id"])
    assert held.result()["status"] == "cancelled"
    session.completed(PURGE, value, permit_id=permit_id)


# mhs.operations.get


@pytest.mark.parametrize("operation_id", ["op_01J8ZQ3V6Y7M2N4P6R8S0T2V4X", "op_x", "../x"])
def test_an_unknown_operation_is_unknown(session: Session, operation_id: str) -> None:
    """[PROTO-030]"""
    for method in ("mhs.operations.get", "mhs.operations.cancel"):
        refused = session.refused(method, operation_id=operation_id, **WAIT)
        assert refused.code == "MHS.OPERATION.UNKNOWN"


def test_an_operation_is_looked_up_by_one_of_its_ids(session: Session) -> None:
    """[PROTO-030, OP-013]"""
    receipt = session.completed(STEP, {"ticks": 1})
    assert session.look_up(receipt["command_id"], device_id=CONVEYOR) == receipt
    assert session.get(receipt["operation_id"]) == receipt
    both = {"operation_id": receipt["operation_id"], "command_id": receipt["command_id"]}
    assert session.refused("mhs.operations.get", **both, **WAIT).code == "MHS.PROTOCOL.INVALID_PARAMS"
    assert session.refused("mhs.operations.get", **WAIT).code == "MHS.PROTOCOL.INVALID_PARAMS"


def test_looking_up_executes_nothing(session: Session) -> None:
    """[PROTO-030, OP-008]"""
    receipt = session.completed(STEP, {"ticks": 1})
    before = session.read("world")
    for _ in range(3):
        session.look_up(receipt["command_id"])
        session.get(receipt["operation_id"])
    after = session.read("world")
    assert (after["revision"], after["state"]) == (before["revision"], before["state"])


def test_a_refusal_is_found_by_its_command_id_until_the_id_is_used(session: Session) -> None:
    """[PROTO-030, OP-001, OP-002]"""
    command_id = ulid()
    session.command(STEP, {"ticks": -1}, command_id=command_id)
    refused = session.command(STEP, {"ticks": 0}, command_id=command_id)
    assert session.look_up(command_id) == refused
    done = session.completed(STEP, {"ticks": 1}, command_id=command_id)
    assert session.look_up(command_id) == done
    reused = session.command(STEP, {"ticks": 2}, command_id=command_id)
    assert reused["status"] == "rejected"
    assert session.look_up(command_id) == done


def test_a_command_that_never_came_is_unknown(session: Session) -> None:
    """[PROTO-030]"""
    refused = session.refused("mhs.operations.get", command_id=ulid(), **WAIT)
    assert refused.code == "MHS.OPERATION.UNKNOWN"


def test_another_session_of_the_same_principal_finds_the_operation(lab: Lab, session: Session) -> None:
    """[PROTO-030, OP-006]"""
    receipt = session.completed(STEP, {"ticks": 1})
    session.close()
    other = lab.open([])
    assert other.get(receipt["operation_id"]) == receipt
    assert other.look_up(receipt["command_id"]) == receipt
    other.close()


# mhs.operations.cancel


def test_a_cancelled_operation_stops_in_its_safe_state(session: Session) -> None:
    """[PROTO-032, OP-007, OP-011]"""
    before = session.read("belt")
    pending, running = session.started(CONVEY, FAR)
    ask_until(
        lambda: session.get(running["operation_id"])["progress"]["percent"], lambda percent: percent > 0
    )
    receipt = session.cancel(running["operation_id"])
    assert receipt["status"] == "cancelled"
    assert receipt["receipt_id"] == running["receipt_id"]
    assert receipt["cancellation"]["safe_state_achieved"] is True
    assert receipt["cancellation"]["requested_by"] == receipt["principal"]["id"]
    assert receipt["accepted_at"] <= receipt["cancellation"]["requested_at"] <= receipt["ended_at"]
    assert "output" not in receipt
    after = session.read("belt")
    moved = after["state"]["position_mm"] - before["state"]["position_mm"]
    assert 0 < moved < FAR["distance_mm"]
    assert after["state"]["running"] is False
    assert [effect["kind"] for effect in receipt["effects"]] == ["belt.move"]
    assert receipt["state_revision_after"] == after["revision"] == before["revision"] + 1
    assert pending.result() == receipt == session.get(running["operation_id"])


def test_cancelling_what_has_finished_returns_its_receipt_unchanged(session: Session) -> None:
    """[PROTO-033]"""
    receipt = session.completed(STEP, {"ticks": 1})
    assert session.cancel(receipt["operation_id"]) == receipt
    assert "cancellation" not in receipt


def test_cancelling_twice_returns_the_one_receipt(session: Session) -> None:
    """[PROTO-033, OP-001]"""
    _, running = session.started(CONVEY, FAR)
    first = session.cancel(running["operation_id"])
    assert session.cancel(running["operation_id"]) == first
    assert receipts_of(session.lab, running["command_id"]) == [first]


def test_the_device_is_free_again_after_a_cancel(session: Session) -> None:
    """[PROTO-032]"""
    _, running = session.started(CONVEY, FAR)
    session.cancel(running["operation_id"])
    session.completed(CONVEY, {"distance_mm": 1, "speed_mm_s": 500})


@pytest.fixture
def bench(pair: Lab) -> Iterator[Session]:
    """A session on a device that takes its time to stop, and whose reads can hang."""
    session = pair.open(device_id=BENCH)
    yield session
    session.close()


def test_a_cancel_that_is_not_acknowledged_in_time_says_that_it_runs(bench: Session) -> None:
    """[PROTO-032, OP-011]"""
    _, running = bench.started(STUBBORN, {})
    asked = bench.cancel(running["operation_id"], deadline_ms=100)
    assert asked["status"] == "running"
    assert asked["cancellation"]["safe_state_achieved"] is False
    assert asked["cancellation"]["requested_by"] == asked["principal"]["id"]
    polled = bench.get(running["operation_id"])
    assert (polled["status"], polled["cancellation"]) == ("running", asked["cancellation"])
    bench.completed(RELEASE, {})
    final = bench.follow(running["operation_id"])
    assert final["status"] == "cancelled"
    assert final["cancellation"] == {**asked["cancellation"], "safe_state_achieved": True}


def test_a_close_that_cannot_wait_reports_what_is_pending(pair: Lab, bench: Session) -> None:
    """[SESS-006]"""
    closing = pair.open(device_id=BENCH)
    _, running = closing.started(STUBBORN, {})
    summary = closing.close()["summary"]
    assert summary["cancellation_pending"] is True
    assert summary["operation_ids"] == [running["operation_id"]]
    assert bench.get(running["operation_id"])["status"] == "running"
    bench.completed(RELEASE, {})
    assert bench.follow(running["operation_id"])["status"] == "cancelled"


@pytest.fixture
def hanging(bench: Session) -> Iterator[Session]:
    """The same while every read of the device hangs."""
    bench.completed(READS, {"hang": True})
    yield bench
    bench.completed(READS, {"hang": False})


def test_a_read_that_exceeds_its_budget_is_a_structured_timeout(hanging: Session) -> None:
    """[PROTO-011, OP-012]"""
    refused = hanging.refused("mhs.resource.read", resource_id="left", deadline_ms=50)
    assert refused.code == "MHS.OUTCOME.TIMEOUT"
    assert refused.details["deadline_ms"] == 50


def test_a_command_whose_state_cannot_be_read_in_time_is_not_dispatched(hanging: Session) -> None:
    """[OP-012]"""
    receipt = hanging.command(OUTPUT, {"enabled": True}, resource="left", deadline_ms=50)
    assert (receipt["status"], receipt["error"]["mhs_code"]) == ("rejected", "MHS.OUTCOME.TIMEOUT")
    assert receipt["error"]["details"]["reason"] == BEFORE_DISPATCH
    assert receipt["error"]["retryable"] is True
    hanging.completed(READS, {"hang": False})
    assert hanging.read("left")["state"]["enabled"] is False
    hanging.completed(OUTPUT, {"enabled": True}, resource="left")


def test_a_command_that_moves_nothing_needs_no_state(hanging: Session) -> None:
    """[PROTO-029]"""
    hanging.completed("cap.device.describe.v1", {})


def test_an_operation_outlives_the_connection_that_began_it(shared: Callable[[str], Lab]) -> None:
    """[PROTO-011, OP-006, OP-010]"""
    # On stdio the end of the only connection is the end of the daemon.
    lab = shared("http")
    session, command_id = lab.open(), ulid()
    message = request(
        "mhs.command",
        session_id=session.id,
        capability_id=CONVEY,
        input={"distance_mm": 100, "speed_mm_s": 500},
        command_id=command_id,
        **WAIT,
    )
    assert isinstance(lab.wire, HttpWire)
    connection = HTTPConnection(lab.wire.host, int(lab.wire.port))
    connection.request("POST", "/mhs/v1/rpc", json.dumps(message), {"Content-Type": "application/json"})
    found = ask_until(
        lambda: lab.wire.exchange(
            request("mhs.operations.get", session_id=session.id, command_id=command_id, **WAIT)
        ),
        lambda answer: answer.get("result", {}).get("status") not in (None, "accepted"),
    )
    assert found["result"]["status"] == "running"
    connection.close()
    assert session.follow(found["result"]["operation_id"])["status"] == "completed"
    session.close()


# Limits.


def test_a_session_has_no_more_long_running_operations_than_advertised(limited: Lab) -> None:
    """[PROTO-043]"""
    grant = limited.call(
        "mhs.session.open",
        device_ids=[CONVEYOR, SECOND],
        capabilities=["*"],
        mode="simulated",
        ttl_s=60,
    )
    assert grant["limits"]["max_open_operations"] == LIMITS["max_open_operations"] == 1
    session = Session(limited, grant)
    _, running = session.started(CONVEY, FAR, device_id=CONVEYOR)
    refused = session.command(CONVEY, FAR, device_id=SECOND)
    assert (refused["status"], refused["error"]["mhs_code"]) == ("rejected", "MHS.LIMIT.OPERATION_LIMIT")
    assert refused["error"]["retryable"] is True
    session.completed(STEP, {"ticks": 1}, device_id=SECOND)
    session.cancel(running["operation_id"])
    _, running = session.started(CONVEY, FAR, device_id=SECOND)
    session.cancel(running["operation_id"])
    session.close()
