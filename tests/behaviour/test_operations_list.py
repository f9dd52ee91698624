"""`mhs.operations.list`: what a session has begun, what its principal has running, and never anybody else's."""

from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import BENCH, UNHURRIED, Start
from tests.behaviour.safety import token_file
from tests.behaviour.test_operations import outlasting
from tests.lab import CONVEYOR, HttpWire, Lab, Session, request, running, ulid

STEP = "cap.world.step.v1"
CONVEY = "cap.motion.convey.v1"
FAULT = "x-cap.sim.fault.v1"
DESCRIBE = "cap.device.describe.v1"
FAR = {"distance_mm": 10_000, "speed_mm_s": 100}


def listed(session: Session, **params: Any) -> list[Any]:
    """The operations that a session is shown, none of them left out."""
    result = session.call("mhs.operations.list", **params)
    assert "truncation" not in result
    operations: list[Any] = result["operations"]
    return operations


def ids(operations: list[Any]) -> list[str]:
    return [operation["operation_id"] for operation in operations]


@pytest.fixture
def mine(lab: Lab, session: Session) -> Session:
    """A session that has begun nothing, while nothing of its principal runs."""
    assert listed(session) == []
    return session


def test_operations_are_listed_newest_first_as_their_receipts_say(mine: Session) -> None:
    """[PROTO-031]"""
    receipts = [mine.completed(STEP, {"ticks": 1}) for _ in range(3)]
    assert listed(mine) == [
        {
            "operation_id": receipt["operation_id"],
            "device_id": CONVEYOR,
            "capability_id": STEP,
            "state": "completed",
            "progress": {"percent": 100},
            "accepted_at": receipt["accepted_at"],
        }
        for receipt in reversed(receipts)
    ]


def test_what_the_device_was_too_busy_for_is_listed_as_rejected(mine: Session) -> None:
    """[PROTO-031]"""
    mine.completed(FAULT, {"kind": "busy", "times": 1})
    refused = mine.command("cap.actuation.valve.v1", {"open": True})
    assert (refused["status"], refused["error"]["mhs_code"]) == ("rejected", "MHS.DEVICE.BUSY")
    first = listed(mine, state="rejected")[0]
    assert first["operation_id"] == refused["operation_id"]
    assert first["progress"] == {"percent": 0}


def test_a_running_operation_is_listed_as_it_stands(mine: Session) -> None:
    """[PROTO-031, OP-010]"""
    done = mine.completed(DESCRIBE, {})
    pending, receipt = mine.started(CONVEY, FAR)
    first, second = listed(mine)
    assert (first["operation_id"], first["state"]) == (receipt["operation_id"], "running")
    assert first["accepted_at"] == receipt["accepted_at"]
    assert first["progress"]["percent"] < 100
    assert second["operation_id"] == done["operation_id"]
    mine.cancel(receipt["operation_id"])
    assert pending.result()["status"] == "cancelled"
    assert [operation["state"] for operation in listed(mine)] == ["cancelled", "completed"]


def test_one_whose_caller_was_told_unknown_is_listed_as_running_until_it_ends(mine: Session) -> None:
    """[PROTO-031, OP-010]"""
    mine.completed(FAULT, {"kind": "hang", "times": 1})
    receipt = outlasting(mine, STEP, {"ticks": 1})
    assert receipt["status"] == "unknown", receipt
    assert ids(listed(mine, state="running")) == [receipt["operation_id"]]
    assert listed(mine, state="unknown") == []
    assert mine.cancel(receipt["operation_id"])["status"] == "cancelled"
    assert listed(mine, state="running") == []
    assert ids(listed(mine, state="cancelled")) == [receipt["operation_id"]]


def test_every_state_can_be_asked_for_and_shows_its_own(mine: Session) -> None:
    """[PROTO-031]"""
    ended: dict[str, str] = {"completed": mine.completed(STEP, {"ticks": 1})["operation_id"]}
    for kind, state in (("fail", "failed"), ("outcome_unknown", "unknown")):
        mine.completed(FAULT, {"kind": kind, "times": 1})
        receipt = mine.command(STEP, {"ticks": 1})
        assert receipt["status"] == state
        ended[state] = receipt["operation_id"]
    pending, going = mine.started(CONVEY, FAR)
    ended["running"] = going["operation_id"]
    assert ids(listed(mine, state="running")) == [ended["running"]]
    mine.cancel(ended["running"])
    pending.result()
    assert ids(listed(mine, state="cancelled")) == [ended["running"]]
    for state in ("failed", "unknown"):
        assert ids(listed(mine, state=state)) == [ended[state]]
    assert ended["completed"] in ids(listed(mine, state="completed"))
    for state in ("accepted", "running", "rejected"):
        assert listed(mine, state=state) == []


def test_a_refused_command_is_no_operation(mine: Session) -> None:
    """[PROTO-031, OP-001]"""
    assert mine.command(STEP, {"ticks": 0})["status"] == "rejected"
    assert listed(mine) == []
    assert listed(mine, state="rejected") == []


def test_another_session_of_the_principal_sees_what_runs_and_nothing_that_ended(
    lab: Lab, mine: Session
) -> None:
    """[PROTO-031]"""
    mine.completed(STEP, {"ticks": 1})
    pending, receipt = mine.started(CONVEY, FAR)
    other = lab.open([])
    assert ids(listed(other)) == [receipt["operation_id"]]
    mine.cancel(receipt["operation_id"])
    pending.result()
    assert listed(other) == []
    assert len(listed(mine)) == 2
    other.close()


def test_another_principal_s_operations_are_never_shown(tmp_path: Path) -> None:
    """[PROTO-031, CORE-151]"""
    tokens = token_file(
        tmp_path / "tokens.toml",
        ("a", "human:a", "client"),
        ("b", "human:b", "client"),
        ("c", "human:a", "reader"),
    )
    with running("http", tmp_path, "--token-file", str(tokens), *UNHURRIED) as lab:
        assert isinstance(lab.wire, HttpWire)
        lab.wire.token = "a"
        session = lab.open()
        session.completed(STEP, {"ticks": 1})
        _, going = session.started(CONVEY, FAR)
        assert len(listed(session)) == 2
        lab.wire.token = "b"
        stranger = lab.open()
        assert listed(stranger) == listed(stranger, state="running") == []
        refused = lab.refused("mhs.operations.list", session_id=session.id)
        assert refused.code == "MHS.SESSION.UNKNOWN"
        lab.wire.token = "c"
        assert ids(listed(lab.open([]))) == [going["operation_id"]], "a reader of the same principal may look"


def test_a_device_can_be_asked_for(pair: Lab) -> None:
    """[PROTO-031]"""
    grant = pair.call(
        "mhs.session.open", device_ids=[CONVEYOR, BENCH], capabilities=["*"], mode="simulated", ttl_s=600
    )
    session = Session(pair, grant)
    by_device = {
        device_id: session.completed(DESCRIBE, {}, device_id=device_id)["operation_id"]
        for device_id in (CONVEYOR, BENCH)
    }
    assert ids(listed(session)) == [by_device[BENCH], by_device[CONVEYOR]]
    for device_id, operation_id in by_device.items():
        assert ids(listed(session, device_id=device_id)) == [operation_id]
    session.close()
    narrow = pair.open([])
    assert narrow.refused("mhs.operations.list", device_id=BENCH).code == "MHS.SESSION.DEVICE_NOT_GRANTED"
    narrow.close()


def test_what_runs_on_a_device_outside_the_session_is_not_shown(pair: Lab) -> None:
    """[PROTO-031]"""
    driving = pair.open()
    _, going = driving.started(CONVEY, FAR)
    elsewhere = pair.open([], device_id=BENCH)
    assert listed(elsewhere) == []
    driving.cancel(going["operation_id"])
    for session in (driving, elsewhere):
        session.close()


@pytest.mark.parametrize("state", ["done", "", 1, None, ["running"]])
def test_a_state_that_no_receipt_has_is_named(session: Session, state: Any) -> None:
    """[PROTO-031]"""
    refused = session.refused("mhs.operations.list", state=state)
    assert refused.code == "MHS.PROTOCOL.INVALID_PARAMS"
    assert refused.details["field"] == "state"


def test_listing_moves_nothing(mine: Session) -> None:
    """[OP-008]"""
    mine.completed(STEP, {"ticks": 1})
    before = mine.read("world")
    listed(mine)
    after = mine.read("world")
    assert (after["revision"], after["state"]) == (before["revision"], before["state"])


def test_a_long_list_is_cut_at_its_older_end_and_says_so(fresh: Start) -> None:
    """[PROTO-031]"""
    lab = fresh()
    session = lab.open()

    def describe() -> Any:
        params = {"capability_id": DESCRIBE, "input": {}, "command_id": ulid(), "deadline_ms": 30_000}
        return request("mhs.command", session_id=session.id, **params)

    oldest = session.completed(DESCRIBE, {})
    for _ in range(20):
        answers = lab.wire.exchange([describe() for _ in range(50)])
        assert {answer["result"]["status"] for answer in answers} == {"completed"}
    newest = session.completed(STEP, {"ticks": 1})
    result = session.call("mhs.operations.list")
    assert result["truncation"] == {"reason": "limit", "shown": 1000}
    shown = ids(result["operations"])
    assert len(shown) == len(set(shown)) == 1000
    assert shown[0] == newest["operation_id"]
    assert oldest["operation_id"] not in shown
    assert shown == sorted(shown, reverse=True)
    assert ids(listed(session, state="running")) == []
