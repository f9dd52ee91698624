"""Lines: one JSON-RPC message each, out of chunks of any size [TPT-004, TPT-006].

Decides where a message ends and which ones are too long to keep. What a line means, and what is answered to
one that is too long, is for the binding.
"""

import attrs

STOP_METHOD = "mhs.safety.estop"
STOP_CLASS = "cap.motion.estop.v1"
STOP_TEXTS = (STOP_METHOD.encode(), STOP_CLASS.encode())
"""What a message that asks for an e-stop contains; a message with neither asks for none."""

_BLANK = b" \t"


def mentions_stop(data: bytes | bytearray) -> bool:
    """Whether the bytes may ask for an e-stop and so must pass before every guard; no parsing."""
    return any(text in data for text in STOP_TEXTS)


@attrs.frozen
class Excess:
    """A piece of a line that is longer than allowed; all of its pieces come, from its first byte to its last."""

    data: bytes
    ends_line: bool


class LineSplitter:
    """Cuts a byte stream at LF; a CR before it is dropped, blank lines are skipped.

    Holds at most one line of `max_line_bytes`. A longer one is handed on in pieces as it comes, to be searched
    for a stop and refused at its end, so the stream stays in step.
    """

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._pending = bytearray()
        self._is_long = False

    @property
    def tail(self) -> bytes:
        """The unterminated rest at the end of the stream, never a message; empty within a long line."""
        return bytes(self._pending)

    def feed(self, chunk: bytes) -> list[bytes | Excess]:
        """The lines that `chunk` completes and the pieces of long ones, in order."""
        *completed, rest = chunk.split(b"\n")
        lines: list[bytes | Excess] = []
        for piece in completed:
            self._pending += piece
            self._end_line(lines)
        self._pending += rest
        # One byte more than the limit may still be the CR of a line that is just short enough.
        if self._pending and (self._is_long or len(self._pending) > self._max_line_bytes + 1):
            self._is_long = True
            lines.append(Excess(bytes(self._pending), ends_line=False))
            self._pending.clear()
        return lines

    def _end_line(self, lines: list[bytes | Excess]) -> None:
        line = bytes(self._pending).removesuffix(b"\r")
        self._pending.clear()
        if self._is_long or len(line) > self._max_line_bytes:
            self._is_long = False
            lines.append(Excess(line, ends_line=True))
        elif line.strip(_BLANK):
            lines.append(line)
