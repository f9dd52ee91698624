"""A bad network: a proxy between a client and an endpoint that holds, splits, doubles and cuts what it passes on.

    async with open_proxy(port) as proxy:
        ... connect a client to 127.0.0.1:proxy.port ...
        proxy.to_client.split = 1           # one byte at a time from now on
        proxy.to_client.cut_after = 500     # every connection ends after this many more bytes to the client
        proxy.hold(); proxy.release()       # nothing passes in between
        proxy.cut()                         # the connections that there are end now, by a reset
        proxy.refusing = True               # new connections end at once
        await proxy.until_connections(2)    # so many have been made in all

Every fault can be changed while connections are open, and holds from the next piece of bytes on.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

READ_BYTES = 65536
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_ENDS = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


@attrs.define
class Faults:
    """What happens to the bytes in one direction."""

    split: int | None = None
    """Pass on in pieces of this many bytes, each in a segment of its own."""
    delay_s: float = 0.0
    """Wait before each piece."""
    copies: int = 1
    """Pass each piece on so often."""
    cut_after: int | None = None
    """Pass on this many bytes more, over all connections, then cut the connection that would pass the next one."""
    passed: int = 0
    """How many bytes have been passed on."""

    def pieces(self, data: bytes) -> list[bytes]:
        size = self.split or len(data)
        return [data[at : at + size] for at in range(0, len(data), size) for _ in range(self.copies)]


class Proxy:
    """Passes connections on to `target_port`, with faults."""

    def __init__(self, target_port: int, listener: trio.SocketListener) -> None:
        self.port: int = listener.socket.getsockname()[1]
        self.to_endpoint = Faults()
        self.to_client = Faults()
        self.refusing = False
        self.connections = 0
        """How many connections clients have made in all."""
        self.open = 0
        self._target_port = target_port
        self._listener = listener
        self._cutting: set[trio.CancelScope] = set()
        self._flowing = trio.Event()
        self._flowing.set()
        self._changed = trio.Event()

    def hold(self) -> None:
        """Let nothing pass until `release`; what clients and endpoint send is kept in the sockets."""
        self._flowing = trio.Event()

    def release(self) -> None:
        self._flowing.set()

    def cut(self) -> None:
        """Reset every connection that is open now, on both sides."""
        for scope in list(self._cutting):
            scope.cancel()

    async def until_connections(self, count: int) -> None:
        """Wait until clients have made this many connections in all."""
        with trio.fail_after(20):
            while self.connections < count:
                await self._changed.wait()

    async def until_idle(self) -> None:
        """Wait until no connection is open."""
        with trio.fail_after(20):
            while self.open:
                await self._changed.wait()

    async def run(self) -> None:
        await trio.serve_listeners(self._serve, [self._listener])

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _serve(self, client: trio.SocketStream) -> None:
        self.connections += 1
        self.open += 1
        self._note_change()
        try:
            if self.refusing:
                _reset_when_closed(client)
                return
            endpoint = await trio.open_tcp_stream("127.0.0.1", self._target_port)
            try:
                await self._join(client, endpoint)
            finally:
                await trio.aclose_forcefully(endpoint)
        except _ENDS:
            pass
        finally:
            await trio.aclose_forcefully(client)
            self.open -= 1
            self._note_change()

    async def _join(self, client: trio.SocketStream, endpoint: trio.SocketStream) -> None:
        with trio.CancelScope() as scope:
            self._cutting.add(scope)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pass, client, endpoint, self.to_endpoint, scope)
                    nursery.start_soon(self._pass, endpoint, client, self.to_client, scope)
            finally:
                self._cutting.discard(scope)
        if scope.cancelled_caught:
            _reset_when_closed(client)
            _reset_when_closed(endpoint)

    async def _pass(
        self,
        source: trio.SocketStream,
        sink: trio.SocketStream,
        faults: Faults,
        connection: trio.CancelScope,
    ) -> None:
        """Pass on until the source ends, then end the sink's half too; a broken side ends the connection."""
        try:
            while data := await source.receive_some(READ_BYTES):
                for piece in faults.pieces(data):
                    await self._flowing.wait()
                    if faults.delay_s:
                        await trio.sleep(faults.delay_s)
                    left = len(piece) if faults.cut_after is None else max(0, faults.cut_after)
                    await sink.send_all(piece[:left])
                    faults.passed += min(left, len(piece))
                    if faults.cut_after is not None:
                        faults.cut_after -= min(left, len(piece))
                        if left < len(piece):
                            connection.cancel()
                            return
            await self._flowing.wait()
            await sink.send_eof()
        except _ENDS:
            connection.cancel()


def _reset_when_closed(stream: trio.SocketStream) -> None:
    stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, _RESET_ON_CLOSE)


@asynccontextmanager
async def open_proxy(target_port: int) -> AsyncIterator[Proxy]:
    """A proxy in front of this port of 127.0.0.1, until the block is left."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        proxy = Proxy(target_port, listener)
        nursery.start_soon(proxy.run)
        yield proxy
        nursery.cancel_scope.cancel()
