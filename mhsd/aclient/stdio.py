"""JSON-RPC over the stdin and stdout of a child that this program starts [TPT-004 to TPT-009].

A child that ended is never started again by itself: it may have been driving a device, and that is for the operator
to look at [TPT-008].
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import deque
from contextlib import suppress

import trio

from mhsd.aclient.events import EventHub
from mhsd.aclient.link import BadMessage, Link
from mhsd.aclient.streams import GONE, READ_BYTES
from mhsd.aclient.transport import EventsWanted, Greet
from mhsd.client.endpoint import StdioEndpoint
from mhsd.client.errors import no_more_events
from mhsd.client.stdio import KEPT_LINES, STOP_GRACE_S, ChildFailed, cannot_start, stops
from mhsd.client.transport import MAX_ANSWER_BYTES, Answer, Lost, NotSent, Over
from mhsd.wire.framing import Excess, LineSplitter

_LOG_LINE_BYTES = 65536
_LAST_WORDS_S = 0.5
"""How long a child that broke off may take to end and to say why."""


class _Lines:
    """The child's stdin and stdout as a channel of lines."""

    def __init__(self, child: trio.Process) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        self._stdin, self._stdout = child.stdin, child.stdout
        self._splitter = LineSplitter(MAX_ANSWER_BYTES)
        self._lines: deque[bytes | Excess] = deque()

    async def send(self, message: bytes) -> None:
        """Writes one line."""
        await self._stdin.send_all(message + b"\n")

    async def receive(self) -> bytes | None:
        """Reads one line."""
        while not self._lines:
            chunk = await self._stdout.receive_some(READ_BYTES)
            if not chunk:
                return None
            self._lines.extend(self._splitter.feed(bytes(chunk)))
        line = self._lines.popleft()
        if isinstance(line, Excess):
            raise BadMessage(f"the endpoint wrote a line of more than {MAX_ANSWER_BYTES} bytes")
        return line

    async def aclose(self) -> None:
        """Ends the child's input: it stops in order and ends."""
        await self._stdin.aclose()


class StdioTransport:
    """Owns the child: started by `start`, ended by `aclose`."""

    name = "stdio"
    paced = False

    def __init__(self, place: StdioEndpoint, child: trio.Process, hub: EventHub) -> None:
        self._place = place
        self.url = place.url
        self._child = child
        self._link = Link(_Lines(child), hub, place.url)
        self._log: deque[str] = deque(maxlen=KEPT_LINES)
        self._living = trio.CancelScope()
        self._log_ended = trio.Event()
        self._is_closed = False
        self._answered = False
        self._missed_start = False

    @classmethod
    async def start(cls, place: StdioEndpoint, hub: EventHub, nursery: trio.Nursery) -> StdioTransport:
        """Starts the child in a process group of its own; NotSent where it cannot be started."""
        try:
            # A session of its own keeps the terminal's Ctrl-C from the child: it ends when its stdin does.
            child = await trio.lowlevel.open_process(
                list(place.argv),
                cwd=place.cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as problem:
            raise cannot_start(place, problem) from None
        transport = cls(place, child, hub)
        nursery.start_soon(transport._run)
        return transport

    async def _run(self) -> None:
        """Reads the child's output until `aclose` has seen it end, for which the nursery outlasts what is cancelled: a
        child that cannot write is a child that cannot stop its devices in order."""
        with self._living:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_log)
                await self._link.run(look=self._look)
        self._log_ended.set()

    def _look(self, message: object) -> None:
        if isinstance(message, bytes):
            self._log.append(f"no JSON on stdout: {message[:200]!r}")
        elif isinstance(message, dict) and "mhs_ready" in message:
            self._link.fail("the command serves HTTP; give it --stdio")

    async def _read_log(self) -> None:
        assert self._child.stderr is not None
        splitter = LineSplitter(_LOG_LINE_BYTES)
        with suppress(*GONE):
            while chunk := await self._child.stderr.receive_some(READ_BYTES):
                for line in splitter.feed(bytes(chunk)):
                    text = line.data if isinstance(line, Excess) else line
                    self._log.append(text.decode("utf-8", "replace").rstrip())
        self._log_ended.set()

    async def greet(self, greet: Greet) -> None:
        """Says hello; there is one connection, which ends with the child."""
        await greet(self.exchange)

    async def exchange(
        self, request_id: str, body: bytes, timeout_s: float, *, urgent: bool = False
    ) -> Answer:
        """One request and its answer; what is urgent goes ahead of what waits to be written."""
        try:
            answer = await self._link.exchange(request_id, body, timeout_s, urgent=urgent)
            self._answered = True
            return answer  # noqa: TRY300 - nothing below can fail
        except NotSent as problem:
            kind = Over if self._link.broken.is_set() else NotSent
            raise kind(await self._explained(str(problem))) from None
        except Lost as problem:
            if problem.timed_out:
                self._missed_start = not self._answered
                raise
            raise Lost(await self._explained(str(problem))) from None

    async def _explained(self, why: str) -> str:
        """`why`, with what the child last said on stderr: usually the reason."""
        if not self._is_closed:
            with trio.move_on_after(_LAST_WORDS_S):
                await self._child.wait()
                await self._log_ended.wait()
        status = self._child.returncode
        ended = f" (status {status})" if status not in (None, 0) else ""
        return f"{why}{ended}: {self._log[-1]}" if self._log else f"{why}{ended}"

    async def bring_events(self, wanted: EventsWanted) -> None:
        """They come with the answers, until the child ends."""
        await self._link.broken.wait()
        raise no_more_events(await self._explained(self._link.why_broken or "the endpoint has ended"))

    async def aclose(self) -> None:
        """Ends the child's stdin, waits for it, then SIGTERM and SIGKILL to its process group [TPT-009].

        A child that has never answered in time has failed to start, and gets SIGTERM at once [TPT-007]. ChildFailed
        if it did not end well: a device may then not be in its safe state.
        """
        if self._is_closed:
            return
        self._is_closed = True
        await self._link.aclose()
        try:
            status = await self._ended()
            with trio.move_on_after(_LAST_WORDS_S):
                await self._log_ended.wait()
        finally:
            self._living.cancel()
        if status != 0:
            log = "\n  ".join(["", *self._log])
            raise ChildFailed(f"{self._place.url} ended with status {status}{log}")

    async def _ended(self) -> int:
        for stop in stops(self._missed_start):
            if stop is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self._child.pid, stop)
            with trio.move_on_after(STOP_GRACE_S):
                return await self._child.wait()
        return -signal.SIGKILL
