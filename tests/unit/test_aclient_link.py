"""One connection of many tasks: answers find their callers, and what breaks is said truthfully."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mhsd.aclient.events import EventHub
from mhsd.aclient.link import BadMessage, Link
from mhsd.client.transport import Answer, Lost, NotSent


class Pair:
    """A channel whose other end is the test."""

    def __init__(self) -> None:
        self.to_link, self._incoming = trio.open_memory_channel[bytes | None | Exception](100)
        self.sent: list[dict[str, Any]] = []
        self.may_write = trio.Event()
        self.may_write.set()
        self.breaks = False

    async def send(self, message: bytes) -> None:
        await self.may_write.wait()
        if self.breaks:
            raise trio.BrokenResourceError("reset")
        self.sent.append(json.loads(message))

    async def receive(self) -> bytes | None:
        message = await self._incoming.receive()
        if isinstance(message, Exception):
            raise message
        return message

    def say(self, message: Any) -> None:
        self.to_link.send_nowait(json.dumps(message).encode())

    async def aclose(self) -> None:
        self.to_link.send_nowait(None)


@pytest.fixture
def pair() -> Pair:
    return Pair()


@pytest.fixture
async def link(pair: Pair, nursery: trio.Nursery) -> Link:
    link = Link(pair, EventHub(), "test:")
    nursery.start_soon(link.run)
    return link


class Asked:
    """A request in a task of its own."""

    def __init__(self, link: Link, nursery: trio.Nursery, request_id: str, **more: Any) -> None:
        self.outcome: Any = None
        self.scope = trio.CancelScope()
        nursery.start_soon(self._ask, link, request_id, more)

    async def _ask(self, link: Link, request_id: str, more: dict[str, Any]) -> None:
        body = json.dumps({"id": request_id}).encode()
        with self.scope:
            try:
                self.outcome = await link.exchange(request_id, body, more.pop("timeout_s", 30), **more)
            except (Lost, NotSent) as problem:
                self.outcome = problem


def answer(request_id: str, result: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


async def test_answers_find_their_callers_in_any_order(pair: Pair, link: Link, nursery: trio.Nursery) -> None:
    """[TPT-057]"""
    first, second = Asked(link, nursery, "a"), Asked(link, nursery, "b")
    await wait_all_tasks_blocked()
    pair.say(answer("b", 2))
    pair.say(answer("unknown", 3))
    pair.say(answer("a", 1))
    await wait_all_tasks_blocked()
    assert (first.outcome, second.outcome) == (Answer(answer("a", 1)), Answer(answer("b", 2)))


async def test_of_two_answers_the_first_counts(pair: Pair, link: Link, nursery: trio.Nursery) -> None:
    asked = Asked(link, nursery, "a")
    await wait_all_tasks_blocked()
    pair.say(answer("a", 1))
    pair.say(answer("a", 2))
    await wait_all_tasks_blocked()
    assert asked.outcome == Answer(answer("a", 1))


async def test_a_call_that_is_cancelled_leaves_nothing_half_written(
    pair: Pair, link: Link, nursery: trio.Nursery
) -> None:
    pair.may_write = trio.Event()
    first, second = Asked(link, nursery, "a"), Asked(link, nursery, "b")
    await wait_all_tasks_blocked()
    first.scope.cancel()
    second.scope.cancel()
    await wait_all_tasks_blocked()
    third = Asked(link, nursery, "c")
    pair.may_write.set()
    await wait_all_tasks_blocked()
    assert len(pair.sent) == 2, "the one being written was finished, the one that waited has not left"
    assert pair.sent[-1] == {"id": "c"}
    pair.say(answer("c"))
    await wait_all_tasks_blocked()
    assert third.outcome == Answer(answer("c"))


async def test_what_is_urgent_is_written_first(pair: Pair, link: Link, nursery: trio.Nursery) -> None:
    pair.may_write = trio.Event()
    Asked(link, nursery, "a")
    await wait_all_tasks_blocked()
    Asked(link, nursery, "b")
    await wait_all_tasks_blocked()
    Asked(link, nursery, "stop", urgent=True)
    await wait_all_tasks_blocked()
    pair.may_write.set()
    await wait_all_tasks_blocked()
    assert pair.sent == [{"id": "a"}, {"id": "stop"}, {"id": "b"}]
    nursery.cancel_scope.cancel()


async def test_a_break_loses_what_was_written_and_nothing_else(
    pair: Pair, link: Link, nursery: trio.Nursery
) -> None:
    """[TPT-062] Of what had not left it is known that it was not carried out."""
    written = Asked(link, nursery, "a")
    await wait_all_tasks_blocked()
    pair.may_write = trio.Event()
    Asked(link, nursery, "b")
    await wait_all_tasks_blocked()
    waiting = Asked(link, nursery, "c")
    await wait_all_tasks_blocked()
    pair.to_link.send_nowait(None)
    await wait_all_tasks_blocked()
    assert isinstance(written.outcome, Lost)
    assert isinstance(waiting.outcome, NotSent)
    with pytest.raises(NotSent, match="closed the connection"):
        await link.exchange("d", b"{}", 1)


async def test_a_peer_that_cannot_be_written_to_is_gone(
    pair: Pair, link: Link, nursery: trio.Nursery
) -> None:
    pair.breaks = True
    asked = Asked(link, nursery, "a")
    await wait_all_tasks_blocked()
    assert isinstance(asked.outcome, Lost)
    assert link.broken.is_set()


async def test_a_message_that_breaks_the_rules_ends_the_link(
    pair: Pair, link: Link, nursery: trio.Nursery
) -> None:
    pair.to_link.send_nowait(BadMessage("too long a line"))
    await link.broken.wait()
    assert link.why_broken == "too long a line"


async def test_the_refusal_of_a_double_is_not_the_answer(
    pair: Pair, link: Link, nursery: trio.Nursery
) -> None:
    asked = Asked(link, nursery, "a")
    await wait_all_tasks_blocked()
    data = {"mhs_code": "MHS.PROTOCOL.INVALID_REQUEST", "details": {"reason": "duplicate_id"}}
    pair.say({"jsonrpc": "2.0", "id": "a", "error": {"code": -32600, "message": "twice", "data": data}})
    await wait_all_tasks_blocked()
    assert asked.outcome is None
    pair.say(answer("a"))
    await wait_all_tasks_blocked()
    assert asked.outcome == Answer(answer("a"))


@pytest.mark.parametrize("problem", ["boom", 1, None, [], {"data": "boom"}, {"data": {"details": "boom"}}])
async def test_an_error_that_is_none_is_an_answer_all_the_same(
    pair: Pair, link: Link, nursery: trio.Nursery, problem: Any
) -> None:
    """And does not end the program of whoever asked."""
    asked = Asked(link, nursery, "a")
    await wait_all_tasks_blocked()
    said = {"jsonrpc": "2.0", "id": "a", "error": problem}
    pair.say(said)
    await wait_all_tasks_blocked()
    assert asked.outcome == Answer(said)


async def test_an_error_without_an_id_answers_the_only_call_that_is_open(
    pair: Pair, link: Link, nursery: trio.Nursery
) -> None:
    refusal = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "what?"}}
    pair.say(refusal)
    first = Asked(link, nursery, "a")
    await wait_all_tasks_blocked()
    pair.say(refusal)
    await wait_all_tasks_blocked()
    assert first.outcome == Answer(refusal)
    second, third = Asked(link, nursery, "b"), Asked(link, nursery, "c")
    await wait_all_tasks_blocked()
    pair.say(refusal)
    await wait_all_tasks_blocked()
    assert (second.outcome, third.outcome) == (None, None)
    second.scope.cancel()
    third.scope.cancel()


async def test_nobody_waits_longer_than_its_time(
    pair: Pair, link: Link, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """[TPT-056]"""
    with pytest.raises(Lost, match="did not answer within 5 s") as late:
        await link.exchange("a", b"{}", 5)
    assert late.value.timed_out
    pair.may_write = trio.Event()
    Asked(link, nursery, "b", timeout_s=1000)
    await wait_all_tasks_blocked()
    with pytest.raises(NotSent, match="takes no requests"):
        await link.exchange("c", b"{}", 5)
    nursery.cancel_scope.cancel()
