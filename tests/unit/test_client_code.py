"""The code API against an endpoint that answers as the test says: what is sent, what is kept alive, what is stopped."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mhsd
from mhsd.client import lab as labs
from mhsd.client.endpoint import BadEndpoint
from mhsd.client.lab import Lab, close_all
from mhsd.client.ledger import Ledger, keep
from mhsd.client.requests import device_meant
from mhsd.client.stdio import ChildFailed
from mhsd.client.token_file import BadTokenFile
from tests.cli.tiny import HELLO, Endpoint, Request, Tiny, refusal
from tests.lab import ask_until

DEVICE = str(HELLO["devices"][0]["device_id"])
GRANT = {
    "session_id": "mhs_s_1",
    "granted": [],
    "mode": "simulated",
    "expires_at": "2026-10-20T07:55:00.000Z",
}
SOON = {**GRANT, "expires_at": "2026-10-20T07:45:00.100Z"}
STEP = "cap.world.step.v1"

Start = Callable[..., tuple[Tiny, mhsd.Client]]


def lost(_: Request) -> None:
    """Closes the connection without an answer."""


def receipt(status: str, **more: Any) -> dict[str, Any]:
    return {
        "receipt_id": "r_1",
        "device_id": DEVICE,
        "capability_id": STEP,
        "session_id": "mhs_s_1",
        "status": status,
        "operation_id": "op_1",
        **more,
    }


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Serves these methods, with sessions that open and close, and gives a client of it."""
    monkeypatch.setattr("mhsd.client.session._POLL_S", 0.001)
    monkeypatch.setattr("mhsd.client.session._BACKOFF_S", 0.001)
    opened: list[tuple[Tiny, mhsd.Client]] = []

    def begin(**methods: Callable[[Request], Any]) -> tuple[Tiny, mhsd.Client]:
        usual = {
            "session_open": lambda _: GRANT,
            "session_close": lambda _: {"closed_at": "now", "summary": {}},
        }
        tiny = Tiny(Endpoint(**{**usual, **methods}))
        client = mhsd.connect(tiny.url, timeout_s=5.0)
        opened.append((tiny, client))
        return tiny, client

    yield begin
    for tiny, client in opened:
        client.close()
        tiny.close()


def of(tiny: Tiny, method: str) -> list[dict[str, Any]]:
    """The params of every request of a method."""
    return [request.params for request in tiny.requests if request.method == method]


# What is sent.


def test_every_call_has_a_finite_deadline(start: Start) -> None:
    """[TPT-056]"""
    tiny, client = start(
        command=lambda _: receipt("completed"),
        resource_read=lambda _: {"state": {}},
        resource_write=lambda _: receipt("completed"),
        snapshot=lambda _: {"snapshot": {}},
        restore=lambda _: receipt("completed"),
        safety_status=lambda _: {},
        operations_get=lambda _: receipt("completed"),
    )
    with client.session() as session:
        session.invoke(STEP, {})
        session.read("belt")
        session.write("belt", {})
        session.restore(session.snapshot())
        session.operation("op_1")
    client.safety_status()
    asked = {request.method: request.params for request in tiny.requests}
    for method in ("command", "resource.read", "resource.write", "snapshot", "restore"):
        assert asked[f"mhs.{method}"]["deadline_ms"] == 30_000
    assert asked["mhs.operations.get"]["deadline_ms"] == asked["mhs.safety.status"]["deadline_ms"] == 5000


def test_what_was_left_out_is_not_sent_and_what_was_given_is(start: Start) -> None:
    tiny, client = start(command=lambda _: receipt("completed"))
    with client.session() as session:
        session.invoke(STEP, {"ticks": 1})
        more = {"command_id": client.ulid(), "expected_revision": 3, "permit_id": "p_1", "resource": "world"}
        session.invoke(STEP, {}, deadline_ms=7, **more)  # type: ignore[arg-type]
    bare, full = of(tiny, "mhs.command")
    assert set(bare) == {"session_id", "device_id", "capability_id", "input", "command_id", "deadline_ms"}
    assert full == {
        "session_id": "mhs_s_1",
        "device_id": DEVICE,
        "capability_id": STEP,
        "input": {},
        "deadline_ms": 7,
        **more,
    }


def test_a_session_asks_for_the_only_device_in_its_mode(start: Start) -> None:
    """[MHSD-9a-86]"""
    tiny, client = start()
    with client.session(ttl_s=60, approved_by=["human:ada"]):
        (asked,) = of(tiny, "mhs.session.open")
    assert asked["device_ids"] == [DEVICE]
    assert (asked["mode"], asked["capabilities"], asked["ttl_s"]) == ("simulated", ["*"], 60)
    assert asked["approvals"] == [{"principal": {"id": "human:ada", "kind": "human"}}]


ONE, TWO = "mhs://localhost:7400/lab/one", "mhs://localhost:7400/lab/two"
GRANTED = [
    {"device_id": ONE, "capability_id": "cap.a.v1", "resource": "arm"},
    {"device_id": ONE, "capability_id": "cap.b.v1", "resource": "belt"},
    {"device_id": TWO, "capability_id": "cap.b.v1", "resource": "arm"},
    {"device_id": f"{ONE}/not/of/this/session", "capability_id": "cap.a.v1", "resource": "arm"},
]


@pytest.mark.parametrize(
    ("reference", "params", "device"),
    [
        (None, {"capability_id": "cap.a.v1"}, ONE),
        (None, {"capability_id": "cap.b.v1"}, None),
        (None, {"capability_id": "cap.b.v1", "resource": "arm"}, TWO),
        (None, {"capability_id": "cap.c.v1"}, None),
        (None, {"resource_id": "belt"}, ONE),
        (None, {"resource_id": "arm"}, None),
        (None, {"snapshot": {}}, None),
        ("two", {"capability_id": "cap.a.v1"}, TWO),
    ],
)
def test_a_session_of_several_devices_knows_the_one_that_has_what_is_named(
    reference: str | None, params: dict[str, Any], device: str | None
) -> None:
    """[MHSD-9a-86]"""
    if device is None:
        with pytest.raises(mhsd.MHSError, match="the session has 2 devices"):
            device_meant([ONE, TWO], reference, {"granted": GRANTED}, params)
    else:
        assert device_meant([ONE, TWO], reference, {"granted": GRANTED}, params) == device


@pytest.mark.parametrize("granted", [None, 7, [7], [{"device_id": []}]])
def test_a_grant_of_any_shape_names_no_device(granted: Any) -> None:
    with pytest.raises(mhsd.MHSError, match="the session has 2 devices"):
        device_meant([ONE, TWO], None, {"granted": granted}, {"capability_id": "cap.a.v1"})


def test_a_command_that_lost_its_answer_is_looked_up_and_not_sent_again(start: Start) -> None:
    """[TPT-055]"""
    tiny, client = start(command=lost, operations_get=lambda _: receipt("completed"))
    with client.session() as session:
        assert session.invoke(STEP, {}).status == "completed"
    assert tiny.methods().count("mhs.command") == 1


def test_what_cannot_be_found_out_is_said_to_be_unknown(start: Start) -> None:
    """[TPT-062]"""
    tiny, client = start(command=lost, operations_get=lambda r: refusal(r, "MHS.OPERATION.UNKNOWN"))
    with client.session() as session, pytest.raises(mhsd.OutcomeUnknown):
        session.invoke(STEP, {})
    assert tiny.methods().count("mhs.command") == 1


def test_an_operation_is_asked_for_through_an_outage(start: Start) -> None:
    """[TPT-064]"""
    answers = iter([lost] * 9 + [lambda _: receipt("completed")])
    _, client = start(command=lambda _: receipt("running"), operations_get=lambda r: next(answers)(r))
    with client.session() as session:
        assert session.wait(session.invoke(STEP, {})).status == "completed"


def test_an_operation_outlives_the_session_it_was_begun_in(start: Start) -> None:
    """[TPT-061]"""
    sessions = iter(["mhs_s_1", "mhs_s_2", "mhs_s_3"])

    def operation(request: Request) -> Any:
        over = request.params["session_id"] == "mhs_s_1"
        return refusal(request, "MHS.SESSION.UNKNOWN") if over else receipt("completed")

    tiny, client = start(
        session_open=lambda _: {**GRANT, "session_id": next(sessions)},
        command=lambda _: receipt("running"),
        operations_get=operation,
    )
    session = client.session()
    assert session.invoke(STEP, {}, wait=True).status == "completed"
    assert session.wait(receipt("running")).status == "completed"
    assert [each["capabilities"] for each in of(tiny, "mhs.session.open")] == [["*"], [], []]
    assert tiny.methods().count("mhs.command") == 1


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (lambda _: receipt("unknown", error={"mhs_code": "MHS.OUTCOME.UNKNOWN"}), True),
        (lambda r: refusal(r, "MHS.OPERATION.UNKNOWN"), False),
        (lambda r: refusal(r, "MHS.AUTH.FORBIDDEN"), False),
    ],
)
def test_a_command_that_lost_its_answer_and_its_session_is_looked_up_in_another(
    start: Start, answer: Callable[[Request], Any], found: bool
) -> None:
    """[TPT-062] As when the endpoint was started again."""
    sessions = iter(["mhs_s_1", "mhs_s_2"])

    def operation(request: Request) -> Any:
        over = request.params["session_id"] == "mhs_s_1"
        return refusal(request, "MHS.SESSION.UNKNOWN") if over else answer(request)

    tiny, client = start(
        session_open=lambda _: {**GRANT, "session_id": next(sessions)}, command=lost, operations_get=operation
    )
    with client.session() as session:
        if found:
            assert session.invoke(STEP, {}).status == "unknown"
        else:
            with pytest.raises(mhsd.OutcomeUnknown) as unknown:
                session.invoke(STEP, {})
            assert unknown.value.details["looked_up"] == "MHS.SESSION.UNKNOWN"
    (sent,) = of(tiny, "mhs.command")
    asked = of(tiny, "mhs.operations.get")
    assert {each["command_id"] for each in asked} == {sent["command_id"]}


@pytest.mark.parametrize("answer", [lost, lambda r: refusal(r, "MHS.OPERATION.UNKNOWN")])
def test_what_became_of_an_operation_is_unknown_where_it_cannot_be_asked_for(
    start: Start, answer: Callable[[Request], Any]
) -> None:
    """[TPT-062]"""
    tiny, client = start(command=lambda _: receipt("running", command_id="c_1"), operations_get=answer)
    with client.session() as session, pytest.raises(mhsd.OutcomeUnknown, match="operation op_1") as unknown:
        session.invoke(STEP, {}, wait=True)
    ids = {"operation_id": "op_1", "command_id": "c_1", "device_id": DEVICE, "session_id": "mhs_s_1"}
    assert unknown.value.details.items() >= ids.items()
    assert unknown.value.mhs_code == "MHS.OUTCOME.UNKNOWN"
    assert tiny.methods().count("mhs.command") == 1


def test_a_client_that_is_closed_is_not_asked_again(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    _, client = start(command=lambda _: receipt("running"))
    session = client.session()
    running = session.invoke(STEP, {})
    client.close()
    monkeypatch.setattr("mhsd.client.session._BACKOFF_S", 3600.0)
    with pytest.raises(mhsd.OutcomeUnknown, match="the client is closed"):
        session.wait(running)


def test_a_stop_of_a_device_that_is_named_in_full_is_one_request(start: Start) -> None:
    tiny, client = start(safety_estop=lambda _: receipt("completed"))
    assert client.estop("smoke", device_id=DEVICE).ok
    assert client.estop().ok
    assert tiny.methods() == ["mhs.safety.estop"] * 2
    assert of(tiny, "mhs.safety.estop")[0] == {"reason": "smoke", "device_id": DEVICE}
    assert of(tiny, "mhs.safety.estop")[1] == {}


def test_a_stop_from_a_session_stops_its_device(start: Start) -> None:
    tiny, client = start(safety_estop=lambda _: receipt("completed"))
    with client.session() as session:
        session.estop()
    assert of(tiny, "mhs.safety.estop") == [{"device_id": DEVICE}]


# What is kept alive.


def test_a_session_lives_while_an_operation_runs_that_nobody_waits_for(start: Start) -> None:
    """[MHSD-4-29]"""
    beaten = threading.Semaphore(0)
    now = {"status": "running"}

    def heartbeat(_: Request) -> dict[str, Any]:
        beaten.release()
        return SOON

    tiny, client = start(
        session_open=lambda _: SOON,
        session_heartbeat=heartbeat,
        command=lambda _: receipt("running"),
        operations_get=lambda _: receipt(now["status"]),
    )
    with client.session() as session:
        assert session.invoke(STEP, {}).status == "running"
        for _ in range(2):
            assert beaten.acquire(timeout=20)
        now["status"] = "completed"
        ask_until(lambda: len(session._unwatched), lambda count: count == 0)
    assert of(tiny, "mhs.session.heartbeat")[0] == {"session_id": "mhs_s_1"}


def test_a_client_that_is_closed_ends_what_its_sessions_wait_for() -> None:
    methods = Endpoint(
        session_open=lambda _: GRANT,
        subscribe=lambda _: {"subscription_id": "sub_1", "seq_start": 1},
        command=lambda _: receipt("running"),
    )
    stream = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: here\n\n"
    tiny = Tiny(lambda request: methods(request) if request.body else stream)
    client = mhsd.connect(tiny.url)
    session = client.session()
    session.invoke(STEP, {})
    subscription = session.subscribe("state")
    client.close()
    assert (subscription.get(), subscription.over) == (None, True)
    with pytest.raises(mhsd.TransportError, match="the client is closed"):
        session.read("belt")
    tiny.close()


# What is stopped.


def interrupted(times: int) -> Callable[..., Any]:
    """Progress that a person interrupts so often."""
    left = [times]

    def show(_: mhsd.Receipt) -> None:
        if left[0]:
            left[0] -= 1
            raise KeyboardInterrupt

    return show


def test_ctrl_c_cancels_the_operation_and_waits_for_its_receipt(start: Start) -> None:
    now = {"status": "running"}

    def cancel(_: Request) -> dict[str, Any]:
        now["status"] = "cancelled"
        return receipt("running")

    tiny, client = start(
        command=lambda _: receipt("running"),
        operations_get=lambda _: receipt(now["status"]),
        operations_cancel=cancel,
    )
    with client.session() as session:
        with pytest.raises(KeyboardInterrupt) as stopped:
            session.invoke(STEP, {}, wait=True, on_progress=interrupted(1))
        assert stopped.value.__notes__ == [
            f"The operation was stopped: {mhsd.Receipt(receipt('cancelled'))!r}"
        ]
    assert tiny.methods().count("mhs.operations.cancel") == 1


def test_ctrl_c_is_not_swallowed_where_the_operation_cannot_be_stopped(start: Start) -> None:
    tiny, client = start(
        command=lambda _: receipt("running"), operations_cancel=lambda r: refusal(r, "MHS.AUTH.FORBIDDEN")
    )
    with client.session() as session:
        with pytest.raises(KeyboardInterrupt) as stopped:
            session.wait(session.invoke(STEP, {}), on_progress=interrupted(1))
        assert "could not be stopped: MHS.AUTH.FORBIDDEN" in stopped.value.__notes__[0]
    assert tiny.methods().count("mhs.operations.cancel") == 1


# What is raised.


@pytest.mark.parametrize("status", ["rejected", "failed", "cancelled", "unknown"])
def test_a_code_file_stops_at_a_receipt_that_is_neither_completed_nor_running(
    start: Start, status: str
) -> None:
    """[CORE-140]"""
    document = receipt(
        status,
        error={"mhs_code": "MHS.OUTCOME.UNKNOWN", "message": "no", "data": {"details": {"field": "x"}}},
    )
    tiny, _ = start(command=lambda _: document)
    with mhsd.lab(tiny.url) as lab, pytest.raises(mhsd.MHSRejected) as refused:
        lab.invoke(STEP, {})
    assert refused.value.receipt == document
    assert isinstance(refused.value.receipt, mhsd.Receipt)
    assert refused.value.mhs_code == "MHS.OUTCOME.UNKNOWN"
    assert refused.value.details == {"field": "x"}
    assert isinstance(refused.value, mhsd.MHSError)


def test_what_a_person_cancelled_has_no_code_and_says_who(start: Start) -> None:
    document = receipt("cancelled", cancellation={"requested_by": "local:ada", "reason": "lunch"})
    tiny, _ = start(command=lambda _: document)
    with mhsd.lab(tiny.url) as lab, pytest.raises(mhsd.MHSRejected) as refused:
        lab.invoke(STEP, {})
    assert str(refused.value) == f"{STEP} is cancelled: by local:ada, lunch"
    assert refused.value.mhs_code == ""


def test_a_code_file_that_does_not_check_gets_every_receipt(start: Start) -> None:
    """[CORE-140]"""
    tiny, _ = start(command=lambda _: receipt("rejected"), safety_estop=lambda _: receipt("failed"))
    with mhsd.lab(tiny.url, check=False) as lab:
        assert lab.invoke(STEP, {}).status == "rejected"
        assert lab.estop().status == "failed"


def test_a_cancellation_that_was_asked_for_is_no_refusal(start: Start) -> None:
    tiny, _ = start(
        command=lambda _: receipt("running"),
        operations_cancel=lambda _: receipt("cancelled"),
        safety_estop=lambda _: receipt("failed"),
    )
    with mhsd.lab(tiny.url) as lab:
        running = lab.invoke(STEP, {}, wait=False)
        assert lab.cancel(running).status == "cancelled"
        with pytest.raises(mhsd.MHSRejected):
            lab.estop()


def test_a_code_file_waits_for_what_takes_long(start: Start) -> None:
    """[MHSD-9a-86]"""
    answers = iter(["running", "running", "completed"])
    tiny, _ = start(command=lambda _: receipt("running"), operations_get=lambda _: receipt(next(answers)))
    with mhsd.lab(tiny.url) as lab:
        assert lab.invoke(STEP, {}).status == "completed"


def test_an_error_in_a_session_is_not_hidden_by_its_end(start: Start) -> None:
    tiny, client = start(session_close=lost)
    with pytest.raises(ZeroDivisionError) as told, client.session():
        _ = 1 / 0
    assert told.value.__notes__[0].startswith("The session could not be closed: MHS.OUTCOME.UNKNOWN")
    with pytest.raises(mhsd.OutcomeUnknown), client.session():
        pass
    assert tiny.methods().count("mhs.session.close") == 2


def test_a_session_that_has_ended_by_itself_ends_quietly(start: Start) -> None:
    _, client = start(session_close=lambda r: refusal(r, "MHS.SESSION.EXPIRED"))
    with client.session() as session:
        assert session.session_id == "mhs_s_1"


def test_a_receipt_that_is_final_needs_no_waiting_and_enters_no_ledger_twice(
    start: Start, tmp_path: Path
) -> None:
    answers = iter(["running", "completed", "running", "completed", "running", "completed"])
    tiny, client = start(
        command=lambda _: receipt("running"), operations_get=lambda _: receipt(next(answers))
    )
    ledger = Ledger(tmp_path / "ledger.json", "sweep.py", b"", "2026-10-20T07:46:00.000Z")
    keep(ledger)
    try:
        with client.session() as session:
            final = session.wait(session.invoke(STEP, {}))
            assert session.wait(final) == client.wait(final) == final
            assert session.operation("op_1").status == "running"
            assert session.operation("op_1").status == "completed"
            assert client.wait(receipt("running")).final
    finally:
        keep(None)
    document = ledger.finish("finished", 0, "2026-10-20T07:47:00.000Z")
    assert [entry["status"] for entry in document["receipts"]] == ["running"] + ["completed"] * 3
    assert tiny.methods().count("mhs.operations.get") == 6


# Where an endpoint is.


def test_the_endpoint_of_a_code_file_is_the_named_one_then_that_of_the_environment(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny, _ = start()
    monkeypatch.setenv("MHS_ENDPOINT", tiny.url)
    with mhsd.lab():
        assert tiny.methods()[-1] == "mhs.session.open"
    with pytest.raises(mhsd.TransportError):
        mhsd.lab("http://127.0.0.1:1")


def test_the_token_of_the_command_line_goes_to_its_endpoint_only(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, _ = start()
    other, _ = start()
    place = mhsd.connect(told.url).transport._endpoint  # type: ignore[attr-defined]
    monkeypatch.setattr(labs, "default", labs.Default(place, "s3cret", 5.0))
    with mhsd.lab(), mhsd.lab(other.url):
        pass
    assert {request.header("Authorization") for request in told.requests} == {"Bearer s3cret"}
    assert {request.header("Authorization") for request in other.requests} == {None}


def test_a_token_of_the_code_file_goes_to_the_endpoint_of_the_command_line(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told, _ = start()
    place = mhsd.connect(told.url).transport._endpoint  # type: ignore[attr-defined]
    monkeypatch.setattr(labs, "default", labs.Default(place, "s3cret", 5.0))
    (tmp_path / "token").write_text("other\n")
    (tmp_path / "token").chmod(0o600)
    with mhsd.lab(token_file=tmp_path / "token"):
        pass
    assert {request.header("Authorization") for request in told.requests} == {"Bearer other"}


def test_what_a_code_file_leaves_open_is_closed_at_its_end(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny, _ = start()
    mhsd.lab(tiny.url)
    assert close_all() == []
    assert tiny.methods()[-1] == "mhs.session.close"
    broken = mhsd.lab(tiny.url)

    def fail(self: Lab, reason: str | None = None) -> None:
        raise ChildFailed("ended with status 1")

    monkeypatch.setattr(Lab, "close", fail)
    assert close_all() == ["ended with status 1"]
    broken.client.close()


@pytest.mark.parametrize("endpoint", ["ftp://bench", "", "stdio:", "bench", [], [""], ["mhsd", 1], b"bench"])
def test_an_address_of_another_form_is_a_usage_error(endpoint: Any) -> None:
    with pytest.raises(BadEndpoint):
        mhsd.connect(endpoint)


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan"), 1e300])
def test_a_time_that_cannot_be_waited_is_a_usage_error(timeout_s: float) -> None:
    """[TPT-056]"""
    with pytest.raises(ValueError, match="timeout_s is a number of seconds above 0"):
        mhsd.connect("http://127.0.0.1:1", timeout_s=timeout_s)


def test_certificate_files_that_cannot_be_used_are_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MHS_CA_FILE", str(tmp_path / "nowhere.pem"))
    with pytest.raises(ValueError, match=r"MHS_CA_FILE: .*nowhere.pem cannot be read"):
        mhsd.connect("https://127.0.0.1:1")


def test_a_command_is_a_list_of_words() -> None:
    with pytest.raises(mhsd.TransportError, match="cannot start /nonexistent"):
        mhsd.connect(["/nonexistent", "--stdio"])


def test_a_token_file_that_holds_none_is_a_usage_error(tmp_path: Path) -> None:
    for content, text in (("", "no token"), ("[[token]]\n", "table of tokens"), ("two words\n", "no token")):
        path = tmp_path / "token"
        path.write_text(content)
        path.chmod(0o600)
        with pytest.raises(BadTokenFile, match=text):
            mhsd.connect("http://127.0.0.1:1", token_file=path)
    with pytest.raises(BadTokenFile, match="cannot be read"):
        mhsd.connect("http://127.0.0.1:1", token_file=tmp_path / "nowhere")


def test_a_token_that_others_can_read_is_warned_about(start: Start, tmp_path: Path) -> None:
    tiny, _ = start()
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    path.chmod(0o644)
    with pytest.warns(UserWarning, match="chmod 600"):
        client = mhsd.connect(tiny.url, token_file=path)
    with client:
        client.hello()
    assert tiny.requests[-1].header("Authorization") == "Bearer s3cret"


# The package.


def test_importing_the_package_costs_nothing_and_the_client_loads_no_server() -> None:
    program = (
        "import sys, mhsd\n"
        "assert not any(name.startswith('mhsd.') for name in sys.modules), sys.modules.keys()\n"
        "mhsd.connect, mhsd.lab, mhsd.Receipt\n"
        "heavy = {'trio', 'attr', 'cattrs', 'typer', 'h11', 'rfc8785', 'fastjsonschema', 'sqlite3'}\n"
        "print(*(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_name_of_the_package_is_there() -> None:
    for name in mhsd.__all__:
        assert getattr(mhsd, name) is not None
        assert name in dir(mhsd)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        mhsd.nonsense  # type: ignore[attr-defined] # noqa: B018


def test_clients_and_sessions_show_themselves(start: Start) -> None:
    tiny, client = start()
    assert repr(client) == f"<Client of {tiny.url}>"
    with client.session() as session:
        assert repr(session) == f"<Session mhs_s_1 on {DEVICE}>"
        assert session.mode == "simulated"
