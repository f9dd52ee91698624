"""Lines: one JSON-RPC message each, out of chunks of any size [TPT-004, TPT-006].

Decides where a message ends and which ones are too long to keep. What a line means, and what is answered to
one that is too long, is for the binding.
"""

import attrs

STOP_TEXTS = (b"mhs.safety.estop", b"cap.motion.estop.v1")
"""What a message that asks for an e-stop contains; a message with neither asks for none."""

_LONGEST_STOP_TEXT = max(len(text) for text in STOP_TEXTS)
_BLANK = b" \t"


def mentions_stop(data: bytes | bytearray) -> bool:
    """Whether the bytes may ask for an e-stop and so must pass before every guard; no parsing."""
    return any(text in data for text in STOP_TEXTS)


@attrs.frozen
class TooLong:
    """A line that was longer than allowed and is gone; `mentions_stop`: it may have asked for a stop."""

    mentions_stop: bool


class LineSplitter:
    """Cuts a byte stream at LF; a CR before it is dropped, blank lines are skipped.

    Holds at most one line of `max_line_bytes`. A longer one is told once and skipped to the next LF, so the
    stream stays in step: at once where it has mentioned a stop, else when its end shows that it did not.
    """

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._pending = bytearray()
        # While a long line is being skipped: whether it still has to be told. Then `_pending` holds just
        # enough of its end to recognise a stop text that is cut by the chunks.
        self._skipping = False
        self._untold = False

    @property
    def tail(self) -> bytes:
        """The unterminated rest at the end of the stream, never a message; empty while a line is skipped."""
        return b"" if self._skipping else bytes(self._pending)

    def feed(self, chunk: bytes) -> list[bytes | TooLong]:
        """The lines that `chunk` completes, in order, and each long line once, however the stream is cut."""
        *completed, rest = chunk.split(b"\n")
        lines: list[bytes | TooLong] = []
        for piece in completed:
            self._take(piece, lines)
            self._end_line(lines)
        self._take(rest, lines)
        return lines

    def _take(self, piece: bytes, lines: list[bytes | TooLong]) -> None:
        """More of the current line, which goes on."""
        self._pending += piece
        # One byte more than the limit may still be the CR of a line that is just short enough.
        if not self._skipping and len(self._pending) > self._max_line_bytes + 1:
            self._skipping = self._untold = True
        if self._skipping:
            if self._untold and mentions_stop(self._pending):
                self._untold = False
                lines.append(TooLong(mentions_stop=True))
            del self._pending[: -(_LONGEST_STOP_TEXT - 1)]

    def _end_line(self, lines: list[bytes | TooLong]) -> None:
        if self._skipping:
            if self._untold:
                lines.append(TooLong(mentions_stop=False))
            self._skipping = self._untold = False
        else:
            line = bytes(self._pending).removesuffix(b"\r")
            if len(line) > self._max_line_bytes:
                lines.append(TooLong(mentions_stop=mentions_stop(line)))
            elif line.strip(_BLANK):
                lines.append(line)
        self._pending.clear()
