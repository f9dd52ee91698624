"""The MCP server as a process: sessions, deadlines, what is cancelled when, and the endpoint behind it all."""

import json
import shutil
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.lab import Lab, RpcError, ask_until, running, ulid
from tests.mcp.conftest import Start
from tests.mcp.wire import CONVEYOR, MHSD, NAMED, PATIENCE_S, UNHURRIED, McpProcess, mhs_error_of, receipt_of

DRIVERS = Path(__file__).parents[2] / "drivers"

LONG = {"distance_mm": 100_000, "speed_mm_s": 100}
"""A motion of 1000 s, so that a test ends it and nothing else does."""

SHORT_LIVED = ("--session-max-ttl-s", "1")
"""Sessions of this endpoint are over after a second without a heartbeat."""


@pytest.fixture
async def own(start: Start) -> McpProcess:
    """A server with the conveyor in its own process."""
    return await start()


@pytest.fixture(params=["in process", "elsewhere"])
async def server(request: pytest.FixtureRequest, start: Start, tmp_path: Path) -> AsyncIterator[McpProcess]:
    """A server with the conveyor in its own process, and one of an endpoint that runs elsewhere."""
    if request.param == "in process":
        yield await start()
        return
    (tmp_path / "elsewhere").mkdir()
    with running("http", tmp_path / "elsewhere", *UNHURRIED) as lab:
        yield await start("-e", lab.ready["url"])


async def moving(server: McpProcess, **arguments: Any) -> str | int:
    """A call whose belt runs now: its progress says so."""
    token = ulid()
    call = await server.begin_call(f"{NAMED}motion_convey", {**LONG, **arguments}, progressToken=token)
    await server.until(
        lambda: [told for told in server.notified("notifications/progress") if told["progressToken"] == token]
    )
    return call


async def cancel(server: McpProcess, request_id: Any) -> None:
    await server.notify("notifications/cancelled", {"requestId": request_id})


async def count(server: McpProcess) -> int:
    number: int = (await server.document("mhs__evidence", {"verify": False}))["count"]
    return number


# Sessions


async def test_the_agent_has_the_name_of_its_host(start: Start) -> None:
    """[TPT-036, TPT-048]"""
    server = await start(initialize=False)
    await server.initialize(name="a host")
    receipt = await server.receipt("world_step", {"ticks": 1})
    assert receipt["principal"] == {"id": "agent:mcp/a host", "kind": "agent"}


async def test_a_session_lives_as_long_as_a_call_or_an_operation_is_open_in_it(start: Start) -> None:
    """[TPT-036, MHSD-4-29]"""
    server = await start(*SHORT_LIVED)
    receipt = await server.receipt("motion_convey", {"distance_mm": 1500, "speed_mm_s": 500})
    assert receipt["status"] == "completed", "three seconds are three lives of its session"
    running = await server.receipt(
        "motion_convey", {"distance_mm": 1500, "speed_mm_s": 500, "deadline_ms": 100}
    )
    assert running["status"] == "running"
    ended = await server.document(
        "mhs__operations", {"operation_id": running["operation_id"], "wait_ms": 30_000}
    )
    assert (ended["status"], ended["command_id"]) == ("completed", running["command_id"])


def _is_over(endpoint: Lab, session_id: str) -> bool:
    """Whether a session has ended; asking does not keep it alive."""
    try:
        endpoint.call("mhs.operations.list", session_id=session_id)
    except RpcError as error:
        return error.code == "MHS.SESSION.EXPIRED"
    return False


async def test_what_nobody_uses_expires_and_the_next_call_finds_out_before_it_sends_anything(
    start: Start, tmp_path: Path
) -> None:
    """[TPT-036]"""
    with running("http", tmp_path, *UNHURRIED, *SHORT_LIVED) as endpoint:
        server = await start("-e", endpoint.ready["url"])
        await server.document("mhs__read", {"resource_id": "world"})
        first = await server.receipt("world_step", {"ticks": 1})
        over = partial(ask_until, lambda: _is_over(endpoint, first["session_id"]), bool)
        await trio.to_thread.run_sync(over)
        again = await server.receipt("world_step", {"ticks": 1})
        assert again["status"] == "completed"
        assert again["session_id"] != first["session_id"]
        state = await server.document("mhs__read", {"resource_id": "world"})
        assert state["state"]["tick"] == 2


async def test_a_session_that_was_closed_behind_its_back_refuses_one_command_and_no_read(
    start: Start, endpoint: Lab
) -> None:
    """[TPT-036, TPT-038]"""
    server = await start("-e", endpoint.ready["url"])
    await server.document("mhs__read", {"resource_id": "world"})
    receipt = await server.receipt("world_step", {"ticks": 1})
    listed = endpoint.call("mhs.hello", client={"name": "x", "version": "1"}, protocol_versions=["1.0"])
    assert listed["devices"]
    endpoint.call("mhs.session.close", session_id=receipt["session_id"])
    error = mhs_error_of(await server.call(f"{NAMED}world_step", {"ticks": 1}))
    assert (error["mhs_code"], error["retryable"]) == ("MHS.SESSION.CLOSED", True)
    again = await server.receipt("world_step", {"ticks": 1})
    assert again["output"]["tick"] == 2, "the refused command was not sent a second time"


async def test_a_model_may_name_a_session_of_this_connection(start: Start, tmp_path: Path) -> None:
    """[TPT-048]"""
    server = await start()
    first = await server.receipt("world_step", {"ticks": 1})
    named = await server.receipt("world_step", {"ticks": 1, "session_id": first["session_id"]})
    assert named["session_id"] == first["session_id"]
    # It selects and does not elevate: the session of one capability does not cover another.
    refused = await server.receipt("actuation_valve", {"open": True, "session_id": first["session_id"]})
    assert refused["error"]["mhs_code"] == "MHS.SESSION.CAPABILITY_NOT_GRANTED"
    unknown = await server.call(f"{NAMED}world_step", {"ticks": 1, "session_id": "mhs_s_x"})
    assert mhs_error_of(unknown)["mhs_code"] == "MHS.SESSION.UNKNOWN"


async def test_an_operator_may_let_it_name_any_session(start: Start, endpoint: Lab) -> None:
    """[TPT-048, CORE-130]"""
    foreign = endpoint.open(["cap.world.step.v1"])
    server = await start("-e", endpoint.ready["url"], "--allow-external-sessions")
    receipt = await server.receipt("world_step", {"ticks": 1, "session_id": foreign.id})
    assert (receipt["status"], receipt["session_id"]) == ("completed", foreign.id)
    assert await server.end() == 0
    assert foreign.read("world")["state"]["tick"] == 1, "a session of somebody else is left open"


# Deadlines


async def test_a_call_ends_with_its_deadline_and_the_command_goes_on(server: McpProcess) -> None:
    """[TPT-042]"""
    receipt = await server.receipt("motion_convey", {**LONG, "deadline_ms": 50})
    assert receipt["status"] == "running"
    listed = await server.document("mhs__operations")
    assert [each["operation_id"] for each in listed["operations"]] == [receipt["operation_id"]]
    ended = await server.document("mhs__operations", {"cancel_operation_id": receipt["operation_id"]})
    assert (ended["status"], ended["cancellation"]["safe_state_achieved"]) == ("cancelled", True)


async def test_a_device_that_hangs_is_unknown_at_the_deadline(server: McpProcess) -> None:
    """[TPT-038, TPT-042]"""
    await server.receipt("sim_fault", {"kind": "hang", "times": 1})
    receipt = await server.receipt("actuation_valve", {"open": True, "deadline_ms": 100})
    assert receipt["status"] == "unknown"
    assert receipt["error"]["mhs_code"] == "MHS.OUTCOME.TIMEOUT"


async def test_a_deadline_that_the_endpoint_does_not_allow_is_its_error(server: McpProcess) -> None:
    """[CORE-131]"""
    error = mhs_error_of(await server.call(f"{NAMED}world_step", {"ticks": 1, "deadline_ms": 10**9}))
    assert error["mhs_code"] == "MHS.PROTOCOL.DEADLINE_INVALID"


async def test_an_endpoint_that_takes_a_connection_and_says_nothing_holds_nobody_up(start: Start) -> None:
    """[TPT-042, MHSD-9a-85]"""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = await start("-e", f"http://127.0.0.1:{silent.getsockname()[1]}")
        call = await server.begin_call(f"{NAMED}world_step", {"ticks": 1})
        assert await server.request("ping") == {}
        assert mhs_error_of(await server.answer(call))["mhs_code"] == "MHS.TRANSPORT.UNAVAILABLE"
        assert await server.end() == 0


# Cancelling


async def test_a_call_that_is_cancelled_in_the_queue_is_never_sent(server: McpProcess) -> None:
    """[TPT-036, TPT-041]"""
    first = await moving(server)
    queued = await server.begin_call(f"{NAMED}world_step", {"ticks": 1})
    await cancel(server, queued)
    await cancel(server, first)
    assert receipt_of(await server.answer(first))["status"] == "cancelled"
    error = mhs_error_of(await server.answer(queued))
    assert error["details"]["reason"] == "cancelled_before_dispatch"
    assert await count(server) == 1


async def test_a_short_command_is_cancelled_too(server: McpProcess) -> None:
    """[TPT-041]"""
    await server.receipt("sim_fault", {"kind": "hang", "times": 1})
    arguments = {"open": True, "deadline_ms": 60_000}
    call = await server.begin_call(f"{NAMED}actuation_valve", arguments, progressToken="dispatched")
    await server.until(lambda: server.notified("notifications/progress"))
    await cancel(server, call)
    receipt = receipt_of(await server.answer(call))
    assert receipt["status"] == "cancelled"
    assert receipt["cancellation"]["requested_by"] == receipt["principal"]["id"]


async def test_many_calls_that_are_cancelled_at_once_have_one_response_each(server: McpProcess) -> None:
    """[TPT-041, MHSD-8-08]"""
    calls = []
    for number in range(40):
        arguments = {"distance_mm": 1, "speed_mm_s": 500} if number % 2 else LONG
        call = await server.begin_call(f"{NAMED}motion_convey", arguments, progressToken=number)
        await cancel(server, call)
        calls.append(call)
    for call in calls:
        result = await server.answer(call)
        if not result["isError"]:
            assert receipt_of(result)["status"] in ("cancelled", "completed")
    assert await server.request("ping") == {}
    assert all(len(server.responses(call)) == 1 for call in calls)
    for call, number in zip(calls, range(40), strict=True):
        told = [
            index
            for index, message in enumerate(server.messages)
            if message.get("params", {}).get("progressToken") == number
        ]
        answered = next(index for index, message in enumerate(server.messages) if message.get("id") == call)
        assert all(index < answered for index in told), "no progress after the response"


async def test_waiting_for_an_operation_can_be_cancelled_without_cancelling_it(server: McpProcess) -> None:
    """[TPT-044]"""
    running = await server.receipt("motion_convey", {**LONG, "deadline_ms": 50})
    wanted = {"operation_id": running["operation_id"], "wait_ms": 60_000}
    waiting = await server.begin_call("mhs__operations", wanted)
    await cancel(server, waiting)
    shown = (await server.answer(waiting))["structuredContent"]
    assert (shown["operation_id"], shown["status"]) == (running["operation_id"], "running")
    await server.document("mhs__operations", {"cancel_operation_id": running["operation_id"]})


async def test_an_operation_that_there_is_not_is_unknown(server: McpProcess) -> None:
    for name in ("operation_id", "cancel_operation_id"):
        error = mhs_error_of(await server.call("mhs__operations", {name: "op_01ARYZ6S41000G40R40M30E209"}))
        assert error["mhs_code"] == "MHS.OPERATION.UNKNOWN"


# The streams


async def test_a_driver_that_prints_does_not_disturb_the_protocol(start: Start, tmp_path: Path) -> None:
    """[TPT-005]"""
    package = tmp_path / "noisy"
    shutil.copytree(DRIVERS / "conveyor_workcell", package, ignore=shutil.ignore_patterns("tests"))
    with (package / "driver.py").open("a") as file:
        file.write(
            "\nimport os\nprint('{\"jsonrpc\": \"2.0\"}', flush=True)\nos.write(1, b'noise\\n')\n"
            "os.system('echo from a child; cat')\n"
        )
    server = await start(str(package))
    assert (await server.receipt("world_step", {"ticks": 1}))["status"] == "completed"
    assert await server.end() == 0
    for noise in ('{"jsonrpc": "2.0"}', "noise", "from a child"):
        assert noise in server.stderr()


# The order


async def test_everything_but_the_priority_path_is_served_in_order(server: McpProcess) -> None:
    """[CORE-079, CORE-132]"""
    motion = await moving(server)
    listing = await server.begin("tools/list")
    stop = await server.begin_call("mhs__estop", {"reason": "a test"})
    receipt = (await server.answer(stop))["structuredContent"]["receipt"]
    assert receipt["status"] == "completed"
    assert receipt_of(await server.answer(motion))["cancellation"]["reason"] == "estop"
    assert (await server.answer(listing))["tools"]
    order = [message["id"] for message in server.messages if "id" in message and message["id"] != 1]
    assert order.index(motion) < order.index(listing)


@pytest.mark.parametrize(("line", "answered"), [("[%s]", None), ("%s, {}", "s")])
async def test_a_stop_in_a_message_that_is_refused_stops(
    server: McpProcess, line: str, answered: str | None
) -> None:
    """[CORE-076]"""
    motion = await moving(server)
    stop = {"jsonrpc": "2.0", "id": "s", "method": "tools/call", "params": {"name": "mhs__estop"}}
    await server.send_line((line % json.dumps(stop)).encode())
    assert receipt_of(await server.answer(motion))["cancellation"]["reason"] == "estop"
    refused = await server.response(answered)
    assert refused["error"]["code"] in (-32600, -32700)
    assert (await server.document("mhs__safety"))["estop"]["engaged"] is True
    assert len(server.responses("s")) == (answered == "s")


async def test_somebody_at_the_machine_can_stop_what_a_model_has_started(
    own: McpProcess, tmp_path: Path
) -> None:
    """[MHSD-9a-54]"""
    motion = await moving(own)
    (path,) = (tmp_path / "run").glob("mcp-*.sock")
    stop = {"jsonrpc": "2.0", "id": 1, "method": "mhs.safety.estop", "params": {"reason": "a person"}}
    body = json.dumps(stop).encode()
    head = b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    async with await trio.open_unix_socket(path) as stream:
        await stream.send_all(head + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
        answer = b"".join([bytes(chunk) async for chunk in stream])
    assert b'"completed"' in answer
    assert receipt_of(await own.answer(motion))["cancellation"]["reason"] == "estop"


async def test_a_signal_stops_what_moves_and_answers_it(server: McpProcess) -> None:
    """[TPT-008, TPT-009]"""
    motion = await moving(server)
    server.process.terminate()
    assert receipt_of(await server.answer(motion))["status"] == "cancelled"
    with trio.fail_after(PATIENCE_S):
        assert await server.process.wait() == 0


# An endpoint somewhere else


async def test_the_end_of_the_input_stops_what_moves_elsewhere_too(start: Start, endpoint: Lab) -> None:
    """[TPT-008]"""
    server = await start("-e", endpoint.ready["url"])
    motion = await moving(server)
    assert await server.end() == 0
    receipt = receipt_of(await server.answer(motion))
    assert (receipt["status"], receipt["cancellation"]["safe_state_achieved"]) == ("cancelled", True)
    assert endpoint.open().read("belt")["state"]["running"] is False


async def test_an_endpoint_that_comes_up_later_is_told_of(start: Start, tmp_path: Path) -> None:
    """[MHSD-9a-85]"""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    server = await start("-e", f"http://127.0.0.1:{port}")
    assert server.initialized["capabilities"]["tools"] == {"listChanged": True}
    (tmp_path / "later").mkdir()
    with running("http", tmp_path / "later", *UNHURRIED, "--port", str(port)):
        await server.until(lambda: server.notified("notifications/tools/list_changed"))
        names = [tool["name"] for tool in (await server.request("tools/list"))["tools"]]
        assert f"{NAMED}world_step" in names
        assert (await server.receipt("world_step", {"ticks": 1}))["status"] == "completed"
    error = mhs_error_of(await server.call(f"{NAMED}world_step", {"ticks": 1}))
    assert error["mhs_code"] == "MHS.TRANSPORT.UNAVAILABLE"
    # The same endpoint with another device: the tools are other ones.
    with running(
        "http", tmp_path / "later", *UNHURRIED, "--port", str(port), targets=["conveyor-workcell@/lab/other"]
    ):
        await server.until(lambda: len(server.notified("notifications/tools/list_changed")) == 2)
        names = [tool["name"] for tool in (await server.request("tools/list"))["tools"]]
        assert f"{NAMED}world_step" not in names
        assert "mhs__lab_other__world_step" in names
        stepped = receipt_of(await server.call("mhs__lab_other__world_step", {"ticks": 1}))
        assert stepped["status"] == "completed"
    assert await server.end() == 0


async def test_an_endpoint_is_reached_by_its_local_socket(
    start: Start, endpoint: Lab, tmp_path: Path
) -> None:
    """[TPT-053]"""
    (path,) = (tmp_path / "endpoint" / "run").glob("*.sock")
    server = await start("-e", f"unix:{path}")
    assert (await server.receipt("world_step", {"ticks": 1}))["status"] == "completed"
    assert await server.end() == 0


def _token(tmp_path: Path, name: str, role: str) -> str:
    """A secret of this role, in a file for the client; the endpoint's entry for it."""
    from hashlib import sha256

    secret = f"mhs_{name}_{ulid()}"
    file = tmp_path / name
    file.write_text(secret + "\n")
    file.chmod(0o600)
    digest = sha256(secret.encode()).hexdigest()
    return (
        f'[[token]]\nsha256 = "{digest}"\nprincipal = "service:{name}"\nkind = "service"\nrole = "{role}"\n'
    )


async def test_a_token_for_reading_has_tools_that_read(start: Start, tmp_path: Path) -> None:
    """[TPT-046, TPT-060]"""
    table = tmp_path / "tokens.toml"
    table.write_text(_token(tmp_path, "reader", "reader") + _token(tmp_path, "writer", "client"))
    table.chmod(0o600)
    (tmp_path / "endpoint").mkdir()
    with running("http", tmp_path / "endpoint", *UNHURRIED, "--token-file", str(table)) as endpoint:
        url = endpoint.ready["url"]
        reader = await start("-e", url, "--token-file", str(tmp_path / "reader"))
        tools = (await reader.request("tools/list"))["tools"]
        own = {tool["name"].removeprefix(NAMED) for tool in tools if tool["name"].startswith(NAMED)}
        assert "device_describe" in own
        assert own.isdisjoint({"actuation_valve", "motion_convey", "device_configure"})
        assert (await reader.document("mhs__read", {"resource_id": "world"}))["revision"] == 0
        writer = await start("-e", url, "--token-file", str(tmp_path / "writer"))
        receipt = await writer.receipt("actuation_valve", {"open": True})
        assert receipt["principal"] == {"id": "service:writer", "kind": "service"}
        for server in (reader, writer):
            assert await server.end() == 0


async def test_a_token_that_is_not_accepted_ends_the_start(start: Start, tmp_path: Path) -> None:
    """[TPT-053]"""
    table = tmp_path / "tokens.toml"
    table.write_text(_token(tmp_path, "good", "client"))
    table.chmod(0o600)
    _token(tmp_path, "bad", "client")
    (tmp_path / "endpoint").mkdir()
    with running("http", tmp_path / "endpoint", *UNHURRIED, "--token-file", str(table)) as endpoint:
        for file, code in (("bad", 4), ("missing", 2)):
            server = await start(
                "-e", endpoint.ready["url"], "--token-file", str(tmp_path / file), initialize=False
            )
            with trio.fail_after(PATIENCE_S):
                assert await server.process.wait() == code
            await server.until_ended()
            assert "Traceback" not in server.stderr()


# Lists, resources, logs


async def test_long_lists_come_in_pages(start: Start) -> None:
    """[TPT-043]"""
    targets = [f"conveyor-workcell@/lab/belt{number:02}" for number in range(30)]
    server = await start(*targets)
    uris: list[str] = []
    cursor: dict[str, Any] = {}
    pages = 0
    while True:
        listed = await server.request("resources/list", cursor or None)
        uris += [each["uri"] for each in listed["resources"]]
        pages += 1
        if "nextCursor" not in listed:
            break
        cursor = {"cursor": listed["nextCursor"]}
    assert pages > 1
    assert len(uris) == len(set(uris)) == 1 + 30 * 4
    for bad in ("x", "", cursor["cursor"] + "x", 7):
        assert (await server.refused("resources/list", {"cursor": bad}))["code"] == -32602
    read = await server.request("resources/read", {"uri": uris[-1]})
    assert json.loads(read["contents"][0]["text"])["state"] == {"open": False}
    # With thirty devices a fixed tool must be told which one is meant.
    error = mhs_error_of(await server.call("mhs__read", {"resource_id": "belt"}))
    assert error["details"]["field"] == "device_id"


async def test_a_state_read_as_a_resource_is_the_state_that_the_tool_reads(server: McpProcess) -> None:
    """[TPT-043]"""
    uri = "mhs://localhost:7400/devices/lab/conveyor-workcell/resources/world"
    read = await server.request("resources/read", {"uri": uri})
    (content,) = read["contents"]
    assert (content["uri"], content["mimeType"]) == (uri, "application/json")
    document = await server.document("mhs__read", {"resource_id": "world", "device_id": CONVEYOR})
    assert {**json.loads(content["text"]), "sampled_at": ""} == {**document, "sampled_at": ""}


async def test_a_client_hears_at_its_level_when_the_endpoint_is_back(start: Start, tmp_path: Path) -> None:
    """[TPT-045]"""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    loud = await start("-e", f"http://127.0.0.1:{port}")
    quiet = await start("-e", f"http://127.0.0.1:{port}")
    await loud.request("logging/setLevel", {"level": "debug"})
    await quiet.request("logging/setLevel", {"level": "error"})
    (tmp_path / "later").mkdir()
    with running("http", tmp_path / "later", *UNHURRIED, "--port", str(port)):
        for server in (loud, quiet):
            await server.until(lambda server=server: server.notified("notifications/tools/list_changed"))
        await loud.until(lambda: loud.notified("notifications/message"))
        assert await quiet.request("ping") == {}
        assert quiet.notified("notifications/message") == []


async def test_the_evidence_of_one_command_and_the_whole_bundle(server: McpProcess) -> None:
    """[TPT-044]"""
    first = await server.receipt("world_step", {"ticks": 1})
    for _ in range(12):
        await server.receipt("world_step", {"ticks": 1})
    document = await server.document("mhs__evidence")
    assert (document["count"], document["valid"], len(document["receipts"])) == (13, True, 10)
    one = await server.document("mhs__evidence", {"command_id": first["command_id"]})
    assert [each["receipt_id"] for each in one["receipts"]] == [first["receipt_id"]]
    bundle = (await server.document("mhs__evidence", {"include_bundle": True, "last_n": 1}))["bundle"]
    assert len(bundle["receipts"]) == 13
    piece = await server.request("resources/read", {"uri": document["uri"]})
    assert json.loads(piece["contents"][0]["text"]) == {**bundle, "created_at": bundle["created_at"]}


async def test_a_policy_that_turns_the_projection_off_serves_nothing(start: Start, tmp_path: Path) -> None:
    """[CORE-130]"""
    policy = tmp_path / "policy.toml"
    policy.write_text("enabled = false\n")
    server = await start("--mcp-config", str(policy), initialize=False)
    with trio.fail_after(PATIENCE_S):
        assert await server.process.wait() == 4
    await server.until_ended()
    assert "enabled = false" in server.stderr()


async def test_it_is_the_same_through_the_operators_program(start: Start) -> None:
    """[TPT-053]"""
    server = await start(program=(str(MHSD.with_name("mhsctl")), "serve"))
    assert server.initialized["serverInfo"]["name"] == "mhs-mcp:mhs://localhost:7400"
    assert (await server.receipt("world_step", {"ticks": 1}))["status"] == "completed"
    assert await server.end() == 0
