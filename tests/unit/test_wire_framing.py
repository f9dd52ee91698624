"""A stream of lines stays in step whatever arrives, and a stop in a line that is too long is not missed."""

import pytest

from mhsd.wire.framing import STOP_TEXTS, LineSplitter, TooLong, mentions_stop


def split(*chunks: bytes, max_line_bytes: int = 10) -> list[bytes | TooLong]:
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
    assert split(b"x" * 11 + end) == [TooLong(mentions_stop=False)]
    assert split(b"x" * 12 + end) == [TooLong(mentions_stop=False)]


def test_a_long_line_is_told_once_and_the_next_one_is_read() -> None:
    assert split(b"x" * 25, b"x" * 25, b"x\n[2]\n") == [TooLong(mentions_stop=False), b"[2]"]


def test_a_long_line_that_mentions_a_stop_is_told_before_it_ends() -> None:
    splitter = LineSplitter(10)
    assert splitter.feed(b'{"method":"mhs.safety.estop",') == [TooLong(mentions_stop=True)]
    assert splitter.feed(b"mhs.safety.estop") == []
    assert splitter.feed(b"\nnext\n") == [b"next"]


@pytest.mark.parametrize("text", STOP_TEXTS)
@pytest.mark.parametrize("cut", range(1, 20))
def test_a_stop_text_cut_by_chunks_deep_in_a_long_line_is_found(text: bytes, cut: int) -> None:
    line = b"x" * 100 + text
    position = 100 + min(cut, len(text))
    assert split(line[:50], line[50:position], line[position:]) == [TooLong(mentions_stop=True)]


def test_a_stop_text_that_fell_before_the_line_became_long_is_found() -> None:
    assert split(b"mhs.safety", b".estop", b"x" * 30, max_line_bytes=20) == [TooLong(mentions_stop=True)]


def test_stop_texts_of_neighbouring_lines_are_not_mixed() -> None:
    assert split(b"x" * 20 + b"mhs.safety.\nestop\n") == [TooLong(mentions_stop=False), b"estop"]


def test_what_is_skipped_is_not_kept() -> None:
    splitter = LineSplitter(10)
    for _ in range(100):
        splitter.feed(b"x" * 1000)
    assert splitter.tail == b""
    assert len(splitter._pending) < 20


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
