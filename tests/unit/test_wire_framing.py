"""A stream of lines stays in step whatever arrives, and no byte of a line that is too long is lost or kept."""

import pytest

from mhsd.wire.framing import Excess, LineSplitter, mentions_stop


def split(*chunks: bytes, max_line_bytes: int = 10) -> list[bytes | Excess]:
    splitter = LineSplitter(max_line_bytes)
    return [line for chunk in chunks for line in splitter.feed(chunk)]


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"one\ntwo\n"], [b"one", b"two"]),
        ([b"on", b"e\nt", b"wo", b"\n"], [b"one", b"two"]),
        ([b"one\r\ntwo\r", b"\n"], [b"one", b"two"]),
        ([b"a\rb\n"], [b"a\rb"]),
        ([b"a\r\r\n"], [b"a\r"]),
        ([b"\n\r\n \t\n\t\r\none\n\n"], [b"one"]),
        ([b" one \n"], [b" one "]),
        ([b"unfinished"], []),
        ([b""], []),
    ],
)
def test_a_line_ends_at_lf_and_blank_lines_are_skipped(chunks: list[bytes], lines: list[bytes]) -> None:
    assert split(*chunks) == lines


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_the_limit_counts_the_line_without_its_end(end: bytes) -> None:
    assert split(b"x" * 10 + end) == [b"x" * 10]
    assert split(b"x" * 11 + end) == [Excess(b"x" * 11, ends_line=True)]
    assert split(b"x" * 12 + end) == [Excess(b"x" * 12, ends_line=True)]


def test_a_long_line_comes_in_pieces_and_the_next_one_is_read() -> None:
    assert split(b"x" * 8, b"y" * 8, b"z", b"\n[2]\n") == [
        Excess(b"x" * 8 + b"y" * 8, ends_line=False),
        Excess(b"z", ends_line=False),
        Excess(b"", ends_line=True),
        b"[2]",
    ]


def test_two_long_lines_are_told_apart() -> None:
    assert split(b"x" * 20 + b"\n" + b"y" * 20 + b"\n") == [
        Excess(b"x" * 20, ends_line=True),
        Excess(b"y" * 20, ends_line=True),
    ]


def test_a_long_line_is_not_kept() -> None:
    splitter = LineSplitter(10)
    for _ in range(100):
        splitter.feed(b"x" * 1000)
        assert splitter.tail == b""


def test_the_tail_is_what_no_line_end_followed() -> None:
    splitter = LineSplitter(10)
    splitter.feed(b"one\ntw")
    assert splitter.tail == b"tw"
    splitter.feed(b"o\n")
    assert splitter.tail == b""


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b'{"method": "mhs.safety.estop"}', True),
        (b'{"capability_id": "cap.motion.estop.v1"}', True),
        (b'{"method": "mhs.safety.status"}', False),
        (b"", False),
    ],
)
def test_a_stop_is_recognised_in_bytes(data: bytes, found: bool) -> None:
    assert mentions_stop(data) is found
