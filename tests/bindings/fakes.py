"""A door that answers by itself, and a client that speaks raw bytes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import trio
import trio.testing

from mhsd.base.errors import Fault
from mhsd.protocol.dispatch import Dispatch, Exchange
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

    def search(self, peer: Peer) -> Search:
        self.searches.append(Search())
        return self.searches[-1]

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
