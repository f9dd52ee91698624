"""The Trio client over WebSocket against endpoints that answer as they please [TPT-021, TPT-062, TPT-064]."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from mhsd.aclient import AsyncClient, AsyncSession, open_client
from mhsd.client.errors import AuthError, MHSError, OutcomeUnknown, TransportError
from mhsd.client.transport import MAX_ANSWER_BYTES
from tests.cli.tiny import HELLO

PATIENCE_S = 20
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Gone(Exception):
    """The client has closed the connection."""


class Peer:
    """The endpoint's side of one connection, byte by byte."""

    def __init__(self, stream: trio.SocketStream, number: int) -> None:
        self.number = number
        self._stream = stream
        self._data = bytearray()

    async def _more(self) -> None:
        data = await self._stream.receive_some()
        if not data:
            raise Gone
        self._data += data

    async def _read(self, count: int) -> bytes:
        while len(self._data) < count:
            await self._more()
        found = bytes(self._data[:count])
        del self._data[:count]
        return found

    async def send(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def head(self) -> dict[str, str]:
        """The request that the connection begins with."""
        while b"\r\n\r\n" not in self._data:
            await self._more()
        head, _, rest = bytes(self._data).partition(b"\r\n\r\n")
        self._data = bytearray(rest)
        lines = [line.partition(": ") for line in head.decode().split("\r\n")[1:]]
        return {name.lower(): content for name, _, content in lines}

    async def upgrade(self) -> None:
        """Becomes a WebSocket."""
        key = (await self.head())["sec-websocket-key"].encode()
        accept = base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest())
        await self.send(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Protocol: mhs.v1\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )

    async def request(self) -> dict[str, Any]:
        """The next request; pings and the like are passed over."""
        while True:
            first, second = await self._read(2)
            length = second & 0x7F
            if length > 125:
                (length,) = struct.unpack(
                    *(("!H", await self._read(2)) if length == 126 else ("!Q", await self._read(8)))
                )
            mask = await self._read(4)
            payload = bytes(byte ^ mask[at % 4] for at, byte in enumerate(await self._read(length)))
            if first & 0x0F == 8:
                raise Gone
            if first & 0x0F == 1:
                request: dict[str, Any] = json.loads(payload)
                return request

    async def say(self, message: Any) -> None:
        await self.send(frame(json.dumps(message).encode()))

    async def answer(self, request: dict[str, Any], result: Any) -> None:
        await self.say({"jsonrpc": "2.0", "id": request["id"], "result": result})

    async def greet(self) -> None:
        """Becomes a WebSocket and answers its hello."""
        await self.upgrade()
        await self.answer(await self.request(), HELLO)

    async def until_gone(self) -> None:
        try:
            while True:
                await self.request()
        except (Gone, trio.BrokenResourceError):
            return


def frame(payload: bytes, first: int = 0x81) -> bytes:
    """One frame as an endpoint sends it; `first` is its first byte: FIN, RSV and the opcode."""
    size = len(payload)
    if size < 126:
        return bytes([first, size]) + payload
    return (
        bytes([first])
        + (struct.pack("!BH", 126, size) if size < 65536 else struct.pack("!BQ", 127, size))
        + payload
    )


Behave = Callable[[Peer], Awaitable[None]]


@asynccontextmanager
async def served(behave: Behave, **more: Any) -> AsyncIterator[AsyncClient]:
    """A client of an endpoint that does on each connection what it is told."""
    count = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal count
        count += 1
        try:
            await behave(Peer(stream, count))
        except (Gone, OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            return

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, serve, [listener])
            port = listener.socket.getsockname()[1]
            failure: MHSError | None = None
            try:
                async with open_client(f"ws://127.0.0.1:{port}", **{"timeout_s": 5, **more}) as client:
                    yield client
            except MHSError as problem:
                failure = problem
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def test_a_connection_that_was_given_up_is_closed() -> None:
    """[TPT-064] One on which hello got no answer, and one on which the task that said hello was cancelled."""
    begun, both_ended = trio.Event(), trio.Event()
    ended: list[int] = []

    async def behave(peer: Peer) -> None:
        await peer.upgrade()
        await peer.request()
        begun.set()
        await peer.until_gone()
        ended.append(peer.number)
        if len(ended) == 2:
            both_ended.set()

    async with served(behave) as client:
        with pytest.raises(TransportError):
            await client.call("mhs.devices.list", deadline_s=0.05)
        async with trio.open_nursery() as nursery:
            begun = trio.Event()
            nursery.start_soon(client.hello)
            await begun.wait()
            nursery.cancel_scope.cancel()
        await both_ended.wait()


def http(status: str, body: bytes, *headers: bytes) -> bytes:
    head = [
        b"HTTP/1.1 " + status.encode(),
        b"Content-Length: %d" % len(body),
        b"Content-Type: application/json",
    ]
    return b"\r\n".join([*head, *headers]) + b"\r\n\r\n" + body


FULL = http(
    "429 Too Many",
    json.dumps(
        {
            "jsonrpc": "2.0",
            "id": None,
            "error": {
                "code": -32000,
                "message": "full",
                "data": {"mhs_code": "MHS.LIMIT.CONNECTION_LIMIT", "details": {"retry_after_ms": 10}},
            },
        }
    ).encode(),
)


async def test_a_full_endpoint_is_asked_again_when_it_says() -> None:
    """[TPT-064] Also by a connection that takes the place of one that broke: the endpoint may still count that."""

    async def behave(peer: Peer) -> None:
        if peer.number in (2, 3):
            await peer.head()
            await peer.send(FULL)
            return
        await peer.greet()
        request = await peer.request()
        if peer.number == 1:
            return
        await peer.answer(request, {"devices": []})
        await peer.until_gone()

    async with served(behave) as client:
        with pytest.raises(OutcomeUnknown):
            await client.call("mhs.session.open")
        assert await client.call("mhs.devices.list") == {"devices": []}


async def test_events_wait_for_an_endpoint_that_is_full() -> None:
    """[TPT-063, TPT-064]"""

    async def behave(peer: Peer) -> None:
        if peer.number == 2:
            await peer.head()
            await peer.send(FULL)
            return
        await peer.greet()
        while True:
            request = await peer.request()
            granted = {"subscription_id": "sub_1", "seq_start": 1}
            await peer.answer(request, granted if request["method"] == "mhs.subscribe" else {})
            if request["method"] == "mhs.subscribe":
                return
            if peer.number == 3:
                event = {"subscription_id": "sub_1", "seq": 1, "stream": "state", "payload": {}}
                await peer.say({"jsonrpc": "2.0", "method": "mhs.event", "params": event})

    async with served(behave) as client:
        subscription = await AsyncSession(client, "mhs_s_1", ["one"], ttl_s=60).subscribe("state")
        assert (await anext(subscription)).is_gap
        assert (await anext(subscription)).seq == 1


REFUSALS: dict[str, tuple[bytes, type[MHSError]]] = {
    "a page": (http("200 OK", b"<html>"), TransportError),
    "a redirect": (http("302 Found", b"", b"Location: ws://elsewhere/"), TransportError),
    "no credential": (http("401 Unauthorized", b"{}"), AuthError),
    "a server error": (http("500 Oops", b"oops"), TransportError),
    "another protocol": (b"SSH-2.0-OpenSSH\r\n\r\n", TransportError),
    "nothing": (b"", TransportError),
    "half a head": (b"HTTP/1.1 101 Switching Protocols\r\nUpgr", TransportError),
    "a head without end": (b"HTTP/1.1 101 Switching Protocols\r\nX: " + b"x" * 200_000, TransportError),
    "the wrong accept": (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: AAAA\r\n\r\n",
        TransportError,
    ),
    "a Retry-After that is no number": (http("429 No", b"", b"Retry-After: \xb2"), MHSError),
}


@pytest.mark.parametrize("kind", REFUSALS)
async def test_what_is_no_websocket_is_told_and_nothing_was_sent(kind: str) -> None:
    """[TPT-055, TPT-062]"""
    said, error = REFUSALS[kind]

    async def behave(peer: Peer) -> None:
        await peer.head()
        await peer.send(said)

    async with served(behave) as client:
        for ask in (client.hello, lambda: client.call("mhs.command")):
            with pytest.raises(error) as told:
                await ask()
            assert not isinstance(told.value, OutcomeUnknown)


NONSENSE = {
    "a binary message": frame(b"{}", 0x82),
    "a frame that is compressed though nobody asked": frame(b"{}", 0xC1),
    "an unknown opcode": frame(b"{}", 0x83),
    "text that is no Unicode": frame(b"\xff\xfe"),
    "a continuation of nothing": frame(b"{}", 0x80),
    "a ping that is too long": frame(b"x" * 200, 0x89),
    "a close without reason": frame(b"", 0x88),
    "a close with a reason": frame(struct.pack("!H", 1008) + b"go away", 0x88),
    "a close with half a code": frame(b"\x03", 0x88),
    "a message without end": struct.pack("!BBQ", 0x81, 127, 1 << 40) + b"x" * (MAX_ANSWER_BYTES + 1),
}


@pytest.mark.parametrize("kind", NONSENSE)
async def test_nonsense_ends_its_connection_and_nothing_else(kind: str) -> None:
    """[TPT-062] The command is not sent again; the next call has a new connection."""
    sent = []

    async def behave(peer: Peer) -> None:
        await peer.greet()
        while True:
            request = await peer.request()
            sent.append(request["method"])
            if peer.number == 1:
                await peer.send(NONSENSE[kind])
                await peer.until_gone()
                return
            await peer.answer(request, {"state": {}})

    async with served(behave) as client:
        with pytest.raises(OutcomeUnknown):
            await client.call("mhs.command", {"deadline_ms": 60_000})
        assert await client.call("mhs.resource.read") == {"state": {}}
    assert sent == ["mhs.command", "mhs.resource.read"]


BESIDE: dict[str, Any] = {
    "another's answer": {"jsonrpc": "2.0", "id": "another", "result": {}},
    "an answer with both": {"jsonrpc": "2.0", "id": None, "result": {}, "error": {}},
    "a number": 5,
    "an empty batch": [],
    "an event without params": {"jsonrpc": "2.0", "method": "mhs.event"},
    "an event of nothing": {"jsonrpc": "2.0", "method": "mhs.event", "params": {"seq": "9" * 5000}},
    "another notification": {"jsonrpc": "2.0", "method": "mhs.what"},
    "a request": {"jsonrpc": "2.0", "method": "mhs.hello", "id": 1},
}


@pytest.mark.parametrize("kind", BESIDE)
async def test_what_answers_nothing_is_passed_over(kind: str) -> None:
    """[TPT-057]"""

    async def behave(peer: Peer) -> None:
        await peer.greet()
        while True:
            request = await peer.request()
            await peer.say(BESIDE[kind])
            await peer.send(frame(b'{"half": '))
            await peer.answer(request, {"asked": request["params"]["n"]})
            await peer.answer(request, {"asked": "again"})

    async with served(behave) as client:
        for n in range(3):
            assert await client.call("mhs.devices.get", {"n": n}) == {"asked": n}


async def test_a_stop_has_its_receipt_at_once_although_nothing_else_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the connection that hangs nor the farewell of its own one is waited for."""
    monkeypatch.setattr("mhsd.aclient.ws.CLOSE_S", 100 * PATIENCE_S)
    hung, stopped = trio.Event(), trio.Event()

    async def behave(peer: Peer) -> None:
        await (peer.greet() if peer.number == 1 else peer.upgrade())
        request = await peer.request()
        if peer.number > 1:
            await peer.answer(request, {"status": "completed"})
        hung.set()
        await stopped.wait()

    async with served(behave, timeout_s=3600) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call, "mhs.command")
        await hung.wait()
        assert (await client.estop()).ok
        nursery.cancel_scope.cancel()
        stopped.set()


async def test_a_stop_goes_over_the_connection_that_there_is_where_no_other_comes_about() -> None:
    """An endpoint that lets nobody in any more may still hear those who are."""
    over = trio.Event()

    async def behave(peer: Peer) -> None:
        if peer.number > 1:
            await over.wait()
            return
        await peer.greet()
        await peer.answer(await peer.request(), {"status": "completed"})
        await peer.until_gone()

    async with served(behave, timeout_s=1) as client:
        await client.hello()
        assert (await client.estop()).ok
        over.set()
