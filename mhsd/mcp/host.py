"""The MCP server on two streams: one reader, one ordered writer, and calls served one after the other.

Decides when a call is served: an e-stop at once and beside everything else, a ping and a cancellation by the reader
itself, and every other request in the order in which it came [CORE-079, CORE-132]. What a call does is for the
server that it is given.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import attrs
import trio

from mhsd.base.errors import Fault
from mhsd.mcp.session import (
    INTERNAL_ERROR,
    MAX_FRAME_BYTES,
    Call,
    Cancellation,
    McpSession,
    Reply,
    notification,
)
from mhsd.wire.framing import Excess, LineSplitter

log = logging.getLogger("mhsd.mcp")

MOST_QUEUED = 1024
"""Requests that may wait for their turn; the next one is refused."""

MOST_STOPS = 64
"""While so many e-stops are being carried out, nothing more is read: each is a task of its own."""

_READ_BYTES = 65536
_MOST_OUTGOING_BYTES = 4 << 20
"""While more is waiting to be read by the client, no further call is begun."""
_MOST_UNREAD_BYTES = 16 << 20
"""Who lets that much lie and goes on asking reads nothing any more."""
_PROGRESS_BYTES = 65536
"""Progress is left out while more is waiting: the client hears of the next one."""
_END_S = 2.0
"""So long what was asked before the end of the input is still served; what takes longer is stopped."""
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


async def contained(work: Callable[..., Awaitable[object]], *arguments: Any) -> None:
    """Do something beside a call: a defect in it is logged, and ends neither the call nor the connection."""
    try:
        await work(*arguments)
    except Exception:
        # What outlives its call has nobody else who would hear of it.
        log.exception("what was going on beside a call has failed")


class Refused(Exception):
    """A call that is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


@attrs.define(eq=False)
class Job:
    """One call while it is served."""

    call: Call
    _host: McpHost
    cancelled: trio.Event = attrs.field(factory=trio.Event, init=False)
    """The client no longer wants it."""
    takes_long: bool = attrs.field(default=False, init=False)
    """It moves something for a while, which the end of the input ends."""

    @property
    def client_name(self) -> str:
        """How the client has named itself."""
        return self._host.session.client_name

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell the client how far it is, if it asked for that."""
        self._host.report(self.call, progress, total, message)


class Server(Protocol):
    """What serves the calls."""

    silent_after_cancel: bool
    """A cancelled call gets no response at all."""

    def running(self, host: McpHost) -> AbstractAsyncContextManager[None]:
        """What the server needs while it serves this host."""

    async def answer(self, job: Job) -> Mapping[str, Any]:
        """The result of a call; Refused for a JSON-RPC error."""


class McpHost:
    """Serves the one client at the other end of two streams, which it closes at the end."""

    url = None
    ws_url = None

    def __init__(self, server: Server, receive: trio.abc.ReceiveStream, send: trio.abc.SendStream) -> None:
        self.session = McpSession()
        self._server = server
        self._receive = receive
        self._send = send
        self._splitter = LineSplitter(MAX_FRAME_BYTES)
        self._queue: deque[Job] = deque()
        self._jobs: dict[Call, Job] = {}
        """Every call that has no response yet."""
        self._current: Job | None = None
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._gone = False
        self._changed = trio.lowlevel.ParkingLot()  # Whoever waits for a job, for room or for the end.
        self._to_write = trio.lowlevel.ParkingLot()  # The writer.
        self._reading = trio.CancelScope()
        self._serving = trio.CancelScope()
        self.ended = trio.Event()
        """Set when nothing more will be read: the client has ended its side or is gone, or `drain` was called."""

    # Life

    async def serve(self) -> None:
        """Read and answer until the input ends; then go on answering until `finish`."""
        async with self._receive, self._send:
            with self._serving:
                async with self._server.running(self), trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._serve_in_order)
                    with self._reading:
                        await self._read()
                    self.ended.set()
                    await trio.sleep_forever()
        self._gone = True

    def drain(self) -> None:
        """Read no more; what has been read is still answered."""
        self._reading.cancel()

    async def finish(self, patience_s: float) -> None:
        """Wait this long at most until every answer is written, then stop."""
        with trio.move_on_after(patience_s):
            while not self._gone and (self._jobs or self._outgoing_bytes):
                await self._changed.park()
        self._serving.cancel()

    def cancel_all(self) -> None:
        """Cancel every call that is being served, as if the client had asked for it."""
        for job in self._jobs.values():
            job.cancelled.set()

    # Reading

    async def _read(self) -> None:
        while True:
            while sum(job.call.is_urgent for job in self._jobs.values()) >= MOST_STOPS:
                await self._changed.park()
            try:
                chunk = await self._receive.receive_some(_READ_BYTES)
            except _GONE:
                chunk = b""
            if not chunk:
                break
            for line in self._splitter.feed(bytes(chunk)):
                if not isinstance(line, Excess):
                    self._take(self.session.receive(line))
                elif line.ends_line:
                    self._take(self.session.too_long())
        if self._splitter.tail:
            log.warning("the input ended in the middle of a line, which was not executed")
        await self._end_of_input()

    async def _end_of_input(self) -> None:
        """What came before the end is still served, as a file of requests needs it; what moves when nothing else is
        asked for is not waited for, because whoever could stop it is gone [TPT-008]."""
        with trio.move_on_after(_END_S):
            while self._jobs and not self._gone and not self._only_moves():
                await self._changed.park()

    def _only_moves(self) -> bool:
        """Whether the one thing that is left is a motion."""
        return self._current is not None and self._current.takes_long and not self._queue

    def _take(self, received: Reply | Call | Cancellation | None) -> None:
        if isinstance(received, Reply):
            for stop in received.stops:
                self._enter(Job(stop, self))
            self._send_line(received.data)
        elif isinstance(received, Call):
            self._enter(Job(received, self))
        elif isinstance(received, Cancellation):
            self._cancel(self._jobs.get(received.call))

    def _enter(self, job: Job) -> None:
        if job.call.is_urgent:
            self._jobs[job.call] = job
            self._nursery.start_soon(self._serve_one, job)
        elif len(self._queue) >= MOST_QUEUED:
            fault = Fault("MHS.LIMIT.RATE_EXCEEDED", f"{MOST_QUEUED} requests are waiting already")
            self._send_line(self.session.error(job.call, INTERNAL_ERROR, fault.message, fault.data()))
        else:
            self._jobs[job.call] = job
            self._queue.append(job)
            self._changed.unpark_all()

    @staticmethod
    def _cancel(job: Job | None) -> None:
        if job is not None:
            job.cancelled.set()

    # Serving

    async def _serve_in_order(self) -> None:
        while True:
            while not self._queue or self._outgoing_bytes > _MOST_OUTGOING_BYTES:
                await self._changed.park()
            self._current = self._queue.popleft()
            await self._serve_one(self._current)
            self._current = None
            self._changed.unpark_all()

    async def _serve_one(self, job: Job) -> None:
        call = job.call
        try:
            result = await self._server.answer(job)
        except Refused as refusal:
            data = self._response(job, refusal)
        except Exception:
            # The boundary of one call: a defect in here costs its client a result and nobody else anything.
            log.exception("%s could not be served", call.method)
            data = self._response(job, Refused(INTERNAL_ERROR, "the server failed on this request"))
        else:
            data = self._response(job, result)
        self._jobs.pop(call, None)
        self._send_line(data)
        self._changed.unpark_all()

    def _response(self, job: Job, outcome: Mapping[str, Any] | Refused) -> bytes | None:
        """The one response of a call; none where it was cancelled and the policy wants silence then [TPT-041]."""
        if job.call.is_cancelled and self._server.silent_after_cancel:
            self.session.close(job.call)
            return None
        if isinstance(outcome, Refused):
            return self.session.error(job.call, outcome.code, outcome.message, outcome.data)
        return self.session.result(job.call, outcome)

    # Writing

    def report(self, call: Call, progress: float, total: float | None, message: str | None) -> None:
        """Write a progress notification, unless the client is behind with its reading or did not ask for any."""
        if self._outgoing_bytes < _PROGRESS_BYTES:
            self._send_line(self.session.progress(call, progress, total, message))

    def notify(self, method: str) -> None:
        """Tell the client of something that it did not ask for, once it has said who it is."""
        if self.session.version is not None:
            self._send_line(notification(method))

    def tell(self, level: str, text: str) -> None:
        """Log to the client, as far as it wants to hear of it."""
        self._send_line(self.session.log(level, text))

    def _send_line(self, line: bytes | None) -> None:
        """One writer and one order: what was said first is read first."""
        if line is None or self._gone:
            return
        if self._outgoing_bytes > _MOST_UNREAD_BYTES:
            self._leave()
            return
        self._outgoing.append(line)
        self._outgoing_bytes += len(line)
        self._to_write.unpark_all()

    async def _write(self) -> None:
        while True:
            while not self._outgoing:
                await self._to_write.park()
            data = b"".join(self._outgoing)
            self._outgoing.clear()
            try:
                await self._send.send_all(data)
            except _GONE:
                self._leave()
                return
            self._outgoing_bytes -= len(data)
            self._changed.unpark_all()

    def _leave(self) -> None:
        """The client reads no more: its side has ended, and nothing is a crash."""
        log.info("the client reads no answers any more")
        self._gone = True
        self._queue.clear()
        self._reading.cancel()
        self._changed.unpark_all()
