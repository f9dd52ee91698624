"""The order of the MCP server: what waits for what, and that every call has one response, on streams in memory."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from mhsd.mcp.host import MOST_QUEUED, MOST_STOPS, Job, McpHost, Refused

HELLO = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "tests"}}


class FakeServer:
    """Serves what its tools are told: `wait` until it is released, `fail`, `refuse`, anything else at once."""

    def __init__(self, *, silent_after_cancel: bool = False) -> None:
        self.silent_after_cancel = silent_after_cancel
        self.released = trio.Event()
        self.began: list[Any] = []
        self.takes_long = False
        self.holds_stops = False

    @asynccontextmanager
    async def running(self, host: McpHost) -> AsyncIterator[None]:
        yield

    async def answer(self, job: Job) -> Mapping[str, Any]:
        self.began.append(job.call.id)
        job.takes_long = self.takes_long
        name = job.call.params.get("name")
        if name == "fail":
            raise RuntimeError("a secret of the program")
        if name == "refuse":
            raise Refused(-32602, "no", {"why": "because"})
        if name == "wait":
            job.progress(1, 100)
            await self.released.wait()
            job.progress(50, 100)
        if name == "mhs__estop" and self.holds_stops:
            await self.released.wait()
        if name == "wait_for_cancel":
            await job.cancelled.wait()
            job.progress(99, 100)
        return {"served": job.call.id}


class Line:
    """A client of a host, and the host, in one test."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.stdin, receive = trio.testing.memory_stream_one_way_pair()
        send, self.stdout = trio.testing.memory_stream_one_way_pair()
        self.host = McpHost(server, receive, send)
        self._rest = b""

    async def say(self, *messages: Any) -> None:
        await self.stdin.send_all(b"".join(json.dumps(each).encode() + b"\n" for each in messages))

    async def ask(self, method: str, request_id: Any, **params: Any) -> None:
        await self.say({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})

    async def cancel(self, request_id: Any) -> None:
        await self.say(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}
        )

    async def hear(self) -> Any:
        while b"\n" not in self._rest:
            chunk = await self.stdout.receive_some()
            if not chunk:
                return None
            self._rest += bytes(chunk)
        line, self._rest = self._rest.split(b"\n", 1)
        return json.loads(line)

    async def rest(self) -> list[Any]:
        heard = []
        while (message := await self.hear()) is not None:
            heard.append(message)
        return heard


@asynccontextmanager
async def line(server: FakeServer | None = None) -> AsyncIterator[Line]:
    with trio.fail_after(30):
        one = Line(server or FakeServer())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.host.serve)
            await one.ask("initialize", "i", **HELLO)
            assert (await one.hear())["id"] == "i"
            yield one
            await one.host.finish(0)


async def test_requests_are_served_in_order_and_the_stop_ping_and_cancellation_beside_them() -> None:
    """CORE-079, CORE-132."""
    async with line() as one:
        await one.ask("tools/call", 1, name="wait")
        await one.ask("tools/list", 2)
        await one.ask("tools/call", 3, name="mhs__estop")
        await one.ask("ping", 4)
        assert {(await one.hear())["id"], (await one.hear())["id"]} == {3, 4}
        assert set(one.server.began) == {"i", 1, 3}
        one.server.released.set()
        assert [(await one.hear())["id"], (await one.hear())["id"]] == [1, 2]


async def test_a_cancelled_call_has_one_response_and_no_progress_after_it() -> None:
    """TPT-041, MHSD-8-08."""
    async with line() as one:
        await one.ask("tools/call", "c", name="wait_for_cancel", _meta={"progressToken": "t"})
        await trio.testing.wait_all_tasks_blocked()
        await one.cancel("c")
        await one.cancel("c")
        await one.ask("ping", "p")
        heard = [await one.hear() for _ in range(3)]
        assert {each["id"] for each in heard if "id" in each} == {"c", "p"}
        kinds = [each.get("method") or each["id"] for each in heard]
        assert kinds.index("notifications/progress") < kinds.index("c")


async def test_the_policy_can_leave_a_cancelled_call_without_a_response() -> None:
    """MHSD-8-08."""
    async with line(FakeServer(silent_after_cancel=True)) as one:
        await one.ask("tools/call", "c", name="wait_for_cancel")
        await trio.testing.wait_all_tasks_blocked()
        await one.cancel("c")
        await one.ask("tools/list", "after")
        assert (await one.hear())["id"] == "after"


async def test_a_call_can_be_cancelled_while_it_waits_for_its_turn() -> None:
    """TPT-041."""
    async with line() as one:
        await one.ask("tools/call", 1, name="wait")
        await one.ask("tools/call", 2, name="wait_for_cancel")
        await one.cancel(2)
        one.server.released.set()
        assert [(await one.hear())["id"], (await one.hear())["id"]] == [1, 2]


async def test_a_cancellation_that_races_with_the_result_changes_nothing() -> None:
    async with line() as one:
        await one.ask("tools/call", 1, name="wait")
        await trio.testing.wait_all_tasks_blocked()
        one.server.released.set()
        await one.cancel(1)
        await one.ask("ping", 2)
        assert sorted([(await one.hear())["id"], (await one.hear())["id"]]) == [1, 2]
        await one.ask("ping", 3)
        assert (await one.hear())["id"] == 3


async def test_a_defect_behind_one_call_is_an_error_without_its_text_and_costs_nobody_else() -> None:
    async with line() as one:
        await one.ask("tools/call", 1, name="fail")
        await one.ask("tools/call", 2, name="refuse")
        await one.ask("tools/call", 3, name="x")
        failed, refused, served = [await one.hear() for _ in range(3)]
    assert failed["error"]["code"] == -32603
    assert "secret" not in json.dumps(failed)
    assert refused["error"] == {"code": -32602, "message": "no", "data": {"why": "because"}}
    assert served["result"] == {"served": 3}


async def test_lines_may_come_in_pieces_with_cr_and_blank_lines_between() -> None:
    async with line() as one:
        data = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\r\n\n \n{"jsonrpc":"2.0","id":2,"method":"ping"}\n'
        for start in range(0, len(data), 7):
            await one.stdin.send_all(data[start : start + 7])
        assert [(await one.hear())["id"], (await one.hear())["id"]] == [1, 2]


async def test_a_line_that_is_too_long_is_refused_and_the_next_one_is_served() -> None:
    """TPT-047."""
    async with line() as one:
        await one.stdin.send_all(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"')
        for _ in range(5):
            await one.stdin.send_all(b"x" * (1 << 20))
        await one.stdin.send_all(b'"}}\n')
        await one.ask("ping", 2)
        refused, served = await one.hear(), await one.hear()
    assert refused["error"]["data"]["mhs_code"] == "MHS.LIMIT.PAYLOAD_TOO_LARGE"
    assert served == {"jsonrpc": "2.0", "id": 2, "result": {}}


async def test_more_requests_than_can_wait_are_refused_and_the_others_served() -> None:
    async with line() as one:
        await one.ask("tools/call", "first", name="wait")
        await trio.testing.wait_all_tasks_blocked()
        for number in range(MOST_QUEUED + 1):
            await one.ask("tools/list", number)
        refused = await one.hear()
        assert refused["id"] == MOST_QUEUED
        assert refused["error"]["data"]["mhs_code"] == "MHS.LIMIT.RATE_EXCEEDED"
        one.server.released.set()
        assert [(await one.hear())["id"] for _ in range(MOST_QUEUED + 1)] == ["first", *range(MOST_QUEUED)]


async def test_a_flood_of_stops_is_read_no_faster_than_it_is_carried_out() -> None:
    """CORE-076, TPT-047."""
    async with line() as one:
        one.server.holds_stops = True
        for number in range(MOST_STOPS):
            await one.ask("tools/call", number, name="mhs__estop")
        await trio.testing.wait_all_tasks_blocked()
        await one.ask("ping", "p")
        await trio.testing.wait_all_tasks_blocked()
        assert len(one.server.began) == 1 + MOST_STOPS
        one.server.released.set()
        heard = [(await one.hear())["id"] for _ in range(MOST_STOPS + 1)]
        assert set(heard[:-1]) == set(range(MOST_STOPS))
        assert heard[-1] == "p"


async def test_what_came_before_the_end_of_the_input_is_answered() -> None:
    """TPT-008."""
    async with line() as one:
        for number in range(20):
            await one.ask("tools/list", number)
        await one.stdin.aclose()
        await one.host.ended.wait()
        assert [(await one.hear())["id"] for _ in range(20)] == list(range(20))


async def test_the_end_of_the_input_does_not_wait_for_what_moves() -> None:
    """TPT-008."""
    server = FakeServer()
    server.takes_long = True
    async with line(server) as one:
        await one.ask("tools/call", 1, name="wait")
        await trio.testing.wait_all_tasks_blocked()
        await one.stdin.aclose()
        with trio.fail_after(1):
            await one.host.ended.wait()
        one.server.released.set()
        assert (await one.hear())["id"] == 1


async def test_finish_waits_for_the_answers_that_are_out() -> None:
    async with line() as one:
        await one.ask("tools/call", 1, name="wait")
        await trio.testing.wait_all_tasks_blocked()
        one.host.drain()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.host.finish, 20)
            await trio.testing.wait_all_tasks_blocked()
            one.server.released.set()
        assert [each["id"] for each in await one.rest()] == [1]


async def test_a_client_that_closes_its_side_ends_the_host_without_a_crash() -> None:
    async with line() as one:
        await one.stdout.aclose()
        await one.ask("ping", 1)
        await one.host.ended.wait()


async def test_a_client_that_never_reads_holds_up_no_stop_and_is_given_up_in_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = FakeServer()
    with trio.fail_after(60):
        read_end, write_end = trio.testing.lockstep_stream_one_way_pair()
        stdin, receive = trio.testing.memory_stream_one_way_pair()
        host = McpHost(server, receive, read_end)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.serve)
            # Nothing is read at the other end, so that the writer is stuck with the first line.
            await stdin.send_all(
                json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}).encode()
                + b"\n"
            )
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "mhs__estop"}}
            await stdin.send_all(json.dumps(call).encode() + b"\n")
            await trio.testing.wait_all_tasks_blocked()
            assert 1 in server.began
            ping = {"jsonrpc": "2.0", "id": "x" * 1_000_000, "method": "ping"}
            for _ in range(20):
                await stdin.send_all(json.dumps(ping).encode() + b"\n")
            await host.ended.wait()
            await host.finish(0)
        await write_end.aclose()
