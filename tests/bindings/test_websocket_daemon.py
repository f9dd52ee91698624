"""WebSocket of a real daemon: where it is, who it lets in, and what outlives a connection.

[TPT-002, TPT-021 to TPT-024, TPT-061, TPT-063]
"""

from __future__ import annotations

import hashlib
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, open_websocket_url

from tests.behaviour.conftest import UNHURRIED
from tests.documents import check
from tests.lab import MHSD, PATIENCE_S, HttpWire, Lab, RpcError, Session, WsWire, running, stop, ulid

STEP = "cap.world.step.v1"
CONVEY = "cap.motion.convey.v1"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with running("ws", tmp_path, *UNHURRIED) as lab:
        yield lab


def again(lab: Lab, token: str | None = None) -> Lab:
    """The same daemon over a connection of its own."""
    wire = WsWire(lab.ready["ws_url"], token)
    wire.greet()
    return Lab(wire, lab.process, lab.ready, lab.stderr_file)


def closed_with(lab: Lab) -> int:
    """The code with which the daemon has closed the connection, waited for."""
    wire = lab.wire
    assert isinstance(wire, WsWire)
    assert isinstance(wire.ended(), EOFError)
    assert wire.closed is not None
    return wire.closed[0]


def status_of(url: str, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    place = urlsplit(url)
    connection = HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


# Where it is


def test_websocket_is_where_the_ready_line_and_the_descriptor_say(lab: Lab) -> None:
    """[TPT-002, TPT-021]"""
    url, ws_url = lab.ready["url"], lab.ready["ws_url"]
    assert ws_url == f"ws{url.removeprefix('http')}/mhs/v1/ws"
    descriptor = json.loads(status_of(url, "/.well-known/mhs.json")[1])
    check("endpoint-descriptor", descriptor)
    assert descriptor["transports"]["ws"] == {"url": ws_url, "subprotocol": "mhs.v1"}
    assert "ws" in descriptor["features"]
    assert "ws" in lab.hello()["features"]


def test_a_listener_of_its_own_serves_websocket_alone(tmp_path: Path) -> None:
    """[TPT-002, TPT-021, MHSD-1-09]"""
    with running("ws", tmp_path, *UNHURRIED, "--ws-port", "0") as lab:
        url, ws_url = lab.ready["url"], lab.ready["ws_url"]
        assert urlsplit(url).port != urlsplit(ws_url).port
        assert lab.open().completed(STEP, {"ticks": 1})["status"] == "completed"
        at_ws = f"http://{urlsplit(ws_url).netloc}"
        assert status_of(url, "/mhs/v1/ws")[0] == 404
        assert status_of(at_ws, "/mhs/v1/ws")[0] == 426
        for path in ("/mhs/v1/rpc", "/mhs/v1/events", "/mhs/v1/schema/receipt"):
            assert status_of(at_ws, path)[0] == 404
        descriptors = [json.loads(status_of(at, "/.well-known/mhs.json")[1]) for at in (url, at_ws)]
        assert descriptors[0] == descriptors[1]
        assert descriptors[0]["transports"]["ws"]["url"] == ws_url
        for at in (url, at_ws):
            ticket = json.loads(status_of(at, "/mhs/v1/ws-ticket", "POST", Origin=url)[1])["ticket"]
            WsWire(f"{ws_url}?ticket={ticket}").greet()
        assert stop(lab.process) == 0


def test_the_port_of_http_is_no_second_listener(tmp_path: Path) -> None:
    """[MHSD-1-09]"""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with running("http", tmp_path, "--port", str(port), "--ws-port", str(port)) as lab:
        assert lab.ready["ws_url"] == f"ws://127.0.0.1:{port}/mhs/v1/ws"
        again(lab).hello()


def test_a_port_that_is_taken_is_a_start_error_with_the_address(tmp_path: Path) -> None:
    """[MHSD-1-09]"""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [str(MHSD), "conveyor-workcell", "--port", "0", "--ws-port", port],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
            cwd=tmp_path,
        )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"127.0.0.1:{port}" in done.stderr


def test_with_stdio_there_is_no_websocket(tmp_path: Path) -> None:
    """[TPT-002]"""
    with running("stdio", tmp_path, "--ws-port", "0") as lab:
        assert "ws" not in lab.hello()["features"]
        ready = next(json.loads(line) for line in lab.stderr().splitlines() if line.startswith("{"))
        assert ready["ws_url"] is None


# Who it lets in

TOKENS = {"see": "reader", "act": "client"}


def write_tokens(path: Path, *secrets: str) -> None:
    path.write_text(
        "".join(
            f'[[token]]\nsha256 = "{hashlib.sha256(secret.encode()).hexdigest()}"\n'
            f'principal = "agent:{secret}"\nkind = "agent"\nrole = "{TOKENS[secret]}"\n'
            for secret in secrets
        )
    )
    path.chmod(0o600)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Lab]:
    tokens = tmp_path / "tokens.toml"
    write_tokens(tokens, "see", "act")
    with running("http", tmp_path, *UNHURRIED, "--log-level", "debug", "--token-file", str(tokens)) as lab:
        yield lab


def test_the_token_of_the_upgrade_is_who_acts_and_what_it_may(guarded: Lab) -> None:
    """[TPT-023, TPT-058, TPT-060]"""
    acting, seeing = again(guarded, "act"), again(guarded, "see")
    assert acting.open().completed(STEP, {"ticks": 1})["principal"]["id"] == "agent:act"
    assert seeing.open().command(STEP, {"ticks": 1})["error"]["mhs_code"] == (
        "MHS.SESSION.CAPABILITY_NOT_GRANTED"
    )
    assert status_of(guarded.ready["url"], "/mhs/v1/ws")[0] == 401


def test_a_token_that_is_taken_back_ends_its_connection_and_no_other(guarded: Lab, tmp_path: Path) -> None:
    """[TPT-022, TPT-059]"""
    acting, seeing = again(guarded, "act"), again(guarded, "see")
    write_tokens(tmp_path / "tokens.toml", "act")
    assert closed_with(seeing) == 1008
    assert acting.hello()


def test_a_ticket_is_worth_what_its_token_is_and_is_nowhere_written(guarded: Lab) -> None:
    """[TPT-023, TPT-059]"""
    url = guarded.ready["url"]
    status, body = status_of(url, "/mhs/v1/ws-ticket", "POST", Authorization="Bearer act", Origin=url)
    assert status == 200
    ticket = json.loads(body)["ticket"]
    wire = WsWire(f"{guarded.ready['ws_url']}?ticket={ticket}")
    wire.greet()
    lab = Lab(wire, guarded.process, guarded.ready, guarded.stderr_file)
    receipt = lab.open().completed(STEP, {"ticks": 1})
    assert receipt["principal"]["id"] == "agent:act"
    with pytest.raises(AssertionError, match="401"):
        WsWire(f"{guarded.ready['ws_url']}?ticket={ticket}")
    written = guarded.stderr() + json.dumps(lab.call("mhs.evidence.export"))
    assert ticket not in written
    assert "Bearer" not in written


# What outlives a connection


def world_events(session: Session) -> Any:
    streams = [{"stream": "state", "resource_id": "world"}]
    return session.call("mhs.subscribe", streams=streams, deadline_ms=30_000)


def ticks(lab: Lab, subscription_id: str, last: int) -> list[int]:
    """The ticks that the connection is told of, up to this one; events come with seq upon seq."""
    wire = lab.wire
    assert isinstance(wire, WsWire)
    told: list[int] = []
    while last not in told:
        event = wire.events.get(timeout=PATIENCE_S)["params"]
        assert event["subscription_id"] == subscription_id
        told.append(event["payload"]["tick"])
    return told


def test_a_session_its_operations_and_its_subscriptions_outlive_the_connection(lab: Lab) -> None:
    """[TPT-061, TPT-063]"""
    session = lab.open()
    grant = world_events(session)
    session.completed(STEP, {"ticks": 1})
    assert ticks(lab, grant["subscription_id"], 1) == [1]
    _, running_receipt = session.started(CONVEY, {"distance_mm": 100_000, "speed_mm_s": 1})
    lab.wire.close()
    assert closed_with(lab) == 1000

    other = again(lab)
    continued = Session(other, session.grant)
    assert continued.get(running_receipt["operation_id"])["status"] == "running"
    assert continued.cancel(running_receipt["operation_id"])["status"] == "cancelled"
    continued.completed(STEP, {"ticks": 1})
    assert ticks(other, grant["subscription_id"], 2) == [2]


def test_several_subscriptions_share_a_connection_and_each_has_its_seqs(lab: Lab) -> None:
    """[TPT-021, TPT-024]"""
    sessions = [lab.open(), lab.open()]
    grants = {grant["subscription_id"]: grant for grant in map(world_events, sessions)}
    for _ in range(3):
        sessions[0].completed(STEP, {"ticks": 1})
    wire = lab.wire
    assert isinstance(wire, WsWire)
    seqs: dict[str, list[int]] = {name: [] for name in grants}
    for _ in range(6):
        event = wire.events.get(timeout=PATIENCE_S)["params"]
        check("event", event)
        seqs[event["subscription_id"]].append(event["seq"])
    for name, grant in grants.items():
        assert seqs[name] == [grant["seq_start"] + number for number in range(3)]


def test_a_connection_that_resets_leaves_the_others_alone(lab: Lab) -> None:
    other = again(lab)
    wire = other.wire
    assert isinstance(wire, WsWire)
    wire.reset()
    assert lab.hello()


def test_a_signal_closes_connections_with_1001_after_the_last_answers(lab: Lab) -> None:
    """[TPT-008, TPT-022]"""
    session = lab.open()
    pending, _ = session.started(CONVEY, {"distance_mm": 100_000, "speed_mm_s": 1})
    idle = again(lab)
    silent = socket.create_connection(("127.0.0.1", urlsplit(lab.ready["ws_url"]).port or 0))
    with silent:
        lab.process.send_signal(signal.SIGTERM)
        assert pending.result()["status"] == "cancelled"
        assert (closed_with(lab), closed_with(idle)) == (1001, 1001)
        assert lab.process.wait(PATIENCE_S) == 0


# A client that is not ours


async def test_a_client_that_is_not_ours_finds_all_of_it(lab: Lab) -> None:
    """[TPT-021, TPT-022]"""

    async def ask(socket: WebSocketConnection, method: str, **params: Any) -> Any:
        request_id = ulid()
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        await socket.send_message(json.dumps(message))
        while True:
            answer = json.loads(await socket.get_message())
            if answer.get("id") == request_id:
                return answer

    with trio.fail_after(PATIENCE_S):
        async with open_websocket_url(lab.ready["ws_url"], subprotocols=["mhs.v1"]) as socket:
            assert socket.subprotocol == "mhs.v1"
            first = await ask(socket, "mhs.devices.list")
            assert first["error"]["data"]["details"]["reason"] == "hello_required"
            client = {"name": "tests", "version": "1"}
            assert "result" in await ask(socket, "mhs.hello", client=client, protocol_versions=["1.0"])
            await socket.ping()
            assert (await ask(socket, "mhs.safety.estop", reason="test"))["result"]["status"] == "completed"
            await socket.send_message(b"binary")
            with pytest.raises(ConnectionClosed) as closed:
                await socket.get_message()
            assert closed.value.reason is not None
            assert closed.value.reason.code == 1002


def test_http_and_websocket_answer_alike(lab: Lab) -> None:
    """[TPT-001, TPT-003]"""
    over_http = Lab(HttpWire(lab.ready["url"]), lab.process, lab.ready, lab.stderr_file)
    session = lab.open()
    beside = Session(over_http, session.grant)
    receipt = session.completed(STEP, {"ticks": 2})
    assert beside.get(receipt["operation_id"]) == session.get(receipt["operation_id"])
    for resource in ("world", "belt", "valve"):
        ours, theirs = session.read(resource), beside.read(resource)
        assert {**ours, "sampled_at": None} == {**theirs, "sampled_at": None}
    refusals = []
    for each in (session, beside):
        try:
            each.read("nowhere")
        except RpcError as error:
            refusals.append(error.error)
    assert refusals[0] == refusals[1]
