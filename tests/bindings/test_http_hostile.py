"""Hundreds of hostile connections: each ends itself, and the endpoint goes on as if nothing had been."""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from tests.bindings.conftest import Serve
from tests.bindings.fakes import Client, Sent, call, until
from tests.lab import HttpWire, running

BODY = call()
GOOD = (
    b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)
UPGRADE = (
    b"GET /mhs/v1/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n\x81\x85\0\0\0\0hello"
)
HTTP_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\4\0\0\0\0\0\0\3\0\0\0\x64"
CHUNKED = (
    b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n5\r\n[1,2]\r\n0\r\nTrailer: x\r\n\r\n"
)
EVENTS = (
    b"GET /mhs/v1/events?session_id=s&subscription_id=x HTTP/1.1\r\nHost: localhost\r\n"
    b"Accept: text/event-stream\r\nLast-Event-ID: sub_A:1\r\n\r\n"
)
SEEDS = (
    GOOD,
    GOOD + GOOD,
    EVENTS,
    EVENTS + GOOD,
    UPGRADE,
    UPGRADE + UPGRADE,
    HTTP_2,
    CHUNKED,
    b"\x16\x03\x01\x02\0",
    b"\r\n\r\n" + GOOD,
    b"",
)


def mutated(rng: random.Random) -> bytes:
    """A message with some bytes flipped, dropped, doubled or cut off."""
    data = bytearray(rng.choice(SEEDS))
    for _ in range(rng.randrange(6)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[place : place + rng.randrange(30)]
            case 2:
                data[place:place] = data[place : place + rng.randrange(60)]
            case _:
                del data[place:]
    return bytes(data)


async def attack(client: Client, data: bytes, manner: int) -> None:
    """Send it whole or in pieces, then leave in one of the ways in which clients leave."""
    cut = len(data) // 2
    try:
        await client.send(data[:cut])
        await client.send(data[cut:])
        if manner == 0:
            await client.stream.send_eof()
        if manner != 1:
            with trio.move_on_after(0.3):
                while await client.stream.receive_some(65536):
                    pass
    except trio.BrokenResourceError:
        pass
    finally:
        if manner == 2:
            client.stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await trio.aclose_forcefully(client.stream)


async def crowd_of(connect: Callable[[], Awaitable[Client]]) -> None:
    """800 attacks, some at a time."""
    rng = random.Random(20261130)
    places = trio.CapacityLimiter(40)

    async def one(data: bytes, manner: int) -> None:
        async with places:
            await attack(await connect(), data, manner)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(800):
                nursery.start_soon(one, mutated(rng), rng.randrange(4))


async def test_800_hostile_connections_harm_nobody_but_themselves(serve: Serve) -> None:
    """On all paths, more of them at a time than there are places; then everything is as it was."""
    served = await serve(max_connections=20)
    await crowd_of(served.connect)
    await until(lambda: not served.front.connections)
    assert served.front.defects == 0
    assert served.door.streams.open_now == 0
    assert (await (await served.connect()).post(BODY)).status == 200
    assert (await (await served.connect()).events()).status == 200
    served.front.drain()
    with trio.fail_after(10):
        await served.front.finish(patience_s=3)


async def test_good_clients_are_served_among_hostile_ones(serve: Serve) -> None:
    """A request is answered, and a stream delivers, in between every two of them."""
    served = await serve()
    good, listener = await served.connect(), await served.connect()
    assert (await listener.events()).status == 200
    assert await listener.block() == "retry: 3000"
    events = served.door.streams.opened[0]
    rng = random.Random(7)
    async with trio.open_nursery() as nursery:
        for seq in range(100):
            nursery.start_soon(attack, await served.connect(), mutated(rng), rng.randrange(4))
            assert (await good.post(BODY)).status == 200
            events.push(Sent("sub_A", seq, b"{}"))
            assert (await listener.block()).startswith(f"id: sub_A:{seq}\n")
    assert served.front.defects == 0


async def test_http_2_without_asking_is_refused_and_closed(serve: Serve) -> None:
    """Prior knowledge of HTTP/2 would pass every limit that holds for HTTP/1.1."""
    served = await serve()
    for data in (HTTP_2, HTTP_2 + b"\0" * 1000, b"PRI * HTTP/2.0\r\n\r\n"):
        client = await served.connect()
        await client.send(data)
        answer = await client.answer()
        assert (answer.status, answer.mhs_code) == (505, "MHS.PROTOCOL.INVALID_REQUEST")
        assert await client.at_end()
    assert served.door.entered == []


def test_a_daemon_outlives_800_hostile_connections(tmp_path: Path) -> None:
    """With everything behind the front: nothing is logged as a defect, and a stop is served as ever."""
    with running("http", tmp_path, "--rate-per-s", "100000", "--rate-burst", "100000") as lab:
        assert isinstance(lab.wire, HttpWire)
        port = int(lab.wire.port)

        async def connect() -> Client:
            return Client(await trio.open_tcp_stream("127.0.0.1", port))

        trio.run(crowd_of, connect)
        assert lab.call("mhs.safety.estop", reason="test")["status"] == "completed"
        assert lab.process.poll() is None
    assert "Traceback" not in lab.stderr()
    assert "defect" not in lab.stderr()


async def test_a_time_without_descriptors_passes_and_is_told_of_once(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """[TPT-020]"""
    accept, failures = trio.SocketListener.accept, [OSError(errno.EMFILE, "Too many open files")] * 3

    async def accept_later(listener: trio.SocketListener) -> trio.SocketStream:
        if failures:
            raise failures.pop()
        return await accept(listener)

    monkeypatch.setattr(trio.SocketListener, "accept", accept_later)
    monkeypatch.setattr("mhsd.bindings.front._ACCEPT_PAUSE_S", 0.0)
    client = await (await serve()).connect()
    assert (await client.post(BODY)).status == 200
    assert failures == []
    assert caplog.text.count("Too many open files") == 1
