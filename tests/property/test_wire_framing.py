"""How a stream is cut into chunks decides nothing about its lines."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from mhsd.wire.framing import Excess, LineSplitter

BOUNDED = settings(max_examples=4 * settings().max_examples)

PIECES = st.sampled_from([b"\n", b"\r\n", b"\r", b" ", b"x", b"y" * 7, b"z" * 30])
STREAMS = st.lists(PIECES, max_size=20).map(b"".join)

Line = tuple[bytes, bool]
"""A line's bytes, and whether they were too long."""


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[start:end] for start, end in pairwise(edges)]


def lines_at_once(stream: bytes, max_line_bytes: int) -> list[Line]:
    """The promise, on the whole stream in memory; how many CRs a long line ends with is left open."""
    ended = [raw.removesuffix(b"\r") for raw in stream.split(b"\n")[:-1]]
    lines = [(line, len(line) > max_line_bytes) for line in ended]
    return [
        (line.rstrip(b"\r") if is_long else line, is_long)
        for line, is_long in lines
        if is_long or line.strip(b" \t")
    ]


def joined(found: list[bytes | Excess]) -> list[Line]:
    """Long lines put together from their pieces."""
    lines: list[Line] = []
    pieces = b""
    for line in found:
        if isinstance(line, bytes):
            assert not pieces
            lines.append((line, False))
        elif line.ends_line:
            lines.append(((pieces + line.data).rstrip(b"\r"), True))
            pieces = b""
        else:
            pieces += line.data
    return lines


@BOUNDED
@given(STREAMS, st.lists(st.integers(0, 1000), max_size=12), st.integers(1, 40))
def test_the_lines_are_those_of_the_whole_stream(
    stream: bytes, places: list[int], max_line_bytes: int
) -> None:
    splitter = LineSplitter(max_line_bytes)
    found = [line for chunk in cut(stream, places) for line in splitter.feed(chunk)]
    assert joined(found) == lines_at_once(stream, max_line_bytes)
    tail = stream.split(b"\n")[-1]
    assert splitter.tail == (tail if len(tail) <= max_line_bytes + 1 else b"")
