"""Events of the Trio client: streams that break and go on, heartbeats, and readers that are slow."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mhsd.aclient.background import background
from mhsd.aclient.events import AsyncSubscription, EventHub
from mhsd.aclient.pulse import Pulse
from mhsd.aclient.sse import stream_events
from mhsd.client.backoff import Backoff
from mhsd.client.continuity import MOST_KEPT, is_gap
from mhsd.client.errors import MHSError, SessionError, TransportError, error
from mhsd.client.sse_source import QUIET_S
from mhsd.client.transport import Lost, NotSent


def event(seq: int, subscription_id: str = "sub_1") -> dict[str, Any]:
    return {"subscription_id": subscription_id, "seq": seq, "ts": "now", "stream": "state", "payload": {}}


def framed(seq: int) -> bytes:
    message = json.dumps({"jsonrpc": "2.0", "method": "mhs.event", "params": event(seq)})
    return f"id: sub_1:{seq}\nevent: mhs.event\ndata: {message}\n\n".encode()


async def _unsubscribed(subscription: AsyncSubscription) -> dict[str, Any]:
    return {}


async def _read(device_id: str, resource_id: str) -> dict[str, Any]:
    raise AssertionError("nobody has asked for it")


def subscribed(hub: EventHub, subscription_id: str = "sub_1", seq_start: int = 1) -> AsyncSubscription:
    granted = {"subscription_id": subscription_id, "seq_start": seq_start}
    subscription = AsyncSubscription(granted, _unsubscribed, _read)
    hub.add(subscription)
    return subscription


# Streams.


class Wanted:
    """A session with one subscription."""

    session_id = "mhs_s_1"

    def __init__(self) -> None:
        self.taken: list[int] = []

    def take(self, params: dict[str, Any]) -> None:
        self.taken.append(params["seq"])

    @property
    def last_event_id(self) -> str | None:
        return f"sub_1:{self.taken[-1] if self.taken else 0}"

    @property
    def touch(self) -> Callable[[], Awaitable[object]]:
        return trio.lowlevel.checkpoint

    def interrupt(self) -> None:
        raise AssertionError("a stream that is resumed loses nothing")


class Connections:
    """What each connection in turn does: the bytes it brings before it ends, or an exception."""

    def __init__(self, *scripts: Any) -> None:
        self.scripts = list(scripts)
        self.asked: list[str | None] = []
        self.at_mono_s: list[float] = []
        self.closed = 0

    async def open(self, session_id: str, last_event_id: str | None) -> Connection:
        await trio.lowlevel.checkpoint()
        self.asked.append(last_event_id)
        self.at_mono_s.append(trio.current_time())
        script = self.scripts.pop(0) if self.scripts else NotSent("refused")
        if isinstance(script, Exception):
            raise script
        return Connection(self, script)


class Connection:
    def __init__(self, owner: Connections, pieces: list[bytes | float]) -> None:
        self._owner = owner
        self._pieces = pieces

    async def read(self) -> bytes:
        await trio.lowlevel.checkpoint()
        while self._pieces:
            piece = self._pieces.pop(0)
            if isinstance(piece, bytes):
                return piece
            await trio.sleep(piece)
        raise Lost("cut")

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self._owner.closed += 1


def backoff(attempts: int = 4) -> Backoff:
    return Backoff(first_s=1.0, longest_s=3.0, attempts=attempts, spread=lambda low, high: high)


async def test_a_stream_is_resumed_after_its_last_event(autojump_clock: MockClock) -> None:
    """[TPT-063, TPT-064]"""
    wanted = Wanted()
    ways = Connections([framed(1), framed(2)], NotSent("refused"), [framed(3)], session_over())
    with pytest.raises(SessionError):
        await stream_events(ways.open, wanted.take, wanted, backoff())
    assert wanted.taken == [1, 2, 3]
    assert ways.asked == ["sub_1:0", "sub_1:2", "sub_1:2", "sub_1:3"]
    begin = ways.at_mono_s[0]
    assert [mono_s - begin for mono_s in ways.at_mono_s] == pytest.approx([0, 1, 3, 4])
    assert ways.closed == 2


def session_over() -> MHSError:
    return SessionError("MHS.SESSION.EXPIRED", "over", retryable=False)


async def test_a_stream_has_a_budget_of_attempts(autojump_clock: MockClock) -> None:
    """[TPT-064] Pauses double up to a cap, and then it is over."""
    wanted, ways = Wanted(), Connections()
    with pytest.raises(TransportError, match="the events have ended: refused"):
        await stream_events(ways.open, wanted.take, wanted, backoff())
    begin = ways.at_mono_s[0]
    assert [mono_s - begin for mono_s in ways.at_mono_s] == pytest.approx([0, 1, 3, 6, 9])


async def test_an_endpoint_that_is_busy_is_asked_again_when_it_says(autojump_clock: MockClock) -> None:
    busy = error("MHS.LIMIT.RATE_EXCEEDED", "busy", details={"retry_after_ms": 7000})
    wanted, ways = Wanted(), Connections(busy, [framed(1)], session_over())
    with pytest.raises(SessionError):
        await stream_events(ways.open, wanted.take, wanted, backoff())
    assert ways.at_mono_s[1] - ways.at_mono_s[0] == pytest.approx(7)
    assert wanted.taken == [1]


async def test_too_many_streams_are_told_at_once_and_waited_for_after_a_break(
    autojump_clock: MockClock,
) -> None:
    """[TPT-017]"""
    wanted, full = Wanted(), error("MHS.LIMIT.RATE_EXCEEDED", "full")
    full.mhs_code = "MHS.LIMIT.CONNECTION_LIMIT"
    with pytest.raises(MHSError, match="full"):
        await stream_events(Connections(full).open, wanted.take, wanted, backoff())
    ways = Connections([framed(1)], full, [framed(2)], session_over())
    with pytest.raises(SessionError):
        await stream_events(ways.open, wanted.take, wanted, backoff())
    assert wanted.taken == [1, 2]


async def test_an_endpoint_that_is_being_restarted_is_waited_for(autojump_clock: MockClock) -> None:
    away = error("MHS.TRANSPORT.UNAVAILABLE", "stopping", http_status=503)
    wanted, ways = Wanted(), Connections(away, [framed(1)], session_over())
    with pytest.raises(SessionError):
        await stream_events(ways.open, wanted.take, wanted, backoff())
    assert wanted.taken == [1]


async def test_a_stream_without_a_sign_of_life_is_taken_for_broken(autojump_clock: MockClock) -> None:
    keepalive = b": keepalive\n\n"
    wanted = Wanted()
    ways = Connections([QUIET_S - 1, keepalive, QUIET_S - 1, keepalive, QUIET_S + 1, framed(1)])
    with pytest.raises(TransportError):
        await stream_events(ways.open, wanted.take, wanted, backoff(attempts=1))
    assert wanted.taken == []
    assert ways.at_mono_s[1] - ways.at_mono_s[0] == pytest.approx(3 * QUIET_S - 2 + 1)


# Readers.


async def test_events_that_come_before_the_grant_are_kept_for_it() -> None:
    hub = EventHub()
    hub.take(event(1))
    hub.take(event(1, "sub_2"))
    hub.take("no event")
    subscription = subscribed(hub)
    hub.take(event(2))
    assert [(await anext(subscription)).seq for _ in range(2)] == [1, 2]
    assert (await anext(subscribed(hub, "sub_2"))).seq == 1


async def test_a_reader_that_is_slow_finds_a_gap_and_holds_up_nobody() -> None:
    """[EVT-006, EVT-008]"""
    hub = EventHub()
    slow, quick = subscribed(hub), subscribed(hub, "sub_2")
    for seq in range(1, MOST_KEPT + 11):
        hub.take(event(seq))
        hub.take(event(seq, "sub_2"))
        assert (await anext(quick)).seq == seq
    gap = await anext(slow)
    assert (gap.is_gap, gap["from"], gap["to"], gap.payload) == (True, 1, 11, {"client": True})
    assert (await anext(slow)).seq == 12


async def test_what_arrived_before_the_end_is_given_out_first() -> None:
    hub = EventHub()
    subscription = subscribed(hub)
    hub.take(event(1))
    hub.take({**event(2), "seq": "two"})
    subscription.interrupt()
    subscription.finish(session_over())
    subscription.finish()
    assert (await anext(subscription)).seq == 1
    assert is_gap(await anext(subscription))
    for _ in range(2):
        with pytest.raises(SessionError):
            await anext(subscription)


async def test_a_reader_that_waits_is_woken_by_the_next_event(nursery: trio.Nursery) -> None:
    hub, seen = EventHub(), []
    subscription = subscribed(hub)

    async def read() -> None:
        async for each in subscription:
            seen.append(each.seq)

    nursery.start_soon(read)
    await wait_all_tasks_blocked()
    for seq in (1, 2):
        hub.take(event(seq))
        await wait_all_tasks_blocked()
        assert seen[-1] == seq
    subscription.finish()
    assert subscription.last_event_id == "sub_1:2"


async def test_an_event_is_waited_for_as_long_as_is_said(autojump_clock: MockClock) -> None:
    hub = EventHub()
    subscription = subscribed(hub)
    begin = trio.current_time()
    assert await subscription.get(2.5) is None
    assert trio.current_time() - begin == pytest.approx(2.5)
    hub.take(event(1))
    got = await subscription.get(0)
    assert got is not None
    assert got.seq == 1
    subscription.finish()
    assert await subscription.get() is None
    assert subscription.over


# Heartbeats.


class Heart:
    """A session's heartbeats, counted."""

    def __init__(self, nursery: trio.Nursery, every_s: float | None = 10.0) -> None:
        self.beats: list[float] = []
        self.looks = 0
        self.takes_s = 0.0
        self.over: list[MHSError] = []
        self.problems: list[MHSError | None] = []
        self.pulse = Pulse(nursery, beat=self.beat, look=self.look, over=self.over.append, every_s=every_s)
        self._begin_mono_s = trio.current_time()

    async def beat(self) -> None:
        await trio.sleep(self.takes_s)
        self.beats.append(trio.current_time() - self._begin_mono_s)
        self.pulse.every_s = self.pulse.every_s or 20.0
        problem = self.problems.pop(0) if self.problems else None
        if problem is not None:
            raise problem

    async def look(self) -> None:
        await trio.lowlevel.checkpoint()
        self.looks += 1


async def test_a_session_lives_while_something_is_open_in_it(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """[MHSD-4-29]"""
    heart = Heart(nursery)
    await trio.sleep(25)
    assert heart.beats == []
    async with heart.pulse.held():
        await trio.sleep(22)
        async with heart.pulse.held():
            await trio.sleep(5)
    await trio.sleep(100)
    assert heart.beats == pytest.approx([25, 35, 45])
    assert heart.looks == 3


async def test_a_session_of_unknown_lifetime_is_asked_for_it_at_once(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    heart = Heart(nursery, every_s=None)
    async with heart.pulse.held():
        await trio.sleep(45)
    assert heart.beats == pytest.approx([0, 20, 40])


async def test_a_heartbeat_that_got_lost_is_followed_by_the_next(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    heart = Heart(nursery)
    heart.problems = [error("MHS.TRANSPORT.UNAVAILABLE", "gone"), None]
    async with heart.pulse.held():
        await trio.sleep(12)
    assert heart.beats == pytest.approx([10, 11])
    assert heart.over == []


async def test_calls_that_are_shorter_than_a_heartbeat_do_not_keep_it_from_going_out(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """[MHSD-4-29] A program that does one short thing after the other is alive."""
    heart = Heart(nursery)
    heart.takes_s = 1.0
    for _ in range(60):
        async with heart.pulse.held():
            await trio.sleep(0.5)
    assert heart.beats == pytest.approx([11, 22])


async def test_no_heartbeat_is_begun_after_the_end(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    heart = Heart(nursery)
    async with heart.pulse.held():
        await trio.sleep(1)
        heart.pulse.end()
        await trio.sleep(50)
    async with heart.pulse.held():
        await trio.sleep(50)
    assert heart.beats == []


async def test_a_refused_heartbeat_says_that_the_session_is_over(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    heart = Heart(nursery)
    heart.problems = [session_over()]
    async with heart.pulse.held():
        await trio.sleep(50)
    async with heart.pulse.held():
        await trio.sleep(50)
    assert heart.beats == pytest.approx([10])
    assert [problem.mhs_code for problem in heart.over] == ["MHS.SESSION.EXPIRED"]


# Tasks beside a block.


async def test_a_block_raises_what_it_raises_and_its_tasks_end_with_it() -> None:
    ended = []

    async def beside() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)

    async def block() -> None:
        async with background() as nursery:
            nursery.start_soon(beside)
            await wait_all_tasks_blocked()
            raise error("MHS.TRANSPORT.UNAVAILABLE", "gone")

    with pytest.raises(TransportError):
        await block()
    assert ended == [True]


async def test_a_block_that_is_cancelled_is_cancelled() -> None:
    with trio.CancelScope() as scope:
        async with background():
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
