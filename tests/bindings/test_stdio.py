"""NDJSON over two streams: order, bounds, stops in front of a queue, and the end [TPT-004 to TPT-008]."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from mhsd.bindings.conversation import STANDARD
from mhsd.bindings.pipe_streams import open_streams
from mhsd.bindings.pipes import Pipes
from mhsd.bindings.stdio import Stdio, open_stdio
from mhsd.protocol.auth import Identity
from mhsd.protocol.peer import Peer, Principal
from tests.bindings.fakes import STOP, EchoDoor, call, until

MAX_LINE = 100_000
MOST_UNANSWERED = STANDARD.unanswered


class Session:
    """A stdio binding in memory, and the peer's end of it."""

    def __init__(self) -> None:
        self.door = EchoDoor()
        self._to_us, ours_in = trio.testing.memory_stream_one_way_pair()
        ours_out, self.answers = trio.testing.lockstep_stream_one_way_pair()
        peer = Peer(Principal("local:me", "human"), "operator", "stdio", needs_hello=True, remembers_ids=True)
        self.binding = Stdio(self.door, peer, ours_in, ours_out, max_line_bytes=MAX_LINE)  # type: ignore[arg-type]
        self._buffer = bytearray()

    async def send(self, *lines: bytes) -> None:
        await self._to_us.send_all(b"".join(line + b"\n" for line in lines))

    async def send_raw(self, data: bytes) -> None:
        await self._to_us.send_all(data)

    async def close_input(self) -> None:
        await self._to_us.aclose()

    async def line(self) -> bytes:
        with trio.fail_after(10):
            while b"\n" not in self._buffer:
                data = await self.answers.receive_some(65536)
                if not data:
                    raise EOFError
                self._buffer += data
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        return line

    async def lines(self, count: int) -> list[bytes]:
        return [await self.line() for _ in range(count)]


@pytest.fixture
async def session(nursery: trio.Nursery) -> AsyncIterator[Session]:
    session = Session()
    nursery.start_soon(session.binding.serve)
    yield session
    with trio.fail_after(5):
        await session.binding.finish(patience_s=0)


async def test_a_line_is_answered_by_a_line(session: Session) -> None:
    await session.send(call())
    assert await session.line() == call()
    peer = session.door.peers[0]
    assert (peer.binding, peer.needs_hello, peer.remembers_ids) == ("stdio", True, True)


async def test_many_lines_enter_and_are_answered_in_order(session: Session) -> None:
    bodies = [call(request_id=number) for number in range(500)]
    await session.send(*bodies)
    assert await session.lines(500) == bodies
    assert session.door.entered == bodies
    assert all(session.door.gate_was_held)


async def test_an_answer_that_waits_does_not_hold_up_the_next_line(session: Session) -> None:
    await session.send(call("wait", 1))
    await session.send(call(request_id=2))
    assert await session.line() == call(request_id=2)
    session.door.released.set()
    assert await session.line() == call("wait", 1)


async def test_blank_lines_and_carriage_returns_are_no_messages(session: Session) -> None:
    await session.send_raw(b"\r\n\n  \n" + call() + b"\r\n")
    assert await session.line() == call()
    assert session.door.entered == [call()]


async def test_a_malformed_line_is_answered_and_the_next_one_served(session: Session) -> None:
    await session.send(b"{", call())
    assert await session.lines(2) == [b'{"error":"parse"}', call()]


async def test_a_line_over_the_limit_is_refused_once_and_the_next_one_served(session: Session) -> None:
    await session.send(b"x" * (3 * MAX_LINE), call())
    error = json.loads(await session.line())
    assert error["id"] is None
    assert error["error"]["data"]["mhs_code"] == "MHS.LIMIT.PAYLOAD_TOO_LARGE"
    assert await session.line() == call()


async def test_a_notification_is_not_answered(session: Session) -> None:
    await session.send(call("notify"), call())
    assert await session.line() == call()


async def test_a_stop_overtakes_the_lines_in_front_of_it_and_takes_no_gate(session: Session) -> None:
    await session.send(*[call(request_id=number) for number in range(100)], STOP)
    await session.lines(101)
    assert session.door.entered[0] == STOP
    assert session.door.gate_was_held[0] is False


async def test_a_stop_is_served_although_no_more_messages_are_entered(session: Session) -> None:
    await session.send(*[call("wait", number) for number in range(MOST_UNANSWERED + 100)])
    await until(lambda: len(session.door.entered) == MOST_UNANSWERED)
    await session.send(STOP)
    assert await session.line() == STOP
    assert len(session.door.entered) == MOST_UNANSWERED + 1
    session.door.released.set()
    await session.lines(MOST_UNANSWERED + 100)


async def test_a_peer_that_reads_nothing_stops_new_messages_and_not_its_stops(session: Session) -> None:
    await session.send(*[call("large", number, bytes=1_000_000) for number in range(20)])
    await trio.testing.wait_all_tasks_blocked(0.01)
    entered = len(session.door.entered)
    assert entered < 10
    await session.send(STOP)
    await until(lambda: STOP in session.door.entered)
    assert len(session.door.entered) == entered + 1
    await session.lines(21)


async def test_reading_ahead_is_bounded(session: Session) -> None:
    await session.send(*[call("wait", number) for number in range(MOST_UNANSWERED)])
    await until(lambda: len(session.door.entered) == MOST_UNANSWERED)
    await session.send(*[b'"' + b"x" * 90_000 + b'"' for _ in range(200)])
    await session.send(STOP)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert STOP not in session.door.entered
    session.door.released.set()
    await session.lines(MOST_UNANSWERED + 201)
    assert STOP in session.door.entered


async def test_the_end_of_the_input_ends_the_session_after_its_lines_are_answered(session: Session) -> None:
    await session.send(*[call(request_id=number) for number in range(10)])
    await session.close_input()
    with trio.fail_after(5):
        await session.binding.ended.wait()
    assert len(session.door.entered) == 10
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.binding.finish, 5)
        assert len(await session.lines(10)) == 10


async def test_half_a_line_at_the_end_is_not_executed(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    await session.send_raw(call())
    await session.close_input()
    with trio.fail_after(5):
        await session.binding.ended.wait()
    assert session.door.entered == []
    assert "middle of a line" in caplog.text


async def test_a_stop_at_the_end_counts_without_its_line_feed(session: Session) -> None:
    await session.send_raw(STOP)
    await session.close_input()
    with trio.fail_after(5):
        await session.binding.ended.wait()
    assert session.door.entered == [STOP]


async def test_a_peer_that_closes_its_reading_end_ends_the_session_quietly(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    await session.answers.aclose()
    await session.send(call())
    with trio.fail_after(5):
        await session.binding.ended.wait()
        await session.binding.finish(patience_s=5)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_draining_reads_no_more_and_answers_what_was_read(session: Session) -> None:
    await session.send(call("wait"))
    await session.door.waiting.wait()
    session.binding.drain()
    await session.binding.ended.wait()
    await session.send(call(request_id=2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.binding.finish, 5)
        session.door.released.set()
        assert await session.line() == call("wait")
    assert session.door.entered == [call("wait")]


async def test_finishing_does_not_wait_for_a_peer_that_does_not_read(session: Session) -> None:
    await session.send(call("large", bytes=1_000_000))
    await trio.testing.wait_all_tasks_blocked(0.01)
    with trio.fail_after(5):
        await session.binding.finish(patience_s=0.05)


async def test_a_defect_behind_one_message_ends_no_other(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> None:
        raise RuntimeError("a defect")

    begin = session.door.begin
    monkeypatch.setattr(
        session.door, "begin", lambda body, *more: broken() if body == b"[]" else begin(body, *more)
    )
    await session.send(b"[]", call())
    assert await session.line() == call()


# Descriptors


class PipeSession:
    """A stdio binding on real pipes, and the peer's ends of them."""

    def __init__(self) -> None:
        self.door = EchoDoor()
        reading, feeding = os.pipe()
        draining, writing = os.pipe()
        self.feed, self.drain = trio.lowlevel.FdStream(feeding), trio.lowlevel.FdStream(draining)
        identity = Identity(Principal("local:me", "human"), "operator")
        pipes = Pipes(reading, writing)
        self.binding = open_stdio(self.door, identity, pipes, max_line_bytes=MAX_LINE)  # type: ignore[arg-type]


@pytest.fixture
async def on_pipes(nursery: trio.Nursery) -> AsyncIterator[PipeSession]:
    session = PipeSession()
    nursery.start_soon(session.binding.serve)
    yield session
    with trio.fail_after(5):
        await session.binding.finish(patience_s=0)
        await session.feed.aclose()
        await session.drain.aclose()


async def test_a_stop_that_is_there_before_the_binding_is_served() -> None:
    """[CORE-076]"""
    # Which of two tasks that can run runs first is a matter of chance, so one try would show little.
    for _ in range(30):
        session = PipeSession()
        stop = call("wait", note="mhs.safety.estop")
        session.door.released.set()
        await session.feed.send_all(stop + b"\n")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.binding.serve)
            with trio.fail_after(10):
                assert await session.drain.receive_some(65536) == stop + b"\n"
            await session.binding.finish(patience_s=0)
        await session.feed.aclose()
        await session.drain.aclose()


async def test_answers_that_fill_the_pipe_are_not_mixed_with_others(on_pipes: PipeSession) -> None:
    bodies = [call("large" if number % 5 == 0 else "echo", number, bytes=300_000) for number in range(50)]
    for body in bodies:  # Each in a chunk of its own, so that both ways of entering and of writing are used.
        await on_pipes.feed.send_all(body + b"\n")
        await trio.testing.wait_all_tasks_blocked(0.0005)
    received = bytearray()
    with trio.fail_after(10):
        while received.count(b"\n") < 50:
            received += await on_pipes.drain.receive_some(65536)
    lines = bytes(received).splitlines()
    assert lines == [b'"' + b"x" * 300_000 + b'"' if b'"large"' in body else body for body in bodies]


async def test_a_pipe_whose_reader_is_gone_ends_the_session(on_pipes: PipeSession) -> None:
    await on_pipes.drain.aclose()
    await on_pipes.feed.send_all(call() + b"\n")
    with trio.fail_after(5):
        await on_pipes.binding.ended.wait()


async def test_a_stop_on_a_full_pipe_is_served(on_pipes: PipeSession) -> None:
    await on_pipes.feed.send_all(call("large", bytes=300_000) + b"\n")
    await trio.testing.wait_all_tasks_blocked(0.01)
    await on_pipes.feed.send_all(STOP + b"\n")
    await until(lambda: STOP in on_pipes.door.entered)


async def test_pipes_are_read_and_written_without_threads() -> None:
    reading, feeding = os.pipe()
    draining, writing = os.pipe()
    receive, send = open_streams(Pipes(reading, writing))
    assert isinstance(receive, trio.lowlevel.FdStream)
    assert isinstance(send, trio.lowlevel.FdStream)
    async with receive, send:
        os.write(feeding, b"in")
        assert await receive.receive_some() == b"in"
        await send.send_all(b"out")
        assert os.read(draining, 3) == b"out"
    os.close(feeding)
    os.close(draining)


async def test_a_terminal_stays_blocking_because_its_other_users_need_it(tmp_path: object) -> None:
    ours, theirs = os.openpty()
    receive, send = open_streams(Pipes(os.dup(theirs), os.dup(theirs)))
    async with receive, send:
        os.write(ours, b"line\n")
        assert await receive.receive_some() == b"line\n"
        await send.send_all(b"answer\n")
        assert os.get_blocking(theirs)
        with trio.move_on_after(0.05) as scope:
            await receive.receive_some()
        assert scope.cancelled_caught
        os.write(ours, b"wake the thread that was left behind\n")
    os.close(ours)
    os.close(theirs)


def run(program: str, **streams: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-c", program], timeout=30, check=False, **streams)  # type: ignore[call-overload, no-any-return]


CLAIM = "import os, sys, subprocess\nfrom mhsd.bindings.pipes import claim\npipes = claim()\n"


def test_after_the_claim_nothing_but_the_protocol_reaches_stdout_or_reads_stdin() -> None:
    program = (
        CLAIM + "print('printed')\nos.write(1, b'written\\n')\n"
        "subprocess.run(['cat'])\nsubprocess.run(['echo', 'child'])\n"
        "os.write(pipes.write_fd, os.read(pipes.read_fd, 100))\n"
        "print(os.get_inheritable(pipes.read_fd), os.get_inheritable(pipes.write_fd))\n"
    )
    done = run(program, input=b"message", capture_output=True)
    assert done.stdout == b"message"
    assert sorted(done.stderr.split()) == [b"False", b"False", b"child", b"printed", b"written"]


@pytest.mark.parametrize("closed", ["0<&-", "1>&-"])
def test_a_closed_descriptor_at_start_is_refused(closed: str) -> None:
    program = CLAIM.replace(
        "pipes = claim()", "try: claim()\nexcept Exception as error: os._exit(error.exit_code)"
    )
    done = subprocess.run(
        ["sh", "-c", f"exec '{sys.executable}' -c '{program}' {closed}"], check=False, timeout=30
    )
    assert done.returncode == 2


def test_a_closed_stderr_does_not_hurt() -> None:
    program = CLAIM + "print(1)\nos.write(pipes.write_fd, os.read(pipes.read_fd, 100))\n"
    done = subprocess.run(
        ["sh", "-c", f"exec '{sys.executable}' -c '{program}' 2>&-"],
        input=b"message",
        stdout=subprocess.PIPE,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (0, b"message")
