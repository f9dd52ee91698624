"""trio-websocket on a stream that the front hands over: what is different here from how the library does it.

The library reads frames, answers pings and does both handshakes. Three things are done otherwise. Messages are
handed on piece by piece as they come, so that their length is counted in bytes and a stop is found in one that is too
long. Nothing that is written waits for the peer, so that reading never waits for a peer that does not read. And a
peer that sends what is no WebSocket is told so by a close frame, which the library leaves out.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable

import trio
from trio_websocket import WebSocketConnection
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import BytesMessage, CloseConnection, TextMessage
from wsproto.frame_protocol import XorMaskerSimple

from mhsd.bindings.outgoing import Outgoing

_READ_BYTES = 65536
_SLICE_BYTES = 2048
"""The library handles all frames of what it has read before anybody else runs, and a frame can be six bytes long."""

_MOST_PONG_BYTES = 16384
"""So many bytes of pongs may wait to be written; a peer that reads none of them gets no more."""

_TEXT, _CLOSE, _PONG = 0x81, 0x88, 0x8A

Piece = TextMessage | BytesMessage


def text_frame(message: bytes) -> bytes:
    """One unfragmented text frame of a server; the library's own way to it costs a lock and three copies."""
    size = len(message)
    if size < 126:
        return struct.pack("!BB", _TEXT, size) + message
    if size < 65536:
        return struct.pack("!BBH", _TEXT, 126, size) + message
    return struct.pack("!BBQ", _TEXT, 127, size) + message


def masked_size(message_bytes: int) -> int:
    """How long the one frame is in which a client sends a message of this length."""
    return message_bytes + (6 if message_bytes < 126 else 8 if message_bytes < 65536 else 14)


def lone_message(data: bytes) -> bytes | None:
    """The message in the one frame of a client that these bytes are, None where they are anything else."""
    if len(data) < 6 or data[0] != _TEXT:
        return None
    size_bytes = {126: 2, 127: 8}.get(data[1] & 0x7F, 0)
    size = int.from_bytes(data[2 : 2 + size_bytes], "big") if size_bytes else data[1] & 0x7F
    start = 2 + size_bytes + 4
    if len(data) != start + size:
        return None
    return bytes(XorMaskerSimple(data[start - 4 : start]).process(bytearray(data[start:])))


class Wire(trio.abc.Stream):
    """The library's view of the connection: what it reads is cut in slices, what it writes is put in order."""

    def __init__(self, stream: trio.abc.Stream, opening: bytes, ahead: bytes, outgoing: Outgoing) -> None:
        self._stream = stream
        self._opening = opening
        self._ahead = ahead
        self._at = 0
        self._outgoing = outgoing
        self._pong_bytes = 0
        self._opened = trio.Event()
        self._closed = False
        self.slice = b""
        """What the library was given last."""

    def open(self) -> None:
        """Let the frames through; until the library has accepted it would take them for HTTP."""
        self._opened.set()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """The request, then the next frames."""
        if self._closed:
            raise trio.ClosedResourceError
        if self._opening:
            opening, self._opening = self._opening, b""
            return opening
        if not self._opened.is_set():
            await self._opened.wait()
        if self._at < len(self._ahead):
            await trio.lowlevel.checkpoint()
        else:
            self._ahead, self._at = bytes(await self._stream.receive_some(_READ_BYTES)), 0
        self.slice = self._ahead[self._at : self._at + _SLICE_BYTES]
        self._at += len(self.slice)
        return self.slice

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Put one frame in order, or the answer to the request. A close frame is the last."""
        await trio.lowlevel.checkpoint()
        if data[0] == _PONG:
            self._pong_bytes = len(data) + (self._pong_bytes if self._outgoing.count else 0)
            if self._pong_bytes > _MOST_PONG_BYTES:
                return
        self._outgoing.put(bytes(data))
        if data[0] == _CLOSE:
            self._outgoing.end()

    async def wait_send_all_might_not_block(self) -> None:
        """Writing never waits."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Leaves the connection open: what is on its way is still written, and then the front closes it."""
        self._closed = True
        await trio.lowlevel.checkpoint()


async def _whole(handling: Awaitable[None]) -> None:
    """Let no defect pass for an event that the library does not know, which is what it takes a KeyError for."""
    try:
        await handling
    except KeyError as defect:
        raise RuntimeError("a message could not be handled") from defect


class Socket(WebSocketConnection):
    """One WebSocket, the server's side. Uses names of trio-websocket 0.12 that are not its public ones."""

    def __init__(
        self,
        wire: Wire,
        on_piece: Callable[[Piece], Awaitable[None]],
        on_unreadable: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(wire, WSConnection(ConnectionType.SERVER))
        self._on_piece = on_piece
        self._on_unreadable = on_unreadable

    async def accept(self, subprotocol: str) -> None:
        """Answer the request, with no extension."""
        request = await self._get_request()
        await request.accept(subprotocol=subprotocol)

    async def read(self) -> None:
        """Read frames until the connection is closed, by whichever side, or broken."""
        await self._reader_task()

    async def _handle_message_event(self, event: Piece) -> None:
        await _whole(self._on_piece(event))

    async def _handle_close_connection_event(self, event: CloseConnection) -> None:
        if self._wsproto.state is ConnectionState.OPEN:
            # Not a close frame: the peer has sent something that cannot be read.
            await _whole(self._on_unreadable())
            await self._send(CloseConnection(code=event.code, reason=event.reason))
        await super()._handle_close_connection_event(event)
