"""Batches: independent requests in one message, in order for each device."""

import json
from pathlib import Path
from typing import Any

from tests.behaviour.conftest import BENCH, LIMITS
from tests.documents import check_error
from tests.lab import CONVEYOR, ConnectionWire, HttpWire, Lab, Session, request, result_of, ulid
from tests.lab import running as running_daemon

STEP = "cap.world.step.v1"
CONVEY = "cap.motion.convey.v1"
INVALID_REQUEST = "MHS.PROTOCOL.INVALID_REQUEST"
REUSE = "MHS.CONFLICT.COMMAND_ID_REUSE"


def step(session: Session, ticks: Any, **more: Any) -> dict[str, Any]:
    params = {"command_id": ulid(), "deadline_ms": 30_000, **more}
    return request("mhs.command", session_id=session.id, capability_id=STEP, input={"ticks": ticks}, **params)


def read(session: Session, resource_id: str = "world") -> dict[str, Any]:
    return request("mhs.resource.read", session_id=session.id, resource_id=resource_id, deadline_ms=30_000)


def answers_of(lab: Lab, batch: list[Any]) -> list[Any]:
    """The answers to the batch's requests, in the order of the requests; nothing else may be answered."""
    answers = lab.wire.exchange(batch)
    assert isinstance(answers, list)
    by_id = {answer["id"]: answer for answer in answers}
    asked = [message["id"] for message in batch if "id" in message]
    assert sorted(by_id) == sorted(asked)
    assert len(answers) == len(asked)
    return [by_id[request_id] for request_id in asked]


def receipts_of(lab: Lab, batch: list[Any]) -> list[Any]:
    return [result_of("mhs.command", answer) for answer in answers_of(lab, batch)]


def test_every_request_of_a_batch_is_answered(lab: Lab, session: Session) -> None:
    """[PROTO-007]"""
    batch = [request("mhs.devices.list"), read(session), request("mhs.no.such.method"), step(session, 1)]
    devices, world, unknown, stepped = answers_of(lab, batch)
    assert devices["result"]["devices"]
    assert world["result"]["state"]
    assert unknown["error"]["data"]["mhs_code"] == "MHS.PROTOCOL.METHOD_NOT_FOUND"
    assert result_of("mhs.command", stepped)["status"] == "completed"


def test_a_batch_of_one_is_answered_by_an_array(lab: Lab) -> None:
    """[PROTO-007]"""
    assert len(lab.wire.exchange([request("mhs.devices.list")])) == 1


def test_an_empty_batch_is_refused(lab: Lab) -> None:
    """[PROTO-007]"""
    answer = lab.wire.exchange([])
    assert answer["id"] is None
    check_error(answer["error"])
    assert (answer["error"]["code"], answer["error"]["data"]["mhs_code"]) == (-32600, INVALID_REQUEST)


def test_mutations_of_one_device_are_done_in_the_order_of_the_batch(lab: Lab, session: Session) -> None:
    """[PROTO-008, OP-007]"""
    before = session.read("world")
    receipts = receipts_of(lab, [step(session, ticks) for ticks in (5, 7, 11, 13)])
    first, tick = before["revision"], before["state"]["tick"]
    assert [receipt["state_revision_before"] for receipt in receipts] == [
        first,
        first + 1,
        first + 2,
        first + 3,
    ]
    assert [receipt["output"]["tick"] - tick for receipt in receipts] == [5, 12, 23, 36]


def test_writes_and_commands_of_one_device_share_that_order(lab: Lab, session: Session) -> None:
    """[PROTO-008]"""
    write = request(
        "mhs.resource.write",
        session_id=session.id,
        resource_id="belt",
        patch={"speed_mm_s": 61},
        command_id=ulid(),
        deadline_ms=30_000,
    )
    session.write("belt", {"speed_mm_s": 60})
    revision = session.revision()
    receipts = receipts_of(lab, [step(session, 1), write, step(session, 1)])
    assert [each["state_revision_after"] for each in receipts] == [revision + 1, revision + 2, revision + 3]


def convey(session: Session, distance_mm: int, **more: Any) -> dict[str, Any]:
    params = {"command_id": ulid(), "deadline_ms": 30_000, **more}
    value = {"distance_mm": distance_mm, "speed_mm_s": 100}
    return request("mhs.command", session_id=session.id, capability_id=CONVEY, input=value, **params)


def test_a_mutation_starts_when_the_one_before_it_has_answered(lab: Lab, session: Session) -> None:
    """[PROTO-008]"""
    # Outside of a batch the second one would find the device busy with a long-running operation.
    receipts = receipts_of(lab, [convey(session, 5), convey(session, 5), step(session, 1)])
    assert [receipt["status"] for receipt in receipts] == ["completed"] * 3
    moved, stepped = receipts[1], receipts[2]
    assert stepped["state_revision_before"] == moved["state_revision_after"]


def test_an_operation_that_outlasts_its_deadline_has_answered(lab: Lab, session: Session) -> None:
    """[PROTO-008, PROTO-011]"""
    moving, stepped = receipts_of(lab, [convey(session, 10_000, deadline_ms=1000), step(session, 1)])
    assert moving["status"] == "running"
    assert stepped["error"]["mhs_code"] == "MHS.DEVICE.BUSY"
    session.cancel(moving["operation_id"])


def test_a_refused_mutation_stops_nothing_behind_it(lab: Lab, session: Session) -> None:
    """[PROTO-008]"""
    receipts = receipts_of(lab, [step(session, 1), step(session, 0), step(session, 1)])
    assert [receipt["status"] for receipt in receipts] == ["completed", "rejected", "completed"]


def test_mutations_of_two_devices_are_each_in_order(pair: Lab) -> None:
    """[PROTO-008]"""
    conveyor, bench = pair.open(), pair.open(device_id=BENCH)

    def switch(enabled: bool) -> dict[str, Any]:
        return request(
            "mhs.command",
            session_id=bench.id,
            capability_id="cap.electrical.output.v1",
            resource="left",
            input={"enabled": enabled},
            command_id=ulid(),
            deadline_ms=30_000,
        )

    bench.completed("cap.electrical.output.v1", {"enabled": False}, resource="left")
    revisions = {CONVEYOR: conveyor.revision(), BENCH: bench.read("left")["revision"]}
    batch = [step(conveyor, 1), switch(True), step(conveyor, 1), switch(False), step(conveyor, 1)]
    for receipt in receipts_of(pair, batch):
        device_id = receipt["device_id"]
        assert receipt["status"] == "completed"
        revisions[device_id] += 1
        assert receipt["state_revision_after"] == revisions[device_id]
    for session in (conveyor, bench):
        session.close()


def test_of_equal_commands_the_first_is_executed_and_the_rest_are_replays(lab: Lab, session: Session) -> None:
    """[PROTO-009, OP-003]"""
    before = session.read("world")["state"]["tick"]
    command_id = ulid()
    receipts = receipts_of(lab, [step(session, 3, command_id=command_id) for _ in range(3)])
    assert [receipt["replayed"] for receipt in receipts] == [False, True, True]
    assert [{**receipt, "replayed": False} for receipt in receipts] == [receipts[0]] * 3
    assert session.read("world")["state"]["tick"] == before + 3


def test_of_different_commands_with_one_id_the_first_is_executed(lab: Lab, session: Session) -> None:
    """[PROTO-009, OP-004]"""
    before = session.read("world")["state"]["tick"]
    command_id = ulid()
    receipts = receipts_of(lab, [step(session, ticks, command_id=command_id) for ticks in (3, 4, 3)])
    assert receipts[0]["status"] == "completed"
    assert receipts[1]["error"]["mhs_code"] == REUSE
    assert receipts[2] == {**receipts[0], "replayed": True}
    assert session.read("world")["state"]["tick"] == before + 3


def test_an_id_whose_first_command_was_refused_is_spent_for_the_batch(lab: Lab, session: Session) -> None:
    """[PROTO-009]"""
    before = session.read("world")["state"]["tick"]
    command_id = ulid()
    receipts = receipts_of(lab, [step(session, ticks, command_id=command_id) for ticks in (0, 5)])
    assert receipts[0]["error"]["mhs_code"] == "MHS.CAPABILITY.INPUT_INVALID"
    assert receipts[1]["error"]["mhs_code"] == REUSE
    assert session.read("world")["state"]["tick"] == before
    assert session.completed(STEP, {"ticks": 5}, command_id=command_id), "the batch is over"


def test_malformed_elements_are_answered_for_themselves(lab: Lab, session: Session) -> None:
    """[PROTO-007, PROTO-008]"""
    good = step(session, 1)
    no_version = {"id": ulid(), "method": "mhs.devices.list"}
    bad_params = {**request("mhs.devices.list"), "params": [1]}
    batch = [
        5,
        "x",
        None,
        [],
        {},
        no_version,
        bad_params,
        good,
        {"jsonrpc": "2.0", "id": True, "method": "m"},
    ]
    answers = lab.wire.exchange(batch)
    codes: dict[Any, list[str]] = {}
    for answer in answers:
        code = answer["error"]["data"]["mhs_code"] if "error" in answer else answer["result"]["status"]
        codes.setdefault(answer["id"], []).append(code)
    assert codes == {
        None: [INVALID_REQUEST] * 6,
        no_version["id"]: [INVALID_REQUEST],
        bad_params["id"]: ["MHS.PROTOCOL.INVALID_PARAMS"],
        good["id"]: ["completed"],
    }


def test_a_batch_inside_a_batch_is_no_request(lab: Lab, session: Session) -> None:
    """[PROTO-007]"""
    before = session.revision()
    (answer,) = lab.wire.exchange([[step(session, 1)]])
    assert (answer["id"], answer["error"]["data"]["mhs_code"]) == (None, INVALID_REQUEST)
    assert session.revision() == before


def test_notifications_in_a_batch_are_not_answered(lab: Lab, session: Session) -> None:
    """[PROTO-005, PROTO-007]"""
    tick = session.read("world")["state"]["tick"]
    silent = {name: value for name, value in step(session, 100).items() if name != "id"}
    (receipt,) = receipts_of(
        lab, [silent, {"jsonrpc": "2.0", "method": "mhs.devices.list"}, step(session, 1)]
    )
    assert receipt["output"]["tick"] == tick + 1, "and an effectful one is not executed"


def test_a_batch_of_notifications_is_not_answered_at_all(lab: Lab) -> None:
    """[PROTO-005, PROTO-007]"""
    body = json.dumps([{"jsonrpc": "2.0", "method": "mhs.devices.list"}] * 3).encode()
    if isinstance(lab.wire, HttpWire):
        assert lab.wire.post(body) == (204, b"")
    else:
        assert isinstance(lab.wire, ConnectionWire)
        lab.wire.send(body)
        lab.call("mhs.devices.list")
        assert lab.wire.unclaimed() == []


def test_a_batch_of_the_advertised_size_is_served(lab: Lab, session: Session) -> None:
    """[PROTO-043]"""
    assert lab.hello()["limits"]["max_batch"] == 64
    receipts = receipts_of(lab, [step(session, 1) for _ in range(64)])
    assert {receipt["status"] for receipt in receipts} == {"completed"}


def test_a_larger_batch_is_refused_as_a_whole(lab: Lab, session: Session) -> None:
    """[PROTO-043]"""
    before = session.revision()
    answer = lab.wire.exchange([step(session, 1) for _ in range(65)])
    assert answer["id"] is None
    check_error(answer["error"])
    assert answer["error"]["data"]["mhs_code"] == "MHS.PROTOCOL.BATCH_TOO_LARGE"
    assert answer["error"]["data"]["details"]["limit"] == 64
    assert session.revision() == before


def test_a_batch_limit_that_was_set_holds(limited: Lab) -> None:
    """[PROTO-043]"""
    assert len(limited.wire.exchange([request("mhs.devices.list") for _ in range(LIMITS["max_batch"])])) == 2
    answer = limited.wire.exchange([request("mhs.devices.list") for _ in range(LIMITS["max_batch"] + 1)])
    assert answer["error"]["data"]["details"]["limit"] == LIMITS["max_batch"]


def test_the_rate_counts_the_elements_of_a_batch(tmp_path: Path) -> None:
    """[PROTO-043, TPT-020]"""
    with running_daemon("http", tmp_path, "--rate-per-s", "1", "--rate-burst", "20") as lab:
        session = lab.open()
        assert isinstance(lab.wire, HttpWire)
        batch = json.dumps([step(session, 1) for _ in range(15)]).encode()
        assert lab.wire.post(batch)[0] == 200
        status, body = lab.wire.post(json.dumps([step(session, 1) for _ in range(15)]).encode())
        answer = json.loads(body)
        check_error(answer["error"])
        assert (status, answer["error"]["data"]["mhs_code"]) == (429, "MHS.LIMIT.RATE_EXCEEDED")
        assert answer["error"]["data"]["details"]["retry_after_ms"] > 0
        assert session.close()["summary"]["commands"] == 15, "none of it was executed"


def test_deadlines_of_a_batch_count_from_its_arrival(lab: Lab, session: Session) -> None:
    """[PROTO-011, OP-012]"""
    session.completed("x-cap.sim.fault.v1", {"kind": "hang", "times": 1})
    held, running = session.started(STEP, {"ticks": 1})
    receipts = receipts_of(lab, [step(session, 1, deadline_ms=50) for _ in range(3)])
    reasons = [receipt["error"]["details"]["reason"] for receipt in receipts]
    assert reasons == ["deadline_exceeded_before_dispatch"] * 3
    session.cancel(running["operation_id"])
    assert held.result()["status"] == "cancelled"
