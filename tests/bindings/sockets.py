"""A WebSocket client that sends exactly the frames it is told to, wrong ones too, and shows every frame it gets."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Sequence
from contextlib import suppress

import attrs
import trio

from tests.bindings.fakes import Answer

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = base64.b64encode(
    hashlib.sha1(KEY.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
).decode()
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
PATIENCE_S = 60.0
MASK = b"\x37\xfa\x21\x3d"

OPENING = {
    "Host": "localhost",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Protocol": "mhs.v1",
}


def opening(
    *more: str, target: str = "/mhs/v1/ws", line: str = "GET {target} HTTP/1.1", **changes: str | None
) -> bytes:
    """The request for a WebSocket. `more` are further header lines; None leaves a header out."""
    changed = {name.replace("_", "-").lower(): value for name, value in changes.items()}
    headers = {name: changed.get(name.lower(), value) for name, value in OPENING.items()}
    lines = [
        line.format(target=target),
        *(f"{name}: {value}" for name, value in headers.items() if value is not None),
    ]
    return "\r\n".join([*lines, *more, "", ""]).encode("latin-1")


def frame(
    payload: bytes = b"",
    opcode: int = TEXT,
    *,
    fin: bool = True,
    rsv: int = 0,
    mask: bytes | None = MASK,
    length: bytes | None = None,
) -> bytes:
    """One frame; `length` puts other bytes in the place of the length, its seven bits included."""
    size = len(payload)
    if length is None and size < 126:
        length = bytes([size])
    elif length is None:
        length = struct.pack("!BH", 126, size) if size < 65536 else struct.pack("!BQ", 127, size)
    head = bytes([fin << 7 | rsv << 4 | opcode, length[0] | (mask is not None) << 7]) + length[1:]
    if mask is None:
        return head + payload
    repeated = (mask * (size // 4 + 1))[:size]
    masked = int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")
    return head + mask + masked.to_bytes(size, "big")


def turned(mask: bytes, at: int) -> bytes:
    """The mask, so that it goes on from this byte of a payload."""
    return mask[at % 4 :] + mask[: at % 4]


def close(code: int, reason: bytes = b"") -> bytes:
    return frame(struct.pack("!H", code) + reason, CLOSE)


def in_fragments(message: bytes, *sizes: int, between: Sequence[bytes] = ()) -> bytes:
    """A message in fragments of these sizes, the last with what is left, and other frames in between."""
    pieces, at = [], 0
    for size in sizes:
        pieces.append(message[at : at + size])
        at += size
    pieces.append(message[at:])
    frames = [
        frame(piece, TEXT if number == 0 else 0, fin=number == len(sizes))
        for number, piece in enumerate(pieces)
    ]
    return b"".join(between).join(frames)


@attrs.frozen
class Frame:
    """One frame of the endpoint, which masks none and fragments none."""

    opcode: int
    payload: bytes

    @property
    def code(self) -> int:
        """The code of a close frame."""
        assert self.opcode == CLOSE, self
        return int(struct.unpack("!H", self.payload[:2])[0])


class WsClient:
    """One connection."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._buffer = bytearray()

    async def send(self, *data: bytes) -> None:
        await self.stream.send_all(b"".join(data))

    async def say(self, *messages: bytes) -> None:
        """Send each in a frame of its own, all at once."""
        await self.send(*map(frame, messages))

    async def open(self, *more: str, **changes: str | None) -> Answer:
        """Ask for a WebSocket; the answer, with its body where it was refused."""
        await self.send(opening(*more, **changes))
        return await self.answer()

    async def opened(self, *more: str, **changes: str | None) -> WsClient:
        """The client, once it has got its WebSocket."""
        answer = await self.open(*more, **changes)
        assert answer.status == 101, answer.body
        return self

    async def answer(self) -> Answer:
        with trio.fail_after(PATIENCE_S):
            while b"\r\n\r\n" not in self._buffer:
                await self._more()
            head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
            self._buffer[:] = rest
            answer = Answer(head, b"")
            answer.body = await self._take(int(answer.headers.get("content-length", "0")))
            return answer

    async def frame(self) -> Frame:
        """The next frame; EOFError where the connection ends before it is whole."""
        with trio.fail_after(PATIENCE_S):
            first, size = await self._take(2)
            assert first & 0x70 == 0, "no extension has been agreed on"
            assert first & 0x80, "the endpoint fragments nothing"
            assert size & 0x80 == 0, "an endpoint does not mask"
            if size == 126:
                (size,) = struct.unpack("!H", await self._take(2))
                assert size >= 126
            elif size == 127:
                (size,) = struct.unpack("!Q", await self._take(8))
                assert size >= 65536
            return Frame(first & 15, await self._take(size))

    async def text(self) -> bytes:
        """The next message, which must be the next frame."""
        found = await self.frame()
        assert found.opcode == TEXT, found
        return found.payload

    async def texts(self, count: int) -> list[bytes]:
        return [await self.text() for _ in range(count)]

    async def closed(self) -> Frame:
        """The close frame that comes next; it is answered, and the connection must end then."""
        found = await self.frame()
        assert found.opcode == CLOSE, found
        with suppress(trio.BrokenResourceError):
            await self.send(frame(found.payload, CLOSE))
        assert await self.at_end()
        await trio.aclose_forcefully(self.stream)
        return found

    async def at_end(self) -> bool:
        """Whether the endpoint ends the connection without sending more."""
        with trio.fail_after(PATIENCE_S):
            try:
                return not self._buffer and await self.stream.receive_some(1) == b""
            except trio.BrokenResourceError:
                return True

    async def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            await self._more()
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    async def _more(self) -> None:
        data = await self.stream.receive_some(65536)
        if not data:
            raise EOFError
        self._buffer += data
