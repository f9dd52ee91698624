"""Subscriptions as a client sees them, over every binding [MHS-002 sections 8 and 12]."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from tests.behaviour.conftest import SECOND, UNHURRIED, Start
from tests.behaviour.listening import listening
from tests.behaviour.test_local_socket import beside
from tests.lab import CONVEYOR, ConnectionWire, HttpWire, Lab, Session, StdioWire, request, running, ulid

STEP = "cap.world.step.v1"
CONVEY = "cap.motion.convey.v1"
DOOR = "x-cap.sim.door.v1"
STREAMS = ("state", "telemetry", "events", "log", "progress")
LAST = {"completed", "failed", "rejected", "cancelled", "unknown"}


def subscribe(session: Session, *streams: Any, **more: Any) -> Any:
    asked = [{"stream": each} if isinstance(each, str) else each for each in streams]
    return session.call("mhs.subscribe", streams=asked, deadline_ms=30_000, **more)


def is_last(event: dict[str, Any]) -> bool:
    return event["stream"] == "progress" and event["payload"]["status"] in LAST


# Grants.


def test_a_grant_names_what_was_asked_for_resolved(session: Session) -> None:
    """[EVT-001, EVT-003]"""
    grant = subscribe(session, "state", {"stream": "telemetry", "device_id": CONVEYOR}, "log")
    assert grant["subscription_id"].startswith("sub_")
    assert grant["seq_start"] >= 1
    assert grant["expires_at"] == session.grant["expires_at"]
    resolved = [(each["stream"], each.get("resource_id")) for each in grant["streams"]]
    assert resolved == [
        ("state", "world"),
        ("state", "belt"),
        ("state", "valve"),
        ("telemetry", "belt"),
        ("log", None),
    ]
    assert {each["device_id"] for each in grant["streams"]} == {CONVEYOR}


@pytest.mark.parametrize(
    ("streams", "code", "field"),
    [
        ([{"stream": "safety"}], "MHS.PROTOCOL.INVALID_PARAMS", "streams[0].stream"),
        ([{"stream": "control"}], "MHS.PROTOCOL.INVALID_PARAMS", "streams[0].stream"),
        ([{"stream": "stat"}], "MHS.PROTOCOL.INVALID_PARAMS", "streams[0].stream"),
        ([], "MHS.PROTOCOL.INVALID_PARAMS", "streams"),
        ([{}], "MHS.PROTOCOL.INVALID_PARAMS", "streams[0].stream"),
        ([{"stream": "state", "resource": "belt"}], "MHS.PROTOCOL.INVALID_PARAMS", "streams[0].resource"),
        ([{"stream": "state", "resource_id": "arm"}], "MHS.RESOURCE.UNKNOWN", "streams[0].resource_id"),
        ([{"stream": "progress", "resource_id": "arm"}], "MHS.RESOURCE.UNKNOWN", "streams[0].resource_id"),
        ([{"stream": "telemetry", "resource_id": "valve"}], "MHS.PROTOCOL.INVALID_PARAMS", "streams[0]"),
        ([{"stream": "log", "resource_id": "valve"}], "MHS.PROTOCOL.INVALID_PARAMS", "streams[0]"),
        (
            [{"stream": "log"}, {"stream": "progress", "capability_id": "cap.none.v1"}],
            "MHS.CAPABILITY.UNKNOWN",
            "streams[1].capability_id",
        ),
        (
            [{"stream": "progress", "capability_id": CONVEY, "resource_id": "valve"}],
            "MHS.PROTOCOL.INVALID_PARAMS",
            "streams[0]",
        ),
    ],
    ids=str,
)
def test_what_there_is_not_is_refused_and_never_answered_empty(
    session: Session, streams: Any, code: str, field: str
) -> None:
    """[EVT-002, CORE-184]"""
    refused = session.refused("mhs.subscribe", streams=streams, deadline_ms=1000)
    assert (refused.code, refused.details["field"]) == (code, field)


@pytest.mark.parametrize("device_id", ["mhs://localhost:7400/lab/none", SECOND])
def test_a_device_that_the_session_does_not_cover_is_refused(limited: Lab, device_id: str) -> None:
    """[EVT-002]"""
    session = limited.open(ttl_s=60)
    try:
        refused = session.refused(
            "mhs.subscribe", streams=[{"stream": "state", "device_id": device_id}], deadline_ms=1000
        )
        assert refused.code in ("MHS.DEVICE.UNKNOWN", "MHS.SESSION.DEVICE_NOT_GRANTED")
    finally:
        session.close()


def test_without_a_device_every_one_of_the_session_is_meant(limited: Lab) -> None:
    """[EVT-002]"""
    session = limited.open(ttl_s=60, device_ids=[CONVEYOR, SECOND])
    try:
        belt = {"stream": "state", "resource_id": "belt"}
        for streams, more, meant in (
            ([belt], {}, [CONVEYOR, SECOND]),
            ([belt], {"device_id": SECOND}, [SECOND]),
            ([{**belt, "device_id": CONVEYOR}, belt, belt], {}, [CONVEYOR, SECOND]),
        ):
            grant = subscribe(session, *streams, **more)
            assert [each["device_id"] for each in grant["streams"]] == meant
            assert {each["resource_id"] for each in grant["streams"]} == {"belt"}
    finally:
        session.close()


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"filter": {"kind": "x"}}, "filter.kind"),
        ({"filter": {"kinds": ["operation.paused"]}}, "filter.kinds[0]"),
        ({"filter": {"min_level": "loud"}}, "filter.min_level"),
        ({"filter": None}, "filter"),
        ({"rate_hz": 0}, "rate_hz"),
        ({"rate_hz": -1}, "rate_hz"),
        ({"rate_hz": True}, "rate_hz"),
        ({"rate_hz": "5"}, "rate_hz"),
        ({"rate_hz": 10**400}, "rate_hz"),
    ],
    ids=str,
)
def test_a_filter_or_rate_that_means_nothing_is_refused_with_its_place(
    session: Session, members: dict[str, Any], field: str
) -> None:
    """[EVT-002]"""
    refused = session.refused("mhs.subscribe", streams=[{"stream": "log"}], deadline_ms=1000, **members)
    assert (refused.code, refused.details["field"]) == ("MHS.PROTOCOL.INVALID_PARAMS", field)


def test_a_subscription_needs_a_deadline(session: Session) -> None:
    """[PROTO-010]"""
    refused = session.refused("mhs.subscribe", streams=[{"stream": "log"}])
    assert refused.code == "MHS.PROTOCOL.DEADLINE_INVALID"


def test_one_subscription_more_than_advertised_is_refused_and_an_ended_one_makes_room(
    fresh: Start,
) -> None:
    """[EVT-009, PROTO-043]"""
    lab = fresh("--max-subscriptions", "2")
    assert lab.hello()["limits"]["max_subscriptions"] == 2
    session, other = lab.open(), lab.open()
    grants = [subscribe(session, "log") for _ in range(2)]
    refused = session.refused("mhs.subscribe", streams=[{"stream": "log"}], deadline_ms=1000)
    assert (refused.code, refused.error["data"]["retryable"]) == ("MHS.LIMIT.SUBSCRIPTION_LIMIT", True)
    subscribe(other, "log")
    session.call("mhs.unsubscribe", subscription_id=grants[0]["subscription_id"])
    subscribe(session, "log")


def test_a_reader_may_subscribe(tmp_path: Path) -> None:
    """[MHSD-6-04]"""
    tokens = tmp_path / "tokens.toml"
    secret = "read-only"
    tokens.write_text(
        f'[[token]]\nsha256 = "{hashlib.sha256(secret.encode()).hexdigest()}"\n'
        'principal = "human:reader"\nkind = "human"\nrole = "reader"\n'
    )
    tokens.chmod(0o600)
    with running("http", tmp_path, *UNHURRIED, "--token-file", str(tokens)) as lab:
        assert isinstance(lab.wire, HttpWire)
        lab.wire.token = secret
        session = lab.open()
        grant = subscribe(session, *STREAMS)
        ended = session.call("mhs.unsubscribe", subscription_id=grant["subscription_id"])
    assert ended["dropped"] + ended["delivered"] == ended["seq_end"] - grant["seq_start"] + 1


# Delivery.


def test_a_state_event_agrees_with_the_receipt_and_the_read_of_its_change(session: Session) -> None:
    """[EVT-005, PROTO-006]"""
    with listening(session, {"stream": "state", "resource_id": "world"}) as listener:
        receipt = session.completed(STEP, {"ticks": 5})
        event = listener.next()
        read = session.read("world")
    assert (event["stream"], event["resource_id"], event["device_id"]) == ("state", "world", CONVEYOR)
    assert event["payload"] == read["state"]
    assert event["revision"] == receipt["state_revision_after"] == read["revision"]
    assert event["state_hash"] == read["state_hash"]
    assert receipt["started_at"] <= event["ts"]


def test_an_operation_s_progress_goes_from_its_dispatch_to_its_final_status(session: Session) -> None:
    """[EVT-005, OP-010]"""
    command_id = ulid()
    with listening(session, "progress", filter={"command_id": command_id}) as listener:
        pending = session.begin(CONVEY, {"distance_mm": 20, "speed_mm_s": 100}, command_id=command_id)
        events = listener.until(is_last)
        receipt = pending.result()
    payloads = [event["payload"] for event in events]
    assert {payload["command_id"] for payload in payloads} == {command_id}
    assert {payload["operation_id"] for payload in payloads} == {receipt["operation_id"]}
    assert (payloads[0]["status"], payloads[0]["percent"]) == ("running", 0)
    assert (payloads[-1]["status"], payloads[-1]["percent"]) == ("completed", 100)
    percents = [payload["percent"] for payload in payloads]
    assert percents == sorted(percents)
    assert len(payloads) > 3


def test_belt_telemetry_flows_while_it_runs_and_fits_its_declared_schema(session: Session) -> None:
    """[EVT-005, MHSD-3-08]"""
    declared = session.lab.call("mhs.devices.get", device_id=CONVEYOR)["streams"]
    schemas = {(each["stream"], each.get("resource_id")): each["schema"] for each in declared}
    with listening(session, *STREAMS) as listener:
        session.completed(CONVEY, {"distance_mm": 30, "speed_mm_s": 100})
        events = listener.until(is_last)
    assert sum(event["stream"] == "telemetry" for event in events) >= 5
    assert all(event["payload"]["running"] for event in events if event["stream"] == "telemetry")
    for event in events:
        named = event.get("resource_id") if event["stream"] in ("state", "telemetry") else None
        Draft7Validator(schemas[event["stream"], named]).validate(event["payload"])


def test_an_interlock_and_what_it_ends_are_events(session: Session) -> None:
    """[EVT-005]"""
    with listening(session, "events") as listener:
        pending, running = session.started(CONVEY, {"distance_mm": 10_000, "speed_mm_s": 10})
        session.completed(DOOR, {"closed": False})
        receipt = pending.result()
        if receipt["status"] == "running":
            receipt = session.follow(running["operation_id"])
        session.completed(DOOR, {"closed": True})
        events = listener.until(lambda event: event["payload"]["kind"] == "interlock.closed")
    told = [event["payload"] for event in events]
    ended = next(
        each
        for each in told
        if each["kind"] == "operation.ended" and each.get("operation_id") == running["operation_id"]
    )
    assert (ended["status"], ended["mhs_code"]) == (receipt["status"], "MHS.SAFETY.INTERLOCK_OPEN")
    assert "interlock.opened" in [each["kind"] for each in told]


def test_a_stop_and_its_reset_are_told_on_control_though_only_a_log_was_asked_for(fresh: Start) -> None:
    """[EVT-005, CORE-184]"""
    lab = fresh()
    session = lab.open()
    with listening(session, "log", filter={"min_level": "error"}) as listener:
        lab.call("mhs.safety.estop", reason="smoke")
        session.call("mhs.safety.reset", device_id=CONVEYOR, deadline_ms=30_000)
        events = listener.take(3)
    assert {(event["stream"], event["type"]) for event in events} == {("control", "safety")}
    assert [event["payload"]["kind"] for event in events] == [
        "estop.engaged",
        "estop.confirmed",
        "estop.reset",
    ]


def test_subscribing_and_reading_events_moves_no_revision(session: Session) -> None:
    """[OP-008]"""
    before = session.revision()
    with listening(session, *STREAMS) as listener:
        session.call("mhs.unsubscribe", subscription_id=listener.subscription_id)
    assert session.revision() == before


# Ends.


def test_another_session_s_subscription_is_as_unknown_as_one_that_never_was(
    lab: Lab, session: Session
) -> None:
    """[EVT-005]"""
    grant = subscribe(session, "log")
    other = lab.open()
    answers = [
        other.refused("mhs.unsubscribe", subscription_id=name).error
        for name in (grant["subscription_id"], "sub_01J8ZQ3W0A7M2N4P6R8S0T2V4Z")
    ]
    other.close()
    assert answers[0] == answers[1]
    assert session.call("mhs.unsubscribe", subscription_id=grant["subscription_id"])


def test_a_session_gets_only_its_own_events(lab: Lab, session: Session) -> None:
    """[CORE-184]"""
    other = lab.open()
    with listening(session, "state") as mine, listening(other, "state") as theirs:
        session.completed(STEP, {"ticks": 1})
        assert mine.next()["subscription_id"] != theirs.next()["subscription_id"]
    other.close()


def test_after_unsubscribe_nothing_more_comes_and_what_was_not_taken_is_counted(session: Session) -> None:
    """[EVT-004]"""
    with listening(session, {"stream": "state", "resource_id": "world"}) as listener:
        for _ in range(3):
            session.completed(STEP, {"ticks": 1})
        listener.take(3)
        ended = session.call("mhs.unsubscribe", subscription_id=listener.subscription_id)
        assert ended == {"seq_end": listener.next_seq - 1, "delivered": 3, "dropped": 0}
        session.completed(STEP, {"ticks": 1})
        assert listener.rest(session) == []


def test_a_new_subscription_of_the_session_starts_above_every_seq_that_was_used(session: Session) -> None:
    """[EVT-001]"""
    used = 0
    for _ in range(3):
        with listening(session, "state") as listener:
            assert listener.grant["seq_start"] > used
            session.completed(STEP, {"ticks": 1})
            used = listener.next()["seq"]
            session.call("mhs.unsubscribe", subscription_id=listener.subscription_id)


# The connection [EVT-010].


@pytest.mark.parametrize("binding", ["stdio", "ws"], indirect=True)
def test_on_a_connection_the_reply_to_a_subscription_comes_before_its_first_event(lab: Lab) -> None:
    """[EVT-010, EVT-001, TPT-024] Commands that stand right behind it are not lost either."""
    session = lab.open()
    asked = request("mhs.subscribe", session_id=session.id, streams=[{"stream": "state"}], deadline_ms=30_000)
    wire = lab.wire
    assert isinstance(wire, ConnectionWire)
    answer, *_ = [wire.ask(message) for message in (asked, *(_step(session) for _ in range(5)))]
    ticks: list[int] = []
    while len(ticks) < 5:
        event = wire.events.get(timeout=30)["params"]
        # What came first on the connection was sorted first.
        assert not answer.empty()
        if event["resource_id"] == "world":
            ticks.append(event["payload"]["tick"])
    assert ticks == sorted(set(ticks))
    session.close()


def _step(session: Session) -> dict[str, Any]:
    return request(
        "mhs.command",
        session_id=session.id,
        capability_id=STEP,
        input={"ticks": 1},
        command_id=ulid(),
        deadline_ms=30_000,
    )


def test_a_peer_that_does_not_read_gets_a_gap_and_then_the_newest(tmp_path: Path) -> None:
    """[EVT-006, EVT-008, EVT-010] What waits for it is bounded, and its answers still come whole."""
    with running("stdio", tmp_path, *UNHURRIED, "--event-buffer", "16") as lab:
        session, other = lab.open(), beside(lab, tmp_path).open()
        wire = lab.wire
        assert isinstance(wire, StdioWire)
        with listening(session, {"stream": "state", "resource_id": "world"}) as listener:
            wire.reads.clear()
            for _ in range(700):
                other.completed(STEP, {"ticks": 1})
            wire.reads.set()
            assert session.read("world")["state"]["tick"] == 700
            events = listener.until(lambda event: event["payload"].get("tick") == 700)
    gaps = [event for event in events if event.get("type") == "gap"]
    assert len(gaps) == 1
    assert gaps[0]["dropped"] == gaps[0]["to"] - gaps[0]["from"] + 1 > 100
    assert len(events) - 1 + gaps[0]["dropped"] >= 700, "every change is delivered or counted"


def test_when_the_endpoint_stops_the_last_events_still_come(fresh: Start, binding: str) -> None:
    """[EVT-003, TPT-008]"""
    lab = fresh()
    session = lab.open()
    with listening(session, "progress") as listener:
        session.started(CONVEY, {"distance_mm": 10_000, "speed_mm_s": 10})
        if binding == "stdio":
            lab.wire.close()
        else:
            lab.process.terminate()
        assert listener.until(is_last)[-1]["payload"]["status"] == "cancelled"
        with pytest.raises(EOFError):
            listener.next()
