"""NDJSON on stdin and stdout: one message a line, in both directions [TPT-004 to TPT-008].

One task reads, one enters messages in the order in which they came, one writes. A peer that does not read its
answers stops new messages from being entered; lines are still read ahead for a while, so that a stop is found and
served although a hundred commands wait in front of it.
"""

from __future__ import annotations

import logging
import os
import stat
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from mhsd.base.errors import Fault
from mhsd.bindings.pipes import Pipes
from mhsd.protocol.auth import Identity
from mhsd.protocol.dispatch import Dispatch, Exchange
from mhsd.protocol.peer import Peer
from mhsd.protocol.search import StopSearch
from mhsd.wire.framing import Excess, LineSplitter, mentions_stop
from mhsd.wire.json_text import bytes_exceeded

log = logging.getLogger("mhsd.stdio")

MOST_UNANSWERED = 256
"""Messages that have been entered and whose answer is not yet written."""

READ_AHEAD_BYTES = 4 << 20
"""How much is read beyond that, in search of stops."""

_MOST_STOP_ANSWERS = 4096
_OUTGOING_BYTES = 4 << 20
_READ_BYTES = 65536
_ENTER_S = 2.0
_SLICE_S = 0.001
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


WriteNow = Callable[[bytes], int]
"""Writes what a descriptor takes without waiting, and says how many bytes that was; OSError where nobody reads."""


class Stdio:
    """Serves the one peer at the other end of two streams, which it closes at the end."""

    url = None

    def __init__(
        self,
        door: Dispatch,
        peer: Peer,
        receive: trio.abc.ReceiveStream,
        send: trio.abc.SendStream,
        *,
        max_line_bytes: int,
        write_now: WriteNow | None = None,
    ) -> None:
        self._door = door
        self._peer = peer
        self._receive = receive
        self._send = send
        self._write_now = write_now
        self._max_line_bytes = max_line_bytes
        self._splitter = LineSplitter(max_line_bytes)
        self._search: StopSearch | None = None
        self._backlog: deque[tuple[bytes, float]] = deque()
        """Lines that wait for their turn, and when they were read."""
        self._backlog_bytes = 0
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._writing = 0
        self._in_flight = 0
        self._gone = False
        self._finishing = False
        self._changed = trio.lowlevel.ParkingLot()  # Whoever waits for room, lines or the end.
        self._to_write = trio.lowlevel.ParkingLot()  # The writer.
        self._reading = trio.CancelScope()
        self._serving = trio.CancelScope()
        self.ended = trio.Event()
        """Set when nothing more will be read: the peer has ended its side or is gone, or `drain` was called."""

    async def serve(self) -> None:
        """Read and answer until the input ends; then go on answering until `finish`."""
        async with self._receive, self._send:
            try:
                with self._serving:
                    await self._serve()
            finally:
                self._gone = True  # The descriptors are about to be closed.
                if self._search is not None:
                    self._search.abandon()

    async def _serve(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._write_answers)
            nursery.start_soon(self._enter_backlog)
            with self._reading:
                await self._read()
            self.ended.set()
            await trio.sleep_forever()

    def drain(self) -> None:
        """Read no more; what has been read is still answered."""
        self._reading.cancel()

    async def finish(self, patience_s: float) -> None:
        """Wait this long at most until every answer is written, then stop."""
        self._finishing = True
        with trio.move_on_after(patience_s):
            while not self._gone and (self._unanswered or self._backlog):
                await self._changed.park()
        self._serving.cancel()

    @property
    def _unanswered(self) -> int:
        return self._in_flight + len(self._outgoing) + self._writing

    def _note_room(self) -> None:
        """Wake who may wait for fewer unanswered messages; mostly nobody does, and waking costs a step each."""
        if self._backlog or self._finishing:
            self._changed.unpark_all()

    # Reading

    async def _read(self) -> None:
        while True:
            try:
                chunk = await self._receive.receive_some(_READ_BYTES)
            except _GONE:
                chunk = b""
            if not chunk:
                await self._end_of_input()
                return
            lines = self._splitter.feed(bytes(chunk))
            if len(lines) == 1 and isinstance(lines[0], bytes) and self._is_idle():
                self._sort(lines[0])
                self._enter_at_once()
                continue
            for line in lines:
                if isinstance(line, bytes):
                    self._sort(line)
                else:
                    await self._pass_over(line)
            self._changed.unpark_all()
            while self._backlog_bytes > READ_AHEAD_BYTES:
                await self._changed.park()

    def _is_idle(self) -> bool:
        return not self._backlog and self._has_room() and not self._door.gate.borrowed_tokens

    async def _pass_over(self, piece: Excess) -> None:
        """Search a line that is too long for stops as it comes, keep nothing of it, and refuse it at its end."""
        if self._search is None:
            self._search = self._door.search(self._peer)
        await self._search.feed(piece.data)
        if piece.ends_line:
            search, self._search = self._search, None
            fault = bytes_exceeded(self._max_line_bytes)
            self._take(self._refusal(search, fault) if search.has_found else self._door.refuse(fault, 413))

    async def _refusal(self, search: StopSearch, fault: Fault) -> Exchange:
        log.warning("a line over %d bytes was refused, and its stops were served", self._max_line_bytes)
        return self._door.refuse(await search.explain(fault), 413)

    def _sort(self, line: bytes) -> None:
        """Serve a stop, keep the rest for its turn."""
        if mentions_stop(line):
            self._take(self._door.begin(line, self._peer))
        else:
            self._backlog.append((line, trio.current_time()))
            self._backlog_bytes += len(line)

    async def _end_of_input(self) -> None:
        """What came before the end is still entered [TPT-008]; half a line is no message, unless it stops."""
        tail = self._splitter.tail
        if mentions_stop(tail):
            self._sort(tail)
        elif tail:
            log.warning("the input ended in the middle of a line, which was not executed")
        with trio.move_on_after(_ENTER_S):
            while self._backlog and not self._gone:
                await self._changed.park()

    # Entering

    def _has_room(self) -> bool:
        return self._unanswered < MOST_UNANSWERED and self._outgoing_bytes < _OUTGOING_BYTES

    def _enter_at_once(self) -> None:
        """The usual case: one line came and nothing else is going on, so it needs to wait for nobody."""
        if self._backlog:
            # Nobody else can run while `begin` does; the gate is for those who have to wait in between.
            self._enter_next()

    async def _enter_backlog(self) -> None:
        while True:
            while not self._backlog or not self._has_room():
                await self._changed.park()
            async with self._door.gate:
                # One message at least, and short ones as many as others do not notice.
                until_mono_s = trio.current_time() + _SLICE_S
                while self._backlog and self._has_room():
                    self._enter_next()
                    if trio.current_time() > until_mono_s:
                        break
            self._changed.unpark_all()

    def _enter_next(self) -> None:
        line, read_mono_s = self._backlog.popleft()
        self._backlog_bytes -= len(line)
        self._take(self._door.begin(line, self._peer, read_mono_s))

    def _take(self, entered: Exchange | Awaitable[Exchange]) -> None:
        if isinstance(entered, Exchange):
            self._answer(entered)
        else:
            self._in_flight += 1
            self._nursery.start_soon(self._await, entered)

    async def _await(self, entered: Awaitable[Exchange]) -> None:
        try:
            exchange = await entered
        except Exception:
            # A defect behind one message must end neither the others nor the connection.
            log.exception("a message was not answered")
        else:
            self._answer(exchange)
        finally:
            self._in_flight -= 1
            self._note_room()

    # Writing

    def _answer(self, exchange: Exchange) -> None:
        if exchange.body is None or self._gone:
            return
        if len(self._outgoing) >= _MOST_STOP_ANSWERS:
            log.error("an answer was dropped: the peer sends stops and reads no answers")
            return
        line = exchange.body + b"\n"
        if self._write_now is not None and not self._outgoing and not self._writing:
            # The writer has nothing to do, so no other message can be cut by this one.
            line = self._write_what_fits(line)
            if not line:
                return
        self._outgoing.append(line)
        self._outgoing_bytes += len(line)
        self._to_write.unpark_all()

    def _write_what_fits(self, line: bytes) -> bytes:
        """The rest of the line, which waits for its turn."""
        assert self._write_now is not None
        try:
            return line[self._write_now(line) :]
        except BlockingIOError:
            return line
        except OSError:
            self._leave()
            return b""

    async def _write_answers(self) -> None:
        """Write what could not be written at once; one at a time, so that no two messages mix [EVT-010]."""
        while True:
            while not self._outgoing:
                await self._to_write.park()
            self._writing = len(self._outgoing)
            data = b"".join(self._outgoing)
            self._outgoing.clear()
            try:
                await self._send.send_all(data)
            except _GONE:
                self._leave()
                return
            self._writing = 0
            self._outgoing_bytes -= len(data)
            self._note_room()

    def _leave(self) -> None:
        """The peer reads no more: its session ends as if its input had, and nothing is a crash."""
        log.info("the peer reads no answers any more")
        self._gone = True
        self._backlog.clear()
        self._backlog_bytes = 0
        self._reading.cancel()
        self._changed.unpark_all()


def open_stdio(door: Dispatch, identity: Identity, pipes: Pipes, *, max_line_bytes: int) -> Stdio:
    """The binding to whoever launched this process, as the identity that it thereby has [TPT-058]."""
    peer = Peer(
        identity.principal,
        identity.role,
        "stdio",
        authenticated=True,
        needs_hello=True,
        remembers_ids=True,
        rate_exempt=True,
    )
    receive, send = open_streams(pipes)
    # A descriptor that a stream has made non-blocking can be written to without a task that waits.
    write_now = partial(os.write, pipes.write_fd) if isinstance(send, trio.lowlevel.FdStream) else None
    return Stdio(door, peer, receive, send, max_line_bytes=max_line_bytes, write_now=write_now)


# Streams


def open_streams(pipes: Pipes) -> tuple[trio.abc.ReceiveStream, trio.abc.SendStream]:
    """Streams on the protocol's descriptors."""
    receive: trio.abc.ReceiveStream = (
        _ThreadedInput(pipes.read_fd)
        if _needs_thread(pipes.read_fd)
        else trio.lowlevel.FdStream(pipes.read_fd)
    )
    send: trio.abc.SendStream = (
        _ThreadedOutput(pipes.write_fd)
        if _needs_thread(pipes.write_fd)
        else trio.lowlevel.FdStream(pipes.write_fd)
    )
    return receive, send


def _needs_thread(fd: int) -> bool:
    """Whether making this descriptor non-blocking would not work, or would hurt somebody who shares it.

    The flag belongs to the open file, not to the descriptor: a terminal shares it with the shell, and a log on the
    same socket would lose lines.
    """
    mine, log_file = os.fstat(fd), os.fstat(2)
    if not (stat.S_ISFIFO(mine.st_mode) or stat.S_ISSOCK(mine.st_mode)):
        return True
    return os.path.samestat(mine, log_file)


class _ThreadedInput(trio.abc.ReceiveStream):
    """Reads a terminal or a file, in a thread that is left behind when it is stuck at the end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._limiter = trio.CapacityLimiter(1)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await trio.to_thread.run_sync(
            os.read, self._fd, max_bytes or _READ_BYTES, abandon_on_cancel=True, limiter=self._limiter
        )

    async def aclose(self) -> None:
        """Leaves the descriptor open: a thread may still be using it."""
        await trio.lowlevel.checkpoint()


class _ThreadedOutput(trio.abc.SendStream):
    """Writes a terminal or a file, in a thread that is left behind when it is stuck at the end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._limiter = trio.CapacityLimiter(1)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.to_thread.run_sync(self._write, bytes(data), abandon_on_cancel=True, limiter=self._limiter)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Leaves the descriptor open: a thread may still be using it."""
        await trio.lowlevel.checkpoint()
