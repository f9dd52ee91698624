"""Reset: who may release a latch, when, and that nothing moves by it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import PRESS_TARGET, UNHURRIED, Start
from tests.behaviour.safety import (
    CONDUCT,
    CONVEY,
    DOOR,
    FAR,
    HOLD,
    NUDGE,
    PRESS,
    RELEASE,
    STEP,
    STOP,
    VALVE,
    WAIT,
    code_of,
    evidence,
    latched,
    permit,
    reason_of,
    reset,
    restored,
    restored_press,
    status,
    stop,
    text,
    token_file,
)
from tests.documents import input_digest
from tests.lab import CONVEYOR, ConnectionWire, HttpWire, Lab, Session, ask_until, request, running, ulid

INTERNAL = "cap.internal.safety_reset.v1"
REFUSED = "MHS.SAFETY.RESET_REFUSED"


@pytest.fixture
def session(lab: Lab) -> Iterator[Session]:
    with restored(lab) as session:
        yield session


def state_of(session: Session) -> dict[str, Any]:
    return {name: session.read(name)["state"] for name in ("world", "belt", "valve")}


# The conveyor.


def test_a_reset_releases_the_latch_and_says_so(lab: Lab, session: Session) -> None:
    """[SAFE-003, CORE-086, CORE-093, PROTO-038, MHSD-4-26]"""
    stop(lab)
    before = session.revision()
    receipt = reset(session)
    assert receipt["status"] == "completed"
    assert (receipt["capability_id"], receipt["session_id"]) == (INTERNAL, session.id)
    assert receipt["input_digest"] == input_digest(INTERNAL, None, {})
    assert receipt["output"] == {
        "reset": True,
        "estop": "released",
        "latched": False,
        "cleared_interlocks": ["door_closed"],
        "resumed": False,
    }
    assert [effect["kind"] for effect in receipt["effects"]] == ["safety.reset"]
    assert receipt["state_revision_before"] == before
    assert receipt["state_revision_after"] == before + 1
    assert evidence(lab)[-1] == receipt
    assert not latched(lab)
    assert session.read("world")["state"]["estop"] == "released"
    session.completed(STEP, {"ticks": 1})


def test_a_reset_moves_nothing(lab: Lab, session: Session) -> None:
    """[SAFE-003, CORE-086]"""
    session.completed(VALVE, {"open": True})
    command_id = ulid()
    _, begun = session.started(CONVEY, FAR, command_id=command_id)
    stop(lab)
    before = state_of(session)
    ended = session.get(begun["operation_id"])
    assert reset(session)["output"]["resumed"] is False
    after = state_of(session)
    assert after == {**before, "world": {**before["world"], "estop": "released"}}
    assert after["valve"] == {"open": False}
    assert session.get(begun["operation_id"]) == ended
    again = session.command(CONVEY, FAR, command_id=command_id)
    assert again == {**ended, "replayed": True}, "asking for it again does not resume it either"
    assert state_of(session) == after


def test_what_is_not_latched_is_not_reset(lab: Lab, session: Session) -> None:
    """[SAFE-003, CORE-080]"""
    session.completed(VALVE, {"open": True})
    before = session.revision()
    receipt = reset(session)
    assert (receipt["status"], code_of(receipt), reason_of(receipt)) == ("rejected", REFUSED, "not_latched")
    assert receipt["effects"] == []
    assert receipt["state_revision_after"] == receipt["state_revision_before"] == session.revision() == before
    assert session.read("valve")["state"] == {"open": True}
    session.completed(VALVE, {"open": False})


def test_an_open_door_keeps_the_latch(lab: Lab, session: Session) -> None:
    """[SAFE-003, CORE-080]"""
    stop(lab)
    session.completed(DOOR, {"closed": False})
    for _ in range(2):
        receipt = reset(session)
        assert (receipt["status"], code_of(receipt), reason_of(receipt)) == ("rejected", REFUSED, "interlock")
        assert [(each["id"], each["state"]) for each in receipt["error"]["interlocks"]] == [
            ("door_closed", "open")
        ]
        assert receipt["error"]["retryable"] is False
        assert latched(lab)
        assert session.read("world")["state"]["estop"] == "engaged"
    session.completed(DOOR, {"closed": True})
    assert latched(lab), "closing the door releases nothing by itself"
    assert reset(session)["status"] == "completed"


def test_a_reset_needs_a_session_a_device_and_a_deadline(lab: Lab, session: Session) -> None:
    """[SAFE-003, PROTO-010]"""
    stop(lab)
    complete = {"session_id": session.id, "device_id": CONVEYOR, **WAIT}
    for missing, code in (
        ("session_id", "MHS.PROTOCOL.INVALID_PARAMS"),
        ("device_id", "MHS.PROTOCOL.INVALID_PARAMS"),
        ("deadline_ms", "MHS.PROTOCOL.DEADLINE_INVALID"),
    ):
        params = {name: value for name, value in complete.items() if name != missing}
        assert lab.refused("mhs.safety.reset", **params).code == code
    for wrong, code in (
        ({"session_id": "mhs_s_unknown"}, "MHS.SESSION.UNKNOWN"),
        ({"device_id": CONVEYOR + "x"}, "MHS.DEVICE.UNKNOWN"),
        ({"force": True}, "MHS.PROTOCOL.INVALID_PARAMS"),
    ):
        assert lab.refused("mhs.safety.reset", **{**complete, **wrong}).code == code
    closed = lab.open()
    closed.close()
    assert closed.refused("mhs.safety.reset", device_id=CONVEYOR, **WAIT).code == "MHS.SESSION.CLOSED"
    assert latched(lab)


def test_a_reset_as_a_notification_is_dropped(lab: Lab, session: Session) -> None:
    """[PROTO-005]"""
    stop(lab)
    params = {"session_id": session.id, "device_id": CONVEYOR, **WAIT}
    body = text("mhs.safety.reset", params=params, id=...)
    if isinstance(lab.wire, HttpWire):
        assert lab.wire.post(body) == (204, b"")
    else:
        assert isinstance(lab.wire, ConnectionWire)
        lab.wire.send(body)
        lab.hello()
    assert latched(lab)


def test_a_session_that_may_do_nothing_may_still_reset(lab: Lab, session: Session) -> None:
    """[SAFE-003] Who resets is a matter of the role, and not of what a session was granted."""
    stop(lab)
    looking = lab.open([])
    assert reset(looking)["status"] == "completed"
    looking.close()


def test_what_runs_in_one_batch_after_a_reset_finds_the_latch_released(lab: Lab, session: Session) -> None:
    """[PROTO-008]"""
    stop(lab)
    release = request("mhs.safety.reset", session_id=session.id, device_id=CONVEYOR, **WAIT)
    step = {"session_id": session.id, "capability_id": STEP, "input": {"ticks": 1}, **WAIT}
    steps = [request("mhs.command", **step, command_id=ulid()) for _ in range(2)]
    answers = {answer["id"]: answer for answer in lab.wire.exchange([steps[0], release, steps[1]])}
    assert code_of(answers[steps[0]["id"]]["result"]) == "MHS.SAFETY.ESTOP_LATCHED"
    assert answers[release["id"]]["result"]["status"] == "completed"
    assert answers[steps[1]["id"]]["result"]["status"] == "completed"


def test_of_a_stop_and_a_reset_in_one_breath_the_stop_holds(shared: Callable[[str], Lab]) -> None:
    """[CORE-082] Whatever becomes of the reset, who stopped last finds the device stopped."""
    lab = shared("stdio")
    with restored(lab) as session:
        stop(lab)
        params = {"session_id": session.id, "device_id": CONVEYOR, **WAIT}
        for _ in range(40):
            resetting = lab.begin("mhs.safety.reset", **params)
            assert stop(lab)["output"]["latched"] is True
            assert latched(lab)
            assert session.read("world")["state"]["estop"] == "engaged"
            assert resetting.result()["status"] in ("completed", "rejected", "failed")
            assert latched(lab)


# The press, which misbehaves.


@pytest.fixture
def pressing(press_lab: Lab) -> Iterator[Session]:
    """A session on the press."""
    with restored_press(press_lab) as session:
        yield session


@pytest.fixture
def press(press_lab: Lab, pressing: Session) -> Session:
    """A session on the press, whose latch is engaged."""
    assert stop(press_lab, device_id=PRESS)["status"] == "completed"
    return pressing


def conduct(press: Session, **parts: str) -> None:
    press.completed(CONDUCT, parts)


def reset_press(press: Session, **more: Any) -> Any:
    return reset(press, PRESS, **more)


def state(press: Session) -> dict[str, Any]:
    found: dict[str, Any] = press.read("press")["state"]
    return found


def test_a_declared_re_enable_is_told_and_never_run(press: Session) -> None:
    """[CORE-086]"""
    before = state(press)
    receipt = reset_press(press)
    assert receipt["status"] == "completed"
    assert receipt["output"]["reenable"] == {
        "description": "Turn the key of the press.",
        "capability_id": NUDGE,
    }
    assert receipt["output"]["resumed"] is False
    assert state(press) == {**before, "stopped": False}


@pytest.mark.parametrize(("gate", "cover"), [("open", "closed"), ("unreadable", "closed")])
def test_a_hard_interlock_that_is_not_known_to_be_closed_keeps_the_latch(
    press: Session, gate: str, cover: str
) -> None:
    """[SAFE-003, CORE-080]"""
    conduct(press, gate=gate, cover=cover)
    receipt = reset_press(press)
    assert (receipt["status"], reason_of(receipt)) == ("rejected", "interlock")
    assert [each["id"] for each in receipt["error"]["interlocks"]] == ["gate_closed"]
    assert latched(press.lab, PRESS)


@pytest.mark.parametrize("cover", ["open", "unreadable"])
def test_a_soft_interlock_does_not_keep_the_latch(press: Session, cover: str) -> None:
    """[SAFE-003] Only hard ones do; what it guards it still guards."""
    conduct(press, cover=cover)
    receipt = reset_press(press)
    assert receipt["status"] == "completed"
    assert receipt["output"]["cleared_interlocks"] == ["gate_closed"]
    assert code_of(press.command(NUDGE, {})) == "MHS.SAFETY.INTERLOCK_OPEN"


@pytest.mark.parametrize(
    ("how", "code"), [("fail", "MHS.DEVICE.FAULT"), ("raise", "MHS.ADAPTER.SHIM_FAILED")]
)
def test_a_reset_that_the_device_refuses_leaves_it_stopped(press: Session, how: str, code: str) -> None:
    """[CORE-087]"""
    conduct(press, reset=how)
    halts = state(press)["halts"]
    receipt = reset_press(press)
    assert (receipt["status"], code_of(receipt)) == ("failed", code)
    assert "breaks" not in json.dumps(receipt), "the words of an exception are not passed on"
    assert latched(press.lab, PRESS)
    ask_until(lambda: state(press), lambda shown: shown["halts"] > halts and shown["stopped"])
    conduct(press, reset="obey")
    assert reset_press(press)["status"] == "completed"


def test_a_reset_that_does_not_end_in_time_is_unknown_and_leaves_the_device_stopped(press: Session) -> None:
    """[PROTO-011, CORE-087]"""
    conduct(press, reset="hang")
    halts = state(press)["halts"]
    receipt = reset_press(press, deadline_ms=200)
    assert (receipt["status"], code_of(receipt)) == ("unknown", "MHS.OUTCOME.TIMEOUT")
    assert receipt["error"]["retryable"] is False
    assert receipt["command_id"]
    assert latched(press.lab, PRESS)
    ask_until(lambda: state(press), lambda shown: shown["halts"] > halts and shown["stopped"])


def test_a_stop_during_a_reset_keeps_the_latch_and_the_device_stopped(press: Session) -> None:
    """[CORE-082, CORE-087]"""
    conduct(press, reset="wait")
    resetting = press.lab.begin("mhs.safety.reset", session_id=press.id, device_id=PRESS, **WAIT)
    ask_until(lambda: state(press)["resetting"], bool)
    second = reset_press(press)
    assert (second["status"], reason_of(second)) == ("rejected", "operation_running")
    assert stop(press.lab, device_id=PRESS, reason="again")["status"] == "completed"
    halts = state(press)["halts"]
    # Only now does the device carry out the reset that was asked of it before the stop.
    press.completed(RELEASE, {})
    receipt = resetting.result()
    assert (receipt["status"], reason_of(receipt)) == ("failed", "estop_during_reset")
    assert latched(press.lab, PRESS)
    ask_until(lambda: state(press), lambda shown: shown["halts"] > halts and shown["stopped"])


def test_a_gate_that_opens_during_a_reset_keeps_the_latch(press: Session) -> None:
    """[SAFE-003, CORE-087]"""
    conduct(press, reset="wait")
    resetting = press.lab.begin("mhs.safety.reset", session_id=press.id, device_id=PRESS, **WAIT)
    ask_until(lambda: state(press)["resetting"], bool)
    conduct(press, gate="open")
    press.completed(RELEASE, {})
    receipt = resetting.result()
    assert (receipt["status"], reason_of(receipt)) == ("failed", "interlock")
    assert latched(press.lab, PRESS)
    ask_until(lambda: state(press)["stopped"], bool)


def test_a_reset_waits_for_a_stop_that_is_under_way(fresh: Start) -> None:
    """[CORE-081]"""
    lab = fresh(targets=(PRESS_TARGET,))
    press = lab.open(device_id=PRESS)
    conduct(press, stop="wait")
    halts = state(press)["halts"]
    stopping = lab.begin(STOP, device_id=PRESS, reason="slow")
    ask_until(lambda: state(press)["halts"], lambda now: now > halts)
    receipt = reset_press(press)
    assert (receipt["status"], reason_of(receipt)) == ("rejected", "stop_path_pending")
    assert latched(lab, PRESS)
    press.completed(RELEASE, {})
    assert stopping.result()["status"] == "completed"
    assert reset_press(press)["status"] == "completed"


def test_a_device_whose_stop_was_not_confirmed_is_reset_only_when_it_is(press: Session) -> None:
    """[CORE-074, CORE-077, MHSD-4-33]"""
    lab = press.lab
    conduct(press, stop="deny")
    assert stop(lab, device_id=PRESS)["status"] == "failed"
    receipt = reset_press(press)
    assert (receipt["status"], reason_of(receipt)) == ("rejected", "safe_state_unconfirmed")
    assert code_of(press.command(NUDGE, {})) == "MHS.DEVICE.UNCONFIRMED"
    conduct(press, stop="confirm")
    assert code_of(press.command(NUDGE, {})) == "MHS.DEVICE.UNCONFIRMED", "it is for an operator to say"
    assert reset_press(press)["status"] == "completed"
    press.completed(NUDGE, {})


# Who may reset.


def hardware(tmp_path: Path, *more: str) -> tuple[str, ...]:
    link = ("--option", "/test/press:link=test://press")
    state_dir = ("--state-dir", str(tmp_path / "state"))
    return ("--backend", "hardware", "--allow-hardware", "--arm", *link, *state_dir, *UNHURRIED, *more)


def test_on_hardware_nobody_without_a_credential_resets_or_permits(binding: str, tmp_path: Path) -> None:
    """[CORE-083, MHSD-4-26]"""
    with running(binding, tmp_path, *hardware(tmp_path), targets=(PRESS_TARGET,)) as lab:
        session = lab.open(device_id=PRESS, mode="hardware")
        session.completed(NUDGE, {})
        assert stop(lab)["status"] == "completed"
        before = session.read("press")
        receipt = reset(session, PRESS)
        assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.AUTH.FORBIDDEN")
        assert receipt["capability_id"] == INTERNAL
        assert session.read("press")["state"] == before["state"]
        assert latched(lab, PRESS)
        refused = session.refused(
            "mhs.safety.permit",
            capability_id=NUDGE,
            input_digest=input_digest(NUDGE, "press", {}),
            ttl_s=60,
            approvals=[{"principal": {"id": "human:h", "kind": "human"}}],
        )
        assert refused.code == "MHS.AUTH.FORBIDDEN"
    assert "no operator has a credential" in lab.stderr()


def test_on_hardware_an_operator_with_a_token_resets(tmp_path: Path) -> None:
    """[CORE-083]"""
    operators = token_file(tmp_path / "operators.toml", ("op", "human:operator", "operator"))
    options = hardware(tmp_path, "--operator-token-file", str(operators))
    with running("http", tmp_path, *options, targets=(PRESS_TARGET,)) as lab:
        assert isinstance(lab.wire, HttpWire)
        lab.wire.token = "op"
        session = lab.open(device_id=PRESS, mode="hardware")
        stop(lab)
        receipt = reset(session, PRESS)
        assert receipt["status"] == "completed"
        assert receipt["principal"] == {"id": "human:operator", "kind": "human"}


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[Lab, Callable[[str], None]]]:
    """A simulated conveyor with an operator, a client and a reader, and a way to become one of them."""
    operators = token_file(tmp_path / "operators.toml", ("op", "human:operator", "operator"))
    others = token_file(
        tmp_path / "tokens.toml", ("client", "agent:client", "client"), ("reader", "human:reader", "reader")
    )
    options = ("--operator-token-file", str(operators), "--token-file", str(others), *UNHURRIED)
    with running("http", tmp_path, *options) as lab:

        def become(token: str) -> None:
            assert isinstance(lab.wire, HttpWire)
            lab.wire.token = token

        yield lab, become


def test_where_there_is_an_operator_only_the_operator_resets(
    guarded: tuple[Lab, Callable[[str], None]],
) -> None:
    """[CORE-083, SAFE-003]"""
    lab, become = guarded
    become("client")
    session = lab.open()
    stop(lab)
    receipt = reset(session)
    assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.AUTH.FORBIDDEN")
    assert receipt["principal"]["id"] == "agent:client"
    assert reason_of(receipt) is None
    become("reader")
    looking = lab.open([])
    assert code_of(reset(looking)) == "MHS.AUTH.FORBIDDEN"
    assert latched(lab)
    become("op")
    refused = session.refused("mhs.safety.reset", device_id=CONVEYOR, **WAIT)
    assert refused.code == "MHS.SESSION.UNKNOWN", "a reset belongs to a session of one's own"
    assert reset(lab.open())["status"] == "completed"
    assert not latched(lab)


def test_where_there_is_an_operator_only_the_operator_permits(
    guarded: tuple[Lab, Callable[[str], None]],
) -> None:
    """[SAFE-004]"""
    lab, become = guarded
    value = {"duration_ms": 1}
    wanted = {
        "capability_id": "cap.actuation.purge.v1",
        "input_digest": input_digest("cap.actuation.purge.v1", "valve", value),
        "ttl_s": 60,
        "approvals": [{"principal": {"id": "human:somebody", "kind": "human"}}],
    }
    become("client")
    session = lab.open()
    assert session.refused("mhs.safety.permit", **wanted).code == "MHS.AUTH.FORBIDDEN"
    become("reader")
    assert lab.open([]).refused("mhs.safety.permit", **wanted).code == "MHS.AUTH.FORBIDDEN"
    become("op")
    granted = permit(session, value)
    assert granted["scope"]["principal"] == "agent:client", "it is for who will use it"
    become("client")
    done = session.completed("cap.actuation.purge.v1", value, permit_id=granted["permit_id"])
    assert [approval["principal"]["id"] for approval in done["approvals"]] == ["human:operator"]


def test_over_stdio_nobody_is_the_operator_where_operators_have_tokens(tmp_path: Path) -> None:
    """[CORE-083]"""
    operators = token_file(tmp_path / "operators.toml", ("op", "human:operator", "operator"))
    with running("stdio", tmp_path, "--operator-token-file", str(operators)) as lab:
        session = lab.open()
        stop(lab)
        receipt = reset(session)
        assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.AUTH.FORBIDDEN")
        assert latched(lab)
        refused = session.refused(
            "mhs.safety.permit",
            capability_id="cap.actuation.purge.v1",
            input_digest=input_digest("cap.actuation.purge.v1", "valve", {"duration_ms": 1}),
            ttl_s=60,
            approvals=[],
        )
        assert refused.code == "MHS.AUTH.FORBIDDEN"


# An operation that does not end.


def test_a_reset_waits_for_operations_and_names_them(fresh: Start) -> None:
    """[CORE-080, MHSD-4-31, MHSD-4-32]"""
    lab = fresh(targets=(PRESS_TARGET,))
    press = lab.open(device_id=PRESS)
    holding, begun = press.started(HOLD, {"stubborn": True})
    receipt = stop(lab)
    assert (receipt["status"], code_of(receipt)) == ("failed", "MHS.SAFETY.SAFE_STATE_UNREACHED")
    entry = {"operation_id": begun["operation_id"], "state": "still_running"}
    assert receipt["output"]["operations"] == [entry]
    assert receipt["output"]["cancelled_operations"] == [begun["operation_id"]]
    assert receipt["output"]["safe_state_achieved"] is True, "the stop itself was confirmed"

    refused = reset_press(press)
    assert (refused["status"], reason_of(refused)) == ("rejected", "operation_running")
    assert refused["error"]["details"]["operations"] == [begun["operation_id"]]

    press.completed(RELEASE, {})
    late = holding.result()
    assert (late["status"], late["cancellation"]["reason"]) == ("cancelled", "estop"), "never completed"
    assert status(lab, PRESS)["estop"]["engaged"] is True
    assert reset_press(press)["status"] == "completed"
    press.completed(NUDGE, {})


def test_a_command_that_was_given_up_keeps_the_device_from_being_reset(pressing: Session) -> None:
    """[MHSD-4-22, MHSD-4-25, CORE-080]"""
    press = pressing
    holding, begun = press.started(HOLD, {"stubborn": True})
    stop(press.lab, device_id=PRESS)
    given_up = holding.result()
    assert (given_up["status"], reason_of(given_up)) == ("unknown", "stop_grace_exceeded")
    assert press.get(begun["operation_id"]) == given_up
    refused = reset_press(press)
    assert (refused["status"], reason_of(refused)) == ("rejected", "operation_running")
    assert refused["error"]["details"]["operations"] == [begun["operation_id"]]
    press.completed(RELEASE, {})
    receipt = ask_until(lambda: reset_press(press), lambda each: each["status"] != "rejected")
    assert receipt["status"] == "completed"
    assert press.get(begun["operation_id"]) == given_up, "a final receipt stays what it is"
    press.completed(NUDGE, {})


def test_a_device_that_lost_a_command_refuses_mutations_until_an_operator_resets_it(
    pressing: Session,
) -> None:
    """[MHSD-4-22] Without any e-stop."""
    press = pressing
    holding, begun = press.started(HOLD, {"stubborn": True})
    press.cancel(begun["operation_id"])
    assert holding.result()["status"] == "unknown"
    refused = press.command(NUDGE, {})
    assert (refused["status"], code_of(refused)) == ("rejected", "MHS.DEVICE.UNCONFIRMED")
    press.completed("cap.device.describe.v1", {})
    assert not latched(press.lab, PRESS)
    press.completed(RELEASE, {})
    receipt = ask_until(lambda: reset_press(press), lambda each: each["status"] != "rejected")
    assert receipt["status"] == "completed"
    press.completed(NUDGE, {})


@pytest.mark.parametrize(("part", "usual"), [("stop", "confirm"), ("reset", "obey")])
def test_a_stop_that_can_be_undone_only_on_site_is_never_reset_from_here(
    fresh: Start, part: str, usual: str
) -> None:
    """[CORE-087]"""
    lab = fresh(targets=(PRESS_TARGET,))
    press = lab.open(device_id=PRESS)
    conduct(press, **{part: "terminal"})
    receipt = stop(lab, device_id=PRESS)
    assert (receipt["status"], receipt["output"]["safe_state_achieved"]) == ("completed", True)
    if part == "reset":
        # Only the device's own refusal tells that it is one.
        first = reset_press(press)
        assert (first["status"], code_of(first), reason_of(first)) == ("failed", REFUSED, "terminal_estop")
    conduct(press, **{part: usual})
    refused = reset_press(press)
    assert (refused["status"], code_of(refused), reason_of(refused)) == (
        "rejected",
        REFUSED,
        "terminal_estop",
    )
    assert "relay" in refused["error"]["message"]
    assert latched(lab, PRESS)
