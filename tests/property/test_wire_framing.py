"""How a stream is cut into chunks decides nothing about its lines."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from mhsd.wire.framing import STOP_TEXTS, LineSplitter, TooLong, mentions_stop

BOUNDED = settings(max_examples=4 * settings().max_examples)

PIECES = st.sampled_from(
    [b"\n", b"\r\n", b"\r", b" ", b"x", b"x" * 7, b"x" * 30, *STOP_TEXTS, b"mhs.safety", b".estop"]
)
STREAMS = st.lists(PIECES, max_size=20).map(b"".join)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[start:end] for start, end in pairwise(edges)]


def lines_at_once(stream: bytes, max_line_bytes: int) -> list[bytes | TooLong]:
    """The promise, on the whole stream in memory."""
    *ended, tail = stream.split(b"\n")
    found: list[bytes | TooLong] = []
    for line in (raw.removesuffix(b"\r") for raw in ended):
        if len(line) > max_line_bytes:
            found.append(TooLong(mentions_stop(line)))
        elif line.strip(b" \t"):
            found.append(line)
    if len(tail) > max_line_bytes + 1 and mentions_stop(tail):
        found.append(TooLong(mentions_stop=True))
    return found


@BOUNDED
@given(STREAMS, st.lists(st.integers(0, 1000), max_size=12), st.integers(1, 40))
def test_the_lines_are_those_of_the_whole_stream(
    stream: bytes, places: list[int], max_line_bytes: int
) -> None:
    splitter = LineSplitter(max_line_bytes)
    found = [line for chunk in cut(stream, places) for line in splitter.feed(chunk)]
    assert found == lines_at_once(stream, max_line_bytes)
    tail = stream.split(b"\n")[-1]
    assert splitter.tail == (tail if len(tail) <= max_line_bytes + 1 else b"")
