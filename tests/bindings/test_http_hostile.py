"""Hundreds of hostile connections: each ends itself, and the endpoint goes on as if nothing had been."""

from __future__ import annotations

import random

import trio

from tests.bindings.conftest import Serve
from tests.bindings.fakes import Client, call

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
SEEDS = (GOOD, GOOD + GOOD, UPGRADE, HTTP_2, CHUNKED, b"\x16\x03\x01\x02\0", b"\r\n\r\n" + GOOD, b"")


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


async def test_hostile_connections_harm_nobody_but_themselves(serve: Serve) -> None:
    served = await serve(max_connections=20)
    rng = random.Random(20261130)
    crowd = trio.CapacityLimiter(40)

    async def one(data: bytes, manner: int) -> None:
        async with crowd:
            await attack(await served.connect(), data, manner)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(600):
                nursery.start_soon(one, mutated(rng), rng.randrange(4))
    assert served.front.defects == 0
    served.front.drain()
    with trio.fail_after(10):
        await served.front.finish(patience_s=3)


async def test_a_good_client_is_served_among_hostile_ones(serve: Serve) -> None:
    served = await serve()
    good = await served.connect()
    rng = random.Random(7)
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(attack, await served.connect(), mutated(rng), rng.randrange(4))
            assert (await good.post(BODY)).status == 200
