"""The emergency stop: who may send it, in what shape, and what its receipt says."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import Start
from tests.behaviour.safety import (
    CONVEY,
    FAR,
    FAULT,
    PURGE,
    STEP,
    STOP,
    STOP_CLASS,
    VALVE,
    code_of,
    evidence,
    latched,
    permit,
    receipt_in,
    reset,
    restored,
    status,
    stop,
    text,
    token_file,
)
from tests.documents import input_digest
from tests.lab import CONVEYOR, ConnectionWire, HttpWire, Lab, Session, ask_until, request, running, ulid

INTERNAL = "cap.internal.safety_estop.v1"


@pytest.fixture
def session(lab: Lab) -> Iterator[Session]:
    with restored(lab) as session:
        yield session


# What a stop is and does.


def test_a_stop_latches_and_its_receipt_says_what_was_confirmed(lab: Lab, session: Session) -> None:
    """[SAFE-002, CORE-074, CORE-093, PROTO-038, MHSD-4-26]"""
    session.completed(VALVE, {"open": True})
    before = session.revision()
    receipt = stop(lab, reason="smoke")
    assert receipt["status"] == "completed"
    assert receipt["capability_id"] == INTERNAL
    assert receipt["input_digest"] == input_digest(INTERNAL, None, {"reason": "smoke"})
    assert (receipt["device_id"], receipt["session_id"], receipt["resource_ids"]) == (CONVEYOR, None, [])
    assert [effect["kind"] for effect in receipt["effects"]] == ["safety.estop"]
    assert receipt["state_revision_before"] == before
    assert receipt["state_revision_after"] == before + 1
    output = receipt["output"]
    assert (output["estop"], output["latched"]) == ("engaged", True)
    assert output["safe_state_achieved"] is True
    assert output["safe_state"] == status(lab)["safe_state"]["description"]
    assert output["cancelled_operations"] == output["operations"] == []
    assert 0 <= output["latch_latency_ms"] <= output["latency_ms"]
    assert evidence(lab)[-1] == receipt


def test_a_stop_brings_the_device_to_its_safe_state(lab: Lab, session: Session) -> None:
    """[SAFE-002]"""
    session.completed(VALVE, {"open": True})
    stop(lab, reason="leak")
    assert session.read("valve")["state"] == {"open": False}
    assert session.read("belt")["state"]["running"] is False
    assert session.read("world")["state"]["estop"] == "engaged"


def test_the_status_shows_the_latch_with_its_first_reason(lab: Lab, session: Session) -> None:
    """[SAFE-001]"""
    released = status(lab)["estop"]
    assert released == {"engaged": False, "latching": True, "kind": "independent_link", "latency_ms": 100}
    first = stop(lab, reason="first")
    second = stop(lab, reason="second")
    assert [receipt["status"] for receipt in (first, second)] == ["completed", "completed"]
    engaged = {**released, "engaged": True, "reason": "first", "engaged_at": first["accepted_at"]}
    assert status(lab)["estop"] == engaged
    assert session.call("mhs.session.heartbeat")["safety_context"]["estop"] == engaged


def test_a_stop_of_what_is_stopped_changes_nothing_more(lab: Lab, session: Session) -> None:
    """[SAFE-002, OP-007]"""
    first, second = stop(lab), stop(lab)
    assert second["state_revision_before"] == second["state_revision_after"] == first["state_revision_after"]
    assert second["state_hash_after"] == first["state_hash_after"]
    assert second["receipt_id"] != first["receipt_id"]


def test_a_stop_without_a_reason_is_served(lab: Lab, session: Session) -> None:
    """[CORE-076]"""
    receipt = stop(lab)
    assert receipt["status"] == "completed"
    assert status(lab)["estop"]["reason"]


def test_a_stop_in_a_session_names_it_and_covers_its_device(lab: Lab, session: Session) -> None:
    """[SAFE-002]"""
    receipt = stop(lab, session_id=session.id, reason="by the session")
    assert receipt["session_id"] == session.id
    assert latched(lab)


def test_a_stop_may_bring_its_command_id_and_repeat_it(lab: Lab, session: Session) -> None:
    """[CORE-076, OP-004] A stop is never a replay: it is carried out each time."""
    command_id = ulid()
    receipts = [stop(lab, command_id=command_id, reason=reason) for reason in ("one", "one", "two")]
    assert [receipt["command_id"] for receipt in receipts] == [command_id] * 3
    assert [receipt["status"] for receipt in receipts] == ["completed"] * 3
    assert len({receipt["receipt_id"] for receipt in receipts}) == 3
    assert reset(session)["status"] == "completed"
    assert stop(lab, command_id=command_id)["output"]["latched"] is True
    assert latched(lab)


def test_the_id_of_another_command_does_not_keep_a_stop_back(lab: Lab, session: Session) -> None:
    """[CORE-076, OP-004]"""
    command_id = ulid()
    done = session.completed(STEP, {"ticks": 1}, command_id=command_id)
    assert stop(lab, command_id=command_id)["status"] == "completed"
    assert latched(lab)
    assert session.look_up(command_id)["receipt_id"] == done["receipt_id"], "the command's receipt is kept"
    replay = session.command(STEP, {"ticks": 1}, command_id=command_id)
    assert (replay["receipt_id"], replay["replayed"]) == (done["receipt_id"], True)


# Nothing is needed for it.


def test_a_stop_needs_no_hello_no_session_and_no_deadline(fresh: Start) -> None:
    """[CORE-076, MHSD-2-10]"""
    lab = fresh(greet=False)
    assert stop(lab)["status"] == "completed"
    assert latched(lab), "nor does looking need a hello"


@pytest.mark.parametrize(
    "params",
    [
        {"deadline_ms": 0},
        {"deadline_ms": -1},
        {"deadline_ms": 1.5},
        {"deadline_ms": 10**9},
        {"deadline_ms": "soon"},
        {"deadline_ms": None},
        {"command_id": "no-ulid"},
        {"command_id": 7},
        {"session_id": "mhs_s_unknown"},
        {"session_id": 5},
        {"session_id": None},
        {"reason": 5},
        {"reason": ["a", "list"]},
        {"reason": ""},
        {"reason": "x" * 20_000},
        {"reason": "\ud800 half a character"},
        {"device_id": None},
        {"device_id": 5},
        {"lease": {"a": 1}, "expected_revision": 99, "permit_id": "none", "unheard_of": []},
        {"expected_revision": 10**30},
        {"trace_id": {}},
    ],
    ids=lambda params: json.dumps(params)[:50],
)
def test_no_parameter_can_refuse_a_stop(lab: Lab, session: Session, params: dict[str, Any]) -> None:
    """[CORE-076, MHSD-2-09]"""
    receipt = receipt_in(lab.wire.exchange(request(STOP, **params)))
    assert receipt["status"] == "completed"
    assert latched(lab)


DEFECTS: list[tuple[str, Any, str]] = [
    ("wrong jsonrpc", {"jsonrpc": "1.0"}, "MHS.PROTOCOL.INVALID_REQUEST"),
    ("number as jsonrpc", {"jsonrpc": 2.0}, "MHS.PROTOCOL.INVALID_REQUEST"),
    ("no jsonrpc", {"jsonrpc": ...}, "MHS.PROTOCOL.INVALID_REQUEST"),
    ("null id", {"id": None}, "MHS.PROTOCOL.INVALID_REQUEST"),
    ("fraction as id", {"id": 1.5}, "MHS.PROTOCOL.INVALID_REQUEST"),
    ("truth as id", {"id": True}, "MHS.PROTOCOL.INVALID_REQUEST"),
    ("object as id", {"id": {}}, "MHS.PROTOCOL.INVALID_REQUEST"),
    ("unknown member", {"extra": 1}, "MHS.PROTOCOL.INVALID_REQUEST"),
    ("array as params", {"params": ["now"]}, "MHS.PROTOCOL.INVALID_PARAMS"),
    ("text as params", {"params": "now"}, "MHS.PROTOCOL.INVALID_PARAMS"),
    ("null params", {"params": None}, "MHS.PROTOCOL.INVALID_PARAMS"),
    ("number params", {"params": 0}, "MHS.PROTOCOL.INVALID_PARAMS"),
]


@pytest.mark.parametrize(("envelope", "code"), [d[1:] for d in DEFECTS], ids=[d[0] for d in DEFECTS])
def test_a_stop_in_a_defective_envelope_is_served_and_told_of_the_defect(
    lab: Lab, session: Session, envelope: dict[str, Any], code: str
) -> None:
    """[CORE-076]"""
    answer = lab.wire.exchange_bytes(text(STOP, **{"params": {"reason": "defect"}, **envelope}))
    assert answer["error"]["data"]["mhs_code"] == code
    assert receipt_in(answer)["status"] == "completed"
    assert latched(lab)


def test_a_stop_without_params_is_sound(lab: Lab, session: Session) -> None:
    """[CORE-076]"""
    answer = lab.wire.exchange_bytes(text(STOP))
    assert answer["result"]["status"] == "completed"
    assert latched(lab)


BROKEN_JSON = [
    ("NaN", b'{"jsonrpc":"2.0","id":%d,"method":"mhs.safety.estop","params":{"reason":NaN}}'),
    ("infinity", b'{"jsonrpc":"2.0","id":%d,"method":"mhs.safety.estop","params":{"deadline_ms":-Infinity}}'),
    ("overflow", b'{"jsonrpc":"2.0","id":%d,"method":"mhs.safety.estop","params":{"deadline_ms":1e999}}'),
    ("huge integer", b'{"jsonrpc":"2.0","id":%d,"method":"mhs.safety.estop","params":{"x":1' + b"0" * 5000 + b"}}"),
    ("trailing text", b'{"jsonrpc":"2.0","id":%d,"method":"mhs.safety.estop","params":{}} and more'),
    ("trailing value", b'{"jsonrpc":"2.0","id":%d,"method":"mhs.safety.estop","params":{}}{}'),
    ("byte order mark", b'\xef\xbb\xbf{"jsonrpc":"2.0","id":%d,"method":"mhs.safety.estop","params":{}}'),
    ("no UTF-8", b'{"jsonrpc":"2.0","id":%d,"method":"mhs.safety.estop","params":{"reason":"\xff\xfe"}}'),
    ("duplicate keys", b'{"jsonrpc":"2.0","id":%d,"method":"mhs.safety.estop","params":{"a":1,"a":2}}'),
    ("tab in a string", b'{"jsonrpc":"2.0","id":%d,"method":"mhs.safety.estop","params":{"reason":"a\tb"}}'),
]  # fmt: skip
IDS = iter(range(1000, 10**6))


@pytest.mark.parametrize("body", [b for _, b in BROKEN_JSON], ids=[name for name, _ in BROKEN_JSON])
def test_a_stop_in_text_that_is_no_strict_json_is_served(lab: Lab, session: Session, body: bytes) -> None:
    """[PROTO-001, CORE-076, CORE-183]"""
    answer = lab.wire.exchange_bytes(body.replace(b"%d", str(next(IDS)).encode()))
    assert receipt_in(answer)["status"] == "completed"
    assert latched(lab)


@pytest.mark.parametrize("escaped", ["mhs.safety.\\u0065stop", "\\u006dhs.safety.estop"])
def test_a_stop_whose_name_is_written_with_escapes_is_a_stop(
    lab: Lab, session: Session, escaped: str
) -> None:
    """[CORE-076] Two spellings of one JSON text mean the same."""
    body = f'{{"jsonrpc":"2.0","id":{next(IDS)},"method":"{escaped}","params":{{"deadline_ms":"never"}}}}'
    assert receipt_in(lab.wire.exchange_bytes(body.encode()))["status"] == "completed"
    assert latched(lab)
    assert reset(session)["status"] == "completed"
    notify(lab, f'{{"jsonrpc":"2.0","method":"{escaped}"}}'.encode())
    assert ask_until(lambda: latched(lab), bool)


# As a notification, in a batch, as a command.


def notify(lab: Lab, body: bytes) -> None:
    """Send something to which there is no answer."""
    if isinstance(lab.wire, HttpWire):
        assert lab.wire.post(body) == (204, b"")
    else:
        assert isinstance(lab.wire, ConnectionWire)
        lab.wire.send(body)


def nothing_was_answered(lab: Lab) -> None:
    """On stdio a stray answer would have come by the time that the stop's receipt is in the chain."""
    if isinstance(lab.wire, ConnectionWire):
        ask_until(lambda: evidence(lab)[-1]["capability_id"], lambda last: last == INTERNAL)
        lab.hello()
        assert lab.wire.unclaimed() == []


@pytest.mark.parametrize("params", [{"reason": "told"}, ..., [1], None], ids=str)
def test_a_stop_as_a_notification_latches_and_is_not_answered(
    lab: Lab, session: Session, params: Any
) -> None:
    """[PROTO-005, CORE-183]"""
    unanswered = (
        set() if not isinstance(lab.wire, ConnectionWire) else {json.dumps(m) for m in lab.wire.unclaimed()}
    )
    notify(lab, text(STOP, params=params, id=...))
    assert latched(lab), "what is asked afterwards is answered after the latch was set"
    assert not unanswered
    if isinstance(lab.wire, ConnectionWire):
        lab.hello()
        assert lab.wire.unclaimed() == []


def test_a_command_of_the_stop_class_as_a_notification_latches(lab: Lab, session: Session) -> None:
    """[PROTO-005]"""
    notify(lab, text("mhs.command", params={"capability_id": STOP_CLASS}, id=...))
    assert latched(lab)


def test_other_notifications_that_mention_a_stop_do_nothing(lab: Lab, session: Session) -> None:
    """[PROTO-005]"""
    params = {"session_id": session.id, "input": {"ticks": 1}, "command_id": ulid(), "deadline_ms": 1000}
    before = session.read("world")["state"]
    notify(lab, text("mhs.command", params={**params, "capability_id": STEP, "trace_id": STOP}, id=...))
    notify(lab, text("mhs.hello", params={"client": {"name": STOP_CLASS, "version": "1"}}, id=...))
    assert not latched(lab)
    assert session.read("world")["state"] == before


def test_a_stop_in_a_batch_is_served_before_the_rest(lab: Lab, session: Session) -> None:
    """[PROTO-007, CORE-076]"""
    step = {"session_id": session.id, "capability_id": STEP, "input": {"ticks": 1}, "deadline_ms": 30_000}
    read = {"session_id": session.id, "resource_id": "world", "deadline_ms": 30_000}
    batch = [
        request("mhs.command", **step, command_id=ulid()),
        request("mhs.resource.read", **read),
        request(STOP, reason="in a batch"),
        {"jsonrpc": "2.0", "id": ulid(), "method": 5},
        "no request",
    ]
    before = session.read("world")["state"]["tick"]
    answers = lab.wire.exchange(batch)
    assert len(answers) == 5
    found = {answer["id"]: answer for answer in answers}
    assert receipt_in(found[batch[2]["id"]])["status"] == "completed"
    assert code_of(found[batch[0]["id"]]["result"]) == "MHS.SAFETY.ESTOP_LATCHED"
    assert found[batch[1]["id"]]["result"]["state"]["estop"] == "engaged"
    assert found[None]["error"]["data"]["mhs_code"] == "MHS.PROTOCOL.INVALID_REQUEST"
    assert session.read("world")["state"]["tick"] == before


def test_a_notified_stop_in_a_batch_latches_and_only_the_rest_is_answered(lab: Lab, session: Session) -> None:
    """[PROTO-007, CORE-183]"""
    asked = request("mhs.devices.list")
    answers = lab.wire.exchange([{"jsonrpc": "2.0", "method": STOP}, asked])
    assert [answer["id"] for answer in answers] == [asked["id"]]
    assert latched(lab)


def test_a_batch_of_nothing_but_notified_stops_is_not_answered(lab: Lab, session: Session) -> None:
    """[PROTO-007, CORE-183]"""
    notify(lab, json.dumps([{"jsonrpc": "2.0", "method": STOP}] * 3).encode())
    assert latched(lab)
    nothing_was_answered(lab)


def test_several_stops_in_a_batch_are_all_answered(lab: Lab, session: Session) -> None:
    """[PROTO-007, CORE-076]"""
    batch = [request(STOP), request("mhs.command", capability_id=STOP_CLASS), request(STOP)]
    answers = lab.wire.exchange(batch)
    assert {answer["id"] for answer in answers} == {each["id"] for each in batch}
    assert {receipt_in(answer)["status"] for answer in answers} == {"completed"}


@pytest.mark.parametrize("filler", [{"jsonrpc": "2.0", "method": "mhs.hello"}, 0], ids=["calls", "junk"])
def test_a_batch_that_is_too_large_is_refused_but_for_its_stop(
    lab: Lab, session: Session, filler: Any
) -> None:
    """[CORE-076, TPT-020]"""
    asked = request(STOP)
    answers = lab.wire.exchange([filler] * 100 + [asked])
    found = {answer["id"]: answer for answer in answers}
    assert receipt_in(found[asked["id"]])["status"] == "completed"
    assert found[None]["error"]["data"]["mhs_code"] == "MHS.PROTOCOL.BATCH_TOO_LARGE"
    assert len(answers) == 2
    assert latched(lab)


def test_a_batch_that_is_no_strict_json_is_refused_but_for_its_stop(lab: Lab, session: Session) -> None:
    """[CORE-076, PROTO-001]"""
    asked = request(STOP)
    body = f'[{{"jsonrpc":"2.0","id":1,"method":"mhs.hello","params":{{"x":NaN}}}},{json.dumps(asked)}]'
    answers = lab.wire.exchange_bytes(body.encode())
    found = {answer["id"]: answer for answer in answers}
    assert receipt_in(found[asked["id"]])["status"] == "completed"
    assert found[None]["error"]["data"]["mhs_code"] == "MHS.PROTOCOL.PARSE_ERROR"
    assert latched(lab)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"device_id": CONVEYOR},
        {"input": {"reason": "as a command"}},
        {"input": "nonsense", "command_id": "x", "deadline_ms": "never", "resource": 5},
        {"session_id": "mhs_s_unknown", "expected_revision": 10**6, "permit_id": "nobody's"},
    ],
    ids=lambda params: json.dumps(params)[:50],
)
def test_a_command_of_the_stop_class_takes_the_path_of_the_stop(
    lab: Lab, session: Session, params: dict[str, Any]
) -> None:
    """[CORE-076] The conveyor does not bind the class."""
    receipt = receipt_in(lab.wire.exchange(request("mhs.command", capability_id=STOP_CLASS, **params)))
    assert receipt["status"] == "completed"
    assert receipt["capability_id"] == INTERNAL
    assert latched(lab)
    if params.get("input") == {"reason": "as a command"}:
        assert status(lab)["estop"]["reason"] == "as a command"


def test_a_class_that_only_looks_like_the_stop_is_none(lab: Lab, session: Session) -> None:
    """[CORE-076]"""
    receipt = session.command(STOP_CLASS + "x", {})
    assert code_of(receipt) == "MHS.CAPABILITY.UNKNOWN"
    assert lab.refused(STOP + "x").code == "MHS.PROTOCOL.METHOD_NOT_FOUND"
    assert not latched(lab)


@pytest.mark.parametrize("device_id", [CONVEYOR + "x", "mhs://elsewhere:1/lab/conveyor-workcell", "", "x"])
def test_a_stop_of_a_device_that_is_not_served_says_so(lab: Lab, session: Session, device_id: str) -> None:
    """[CORE-076] Whoever meant another endpoint must learn that its device was not stopped."""
    assert lab.refused(STOP, device_id=device_id).code == "MHS.DEVICE.UNKNOWN"
    assert not latched(lab)


# While the device works.


def test_a_stop_ends_a_motion_where_it_is(lab: Lab, session: Session) -> None:
    """[SAFE-002, CORE-074, OP-011, MHSD-4-31, MHSD-4-32]"""
    start_mm = session.read("belt")["state"]["position_mm"]
    pending, begun = session.started(CONVEY, FAR)
    ask_until(lambda: session.read("belt")["state"]["position_mm"], lambda at_mm: at_mm > start_mm)
    receipt = stop(lab, reason="hand in the belt")
    stopped_at = session.read("belt")["state"]
    assert receipt["status"] == "completed"
    assert receipt["output"]["cancelled_operations"] == [begun["operation_id"]]
    assert receipt["output"]["operations"] == [{"operation_id": begun["operation_id"], "state": "stopped"}]

    final = session.get(begun["operation_id"])
    assert final["status"] == "cancelled"
    assert final["cancellation"]["reason"] == "estop"
    assert final["cancellation"]["requested_by"] == "endpoint:estop"
    assert final["cancellation"]["safe_state_achieved"] is True
    assert final["state_revision_after"] == final["state_revision_before"] + 1
    assert [effect["kind"] for effect in final["effects"]] == ["belt.move"]
    assert final["evidence"]["seq"] < receipt["evidence"]["seq"], "what was ended stands before what ended it"
    assert pending.result()["status"] in ("running", "cancelled")

    assert stopped_at["running"] is False
    for _ in range(20):
        assert session.read("belt")["state"] == stopped_at, "the position stands still"


def test_a_stop_ends_a_purge_with_the_valve_closed(lab: Lab, session: Session) -> None:
    """[SAFE-002, MHSD-4-31]"""
    value = {"duration_ms": 10_000}
    pending, begun = session.started(PURGE, value, permit_id=permit(session, value)["permit_id"])
    ask_until(lambda: session.read("valve")["state"]["open"], bool)
    receipt = stop(lab)
    assert receipt["output"]["operations"] == [{"operation_id": begun["operation_id"], "state": "stopped"}]
    assert pending.result()["status"] == "cancelled"
    assert session.read("valve")["state"] == {"open": False}


@pytest.mark.parametrize(
    ("capability_id", "value"),
    [(STEP, {"ticks": 1}), (CONVEY, FAR), (VALVE, {"open": True})],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_stop_does_not_wait_behind_a_call_that_hangs(
    lab: Lab, session: Session, capability_id: str, value: Any
) -> None:
    """[SAFE-002, CORE-074]"""
    before = session.read("world")["state"]["tick"]
    session.completed(FAULT, {"kind": "hang", "times": 1})
    pending, begun = session.started(capability_id, value)
    receipt = stop(lab)
    assert receipt["status"] == "completed"
    assert receipt["output"]["operations"] == [{"operation_id": begun["operation_id"], "state": "stopped"}]
    final = session.get(begun["operation_id"])
    assert (final["status"], final["cancellation"]["reason"]) == ("cancelled", "estop")
    assert pending.result()["operation_id"] == begun["operation_id"]
    assert session.read("world")["state"]["tick"] == before
    assert session.read("valve")["state"] == {"open": False}


def test_a_stop_ends_what_its_caller_has_given_up(lab: Lab, session: Session) -> None:
    """[OP-010, MHSD-4-24, MHSD-4-32]"""
    session.completed(FAULT, {"kind": "hang", "times": 1})
    interim = session.command(STEP, {"ticks": 1}, deadline_ms=100)
    assert (interim["status"], code_of(interim)) == ("unknown", "MHS.OUTCOME.TIMEOUT")
    assert code_of(session.command(STEP, {"ticks": 1})) == "MHS.DEVICE.BUSY"
    receipt = stop(lab)
    assert receipt["output"]["operations"] == [{"operation_id": interim["operation_id"], "state": "stopped"}]
    final = session.get(interim["operation_id"])
    assert (final["status"], final["cancellation"]["reason"]) == ("cancelled", "estop")
    assert final["x-vendor"]["reconciles"] == interim["receipt_id"]


def test_what_a_stop_has_ended_cannot_be_cancelled_again(lab: Lab, session: Session) -> None:
    """[PROTO-033]"""
    _, begun = session.started(CONVEY, FAR)
    stop(lab)
    final = session.get(begun["operation_id"])
    assert session.cancel(begun["operation_id"]) == final
    assert final["cancellation"]["reason"] == "estop"


def test_a_stop_refuses_everything_that_queues(lab: Lab, session: Session) -> None:
    """[MHSD-4-14, MHSD-4-31, OP-002, CORE-091]"""
    before = session.read("world")["state"]
    session.completed(FAULT, {"kind": "hang", "times": 1})
    _, holder = session.started(STEP, {"ticks": 1000})
    ids = [ulid() for _ in range(70)]
    waiting = [session.begin(STEP, {"ticks": 1}, command_id=command_id) for command_id in ids]
    # The queue has 64 places: as soon as six found it full, the others are in it.
    ask_until(lambda: sum(pending.done for pending in waiting), lambda done: done == 6)
    receipt = stop(lab, reason="all of it")
    assert receipt["output"]["cancelled_operations"] == [holder["operation_id"]]
    codes = [code_of(pending.result()) for pending in waiting]
    assert sorted(map(str, codes)) == ["MHS.DEVICE.BUSY"] * 6 + ["MHS.SAFETY.ESTOP_LATCHED"] * 64
    statuses = {pending.result()["status"] for pending in waiting}
    assert statuses == {"rejected"}
    assert session.read("world")["state"] == {**before, "estop": "engaged"}, "the tick has not moved"

    assert reset(session)["status"] == "completed"
    assert session.read("world")["state"] == before, "nor does it when the latch is released"
    done = session.completed(STEP, {"ticks": 1}, command_id=ids[10])
    assert done["replayed"] is False, "a refusal has not used up the id"


def test_a_mutation_that_was_sent_before_the_stop_never_follows_it(
    shared: Callable[[str], Lab],
) -> None:
    """[MHSD-4-12, MHSD-4-31] Sent in one breath, a command has its receipt before the stop's or is refused."""
    lab = shared("stdio")
    with restored(lab) as session:
        for _ in range(20):
            steps = [session.begin(STEP, {"ticks": 1}) for _ in range(3)]
            stopping = lab.begin(STOP)
            receipt = stopping.result()
            tick = session.read("world")["state"]["tick"]
            for pending in steps:
                result = pending.result()
                if result["status"] == "completed":
                    assert result["evidence"]["seq"] < receipt["evidence"]["seq"]
                elif result["status"] == "rejected":
                    assert code_of(result) == "MHS.SAFETY.ESTOP_LATCHED"
                else:
                    assert (result["status"], result["cancellation"]["reason"]) == ("cancelled", "estop")
            assert session.read("world")["state"]["tick"] == tick
            assert reset(session)["status"] == "completed"


# Past every limit.


def test_a_stop_is_served_with_as_many_requests_in_flight_as_a_connection_may_have(
    shared: Callable[[str], Lab],
) -> None:
    """[CORE-076, MHSD-4-18] stdio enters no more than 256 unanswered messages."""
    lab = shared("stdio")
    with restored(lab) as session:
        session.completed(FAULT, {"kind": "hang", "times": 1})
        session.started(STEP, {"ticks": 1})
        # One command queues; its repetitions wait for what becomes of it.
        command_id = ulid()
        waiting = [session.begin(STEP, {"ticks": 2}, command_id=command_id) for _ in range(300)]
        behind = lab.begin("mhs.hello", client={"name": "t", "version": "1"}, protocol_versions=["1.0"])
        receipt = stop(lab)
        assert receipt["status"] == "completed"
        assert {code_of(pending.result()) for pending in waiting} == {"MHS.SAFETY.ESTOP_LATCHED"}
        assert behind.result()["mhs_version"] == "1.0"


def test_a_stop_may_repeat_an_id_of_its_connection(shared: Callable[[str], Lab]) -> None:
    """[CORE-076, MHSD-2-11]"""
    lab = shared("stdio")
    with restored(lab):
        asked = request(STOP)
        first, second = lab.wire.exchange(asked), lab.wire.exchange(asked)
        assert receipt_in(first)["receipt_id"] != receipt_in(second)["receipt_id"]


def test_a_stop_is_served_when_the_rate_is_used_up(tmp_path: Path) -> None:
    """[CORE-076, MHSD-7-02, TPT-020]"""
    with running("http", tmp_path, "--rate-per-s", "1", "--rate-burst", "1") as lab:
        hello = request("mhs.hello", client={"name": "t", "version": "1"}, protocol_versions=["1.0"])

        def used_up() -> bool:
            assert isinstance(lab.wire, HttpWire)
            return lab.wire.post(json.dumps(hello).encode())[0] == 429

        for body in (
            request(STOP),
            request("mhs.command", capability_id=STOP_CLASS),
            {"jsonrpc": "1.0", "id": "a", "method": STOP},
        ):
            ask_until(used_up, bool)
            assert receipt_in(lab.wire.exchange(body))["status"] == "completed"
        ask_until(used_up, bool)
        asked = request(STOP)
        answers = lab.wire.exchange([hello] * 5 + [asked])
        found = {answer["id"]: answer for answer in answers}
        assert receipt_in(found[asked["id"]])["status"] == "completed"
        assert found[None]["error"]["data"]["mhs_code"] == "MHS.LIMIT.RATE_EXCEEDED"
        assert latched(lab), "and looking has a bucket of its own"


# Whoever may speak may stop.


def test_a_reader_may_stop_what_it_may_not_move(tmp_path: Path) -> None:
    """[MHSD-6-04, CORE-181]"""
    tokens = token_file(tmp_path / "tokens.toml", ("see", "human:visitor", "reader"))
    with running("http", tmp_path, "--token-file", str(tokens)) as lab:
        assert isinstance(lab.wire, HttpWire)
        assert lab.wire.post(text(STOP))[0] == 401, "nobody at all may not"
        lab.wire.token = "see"
        assert not latched(lab)
        reader = lab.open([])
        assert code_of(reader.command(VALVE, {"open": True})) == "MHS.SESSION.CAPABILITY_NOT_GRANTED"
        receipt = stop(lab, reason="saw smoke")
        assert receipt["status"] == "completed"
        assert receipt["principal"] == {"id": "human:visitor", "kind": "human"}
        assert latched(lab)


def test_a_stop_in_the_session_of_another_does_not_name_it(tmp_path: Path) -> None:
    """[CORE-151] It is served all the same."""
    tokens = token_file(tmp_path / "tokens.toml", ("a", "human:a", "client"), ("b", "human:b", "client"))
    with running("http", tmp_path, "--token-file", str(tokens)) as lab:
        assert isinstance(lab.wire, HttpWire)
        lab.wire.token = "a"
        session = lab.open()
        lab.wire.token = "b"
        receipt = stop(lab, session_id=session.id)
        assert (receipt["status"], receipt["session_id"]) == ("completed", None)
        assert latched(lab)
