"""Sessions: what is granted, how long it lasts, and what its end does."""

import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import BENCH, BENCH_TARGET, LIMITS, Start
from tests.behaviour.test_discovery import CONVEYOR_BINDINGS
from tests.lab import CONVEYOR, Lab, RpcError, Session, ask_until, running, ulid

LOCAL_USER = f"local:{pwd.getpwuid(os.getuid()).pw_name}"
CONVEY = "cap.motion.convey.v1"
FAR = {"distance_mm": 10_000, "speed_mm_s": 100}


def granted(session: Session) -> set[tuple[str, str]]:
    return {(grant["capability_id"], grant["resource"]) for grant in session.grant["granted"]}


def open_params(**more: Any) -> dict[str, Any]:
    return {
        "principal": {"id": "agent:test", "kind": "agent"},
        "device_ids": [CONVEYOR],
        "capabilities": ["*"],
        "mode": "simulated",
        "ttl_s": 60,
        "client_info": {"name": "tests", "version": "1", "transport": "http"},
        **more,
    }


# Opening.


def test_a_grant_says_what_the_session_may_do_and_where_it_stands(lab: Lab, session: Session) -> None:
    """[SESS-001]"""
    grant = session.grant
    assert granted(session) == CONVEYOR_BINDINGS
    assert {each["device_id"] for each in grant["granted"]} == {CONVEYOR}
    assert len(grant["granted"]) == len(CONVEYOR_BINDINGS)
    assert grant["session_id"].startswith("mhs_s_")
    assert grant["mode"] == "simulated"
    assert grant["limits"] == {
        name: lab.hello()["limits"][name]
        for name in ("max_open_operations", "max_subscriptions", "max_rate_per_s")
    }
    context = grant["safety_context"]
    assert context["risk_class"] == "R1"
    assert context["estop"] == {
        "engaged": False,
        "latching": True,
        "kind": "independent_link",
        "latency_ms": 100,
    }
    assert [(each["id"], each["state"]) for each in context["interlocks"]] == [("door_closed", "closed")]
    assert context["permits"] == []


def _name(value: object) -> str:
    return str(sorted(value)) if isinstance(value, set) else str(value)


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        (["cap.world.step.v1"], {("cap.world.step.v1", "world")}),
        (
            ["cap.actuation.*"],
            {("cap.actuation.valve.v1", "valve"), ("cap.actuation.purge.v1", "valve")},
        ),
        (["cap.*.step.v1", "cap.world.*.v1"], {("cap.world.step.v1", "world")}),
        (["*"], CONVEYOR_BINDINGS),
        (["x-cap.*"], {("x-cap.sim.door.v1", "world"), ("x-cap.sim.fault.v1", "world")}),
        ([{"capability_id": CONVEY}], {(CONVEY, "belt")}),
        ([{"capability_id": CONVEY, "resource": "belt"}], {(CONVEY, "belt")}),
        (["cap.world.step.v1", "cap.nobody.knows.v1"], {("cap.world.step.v1", "world")}),
        (
            [{"capability_id": CONVEY, "resource": "valve"}, "cap.actuation.valve.v1"],
            {("cap.actuation.valve.v1", "valve")},
        ),
    ],
    ids=_name,
)
def test_what_is_asked_for_and_offered_is_granted(
    lab: Lab, capabilities: list[Any], expected: set[tuple[str, str]]
) -> None:
    """[SESS-001]"""
    session = lab.open(capabilities)
    assert granted(session) == expected
    session.close()


@pytest.mark.parametrize(
    "capabilities",
    [
        ["cap.nobody.knows.v1"],
        ["cap.world.step.v2"],
        ["cap.internal.restore.v1"],
        ["cap.internal.*"],
        ["cap.world.step"],
        ["cap.world.step.v1x"],
        ["CAP.WORLD.STEP.V1"],
        ["cap.world.step.v."],
        [{"capability_id": CONVEY, "resource": "valve"}],
    ],
    ids=str,
)
def test_a_session_for_which_nothing_can_be_granted_is_not_opened(lab: Lab, capabilities: list[Any]) -> None:
    """[SESS-001, PROTO-038]"""
    refused = lab.refused("mhs.session.open", **open_params(capabilities=capabilities))
    assert refused.code == "MHS.SESSION.CAPABILITY_NOT_GRANTED"


def test_a_session_that_asks_for_nothing_may_read_and_do_nothing(lab: Lab) -> None:
    """[SESS-001]"""
    session = lab.open([])
    assert session.grant["granted"] == []
    assert session.read("world")["state"]["door"] == "closed"
    receipt = session.command("cap.device.describe.v1", {})
    assert receipt["status"] == "rejected"
    assert receipt["error"]["mhs_code"] == "MHS.SESSION.CAPABILITY_NOT_GRANTED"
    session.close()


def test_a_session_may_use_what_was_granted_and_nothing_else(lab: Lab) -> None:
    """[SESS-001]"""
    session = lab.open(["cap.world.*"])
    session.completed("cap.world.step.v1", {"ticks": 1})
    receipt = session.command("cap.actuation.valve.v1", {"open": True})
    assert receipt["error"]["mhs_code"] == "MHS.SESSION.CAPABILITY_NOT_GRANTED"
    written = session.write("belt", {"speed_mm_s": 1})
    assert written["error"]["mhs_code"] == "MHS.SESSION.CAPABILITY_NOT_GRANTED"
    assert session.read("valve")["state"] == {"open": False}
    session.close()


@pytest.mark.parametrize("mode", ["hardware", "hybrid", "replay", "real"])
def test_a_session_of_another_mode_is_not_opened(lab: Lab, mode: str) -> None:
    """[SESS-002]"""
    refused = lab.refused("mhs.session.open", **open_params(mode=mode))
    assert refused.code == "MHS.SESSION.MODE_MISMATCH"


@pytest.mark.parametrize("ttl_s", [0, -1, 86_401, 10**12])
def test_a_ttl_outside_its_bounds_is_refused(lab: Lab, ttl_s: int) -> None:
    """[SESS-003]"""
    refused = lab.refused("mhs.session.open", **open_params(ttl_s=ttl_s))
    assert (refused.code, refused.details["field"]) == ("MHS.PROTOCOL.INVALID_PARAMS", "ttl_s")


def test_the_longest_ttl_is_the_advertised_one(limited: Lab) -> None:
    """[SESS-003]"""
    longest = LIMITS["session_max_ttl_s"]
    limited.open(ttl_s=longest).close()
    assert limited.refused("mhs.session.open", **open_params(ttl_s=longest + 1)).details["field"] == "ttl_s"


def test_a_session_on_an_unknown_device_is_not_opened(lab: Lab) -> None:
    """[SESS-001]"""
    for device_ids in ([CONVEYOR + "x"], [CONVEYOR, BENCH]):
        assert lab.refused("mhs.session.open", **open_params(device_ids=device_ids)).code == (
            "MHS.DEVICE.UNKNOWN"
        )


def test_a_session_without_a_device_is_not_opened(lab: Lab) -> None:
    """[SESS-001]"""
    assert lab.refused("mhs.session.open", **open_params(device_ids=[])).details["field"] == "device_ids"


def test_more_sessions_than_advertised_are_not_opened(limited: Lab) -> None:
    """[SESS-001, PROTO-043]"""
    sessions = [limited.open(ttl_s=60) for _ in range(LIMITS["max_sessions"])]
    refused = limited.refused("mhs.session.open", **open_params())
    assert refused.code == "MHS.LIMIT.SESSION_LIMIT"
    assert refused.error["data"]["retryable"] is True
    sessions.pop().close()
    sessions.append(limited.open(ttl_s=60))
    for session in sessions:
        session.close()


def test_the_authenticated_principal_acts_and_the_named_one_is_a_claim(lab: Lab, session: Session) -> None:
    """[SESS-001, TPT-058]"""
    receipt = session.completed("cap.device.describe.v1", {})
    assert receipt["principal"] == {"id": LOCAL_USER, "kind": "human"}


HARDWARE = ("--backend", "hardware", "--allow-hardware", "--arm")


def test_hardware_that_can_injure_needs_a_responsible_human(binding: str, tmp_path: Path) -> None:
    """[SESS-003]"""
    options = (*HARDWARE, "--state-dir", str(tmp_path / "state"))
    with running(binding, tmp_path, *options, targets=(BENCH_TARGET,)) as lab:
        bench = open_params(device_ids=[BENCH], mode="hardware")
        assert lab.refused("mhs.session.open", **bench).code == "MHS.SAFETY.APPROVAL_REQUIRED"
        agent = [{"principal": {"id": "agent:a", "kind": "agent"}}]
        assert (
            lab.refused("mhs.session.open", **bench, approvals=agent).code == "MHS.SAFETY.APPROVAL_REQUIRED"
        )
        human = [{"principal": {"id": "human:h", "kind": "human"}, "note": "at the bench"}]
        session = Session(lab, lab.call("mhs.session.open", **bench, approvals=human))
        assert session.grant["mode"] == "hardware"
        session.completed("cap.electrical.output.v1", {"enabled": True}, resource="left")


def test_in_a_simulation_the_same_device_needs_nobody(pair: Lab) -> None:
    """[SESS-003]"""
    pair.open(device_id=BENCH).close()


# Several devices.


@pytest.fixture
def both(pair: Lab) -> Session:
    """A session on two devices."""
    return Session(pair, pair.call("mhs.session.open", **open_params(device_ids=[CONVEYOR, BENCH])))


def test_a_session_may_cover_several_devices(both: Session) -> None:
    """[SESS-001]"""
    assert {grant["device_id"] for grant in both.grant["granted"]} == {CONVEYOR, BENCH}
    assert both.grant["safety_context"]["risk_class"] == "R3", "the context is that of the riskiest"
    both.completed("cap.world.step.v1", {"ticks": 1}, device_id=CONVEYOR)
    both.completed("cap.electrical.output.v1", {"enabled": False}, device_id=BENCH, resource="left")


def test_a_session_on_several_devices_has_to_say_which(both: Session) -> None:
    """[PROTO-028]"""
    wait = {"deadline_ms": 30_000}
    for method, params in (
        ("mhs.resource.read", {"resource_id": "world", **wait}),
        (
            "mhs.command",
            {"capability_id": "cap.world.step.v1", "input": {"ticks": 1}, "command_id": ulid(), **wait},
        ),
    ):
        refused = both.refused(method, **params)
        assert (refused.code, refused.details["reason"]) == ("MHS.PROTOCOL.INVALID_PARAMS", "device_required")


def test_a_device_outside_the_session_is_not_granted(pair: Lab) -> None:
    """[SESS-001]"""
    session = pair.open()
    read = {"resource_id": "axis", "deadline_ms": 30_000}
    assert session.refused("mhs.resource.read", device_id=BENCH, **read).code == (
        "MHS.SESSION.DEVICE_NOT_GRANTED"
    )
    command = {
        "capability_id": "cap.device.describe.v1",
        "input": {},
        "command_id": ulid(),
        "deadline_ms": 30_000,
    }
    assert session.refused("mhs.command", device_id=BENCH, **command).code == "MHS.SESSION.DEVICE_NOT_GRANTED"
    assert session.refused("mhs.command", device_id=BENCH + "x", **command).code == "MHS.DEVICE.UNKNOWN"
    session.close()


# Heartbeat, close.


def test_a_heartbeat_moves_the_end_and_nothing_else(lab: Lab) -> None:
    """[SESS-005]"""
    session = lab.open(["cap.world.*"], ttl_s=600)
    extension = session.call("mhs.session.heartbeat")
    assert extension["expires_at"] >= session.grant["expires_at"]
    assert extension["safety_context"] == session.grant["safety_context"]
    refused = session.command("cap.actuation.valve.v1", {"open": True})
    assert refused["error"]["mhs_code"] == "MHS.SESSION.CAPABILITY_NOT_GRANTED"
    session.close()


def test_only_heartbeats_keep_a_session(lab: Lab) -> None:
    """[SESS-004, SESS-005]"""
    kept, used = lab.open(ttl_s=1), lab.open(ttl_s=1)

    def used_has_ended() -> str | None:
        kept.call("mhs.session.heartbeat")
        try:
            used.read("world")
        except RpcError as error:
            return error.code
        return None

    assert ask_until(used_has_ended, lambda code: code is not None) == "MHS.SESSION.EXPIRED"
    kept.close()


def test_a_summary_counts_every_command_by_its_outcome(fresh: Start) -> None:
    """[SESS-006]"""
    lab = fresh()
    session = lab.open()
    session.completed("cap.world.step.v1", {"ticks": 1})
    session.completed("cap.device.describe.v1", {})
    session.command("cap.world.step.v1", {"ticks": 0})
    session.completed("x-cap.sim.fault.v1", {"kind": "fail", "times": 1})
    session.command("cap.world.step.v1", {"ticks": 1})
    _, running = session.started(CONVEY, FAR)
    session.cancel(running["operation_id"])
    closed = session.close()
    head = lab.call("mhs.evidence.export")["head_digest"]
    assert closed["summary"] == {
        "commands": 6,
        "completed": 3,
        "rejected": 1,
        "failed": 1,
        "cancelled": 1,
        "receipts_head": head,
    }


def test_a_closed_session_says_so(lab: Lab) -> None:
    """[SESS-006]"""
    session = lab.open()
    session.call("mhs.session.close", reason="done")
    read = {"resource_id": "world", "deadline_ms": 30_000}
    assert session.refused("mhs.resource.read", **read).code == "MHS.SESSION.CLOSED"
    assert session.refused("mhs.session.heartbeat").code == "MHS.SESSION.CLOSED"
    assert session.refused("mhs.session.close").code == "MHS.SESSION.CLOSED"


def test_closing_cancels_what_runs_to_the_safe_state_first(lab: Lab) -> None:
    """[SESS-006, OP-011]"""
    session, other = lab.open(), lab.open()
    pending, running = session.started(CONVEY, FAR)
    summary = session.close()["summary"]
    assert summary["cancelled"] == 1
    assert "cancellation_pending" not in summary
    receipt = other.get(running["operation_id"])
    assert receipt["status"] == "cancelled"
    assert receipt["cancellation"]["safe_state_achieved"] is True
    assert receipt["cancellation"]["requested_by"] == LOCAL_USER
    assert pending.result() == receipt
    assert other.read("belt")["state"]["running"] is False
    other.close()


def test_closing_refuses_what_queues(shared: Callable[[str], Lab]) -> None:
    """[SESS-006]"""
    # Only one connection can show what came before the close.
    lab = shared("stdio")
    session, other = lab.open(), lab.open()
    other.completed("x-cap.sim.fault.v1", {"kind": "hang", "times": 1})
    held, running = other.started("cap.world.step.v1", {"ticks": 1})
    before = other.read("world")["state"]["tick"]
    queued = session.begin("cap.world.step.v1", {"ticks": 1})
    session.close()
    receipt = queued.result()
    assert not held.done, "what holds the device is another session's, and goes on"
    assert (receipt["status"], receipt["error"]["mhs_code"]) == ("rejected", "MHS.SESSION.CLOSED")
    other.cancel(running["operation_id"])
    assert held.result()["status"] == "cancelled"
    assert other.read("world")["state"]["tick"] == before
    other.close()


def test_a_session_that_drove_the_device_leaves_it_safe(lab: Lab) -> None:
    """[SESS-006]"""
    session, other = lab.open(), lab.open()
    session.completed("cap.actuation.valve.v1", {"open": True})
    session.close()
    assert other.read("valve")["state"] == {"open": False}
    other.close()


def test_a_session_that_only_looked_leaves_the_device_alone(lab: Lab) -> None:
    """[SESS-006]"""
    driving, looking = lab.open(), lab.open()
    driving.completed("cap.actuation.valve.v1", {"open": True})
    looking.completed("cap.device.describe.v1", {})
    looking.close()
    assert driving.read("valve")["state"] == {"open": True}
    driving.close()


# Expiry.


def test_a_session_expires_by_itself_and_takes_its_operations_to_the_safe_state(lab: Lab) -> None:
    """[SESS-004, OP-011]"""
    watching = lab.open()
    expiring = lab.open(ttl_s=1)
    pending, running = expiring.started(CONVEY, FAR)
    # Nothing is asked in the session that expires, so only a timer can have ended it.
    receipt = watching.follow(running["operation_id"])
    assert receipt["status"] == "cancelled"
    assert receipt["cancellation"]["requested_by"] == "endpoint:session_expiry"
    assert receipt["cancellation"]["safe_state_achieved"] is True
    assert pending.result() == receipt
    assert watching.read("belt")["state"]["running"] is False

    read = {"resource_id": "world", "deadline_ms": 30_000}
    for method, params in (
        ("mhs.resource.read", read),
        ("mhs.session.heartbeat", {}),
        ("mhs.session.close", {}),
        ("mhs.operations.get", {"operation_id": running["operation_id"], "deadline_ms": 30_000}),
    ):
        refused = expiring.refused(method, **params)
        assert refused.code == "MHS.SESSION.EXPIRED"
        assert refused.error["data"]["retryable"] is True
    watching.close()


def test_a_device_is_brought_to_its_safe_state_when_the_session_that_drove_it_expires(lab: Lab) -> None:
    """[SESS-004]"""
    watching = lab.open()
    expiring = lab.open(ttl_s=1)
    expiring.completed("cap.actuation.valve.v1", {"open": True})
    ask_until(lambda: watching.read("valve")["state"]["open"], lambda opened: not opened)
    watching.close()


@pytest.mark.parametrize("session_id", ["mhs_s_x", f"mhs_s_{ulid()}", "' or 1=1"])
def test_a_session_that_never_was_is_unknown(lab: Lab, session_id: str) -> None:
    """[SESS-004]"""
    for method, params in (
        ("mhs.session.heartbeat", {}),
        ("mhs.session.close", {}),
        ("mhs.resource.read", {"resource_id": "world", "deadline_ms": 30_000}),
        ("mhs.operations.get", {"command_id": ulid(), "deadline_ms": 30_000}),
    ):
        assert lab.refused(method, session_id=session_id, **params).code == "MHS.SESSION.UNKNOWN"


def test_a_session_outlives_the_connection_that_opened_it(shared: Callable[[str], Lab]) -> None:
    """[SESS-004, TPT-061]"""
    # Over HTTP here every call is a connection of its own.
    session = shared("http").open()
    assert session.read("world")["revision"] == session.read("world")["revision"]
    session.close()
