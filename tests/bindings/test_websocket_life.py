"""What keeps a WebSocket open, in a time that jumps: pongs, its credential, and events between its answers.

[TPT-022, TPT-023, TPT-024, TPT-059]
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import h11
import pytest
import trio
import trio.testing

from mhsd.bindings.callers import UNKNOWN
from mhsd.bindings.checks import Names
from mhsd.bindings.routes import ROUTES
from mhsd.bindings.site import Site, Upgrade
from mhsd.bindings.tickets import Tickets
from mhsd.bindings.ws import BOUNDS, PING_S, PONG_S, WebSocket, WebSockets
from mhsd.bindings.ws_upgrade import opening as checked
from mhsd.protocol.auth import TokenFiles
from tests.bindings.conftest import schema
from tests.bindings.fakes import STOP, EchoDoor, Events, Sent, call
from tests.bindings.sockets import CLOSE, PING, PONG, WsClient, close, frame, opening

SECRET = "s3cret-of-the-bench"
ENTRY = '[[token]]\nsha256 = "{digest}"\nprincipal = "agent:a"\nrole = "{role}"\n'


class Life:
    """One WebSocket in memory, its client's end of it, and the file with its client's token."""

    def __init__(self, tmp_path: Path, *, guarded: bool) -> None:
        self.token_file = tmp_path / "tokens.toml"
        self.write_tokens()
        self.door = EchoDoor()
        site = Site(
            door=self.door,  # type: ignore[arg-type]
            tokens=TokenFiles.load(self.token_file if guarded else None, None),
            names=Names.of(["127.0.0.1"], [], [], port=7400, tls=False),
            routes=ROUTES,
            descriptor=b"{}",
            schema=schema,
            max_request_bytes=100_000,
            socket_timeout_s=10.0,
        )
        ours, theirs = trio.testing.memory_stream_pair()
        self.ours = ours
        self.client = WsClient(theirs)
        request = self._request()
        peer = WebSockets(Tickets()).authenticate(UNKNOWN, request, site)
        self.leaving = trio.Event()
        self.ended = trio.Event()
        upgrade = Upgrade(ours, b"", peer, site, self.leaving)
        self.socket = WebSocket(upgrade, checked(request))

    def write_tokens(self, role: str = "client", *others: str) -> None:
        """What the token file has from now on: the client's token with this role, and others."""
        entries = (
            [ENTRY.format(digest=hashlib.sha256(SECRET.encode()).hexdigest(), role=role)] if role else []
        )
        entries += [ENTRY.format(digest=hashlib.sha256(b"other").hexdigest(), role="reader")]
        self.token_file.write_text("".join(entries))
        self.token_file.chmod(0o600)

    @staticmethod
    def _request() -> h11.Request:
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(opening(f"Authorization: Bearer {SECRET}"))
        event = connection.next_event()
        assert isinstance(event, h11.Request)
        return event

    @property
    def events(self) -> Events:
        return self.door.connections[0]

    async def run(self) -> None:
        await self.socket.run()
        await self.ours.aclose()
        self.ended.set()

    async def at_end(self) -> None:
        await trio.aclose_forcefully(self.client.stream)
        with trio.fail_after(60):
            await self.ended.wait()


async def begun(nursery: trio.Nursery, tmp_path: Path, *, guarded: bool = False) -> Life:
    life = Life(tmp_path, guarded=guarded)
    nursery.start_soon(life.run)
    assert (await life.client.answer()).status == 101
    return life


# Pings


async def test_a_peer_that_answers_pings_is_kept_and_one_that_stops_is_closed(
    nursery: trio.Nursery, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """[TPT-022]"""
    life = await begun(nursery, tmp_path)
    start = trio.current_time()
    for turn in range(1, 6):
        with trio.fail_after(PING_S + 1):
            ping = await life.client.frame()
        assert ping.opcode == PING
        assert trio.current_time() == pytest.approx(start + turn * PING_S)
        await life.client.send(frame(ping.payload, PONG))
    ping = await life.client.frame()
    assert ping.opcode == PING
    await life.client.send(frame(b"another one", PONG))
    assert (await life.client.frame()).code == 1002
    assert trio.current_time() == pytest.approx(start + 6 * PING_S + PONG_S)
    await life.client.send(close(1002))
    await life.at_end()
    assert life.events.closed


async def test_a_peer_that_never_answers_the_close_is_left_after_two_seconds(
    nursery: trio.Nursery, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """[TPT-022]"""
    life = await begun(nursery, tmp_path)
    await life.client.send(frame(b"", 2))
    start = trio.current_time()
    await life.ended.wait()
    assert trio.current_time() == pytest.approx(start + 2.0)


async def test_a_peer_whose_pong_is_not_read_yet_is_kept(
    nursery: trio.Nursery, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """[TPT-022]"""
    life = await begun(nursery, tmp_path)
    await life.client.say(*[call("wait", number) for number in range(BOUNDS.unanswered)])
    body = b'"' + b"x" * 90_000 + b'"'
    await life.client.say(*[body] * 20)  # More than is read ahead, so that a pong behind it is not read.
    await life.client.send(frame(b"", PONG))
    await trio.sleep(5 * (PING_S + PONG_S))
    assert not life.ended.is_set()
    life.door.released.set()
    frames = [await life.client.frame() for _ in range(BOUNDS.unanswered + 20 + 5)]
    assert {found.opcode for found in frames} == {1, PING}
    await life.at_end()


# The credential


async def test_a_token_that_is_taken_back_closes_its_connection_although_it_is_idle(
    nursery: trio.Nursery, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """[TPT-022, TPT-059, MHSD-9a-89]"""
    life = await begun(nursery, tmp_path, guarded=True)
    await life.client.say(call())
    assert await life.client.text() == call()
    life.write_tokens("")
    assert (await life.client.frame()).code == 1008
    assert trio.current_time() <= 2
    await life.at_end()


@pytest.mark.parametrize("role", ["", "reader", "operator"])
async def test_a_message_with_a_token_that_is_not_what_it_was_is_not_served(
    nursery: trio.Nursery, tmp_path: Path, role: str
) -> None:
    """[TPT-022, TPT-059, MHSD-9a-89]"""
    life = await begun(nursery, tmp_path, guarded=True)
    life.write_tokens(role)
    await life.client.say(call())
    assert (await life.client.frame()).code == 1008
    assert life.door.entered == []
    await life.at_end()


async def test_another_change_of_the_token_file_disturbs_nobody(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    """[TPT-059]"""
    life = await begun(nursery, tmp_path, guarded=True)
    life.token_file.write_text("# seen\n" + life.token_file.read_text())
    await life.client.say(call())
    assert await life.client.text() == call()
    await life.at_end()


async def test_a_message_that_is_too_long_is_not_searched_for_a_token_that_is_gone(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    """[TPT-059]"""
    life = await begun(nursery, tmp_path, guarded=True)
    life.write_tokens("")
    await life.client.say(b"[" + STOP + b"x" * 100_000)
    assert (await life.client.frame()).code == 1008
    assert life.door.searches == []
    await life.at_end()


# Events


def event(seq: int) -> Sent:
    return Sent("s", seq, b'{"method":"mhs.event","seq":%d}' % seq)


async def test_each_event_is_a_message_of_its_own(nursery: trio.Nursery, tmp_path: Path) -> None:
    """[TPT-024, EVT-010]"""
    life = await begun(nursery, tmp_path)
    sent = [event(seq) for seq in range(1, 300)]
    life.events.push(*sent)
    assert await life.client.texts(len(sent)) == [each.message for each in sent]
    await life.at_end()


async def test_what_there_is_of_events_at_the_end_goes_out_before_the_close(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    """[TPT-022, TPT-024]"""
    life = await begun(nursery, tmp_path)
    life.events.push(event(1))
    life.events.end()
    life.leaving.set()
    assert await life.client.text() == event(1).message
    closed = await life.client.frame()
    assert (closed.opcode, closed.code) == (CLOSE, 1001)
    await life.at_end()
