"""Sessions as a client holds them: lost answers are looked up, operations followed, heartbeats sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mhsd.client.client import Client, connect
from mhsd.client.errors import AnswerLost, MHSError, ProtocolError, TransportError
from mhsd.client.receipts import is_final
from mhsd.client.session import Session
from tests.cli.tiny import Endpoint, Request, Tiny, refusal

DEVICE = "mhs://localhost:7400/lab/one"
COMMAND = {"command_id": "01J8ZQ3V6Y7M2N4P6R8S0T2V4Y", "device_id": DEVICE, "capability_id": "cap.x.v1"}
GRANT = {"session_id": "mhs_s_1", "granted": [], "expires_at": "2026-10-20T07:55:00.000Z"}

Start = Callable[..., tuple[Tiny, Session]]


def lost(_: Request) -> None:
    """Closes the connection without an answer."""


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Serves these methods and gives a session on them."""
    monkeypatch.setattr("mhsd.client.session._BACKOFF_S", 0.001)
    monkeypatch.setattr("mhsd.client.session._POLL_S", 0.001)
    opened: list[tuple[Tiny, Client]] = []

    def begin(**methods: Callable[[Request], Any]) -> tuple[Tiny, Session]:
        tiny = Tiny(Endpoint(**methods))
        client = connect(tiny.url, timeout_s=5.0)
        opened.append((tiny, client))
        return tiny, Session(client, "mhs_s_1")

    yield begin
    for tiny, client in opened:
        client.close()
        tiny.close()


def receipt(status: str, **more: Any) -> dict[str, Any]:
    return {"status": status, "operation_id": "op_1", **more}


def error(mhs_code: str, **details: Any) -> dict[str, Any]:
    return {"error": {"mhs_code": mhs_code, "details": details}}


@pytest.mark.parametrize(
    ("document", "final"),
    [
        (receipt("completed"), True),
        (receipt("failed"), True),
        (receipt("rejected"), True),
        (receipt("cancelled"), True),
        (receipt("running"), False),
        (receipt("accepted"), False),
        (receipt("unknown", **error("MHS.OUTCOME.TIMEOUT")), False),
        (receipt("unknown", **error("MHS.OUTCOME.TIMEOUT", reason="max_duration_exceeded")), True),
        (receipt("unknown", **error("MHS.OUTCOME.UNKNOWN")), True),
        (receipt("unknown", **error("MHS.OUTCOME.UNKNOWN", reason="endpoint_restarted")), True),
    ],
)
def test_which_receipts_are_the_last_word(document: dict[str, Any], final: bool) -> None:
    assert is_final(document) is final


def test_a_session_asks_for_what_it_was_told_and_no_longer_life_than_allowed(start: Start) -> None:
    tiny, session = start(session_open=lambda _: GRANT)
    opened = Session.open(
        session.client,
        principal={"id": "local:ada", "kind": "human"},
        device_ids=[DEVICE],
        capabilities=["cap.x.v1"],
        mode="simulated",
        ttl_s=1_000_000,
    )
    assert opened.session_id == "mhs_s_1"
    params = tiny.requests[-1].params
    assert params["ttl_s"] == 86400
    assert params["capabilities"] == ["cap.x.v1"]
    assert params["client_info"]["transport"] == "http"
    assert "approvals" not in params


def test_a_grant_without_a_session_id_is_a_protocol_error(start: Start) -> None:
    _, session = start(session_open=lambda _: {})
    with pytest.raises(ProtocolError):
        Session.open(session.client, principal={}, device_ids=[DEVICE], capabilities=[], mode="m", ttl_s=1)


def test_a_lost_answer_is_looked_up_and_the_command_never_sent_again(start: Start) -> None:
    tiny, session = start(command=lost, operations_get=lambda _: receipt("completed"))
    assert session.mutate("mhs.command", COMMAND) == receipt("completed")
    assert tiny.methods() == ["mhs.command", "mhs.operations.get"]
    looked_up = tiny.requests[1].params
    assert (looked_up["command_id"], looked_up["device_id"]) == (COMMAND["command_id"], DEVICE)


def test_a_lost_hello_is_no_lost_command(start: Start) -> None:
    """[TPT-062]"""
    tiny, session = start(hello=lost, command=lambda _: receipt("completed"))
    session.client.transport.needs_hello = True
    with pytest.raises(TransportError, match="nothing was sent"):
        session.mutate("mhs.command", COMMAND)
    assert set(tiny.methods()) == {"mhs.hello"}


def test_a_command_that_the_endpoint_does_not_know_stays_unknown(start: Start) -> None:
    tiny, session = start(command=lost, operations_get=lambda r: refusal(r, "MHS.OPERATION.UNKNOWN"))
    with pytest.raises(MHSError) as unknown:
        session.mutate("mhs.command", COMMAND)
    assert unknown.value.mhs_code == "MHS.OUTCOME.UNKNOWN"
    assert unknown.value.details["looked_up"] == "MHS.OPERATION.UNKNOWN"
    assert unknown.value.details["command_id"] == COMMAND["command_id"]
    assert unknown.value.details["session_id"] == "mhs_s_1"
    assert tiny.methods().count("mhs.command") == 1


def test_a_look_up_has_a_budget_of_attempts(start: Start) -> None:
    tiny, session = start(command=lost, operations_get=lost)
    with pytest.raises(MHSError) as unknown:
        session.mutate("mhs.command", COMMAND)
    assert unknown.value.mhs_code == "MHS.OUTCOME.UNKNOWN"
    assert tiny.methods() == ["mhs.command"] + ["mhs.operations.get"] * 5


def test_an_unknown_outcome_that_the_endpoint_states_is_not_looked_up(start: Start) -> None:
    tiny, session = start(
        command=lambda r: refusal(r, "MHS.OUTCOME.UNKNOWN", details={"operation_id": "op_1"})
    )
    with pytest.raises(MHSError) as unknown:
        session.mutate("mhs.command", COMMAND)
    assert not isinstance(unknown.value, AnswerLost)
    assert unknown.value.details == {"operation_id": "op_1"}
    assert tiny.methods() == ["mhs.command"]


def test_an_operation_is_followed_to_its_final_receipt_with_its_progress(start: Start) -> None:
    answers = iter([receipt("running", progress={"percent": n}) for n in (40, 80)] + [receipt("completed")])
    _, session = start(operations_get=lambda _: next(answers))
    seen: list[Any] = []
    final = session.follow(receipt("running", progress={"percent": 10}), lambda r: seen.append(r["progress"]))
    assert final == receipt("completed")
    assert seen == [{"percent": 10}, {"percent": 40}, {"percent": 80}]


def test_a_lost_poll_is_repeated(start: Start) -> None:
    answers: Iterator[Any] = iter([None, receipt("running"), None, receipt("cancelled")])
    _, session = start(operations_get=lambda _: next(answers))
    assert session.follow(receipt("running")) == receipt("cancelled")


def test_a_refused_poll_is_not_repeated(start: Start) -> None:
    tiny, session = start(operations_get=lambda r: refusal(r, "MHS.SESSION.EXPIRED"))
    with pytest.raises(MHSError, match="EXPIRED"):
        session.follow(receipt("running"))
    assert tiny.methods() == ["mhs.operations.get"]


@pytest.mark.parametrize(("now", "settled"), [("running", False), ("completed", True)])
def test_the_endpoint_says_whether_an_interim_unknown_is_over(start: Start, now: str, settled: bool) -> None:
    _, session = start(operations_get=lambda _: receipt(now))
    assert session.settled(receipt("unknown", **error("MHS.OUTCOME.TIMEOUT"))) is settled


def test_a_final_receipt_needs_no_question(start: Start) -> None:
    tiny, session = start()
    assert session.settled(receipt("rejected"))
    assert tiny.requests == []


def test_heartbeats_are_sent_while_a_call_is_open_and_not_after(start: Start) -> None:
    beaten = threading.Event()

    def heartbeat(_: Request) -> dict[str, Any]:
        if tiny.methods().count("mhs.session.heartbeat") >= 3:
            beaten.set()
        return {"expires_at": "2026-10-20T07:45:03.000Z"}

    tiny, session = start(session_heartbeat=heartbeat)
    session._pulse_s = 0.01
    with session.kept_alive():
        assert beaten.wait(10)
    sent = tiny.methods().count("mhs.session.heartbeat")
    with session.kept_alive():
        pass
    assert tiny.methods().count("mhs.session.heartbeat") <= sent + 2


def test_a_heartbeat_tells_the_life_of_a_session_by_the_endpoints_clock(start: Start) -> None:
    # The hello of the tiny endpoint says 07:45:00, whatever this machine's clock says.
    _, session = start()
    lifetime_s = session.lifetime_s({"expires_at": "2026-10-20T07:55:00.000Z"})
    assert lifetime_s == pytest.approx(600, abs=5)


@pytest.mark.parametrize("answered", [{}, {"expires_at": "soon"}, {"expires_at": 3}])
def test_an_expiry_that_is_no_time_is_a_protocol_error(start: Start, answered: dict[str, Any]) -> None:
    _, session = start()
    with pytest.raises(ProtocolError):
        session.lifetime_s(answered)


def test_a_session_that_is_over_ends_the_heartbeats_and_is_told(start: Start) -> None:
    told: list[str] = []
    heard = threading.Event()

    def trouble(problem: MHSError) -> None:
        told.append(problem.mhs_code)
        heard.set()

    tiny, session = start(session_heartbeat=lambda r: refusal(r, "MHS.SESSION.EXPIRED"))
    with session.kept_alive(trouble):
        assert heard.wait(10)
    assert told == ["MHS.SESSION.EXPIRED"]
    assert tiny.methods().count("mhs.session.heartbeat") == 1
