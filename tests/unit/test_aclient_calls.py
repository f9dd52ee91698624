"""Calls of the Trio client: what is sent again, what never is, and how long anything waits."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mhsd.aclient.caller import AsyncCaller
from mhsd.aclient.transport import EventsWanted, Greet
from mhsd.client.backoff import FIRST_S
from mhsd.client.calls import EFFECTFUL
from mhsd.client.errors import AnswerLost, MHSError, ProtocolError, TransportError
from mhsd.client.transport import Answer, Lost, NotSent

HELLO = {
    "mhs_version": "1.0",
    "limits": {"max_rate_per_s": 10, "rate_burst": 10, "max_command_deadline_ms": 60_000},
}
Reply = Callable[[dict[str, Any]], Any]


class Scripted:
    """A transport whose answers are a test's: a result, an Answer, or an exception. Hello is answered by itself."""

    name = "scripted"
    url = "scripted:"
    paced = True

    def __init__(self, *replies: Any, hello: Any = HELLO) -> None:
        self.replies = list(replies)
        self.hello = hello
        self.sent: list[dict[str, Any]] = []
        self.waited_s: list[float] = []
        self.urgent: list[bool] = []
        self.at_mono_s: list[float] = []

    async def greet(self, greet: Greet) -> None:
        await greet(self.exchange)

    async def exchange(
        self, request_id: str, body: bytes, timeout_s: float, *, urgent: bool = False
    ) -> Answer:
        await trio.lowlevel.checkpoint()
        request = json.loads(body)
        if request["method"] == "mhs.hello":
            return Answer({"jsonrpc": "2.0", "id": request_id, "result": self.hello})
        self.sent.append(request)
        self.waited_s.append(timeout_s)
        self.urgent.append(urgent)
        self.at_mono_s.append(trio.current_time())
        reply = self.replies.pop(0) if self.replies else {}
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, Answer) else Answer({"id": request_id, "result": reply})

    async def bring_events(self, wanted: EventsWanted) -> None:
        await trio.sleep_forever()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def too_fast(retry_after_ms: int) -> Answer:
    data = {"mhs_code": "MHS.LIMIT.RATE_EXCEEDED", "details": {"retry_after_ms": retry_after_ms}}
    return Answer({"error": {"code": -32000, "message": "too fast", "data": data}}, 429)


async def test_a_question_whose_connection_broke_is_asked_once_more(autojump_clock: MockClock) -> None:
    """[TPT-064] Not at once, and not by all tasks at the same instant."""
    transport = Scripted(Lost("cut"), {"state": {}})
    assert await AsyncCaller(transport).call("mhs.resource.read") == {"state": {}}
    first, second = transport.sent
    assert first["id"] != second["id"]
    assert FIRST_S / 2 <= transport.at_mono_s[1] - transport.at_mono_s[0] <= FIRST_S


async def test_a_second_break_is_told() -> None:
    transport = Scripted(Lost("cut"), Lost("cut again"))
    with pytest.raises(AnswerLost, match=r"cut again; mhs\.resource\.read changes nothing"):
        await AsyncCaller(transport).call("mhs.resource.read")
    assert len(transport.sent) == 2


@pytest.mark.parametrize("method", sorted(EFFECTFUL))
async def test_what_changes_something_is_never_sent_twice(method: str) -> None:
    """[TPT-055, TPT-062]"""
    for problem in (Lost("cut"), Lost("late", timed_out=True), NotSent("refused")):
        transport = Scripted(problem)
        with pytest.raises((AnswerLost, TransportError)):
            await AsyncCaller(transport).call(method)
        assert len(transport.sent) == 1


async def test_a_question_that_timed_out_is_not_asked_again() -> None:
    transport = Scripted(Lost("late", timed_out=True))
    with pytest.raises(AnswerLost) as lost:
        await AsyncCaller(transport).call("mhs.resource.read")
    assert lost.value.mhs_code == "MHS.OUTCOME.TIMEOUT"
    assert len(transport.sent) == 1


async def test_every_call_has_a_finite_deadline_and_a_finite_wait() -> None:
    """[TPT-056]"""
    transport = Scripted()
    caller = AsyncCaller(transport, timeout_s=20)
    await caller.call("mhs.command")
    await caller.call("mhs.command", deadline_s=3600)
    await caller.call("mhs.command", {"deadline_ms": 1000})
    await caller.call("mhs.devices.list")
    assert [request["params"].get("deadline_ms") for request in transport.sent] == [
        20_000,
        60_000,
        1000,
        None,
    ]
    assert transport.waited_s == pytest.approx([25, 65, 6, 20], abs=0.5)


async def test_only_a_stop_is_urgent_and_it_needs_no_hello() -> None:
    transport = Scripted(hello={"mhs_version": "9.0"})
    caller = AsyncCaller(transport)
    await caller.call("mhs.safety.estop")
    assert transport.urgent == [True]
    with pytest.raises(ProtocolError, match=r"speaks MHS 9\.0"):
        await caller.call("mhs.devices.list")


async def test_a_client_keeps_to_the_rate_and_a_stop_does_not_wait_for_it(autojump_clock: MockClock) -> None:
    """[MHSD-7-04]"""
    transport = Scripted()
    caller = AsyncCaller(transport)
    async with trio.open_nursery() as nursery:
        for _ in range(18):
            nursery.start_soon(caller.call, "mhs.devices.list")
        nursery.start_soon(caller.call, "mhs.safety.estop")
    begin = transport.at_mono_s[0]
    at = sorted(
        mono_s - begin
        for mono_s, urgent in zip(transport.at_mono_s, transport.urgent, strict=True)
        if not urgent
    )
    # Hello has taken one place of nine; from then on nine a second.
    assert at[:8] == pytest.approx([0] * 8)
    assert at[8:] == pytest.approx([(index + 1) / 9 for index in range(10)])
    (stop,) = (at for at, urgent in zip(transport.at_mono_s, transport.urgent, strict=True) if urgent)
    assert stop == begin


async def test_a_crowd_that_was_cancelled_leaves_no_queue_behind(autojump_clock: MockClock) -> None:
    """[MHSD-7-04] Who comes next does not wait for those who have gone."""
    caller = AsyncCaller(Scripted())
    with trio.move_on_after(0.01):
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(caller.call, "mhs.devices.list")
    begin = trio.current_time()
    await caller.call("mhs.devices.list")
    assert trio.current_time() - begin <= 1 / 9


async def test_a_refusal_for_the_rate_is_waited_for_within_the_deadline(autojump_clock: MockClock) -> None:
    transport = Scripted(too_fast(1500), {"devices": []})
    caller = AsyncCaller(transport, timeout_s=10)
    assert await caller.call("mhs.devices.list") == {"devices": []}
    assert transport.at_mono_s[1] - transport.at_mono_s[0] == pytest.approx(1.5)
    transport.replies = [too_fast(20_000)]
    with pytest.raises(MHSError) as refused:
        await caller.call("mhs.devices.list")
    assert refused.value.mhs_code == "MHS.LIMIT.RATE_EXCEEDED"


async def test_a_hello_that_got_lost_is_no_lost_command() -> None:
    class Deaf(Scripted):
        async def greet(self, greet: Greet) -> None:
            async def lose(request_id: str, body: bytes, timeout_s: float) -> Answer:
                await trio.lowlevel.checkpoint()
                raise Lost("cut")

            await greet(lose)

    transport = Deaf()
    with pytest.raises(TransportError, match="nothing was sent"):
        await AsyncCaller(transport).call("mhs.command")
    assert transport.sent == []


async def test_hello_is_said_once_however_many_ask() -> None:
    greeted = []

    class Counting(Scripted):
        async def greet(self, greet: Greet) -> None:
            greeted.append(1)
            await super().greet(greet)

    caller = AsyncCaller(Counting())
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(caller.hello)
    assert greeted == [1]


async def test_nobody_waits_longer_for_hello_than_the_call_may_take(autojump_clock: MockClock) -> None:
    """[TPT-056] Also not behind all the others who say hello to an endpoint that is silent."""

    class Silent(Scripted):
        async def greet(self, greet: Greet) -> None:
            await trio.sleep_forever()

    caller, ended = AsyncCaller(Silent(), timeout_s=10), []

    async def ask() -> None:
        with pytest.raises(TransportError, match="answered no hello within 10 s; nothing was sent"):
            await caller.call("mhs.command")
        ended.append(trio.current_time())

    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
    assert [mono_s - begin for mono_s in ended] == pytest.approx([10] * 20)
