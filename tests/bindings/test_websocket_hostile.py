"""Hostile upgrades, frames and floods: each connection ends itself, and nobody else notices [TPT-022]."""

from __future__ import annotations

import random
import struct

import pytest
import trio

from mhsd.bindings import ws
from mhsd.bindings.routes import ROUTES
from mhsd.bindings.ws import websocket_routes
from tests.bindings.conftest import Serve, Served
from tests.bindings.fakes import STOP, call, until
from tests.bindings.sockets import BINARY, CLOSE, PING, PONG, WsClient, close, frame, in_fragments, opening
from tests.bindings.test_http_hostile import attack

FRAMES = (
    frame(call()),
    frame(STOP),
    frame(call(), BINARY),
    frame(b"x" * 300),
    frame(b'"' + b"x" * 70_000 + b'"'),
    frame("€ \U0001f600".encode()),
    frame(b"ping", PING),
    frame(b"", PONG),
    close(1000, b"bye"),
    frame(b"", CLOSE),
    in_fragments(call(), 3, 0, 10, between=[frame(b"", PING)]),
    frame(b"[", fin=False),
    frame(b"]", 0),
    frame(b"x", length=struct.pack("!BQ", 127, 1 << 40)),
    frame(b"x", mask=None),
    b"",
)


@pytest.fixture
async def served(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setattr(ws, "CLOSE_S", 0.2)
    return await serve(routes={**ROUTES, **websocket_routes()}, max_connections=40)


def mangled(rng: random.Random, data: bytes) -> bytes:
    """Some bytes flipped, dropped, doubled or cut off."""
    out = bytearray(data)
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(out) + 1)
        match rng.randrange(4):
            case 0:
                out[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                del out[place : place + rng.randrange(20)]
            case 2:
                out[place:place] = out[place : place + rng.randrange(40)]
            case _:
                del out[place:]
    return bytes(out)


async def assert_unharmed(served: Served) -> None:
    client = await WsClient((await served.connect()).stream).opened()
    await client.say(call())
    assert await client.text() == call()
    assert served.front.defects == 0
    served.front.drain()
    with trio.fail_after(10):
        await served.front.finish(patience_s=1)


async def test_hostile_upgrades_harm_nobody_but_themselves(served: Served) -> None:
    rng = random.Random(20261130)
    crowd = trio.CapacityLimiter(40)

    async def one(data: bytes, manner: int) -> None:
        async with crowd:
            await attack(await served.connect(), data, manner)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                behind = b"".join(rng.choices(FRAMES, k=rng.randrange(4)))
                nursery.start_soon(one, mangled(rng, opening()) + behind, rng.randrange(4))
        await until(lambda: served.front.connections == 0)
    await assert_unharmed(served)


async def test_hostile_frames_harm_nobody_but_themselves(served: Served) -> None:
    rng = random.Random(7)
    crowd = trio.CapacityLimiter(20)

    async def one(data: bytes, manner: int) -> None:
        async with crowd:
            client = await served.connect()
            await WsClient(client.stream).opened()
            await attack(client, data, manner)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(300):
                data = b"".join(rng.choices(FRAMES, k=rng.randrange(1, 12)))
                nursery.start_soon(one, mangled(rng, data), rng.randrange(4))
        await until(lambda: served.front.connections == 0)
    await assert_unharmed(served)


FLOODS = {
    "pings": frame(b"", PING) * 40_000,
    "pongs": frame(b"", PONG) * 40_000,
    "empty fragments": frame(b"[", fin=False) + frame(b"", 0, fin=False) * 40_000,
    "empty messages": frame(b"") * 40_000,
    "notifications": frame(call("notify")) * 5000,
    "messages that are too long": frame(b'"' + b"x" * 150_000 + b'"') * 20,
    "a message without an end": frame(b"x" * 90_000, fin=False) + frame(b"x" * 90_000, 0, fin=False) * 30,
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_holds_up_no_stop_of_somebody_else(served: Served, flood: str) -> None:
    """[CORE-076, TPT-022]"""
    good = await WsClient((await served.connect()).stream).opened()
    bad = await WsClient((await served.connect()).stream).opened()

    async def pour() -> None:
        try:
            await bad.send(FLOODS[flood])
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pour)
        for _ in range(20):
            await good.say(STOP)
            assert await good.text() == STOP
        await bad.stream.aclose()
    await assert_unharmed(served)
