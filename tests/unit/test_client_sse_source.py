"""The thread that brings events: what it does when a connection breaks."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from mhsd.client.backoff import Backoff
from mhsd.client.errors import AuthError, MHSError, SessionError, TransportError, error, from_answer
from mhsd.client.sse import SseTooLong
from mhsd.client.sse_source import SseSource
from mhsd.client.transport import Lost, NotSent

PATIENCE_S = 20.0


def message(seq: int) -> bytes:
    data = json.dumps({"jsonrpc": "2.0", "method": "mhs.event", "params": {"seq": seq}})
    return f"id: sub_1:{seq}\nevent: mhs.event\ndata: {data}\n\n".encode()


class Connection:
    """Brings these pieces, then ends; an exception among them is how it breaks."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self._pieces: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()
        for piece in pieces:
            self._pieces.put(piece)
        self.closed = threading.Event()

    def read(self, timeout_s: float) -> bytes:
        piece = self._pieces.get(timeout=PATIENCE_S)
        if isinstance(piece, Exception):
            raise piece
        return piece

    def cut(self) -> None:
        self._pieces.put(b"")

    def close(self) -> None:
        self.closed.set()


class Listener:
    """Takes what is brought, and notes after which id each connection was asked for."""

    def __init__(self, *answers: Connection | Exception, attempts: int = 3) -> None:
        self.events: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self.failed: queue.SimpleQueue[MHSError] = queue.SimpleQueue()
        self.breaks: list[str] = []
        self.asked: list[str] = []
        self._answers = list(answers)
        self.source = SseSource(self._open, self, Backoff(first_s=0.001, longest_s=0.001, attempts=attempts))

    def _open(self, last_event_id: str) -> Connection:
        self.asked.append(last_event_id)
        answer = self._answers.pop(0) if self._answers else NotSent("nobody is there")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def deliver(self, event: Mapping[str, Any]) -> None:
        self.events.put(event)

    def interrupted(self, why: str) -> None:
        self.breaks.append(why)

    def fail(self, problem: MHSError) -> None:
        self.failed.put(problem)

    def seqs(self, count: int) -> list[int]:
        return [self.events.get(timeout=PATIENCE_S)["seq"] for _ in range(count)]

    def problem(self) -> MHSError:
        return self.failed.get(timeout=PATIENCE_S)


@pytest.mark.parametrize(
    "end", [b"", Lost("reset by peer"), Lost("quiet", timed_out=True), SseTooLong("too long")], ids=repr
)
def test_after_a_break_the_next_connection_goes_on_from_the_last_event(end: bytes | Exception) -> None:
    """[TPT-061, TPT-064]"""
    first = Connection(b"retry: 3000\n\n", message(1), message(2), end)
    listener = Listener(first, Connection(message(3), end), Connection(message(4)))
    assert listener.seqs(4) == [1, 2, 3, 4]
    assert listener.asked == ["", "sub_1:2", "sub_1:3"]
    assert first.closed.is_set()
    listener.source.end()


def test_the_attempts_are_counted_from_the_last_event_and_then_it_gives_up() -> None:
    """[TPT-064]"""
    lasting = [Connection(message(seq), Lost("broken")) for seq in range(1, 7)]
    listener = Listener(*lasting, attempts=2)
    assert listener.seqs(6) == [1, 2, 3, 4, 5, 6]
    problem = listener.problem()
    assert isinstance(problem, TransportError)
    assert "nobody is there" in problem.message
    assert listener.asked == ["", *(f"sub_1:{seq}" for seq in range(1, 7)), "sub_1:6"]


def test_connections_that_bring_nothing_do_not_renew_the_budget() -> None:
    listener = Listener(*(Connection(b"retry: 1\n\n", b"") for _ in range(9)), attempts=4)
    assert "the endpoint closed the stream" in listener.problem().message
    assert len(listener.asked) == 5


@pytest.mark.parametrize(
    ("code", "kind"), [("MHS.SESSION.EXPIRED", SessionError), ("MHS.AUTH.UNAUTHENTICATED", AuthError)]
)
def test_what_the_endpoint_refuses_is_not_asked_for_again(code: str, kind: type[MHSError]) -> None:
    refusal = from_answer({"message": "no", "data": {"mhs_code": code}}, 403)
    listener = Listener(Connection(message(1), b""), refusal)
    assert listener.problem() is refusal
    assert isinstance(refusal, kind)
    assert len(listener.asked) == 2


def test_an_endpoint_that_asks_for_time_is_asked_again() -> None:
    busy = error("MHS.LIMIT.RATE_EXCEEDED", "no", details={"retry_after_ms": 1})
    listener = Listener(busy, busy, Connection(message(1)))
    assert listener.seqs(1) == [1]
    listener.source.end()


def test_one_stream_too_many_is_told_at_once_and_after_a_break_is_tried_again() -> None:
    full = from_answer({"message": "4 streams", "data": {"mhs_code": "MHS.LIMIT.CONNECTION_LIMIT"}}, 429)
    assert Listener(full).problem() is full
    listener = Listener(Connection(message(1), b""), full, Connection(message(2)))
    assert listener.seqs(2) == [1, 2]
    listener.source.end()


def test_a_defect_in_the_thread_is_told_to_whoever_waits() -> None:
    listener = Listener(Connection(RuntimeError("a defect")))
    assert "RuntimeError: a defect" in listener.problem().message


def test_what_is_no_event_is_left_out() -> None:
    rubbish = (
        b"event: mhs.event\ndata: {nonsense\n\nevent: other\ndata: {}\n\nevent: mhs.event\ndata: [1]\n\n"
    )
    listener = Listener(Connection(rubbish, message(1)))
    assert listener.seqs(1) == [1]
    listener.source.end()


def test_an_end_that_was_asked_for_is_no_failure() -> None:
    connection = Connection(message(1))
    listener = Listener(connection)
    assert listener.seqs(1) == [1]
    listener.source.end()
    assert connection.closed.wait(PATIENCE_S)
    assert listener.failed.empty()
    assert len(listener.asked) == 1
