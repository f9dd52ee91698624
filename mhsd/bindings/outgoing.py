"""What is on its way to one peer: written at once where the peer reads, else kept in order [EVT-010].

`put` never waits, so that whoever answers a stop need not know whether the peer reads. How much may be kept is for
those to decide who put things in: `size` and `count` tell them, `room` waits.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

WriteNow = Callable[[bytes], int]
"""Writes what goes without waiting, and says how many bytes that was; one of GONE where nobody reads any more."""

GONE = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
"""What a stream raises when there is nobody at its other end any more."""


class Outgoing:
    """The writing half of one connection. Every piece that is put in is written whole, or the peer is gone."""

    def __init__(
        self,
        send: trio.abc.SendStream,
        *,
        write_now: WriteNow | None = None,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._send = send
        self._write_now = write_now
        self._on_progress = on_progress
        self._waiting: list[bytes] = []
        self._writing = 0
        self._to_write = trio.lowlevel.ParkingLot()
        self._progress = trio.lowlevel.ParkingLot()
        self.size = 0
        """Bytes that the system has not taken yet."""
        self.gone = False
        """Whether the peer reads no more; what is put in from then on is dropped."""
        self._ended = False

    @property
    def count(self) -> int:
        """Pieces that are not yet written."""
        return len(self._waiting) + self._writing

    def put(self, piece: bytes) -> None:
        """Write the piece now or, behind what is there already, as soon as the peer takes it."""
        if self.gone or self._ended:
            return
        if self._write_now is not None and not self.count:
            # The writer has nothing to do, so no other piece can be cut by this one.
            piece = self._what_does_not_fit(piece)
        if piece:
            self._waiting.append(piece)
            self.size += len(piece)
            self._to_write.unpark_all()

    def _what_does_not_fit(self, piece: bytes) -> bytes:
        assert self._write_now is not None
        try:
            return piece[self._write_now(piece) :]
        except BlockingIOError:
            return piece
        except GONE:
            self.leave()
            return b""

    async def run(self) -> None:
        """Write what could not be written at once, until the peer is gone."""
        while True:
            while not self._waiting:
                await self._to_write.park()
            self._writing = len(self._waiting)
            data = b"".join(self._waiting)
            self._waiting.clear()
            try:
                await self._send.send_all(data)
            except GONE:
                self.leave()
                return
            self._writing = 0
            self.size -= len(data)
            self._note_progress()

    def end(self) -> None:
        """Nothing may follow what is in by now; what is put in later is dropped."""
        self._ended = True

    async def room(self, most_bytes: int) -> None:
        """Wait until no more than this is left, or the peer is gone."""
        while self.size > most_bytes and not self.gone:
            await self._progress.park()

    def leave(self) -> None:
        """The peer reads no more."""
        self.gone = True
        self._note_progress()

    def _note_progress(self) -> None:
        self._progress.unpark_all()
        self._on_progress()
