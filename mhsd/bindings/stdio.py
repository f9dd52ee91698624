"""NDJSON on stdin and stdout: one message a line, in both directions [TPT-004 to TPT-008].

Here lines become messages and the end of the input the end of the session; in which order messages are entered and
answered is decided in `conversation`.
"""

from __future__ import annotations

import logging
import os
from functools import partial

import trio

from mhsd.base.errors import Fault
from mhsd.bindings.conversation import Conversation
from mhsd.bindings.outgoing import GONE, WriteNow
from mhsd.bindings.pipe_streams import open_streams
from mhsd.bindings.pipes import Pipes
from mhsd.protocol.answers import Exchange
from mhsd.protocol.auth import Identity
from mhsd.protocol.dispatch import Dispatch
from mhsd.protocol.peer import Peer
from mhsd.protocol.search import StopSearch
from mhsd.wire.framing import Excess, LineSplitter, mentions_stop
from mhsd.wire.json_text import bytes_exceeded

log = logging.getLogger("mhsd.stdio")

_READ_BYTES = 65536
_ENTER_S = 2.0


class Stdio:
    """Serves the one peer at the other end of two streams, which it closes at the end."""

    url = None
    ws_url = None

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
        self._max_line_bytes = max_line_bytes
        self._splitter = LineSplitter(max_line_bytes)
        self._search: StopSearch | None = None
        self._talk = Conversation(
            door, peer, send, frame=lambda body: body + b"\n", write_now=write_now, on_gone=self._leave
        )
        self._reading = trio.CancelScope()
        self._serving = trio.CancelScope()
        self.ended = trio.Event()
        """Set when nothing more will be read: the peer has ended its side or is gone, or `drain` was called."""

    async def serve(self) -> None:
        """Read and answer until the input ends; then go on answering until `finish`."""
        async with self._receive, self._send:
            try:
                with self._serving:
                    async with trio.open_nursery() as nursery:
                        await nursery.start(self._talk.run)
                        with self._reading:
                            await self._read()
                        self.ended.set()
                        await trio.sleep_forever()
            finally:
                self._talk.outgoing.gone = True  # The descriptors are about to be closed.
                if self._peer.events is not None:
                    self._peer.events.close()
                if self._search is not None:
                    self._search.abandon()

    def drain(self) -> None:
        """Read no more; what has been read is still answered."""
        self._reading.cancel()

    async def finish(self, patience_s: float) -> None:
        """Wait this long at most until every answer is written, then stop."""
        with trio.move_on_after(patience_s):
            await self._talk.answered()
        self._serving.cancel()

    async def _read(self) -> None:
        while True:
            try:
                chunk = await self._receive.receive_some(_READ_BYTES)
            except GONE:
                chunk = b""
            if not chunk:
                await self._end_of_input()
                return
            lines = self._splitter.feed(bytes(chunk))
            for line in lines:
                if isinstance(line, bytes):
                    self._talk.take_in(line, is_alone=len(lines) == 1)
                else:
                    await self._pass_over(line)
            await self._talk.keep_up()

    async def _pass_over(self, piece: Excess) -> None:
        """Search a line that is too long for stops as it comes, keep nothing of it, and refuse it at its end."""
        if self._search is None:
            self._search = self._door.search(self._peer)
        await self._search.feed(piece.data)
        if piece.ends_line:
            self._refuse_long(self._search)

    def _refuse_long(self, search: StopSearch) -> None:
        self._search = None
        fault = bytes_exceeded(self._max_line_bytes)
        refusal = self._refusal(search, fault) if search.has_found else self._door.refuse(fault, 413)
        self._talk.answer_to(refusal)

    async def _refusal(self, search: StopSearch, fault: Fault) -> Exchange:
        log.warning("a line over %d bytes was refused, and its stops were served", self._max_line_bytes)
        return self._door.refuse(await search.explain(fault), 413)

    async def _end_of_input(self) -> None:
        """What came before the end is still entered [TPT-008]; half a line is no message, unless it stops."""
        tail = self._splitter.tail
        if mentions_stop(tail):
            self._talk.take_in(tail)
        elif self._search is not None and self._search.has_found:
            self._refuse_long(self._search)
        elif tail or self._search is not None:
            log.warning("the input ended in the middle of a line, which was not executed")
        with trio.move_on_after(_ENTER_S):
            await self._talk.entered()

    def _leave(self) -> None:
        """The peer reads no more: its session ends as if its input had, and nothing is a crash."""
        log.info("the peer reads no answers any more")
        self._reading.cancel()


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
        events=door.events(),
    )
    receive, send = open_streams(pipes)
    # A descriptor that a stream has made non-blocking can be written to without a task that waits.
    write_now = partial(os.write, pipes.write_fd) if isinstance(send, trio.lowlevel.FdStream) else None
    return Stdio(door, peer, receive, send, max_line_bytes=max_line_bytes, write_now=write_now)
