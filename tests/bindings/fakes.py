"""A door that answers by itself, and a client that speaks raw bytes."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import trio
import trio.testing

from mhsd.base.errors import Fault
from mhsd.protocol.answers import Exchange
from mhsd.protocol.dispatch import Dispatch
from mhsd.protocol.peer import Peer
from mhsd.wire.stop_scanner import StopScanner

STOP = b'{"jsonrpc":"2.0","id":"stop","method":"mhs.safety.estop"}'


def call(method: str = "echo", request_id: Any = 1, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}).encode()


async def until(happened: Callable[[], bool]) -> None:
    """Let everything run until this is true."""
    with trio.fail_after(10):
        while not happened():
            await trio.testing.wait_all_tasks_blocked(0.001)


class Search:
    """A search that runs nothing: it finds what the endpoint's own would find, and says what it was fed."""

    def __init__(self) -> None:
        self.fed = bytearray()
        self.found: list[dict[str, str]] = []
        self.was_cut = False
        self._scanner = StopScanner()

    async def feed(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.fed += data
        self.found += self._scanner.feed(data)

    def cut(self) -> None:
        self.was_cut = True
        self.found += self._scanner.finish()

    @property
    def has_found(self) -> bool:
        return bool(self.found)

    async def explain(self, fault: Fault) -> Fault:
        await trio.lowlevel.checkpoint()
        return Fault(fault.mhs_code, fault.message, details={"found": self.found}) if self.found else fault

    def abandon(self) -> None:
        pass


@attrs.frozen
class Sent:
    """An event as the endpoint's own streams deliver it."""

    subscription_id: str
    seq: int
    message: bytes


class Events:
    """A stream of events that a test feeds; it honours the contract of `EventStream`."""

    def __init__(self) -> None:
        self.ended = False
        self.closed = False
        self.takes: list[int] = []
        """How many bytes of messages each `take` has given."""
        self._waiting: deque[Sent] = deque()
        self._news = trio.Event()

    def push(self, *events: Sent) -> None:
        self._waiting += events
        self._news.set()

    def end(self) -> None:
        self.ended = True
        self._news.set()

    def close(self) -> None:
        self.closed = True

    @property
    def has_more(self) -> bool:
        return bool(self._waiting)

    async def wait(self) -> None:
        if not self._waiting and not self.ended:
            self._news = trio.Event()
            await self._news.wait()

    def take(self, max_bytes: int = 65536) -> list[Sent]:
        taken: list[Sent] = []
        size = 0
        while self._waiting and size < max_bytes:
            taken.append(self._waiting.popleft())
            size += len(taken[-1].message)
        self.takes.append(size)
        return taken


class EventStreams:
    """Honours the contract of `Dispatch.streams`, and says what was asked for and which streams are open."""

    def __init__(self) -> None:
        self.asked: list[tuple[Peer, str, str | None, Mapping[str, int]]] = []
        self.opened: list[Events] = []
        self.open_now = 0
        self.refusal: Fault | None = None

    @contextmanager
    def open(
        self, peer: Peer, session_id: str, *, only: str | None, after: Mapping[str, int]
    ) -> Iterator[Events]:
        self.asked.append((peer, session_id, only, after))
        if self.refusal is not None:
            raise self.refusal
        self.opened.append(Events())
        self.open_now += 1
        try:
            yield self.opened[-1]
        finally:
            self.open_now -= 1


class EchoDoor:
    """Honours the contract of `Dispatch`: echoes at once, or on release, and notes what came in which order."""

    refuse = staticmethod(Dispatch.refuse)

    def __init__(self) -> None:
        self.gate = trio.CapacityLimiter(1)
        self.entered: list[bytes] = []
        self.peers: list[Peer] = []
        self.released = trio.Event()
        self.waiting = trio.Event()
        self.left = trio.Event()
        self.gate_was_held: list[bool] = []
        self.searches: list[Search] = []
        self.streams = EventStreams()
        self.connections: list[Events] = []
        """The events of each connection that orders its messages."""
        self.charged: list[Peer] = []

    def search(self, peer: Peer) -> Search:
        self.searches.append(Search())
        return self.searches[-1]

    def events(self) -> Events:
        self.connections.append(Events())
        return self.connections[-1]

    def charge(self, peer: Peer) -> None:
        self.charged.append(peer)

    def begin(
        self, body: bytes, peer: Peer, received_mono_s: float | None = None
    ) -> Exchange | Awaitable[Exchange]:
        self.entered.append(body)
        self.peers.append(peer)
        self.gate_was_held.append(self.gate.borrowed_tokens == 1)
        try:
            message = json.loads(body)
        except ValueError:
            return Exchange(b'{"error":"parse"}', 400)
        method = message.get("method") if isinstance(message, dict) else None
        if method == "wait":
            return self._wait(body)
        if method == "notify":
            return Exchange(None, 204)
        if method == "fast":
            return Exchange(b'{"error":"rate"}', 429, 1200)
        if method == "defect":
            raise RuntimeError("a defect")
        if method == "large":
            return Exchange(b'"' + b"x" * message["params"]["bytes"] + b'"')
        return Exchange(body)

    async def _wait(self, body: bytes) -> Exchange:
        self.waiting.set()
        try:
            await self.released.wait()
        finally:
            self.left.set()
        return Exchange(body)


class Answer:
    """One HTTP response."""

    def __init__(self, head: bytes, body: bytes) -> None:
        status_line, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(status_line.split(" ")[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self.body = body

    @property
    def mhs_code(self) -> str:
        """The code of the JSON-RPC error, whose id must be null."""
        document = json.loads(self.body)
        assert document["jsonrpc"] == "2.0"
        assert document["id"] is None
        return str(document["error"]["data"]["mhs_code"])


class Client:
    """An HTTP client that sends exactly the bytes it is given."""

    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self.stream = stream
        self._buffer = bytearray()
        self._body = bytearray()
        self._is_chunked = False
        self._chunk_left = 0

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def post(
        self, body: bytes, *headers: str, path: str = "/mhs/v1/rpc", host: str = "localhost"
    ) -> Answer:
        lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", *headers]
        await self.send(("\r\n".join([*lines, f"Content-Length: {len(body)}"]) + "\r\n\r\n").encode() + body)
        return await self.answer()

    async def get(self, path: str, *headers: str, method: str = "GET") -> Answer:
        await self.send(
            "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()
        )
        return await self.answer(has_body=method != "HEAD")

    async def answer(self, *, has_body: bool = True) -> Answer:
        """The next response; EOFError where the connection ends before it is whole."""
        with trio.fail_after(10):
            while b"\r\n\r\n" not in self._buffer:
                await self._more()
            head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
            answer = Answer(head, b"")
            self._buffer[:] = rest
            length = int(answer.headers.get("content-length", "0")) if has_body else 0
            while len(self._buffer) < length:
                await self._more()
            answer.body = bytes(self._buffer[:length])
            del self._buffer[:length]
            return answer

    async def events(
        self, query: str = "?session_id=s", *headers: str, path: str = "/mhs/v1/events", version: str = "1.1"
    ) -> Answer:
        """Ask for a stream of events: the head of the answer. Its events come by `block`."""
        await self.send(
            "\r\n".join([f"GET {path}{query} HTTP/{version}", "Host: localhost", *headers, "", ""]).encode()
        )
        answer = await self.answer()
        self._is_chunked = answer.headers.get("transfer-encoding") == "chunked"
        return answer

    async def block(self) -> str:
        """The next block of an event stream, without the blank line; EOFError where the stream has ended."""
        with trio.fail_after(10):
            while b"\n\n" not in self._body:
                await self._more_body()
            block, _, self._body[:] = self._body.partition(b"\n\n")
            return block.decode()

    async def _more_body(self) -> None:
        if not self._is_chunked:
            self._body += self._buffer
            self._buffer.clear()
            if b"\n\n" not in self._body:
                await self._more()
            return
        if self._chunk_left == 0:
            while b"\r\n" not in self._buffer:
                await self._more()
            size, _, self._buffer[:] = self._buffer.partition(b"\r\n")
            if int(size, 16) == 0:
                while len(self._buffer) < 2:
                    await self._more()
                del self._buffer[:2]
                raise EOFError
            self._chunk_left = int(size, 16) + 2  # With the line end behind it.
        if not self._buffer:
            await self._more()
        piece = self._buffer[: self._chunk_left]
        del self._buffer[: len(piece)]
        self._chunk_left -= len(piece)
        # What is left of this chunk says how much of the piece is its line end.
        self._body += piece[: max(0, len(piece) - max(0, 2 - self._chunk_left))]

    async def _more(self) -> None:
        data = await self.stream.receive_some(65536)
        if not data:
            raise EOFError
        self._buffer += data

    async def at_end(self) -> bool:
        """Whether the endpoint closes the connection without sending more."""
        with trio.fail_after(10):
            try:
                return not self._buffer and await self.stream.receive_some(1) == b""
            except trio.BrokenResourceError:
                return True
