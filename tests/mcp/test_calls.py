"""Calls as a host makes them: outcomes, tokens, progress, cancellation, the stop, and the end [TPT-036 to TPT-042]."""

import json
import shutil
import socket
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import trio

from mhsd.base.resources import drivers_dir
from tests.lab import Lab, running
from tests.mcp.conftest import Start
from tests.mcp.wire import CONVEYOR, NAMED, PATIENCE_S, UNHURRIED, McpProcess, mhs_error_of, receipt_of

LONG = {"distance_mm": 100_000, "speed_mm_s": 100}
"""A motion of 1000 s, so that a test ends it and nothing else does."""
ULID = "01ARYZ6S41000G40R40M30E209"


@pytest.fixture
async def server(start: Start) -> McpProcess:
    return await start()


async def moving(server: McpProcess, arguments: Any = LONG, **meta: Any) -> str | int:
    """A call whose belt runs now: its progress says so."""
    request_id = await server.begin_call(f"{NAMED}motion_convey", arguments, progressToken="moving", **meta)
    await server.until(lambda: server.notified("notifications/progress"))
    return request_id


async def cancel(server: McpProcess, request_id: Any) -> None:
    await server.notify("notifications/cancelled", {"requestId": request_id, "reason": "not wanted"})


# Outcomes


async def test_a_physical_refusal_is_an_outcome_and_no_error(server: McpProcess) -> None:
    """[TPT-038]"""
    receipt = await server.receipt("motion_convey", {"distance_mm": 5, "speed_mm_s": 900})
    assert receipt["status"] == "rejected"
    assert receipt["error"]["mhs_code"] == "MHS.SAFETY.ENVELOPE_VIOLATION"
    shown = await server.document("mhs__evidence", {"command_id": receipt["command_id"]})
    assert [each["receipt_id"] for each in shown["receipts"]] == [receipt["receipt_id"]]


async def test_arguments_that_do_not_fit_are_refused_here_and_nothing_is_sent(server: McpProcess) -> None:
    """[TPT-036, TPT-038]"""
    before = await server.document("mhs__evidence")
    result = await server.call(f"{NAMED}world_step", {"ticks": 0})
    error = mhs_error_of(result)
    assert error["mhs_code"] == "MHS.CAPABILITY.INPUT_INVALID"
    text = result["content"][0]["text"]
    assert text == "MHS.CAPABILITY.INPUT_INVALID: ticks: must be at least 1 {tick}"
    assert (await server.document("mhs__evidence"))["count"] == before["count"]


async def test_a_failed_command_is_a_receipt(server: McpProcess) -> None:
    """[TPT-038]"""
    await server.receipt("sim_fault", {"kind": "fail", "times": 1})
    receipt = await server.receipt("actuation_valve", {"open": True})
    assert (receipt["status"], receipt["error"]["mhs_code"]) == ("failed", "MHS.DEVICE.FAULT")


async def test_a_running_receipt_names_its_operation(server: McpProcess) -> None:
    """[TPT-038, TPT-042]"""
    result = await server.call(f"{NAMED}motion_convey", {**LONG, "deadline_ms": 200})
    receipt = receipt_of(result)
    assert receipt["status"] == "running"
    operation = result["structuredContent"]["operation"]
    assert operation == {
        "operation_id": receipt["operation_id"],
        "status": "running",
        "long_running": True,
        "deadline_ms": 200,
        "max_duration_ms": 120_000,
    }
    listed = await server.document("mhs__operations")
    assert receipt["operation_id"] in [each["operation_id"] for each in listed["operations"]]
    ended = await server.document("mhs__operations", {"cancel_operation_id": receipt["operation_id"]})
    assert ended["status"] == "cancelled"
    assert ended["cancellation"]["safe_state_achieved"] is True


async def test_a_revision_that_has_passed_is_a_conflict(server: McpProcess) -> None:
    """[TPT-033, CORE-131]"""
    receipt = await server.receipt("world_step", {"ticks": 1, "expected_revision": 7})
    assert receipt["error"]["mhs_code"] == "MHS.CONFLICT.REVISION"


# Which command


async def test_a_ulid_is_the_commands_own_id(server: McpProcess) -> None:
    """[TPT-036]"""
    receipt = await server.receipt("world_step", {"ticks": 1, "command_id": ULID})
    assert receipt["command_id"] == ULID


@pytest.mark.parametrize("how", ["argument", "meta"])
async def test_one_token_acts_once(server: McpProcess, how: str) -> None:
    """[TPT-036]"""

    async def step(ticks: int) -> dict[str, Any]:
        if how == "meta":
            return await server.receipt("world_step", {"ticks": ticks}, retryToken="again")
        return await server.receipt("world_step", {"ticks": ticks, "command_id": "again"})

    first, second = await step(2), await step(2)
    assert second == {**first, "replayed": True}
    other = await step(3)
    assert other["error"]["mhs_code"] == "MHS.CONFLICT.COMMAND_ID_REUSE"
    assert (await server.document("mhs__read", {"resource_id": "world"}))["state"]["tick"] == 2


async def test_calls_without_a_token_are_commands_of_their_own(server: McpProcess) -> None:
    """[TPT-036]"""
    receipts = [await server.receipt("world_step", {"ticks": 1}) for _ in range(3)]
    assert len({receipt["command_id"] for receipt in receipts}) == 3
    assert [receipt["output"]["tick"] for receipt in receipts] == [1, 2, 3]
    assert len({receipt["session_id"] for receipt in receipts}) == 1


async def test_each_capability_has_a_session_of_its_own(server: McpProcess) -> None:
    """[TPT-036]"""
    step = await server.receipt("world_step", {"ticks": 1})
    valve = await server.receipt("actuation_valve", {"open": True})
    assert step["session_id"] != valve["session_id"]


async def test_an_endpoint_that_has_been_started_again_is_used_as_before(
    start: Start, tmp_path: Path
) -> None:
    """[TPT-036]"""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])

    def begin(name: str) -> AbstractContextManager[Lab]:
        (tmp_path / name).mkdir()
        return running("http", tmp_path / name, *UNHURRIED, "--port", port)

    with begin("first"):
        server = await start("-e", f"http://127.0.0.1:{port}")
        await server.document("mhs__read", {"resource_id": "belt"})
        await server.receipt("world_step", {"ticks": 1})
    with begin("second"):
        read = await server.document("mhs__read", {"resource_id": "world"})
        assert read["state"]["tick"] == 0
        ended = mhs_error_of(await server.call(f"{NAMED}world_step", {"ticks": 1}))
        assert ended["mhs_code"] == "MHS.SESSION.UNKNOWN"
        assert (await server.receipt("world_step", {"ticks": 1}))["output"]["tick"] == 1


# Progress


async def test_progress_is_told_to_whoever_asked_for_it(server: McpProcess) -> None:
    """[TPT-040]"""
    call = await server.begin_call(
        f"{NAMED}motion_convey", {"distance_mm": 200, "speed_mm_s": 400}, progressToken=7
    )
    receipt = receipt_of(await server.answer(call))
    assert receipt["status"] == "completed"
    told = server.notified("notifications/progress")
    assert told
    assert all(each["progressToken"] == 7 for each in told)
    assert all(each["total"] == 100 for each in told)
    values = [each["progress"] for each in told]
    assert values == sorted(set(values))
    assert all(each["message"] for each in told)
    assert server.messages[-1]["id"] == call


async def test_progress_is_told_to_whoever_follows_an_operation(server: McpProcess) -> None:
    """[TPT-040]"""
    moved = await server.receipt("motion_convey", {"distance_mm": 400, "speed_mm_s": 400, "deadline_ms": 50})
    followed = {"operation_id": moved["operation_id"], "wait_ms": 60_000}
    call = await server.begin_call("mhs__operations", followed, progressToken="follow")
    ended = (await server.answer(call))["structuredContent"]
    assert ended["status"] == "completed"
    told = server.notified("notifications/progress")
    assert {each["progressToken"] for each in told} == {"follow"}
    assert server.messages[-1]["id"] == call


async def test_progress_is_told_to_nobody_else(server: McpProcess) -> None:
    """[TPT-040]"""
    await server.receipt("motion_convey", {"distance_mm": 50, "speed_mm_s": 400})
    assert server.notified("notifications/progress") == []


# Cancellation


async def test_a_cancelled_call_answers_the_receipt_of_its_end(server: McpProcess) -> None:
    """[TPT-041, MHSD-8-08]"""
    call = await moving(server)
    await cancel(server, call)
    receipt = receipt_of(await server.answer(call))
    assert receipt["status"] == "cancelled"
    assert receipt["cancellation"]["safe_state_achieved"] is True
    belt = await server.document("mhs__read", {"resource_id": "belt"})
    assert belt["state"]["running"] is False
    kinds = [message.get("method", message.get("id")) for message in server.messages]
    assert kinds.count(call) == 1
    assert "notifications/progress" not in kinds[kinds.index(call) :]


async def test_a_host_that_wants_silence_after_a_cancellation_has_it(start: Start, tmp_path: Path) -> None:
    """[MHSD-8-08]"""
    (tmp_path / "host.toml").write_text('cancel_response = "none"\n')
    server = await start("--mcp-config", str(tmp_path / "host.toml"))
    call = await moving(server)
    await cancel(server, call)
    belt = await server.document("mhs__read", {"resource_id": "belt"})
    assert belt["state"]["running"] is False
    assert server.responses(call) == []


async def test_a_cancellation_that_comes_too_late_changes_nothing(server: McpProcess) -> None:
    """[TPT-041]"""
    call = await server.begin_call(f"{NAMED}world_step", {"ticks": 1})
    await server.answer(call)
    for request_id in (call, 99, "x", None, True):
        await cancel(server, request_id)
    assert await server.request("ping") == {}
    assert len(server.responses(call)) == 1


# The priority path


async def test_a_stop_is_answered_while_a_call_is_in_flight(server: McpProcess) -> None:
    """[TPT-041, TPT-044, CORE-079, CORE-132]"""
    call = await moving(server)
    waiting = await server.begin_call("mhs__read", {"resource_id": "belt"})
    result = await server.call("mhs__estop", {"reason": "smoke"})
    stop = result["structuredContent"]["receipt"]
    assert (stop["status"], stop["output"]["latched"]) == ("completed", True)
    ended = receipt_of(await server.answer(call))
    assert (ended["status"], ended["cancellation"]["reason"]) == ("cancelled", "estop")
    assert (await server.answer(waiting))["structuredContent"]["state"]["running"] is False
    refused = await server.receipt("actuation_valve", {"open": True})
    assert refused["error"]["mhs_code"] == "MHS.SAFETY.ESTOP_LATCHED"
    safety = await server.document("mhs__safety")
    assert safety["estop"]["reason"] == "smoke"


async def test_a_ping_is_answered_while_a_call_is_in_flight(server: McpProcess) -> None:
    """[TPT-041, CORE-132]"""
    call = await moving(server)
    assert await server.request("ping") == {}
    assert server.responses(call) == []
    await cancel(server, call)
    await server.answer(call)


@pytest.mark.parametrize("arguments", [{}, {"device_id": 7}, {"reason": ["x"]}, {"colour": "red"}])
async def test_a_stop_needs_nothing(start: Start, arguments: Any) -> None:
    """[TPT-044, CORE-076]"""
    server = await start(initialize=False)
    result = await server.call("mhs__estop", arguments)
    assert result["structuredContent"]["receipt"]["output"]["latched"] is True


# Fixed tools


async def test_the_fixed_tools_answer_their_documents(server: McpProcess) -> None:
    """[TPT-044]"""
    (device,) = (await server.document("mhs__devices"))["devices"]
    assert device["device_id"] == CONVEYOR
    assert f"{NAMED}world_step" in device["tools"]
    inspected = await server.document("mhs__inspect")
    assert inspected["device_id"] == CONVEYOR
    assert "x-mhs-reference" in inspected
    read = await server.document("mhs__read", {"resource_id": "belt", "fields": ["running"]})
    assert read["state"] == {"running": False}
    safety = await server.document("mhs__safety")
    assert (safety["risk_class"], safety["estop"]["engaged"]) == ("R1", False)
    assert (await server.document("mhs__operations")) == {"operations": []}


async def test_evidence_without_news_is_as_valid_as_before(server: McpProcess) -> None:
    """[TPT-044]"""
    empty = await server.document("mhs__evidence")
    assert (empty["count"], empty["valid"]) == (0, True)
    assert await server.document("mhs__evidence") == empty
    receipt = await server.receipt("world_step", {"ticks": 1})
    shown = await server.document("mhs__evidence")
    assert (shown["count"], shown["valid"]) == (1, True)
    assert shown["head_digest"] == receipt["evidence"]["digest"]
    assert await server.document("mhs__evidence") == shown


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("mhs__reset", {}), ("mhs__permit", {"capability_id": "cap.actuation.purge.v1", "input": {}})],
)
async def test_operator_tools_are_a_human_decision(server: McpProcess, name: str, arguments: Any) -> None:
    """[TPT-044, CORE-130]"""
    result = await server.call(name, arguments)
    assert mhs_error_of(result)["mhs_code"] == "MHS.AUTH.FORBIDDEN"
    assert "policy operator_tools=false" in result["content"][0]["text"]


async def test_an_operators_host_can_permit_and_reset(start: Start) -> None:
    """[TPT-044, CORE-130]"""
    server = await start("--operator-tools")
    purge = {"duration_ms": 1}
    refused = await server.receipt("actuation_purge", purge)
    assert refused["error"]["mhs_code"] == "MHS.SAFETY.APPROVAL_REQUIRED"
    permit = await server.document("mhs__permit", {"capability_id": "cap.actuation.purge.v1", "input": purge})
    done = await server.receipt("actuation_purge", {**purge, "permit_id": permit["permit_id"]})
    assert done["status"] == "completed"
    await server.call("mhs__estop")
    reset = (await server.call("mhs__reset"))["structuredContent"]["receipt"]
    assert reset["status"] == "completed"
    assert (await server.receipt("actuation_valve", {"open": True}))["status"] == "completed"


async def test_a_read_only_host_is_offered_what_reads_and_the_stop(start: Start, tmp_path: Path) -> None:
    """[TPT-046]"""
    (tmp_path / "host.toml").write_text("read_only = true\n")
    server = await start("--mcp-config", str(tmp_path / "host.toml"))
    names = {tool["name"] for tool in (await server.request("tools/list"))["tools"]}
    assert {name for name in names if name.startswith(NAMED)} == {f"{NAMED}device_describe"}
    assert "mhs__estop" in names
    result = await server.call(f"{NAMED}actuation_valve", {"open": True})
    assert mhs_error_of(result)["mhs_code"] == "MHS.AUTH.FORBIDDEN"
    assert (await server.receipt("device_describe"))["status"] == "completed"


async def test_a_host_is_offered_only_what_its_policy_lists(start: Start, tmp_path: Path) -> None:
    """[TPT-046]"""
    (tmp_path / "host.toml").write_text(
        'devices = ["/lab/two"]\ncapabilities = ["cap.world.*", "cap.measure.*"]\n'
    )
    targets = ("conveyor-workcell@/lab/one", "conveyor-workcell@/lab/two")
    server = await start(*targets, "--mcp-config", str(tmp_path / "host.toml"))
    (device,) = (await server.document("mhs__devices"))["devices"]
    assert device["tools"] == ["mhs__lab_two__world_step"]
    assert (await server.call("mhs__lab_two__world_step", {"ticks": 1}))["isError"] is False
    withheld = mhs_error_of(await server.call("mhs__lab_two__actuation_valve", {"open": True}))
    assert withheld["details"]["policy"] == "capabilities"
    assert (await server.refused("tools/call", {"name": "mhs__lab_one__world_step"}))["code"] == -32602
    result = await server.call("mhs__inspect", {"device_id": "mhs://localhost:7400/lab/one"})
    assert mhs_error_of(result)["mhs_code"] == "MHS.DEVICE.UNKNOWN"
    uris = [resource["uri"] for resource in (await server.request("resources/list"))["resources"]]
    assert not any("/lab/one" in uri for uri in uris)


# The end, and the start


async def test_the_end_of_the_input_is_the_end(server: McpProcess) -> None:
    """[TPT-008]"""
    await server.receipt("world_step", {"ticks": 1})
    assert await server.end() == 0


async def test_the_end_of_the_input_stops_what_moves(server: McpProcess) -> None:
    """[TPT-008]"""
    call = await moving(server)
    assert await server.end() == 0
    receipt = receipt_of(server.responses(call)[0]["result"])
    assert receipt["status"] == "cancelled"


async def test_a_file_of_requests_is_answered_to_its_end(start: Start) -> None:
    server = await start()
    calls = [await server.begin_call(f"{NAMED}world_step", {"ticks": 1}) for _ in range(20)]
    assert await server.end() == 0
    ticks = [receipt_of(server.responses(call)[0]["result"])["output"]["tick"] for call in calls]
    assert ticks == list(range(1, 21))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ("conveyor-workcell@/a/b-c", "conveyor-workcell@/a/b_c"),
            1,
            "two MCP tools would be named mhs__a_b_c__",
        ),
        (("--mcp-config", "nowhere.toml"), 2, "cannot read the host policy"),
        (("no-such-thing",), 2, "no-such-thing"),
    ],
)
async def test_what_cannot_be_served_ends_the_start(
    start: Start, arguments: tuple[str, ...], code: int, words: str
) -> None:
    """[TPT-032, TPT-053]"""
    server = await start(*arguments, initialize=False)
    with trio.fail_after(PATIENCE_S):
        assert await server.process.wait() == code
    await server.until_ended()
    assert words in server.stderr()
    assert "Traceback" not in server.stderr()
    assert server.messages == []


async def test_an_endpoint_elsewhere_with_a_collision_ends_the_start_too(
    start: Start, tmp_path: Path
) -> None:
    """[TPT-032]"""
    (tmp_path / "endpoint").mkdir()
    targets = ("conveyor-workcell@/a/b-c", "conveyor-workcell@/a/b_c")
    with running("http", tmp_path / "endpoint", *UNHURRIED, targets=targets) as endpoint:
        server = await start("-e", endpoint.ready["url"], initialize=False)
        with trio.fail_after(PATIENCE_S):
            assert await server.process.wait() == 1
        await server.until_ended()
    assert "two MCP tools would be named mhs__a_b_c__" in server.stderr()
    assert "Traceback" not in server.stderr()


async def test_logs_and_the_ready_line_go_to_stderr(start: Start) -> None:
    """[TPT-005, TPT-053]"""
    server = await start("--log-level", "debug")
    await server.receipt("sim_fault", {"kind": "raise", "times": 1})
    assert (await server.receipt("actuation_valve", {"open": True}))["status"] == "failed"
    ready = next(line for line in server.stderr().splitlines() if "mhs_ready" in line)
    assert json.loads(ready)["url"] is None
    assert await server.end() == 0


NOISY = """
import os

print("imported")


async def _noisy_read(self, resource_ids, quiet=Conveyor.read):
    print("read")
    os.write(1, b"written\\n")
    os.system("echo a child")
    return await quiet(self, resource_ids)


Conveyor.read = _noisy_read
"""


async def test_a_driver_that_prints_does_not_reach_the_protocol(start: Start, tmp_path: Path) -> None:
    """[TPT-005]"""
    directory = tmp_path / "noisy"
    shutil.copytree(drivers_dir() / "conveyor_workcell", directory)
    driver = directory / "driver.py"
    driver.write_text(driver.read_text() + NOISY)
    server = await start(str(directory))
    assert (await server.document("mhs__read", {"resource_id": "belt"}))["revision"] == 0
    assert await server.end() == 0
    for noise in ("imported", "read", "written", "a child"):
        assert noise in server.stderr().splitlines()


# An endpoint somewhere else


async def test_a_running_endpoint_is_projected(start: Start, endpoint: Lab) -> None:
    """[TPT-036, TPT-046]"""
    url = endpoint.ready["url"]
    server = await start("-e", url)
    receipt = await server.receipt("world_step", {"ticks": 4})
    assert receipt["output"]["tick"] == 4
    with_token = await server.begin_call(
        f"{NAMED}motion_convey", {"distance_mm": 200, "speed_mm_s": 400}, progressToken="p"
    )
    assert receipt_of(await server.answer(with_token))["status"] == "completed"
    assert server.notified("notifications/progress")
    call = await server.begin_call(f"{NAMED}motion_convey", LONG, progressToken="q")
    await server.until(
        lambda: [told for told in server.notified("notifications/progress") if told["progressToken"] == "q"]
    )
    await cancel(server, call)
    assert receipt_of(await server.answer(call))["status"] == "cancelled"
    assert await server.end() == 0


async def test_an_endpoint_that_is_away_is_an_error_and_never_a_wait(start: Start) -> None:
    """[TPT-039, MHSD-9a-85]"""
    server = await start("-e", "http://127.0.0.1:9")
    names = [tool["name"] for tool in (await server.request("tools/list"))["tools"]]
    assert names == [name for name in names if not name.startswith(NAMED)]
    assert "mhs__estop" in names
    for name, arguments in (
        ("mhs__devices", {}),
        ("mhs__safety", {}),
        ("mhs__estop", {}),
        (f"{NAMED}world_step", {"ticks": 1}),
    ):
        error = mhs_error_of(await server.call(name, arguments))
        assert (error["mhs_code"], error["retryable"]) == ("MHS.TRANSPORT.UNAVAILABLE", True)
    assert await server.end() == 0


async def test_an_endpoint_that_dies_is_an_error_and_never_a_wait(start: Start, endpoint: Lab) -> None:
    """[TPT-039]"""
    server = await start("-e", endpoint.ready["url"])
    await server.receipt("world_step", {"ticks": 1})
    await trio.to_thread.run_sync(endpoint.kill)
    error = mhs_error_of(await server.call(f"{NAMED}world_step", {"ticks": 1}))
    assert error["mhs_code"] in ("MHS.TRANSPORT.UNAVAILABLE", "MHS.OUTCOME.UNKNOWN")
    assert await server.end() == 0
