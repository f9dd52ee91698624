"""One connection to an instrument that speaks in lines, and what serves its simulated twin.

An exchange is one send and one reply line. A reply that does not come, comes twice, or breaks off leaves the
two sides out of step; the connection is then good for nothing, because a late reply would be taken for the
answer to the next query.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

import trio

from mhsd.driver.errors import OptionInvalid
from mhsd.driver.replies import Garbled, text_of

Connect = Callable[[], Awaitable[trio.SocketStream]]
"""Opens a new connection; OSError where there is none to be had."""

MAX_LINE_BYTES = 65536
_CHUNK = 4096


class NoAnswer(Exception):
    """The exchange did not end: no reply in time, or the connection broke."""


async def close(stream: trio.SocketStream) -> None:
    """Close at once; it never waits, and a task that is being cancelled can do it too."""
    with trio.CancelScope(shield=True):
        await trio.aclose_forcefully(stream)


class LineWire:
    """A connection with its buffer. One task uses it at a time."""

    def __init__(self, stream: trio.SocketStream, timeout_s: float) -> None:
        self._stream = stream
        self._timeout_s = timeout_s
        self._buffer = bytearray()

    async def ask(self, *lines: str) -> str:
        """Send the lines in one piece and return the one reply line: NoAnswer or Garbled otherwise.

        Of several lines only the last is a query. In one piece, because two sends in a row wait for the
        instrument's delayed acknowledgement, some 40 ms.
        """
        try:
            with trio.fail_after(self._timeout_s):
                await self._stream.send_all("".join(f"{line}\n" for line in lines).encode("ascii"))
                reply = await self._line()
        except trio.TooSlowError:
            raise NoAnswer(f"no reply to {lines[-1]} within {self._timeout_s:g} s") from None
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise NoAnswer(f"the connection broke before the reply to {lines[-1]}") from error
        if self._buffer.strip(b"\r\n"):
            raise Garbled(f"there was more than one reply to {lines[-1]}")
        return text_of(reply)

    async def _line(self) -> bytes:
        while True:
            end = self._buffer.find(b"\n")
            if end < 0 and len(self._buffer) > MAX_LINE_BYTES:
                raise Garbled(f"a reply is longer than {MAX_LINE_BYTES} bytes")
            if end < 0:
                chunk = await self._stream.receive_some(_CHUNK)
                if not chunk:
                    raise NoAnswer("the instrument closed the connection before it replied")
                self._buffer += chunk
                continue
            line = bytes(self._buffer[:end]).strip(b"\r")
            del self._buffer[: end + 1]
            if line:
                return line

    async def in_step(self) -> bool:
        """Whether nothing has come since the last exchange: no stray line, no end of the connection."""
        while self._stream.socket.is_readable():
            try:
                chunk = await self._stream.receive_some(_CHUNK)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return False
            if not chunk:
                return False
            self._buffer += chunk
        return not self._buffer.strip(b"\r\n")

    async def aclose(self) -> None:
        await close(self._stream)


def tcp_connect(link: str) -> Connect:
    """Connections to `tcp://host:port`; OptionInvalid for any other text. Trio sets TCP_NODELAY on them."""
    try:
        parts = urlsplit(link)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port or link != f"tcp://{parts.netloc}":
        raise OptionInvalid(f"link {link} must be tcp://host:port, as in tcp://127.0.0.1:5025")

    async def connect() -> trio.SocketStream:
        return await trio.open_tcp_stream(host, port)

    return connect


Answer = Callable[[str], str | None]
"""A simulated instrument: the reply to one line, or None where it has none."""


async def twin_connect(nursery: trio.Nursery, answer: Answer) -> trio.SocketStream:
    """A connection to a twin in this process, served by a task of its own in `nursery`."""
    ours, theirs = trio.socket.socketpair()
    nursery.start_soon(serve_lines, trio.SocketStream(theirs), answer)
    return trio.SocketStream(ours)


async def serve_lines(stream: trio.SocketStream, answer: Answer) -> None:
    """Be the instrument at the other end of `stream` until it closes."""
    try:
        async for line in received_lines(stream):
            reply = answer(line)
            if reply is not None:
                await stream.send_all(f"{reply}\n".encode("ascii"))
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # The driver dropped the link, which is its right.
    finally:
        await close(stream)


async def received_lines(stream: trio.SocketStream) -> AsyncIterator[str]:
    """The lines that arrive, without their ends."""
    buffer = bytearray()
    async for chunk in stream:
        buffer += chunk
        while (end := buffer.find(b"\n")) >= 0:
            yield bytes(buffer[:end]).decode("ascii", "replace").strip()
            del buffer[: end + 1]
