"""Server-sent events as a client reads them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhsd.client.sse import MAX_MESSAGE_BYTES, SseMessage, SseParser, SseTooLong

STREAM = (
    b"retry: 3000\n\n"
    b": keepalive\n\n"
    b'id: sub_1:7\nevent: mhs.event\ndata: {"seq":7}\n\n'
    b"event:none\n\n"
    b"data: one\r\ndata: two\r\n\r\n"
    b"data:last\r\r"
    b"data: unfinished"
)
MESSAGES = [
    SseMessage("mhs.event", '{"seq":7}', "sub_1:7"),
    SseMessage("message", "one\ntwo", "sub_1:7"),
    SseMessage("message", "last", "sub_1:7"),
]


def test_a_stream_is_read_by_the_standard() -> None:
    """[TPT-016]"""
    parser = SseParser()
    assert parser.feed(STREAM) == MESSAGES
    assert parser.retry_s == 3.0


@given(st.lists(st.integers(1, len(STREAM) - 1)))
def test_where_the_network_cuts_it_makes_no_difference(cuts: list[int]) -> None:
    parser = SseParser()
    places = [0, *sorted(cuts), len(STREAM)]
    found = [
        message for start, end in itertools.pairwise(places) for message in parser.feed(STREAM[start:end])
    ]
    assert found == MESSAGES


def test_a_message_without_end_is_no_way_to_fill_the_memory() -> None:
    parser = SseParser()
    line = b"data: " + b"x" * 65536 + b"\n"
    for _ in range(MAX_MESSAGE_BYTES // len(line)):
        assert parser.feed(line) == []
    with pytest.raises(SseTooLong):
        parser.feed(line)
    with pytest.raises(SseTooLong):
        SseParser().feed(b"x" * (MAX_MESSAGE_BYTES + 1))
