"""Whatever bytes come over HTTP: each connection gets whole answers or its end, and no defect is found in it."""

from __future__ import annotations

import re
from itertools import pairwise
from urllib.parse import urlencode

import h11
import trio
import trio.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mhsd.bindings.checks import Names, Refused
from mhsd.bindings.routes import ROUTES
from mhsd.bindings.rpc import Connection
from mhsd.bindings.site import Document, Site
from mhsd.bindings.sse import Wanted, frame
from mhsd.client.sse import SseMessage, SseParser
from mhsd.protocol.auth import TokenFiles
from tests.bindings.fakes import STOP, EchoDoor, Sent, call

LONG = settings(max_examples=3 * settings().max_examples)

BODY = call()
NAMES = Names.of(["127.0.0.1"], [], [], port=7400, tls=False)

LINES = st.sampled_from(
    [
        b"POST /mhs/v1/rpc HTTP/1.1",
        b"POST /mhs/v1/rpc HTTP/1.0",
        b"GET /mhs/v1/events?session_id=s HTTP/1.1",
        b"GET /mhs/v1/events?session_id=s HTTP/1.0",
        b"GET /mhs/v1/events?session_id=%73&subscription_id HTTP/1.1",
        b"GET /.well-known/mhs.json HTTP/1.1",
        b"GET /mhs/v1/schema/receipt HTTP/1.1",
        b"GET http://localhost/mhs/v1/events?session_id=s HTTP/1.1",
        b"GET /mhs/v1/ws HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"Host: localhost",
        b"Host: evil.example",
        b"Origin: http://localhost:7400",
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(BODY),
        b"Content-Length: 3",
        b"Transfer-Encoding: chunked",
        b"Expect: 100-continue",
        b"Connection: close",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Upgrade: h2c",
        b"Accept: text/event-stream",
        b"Last-Event-ID: sub_A:4",
        b" folded",
        b"",
        b"",
        BODY,
        STOP,
        b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY),
    ]
)
BYTES = st.one_of(
    st.lists(LINES, max_size=14).map(lambda lines: b"\r\n".join([*lines, b"", b""])),
    st.lists(st.one_of(LINES, st.binary(max_size=20)), max_size=14).map(b"\r\n".join),
    st.binary(max_size=200),
)
CUTS = st.lists(st.integers(0, 400), max_size=6)
GOOD = b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"


def nothing_here(ref: str) -> Document:
    return Document(b"{}", "sha256:" + "0" * 64)


def converse(data: bytes, cuts: list[int]) -> tuple[bytes, EchoDoor]:
    """What a connection answers to these bytes in these pieces, and the door behind it. Raises for a defect."""
    door = EchoDoor()
    site = Site(
        door=door,  # type: ignore[arg-type]
        tokens=TokenFiles.load(None, None),
        names=NAMES,
        routes=ROUTES,
        descriptor=b"{}",
        schema=nothing_here,
        max_request_bytes=1000,
        socket_timeout_s=5.0,
    )

    async def main() -> bytes:
        client, server = trio.testing.memory_stream_pair()
        connection = Connection(server, site)
        answer = bytearray()

        async def serve() -> None:
            try:
                await connection.run()
            except* (trio.BrokenResourceError, trio.TooSlowError):
                pass
            finally:
                await trio.aclose_forcefully(server)

        async def read() -> None:
            while received := await client.receive_some(65536):
                answer.extend(received)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            nursery.start_soon(read)
            edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
            try:
                for start, end in pairwise(edges):
                    await client.send_all(data[start:end])
                    await trio.testing.wait_all_tasks_blocked()
                await client.send_eof()
            except trio.BrokenResourceError:
                pass
            # What the front would say of a socket.
            connection.note_departure(False)
        return bytes(answer)

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)), door


def answers(data: bytes) -> list[int]:
    """The statuses of the answers in these bytes, which must be whole but for the last one."""
    statuses = []
    while data:
        head, separator, rest = data.partition(b"\r\n\r\n")
        found = re.match(rb"HTTP/1\.1 ([1-5][0-9][0-9]) ", head)
        assert found, data[:100]
        assert separator
        statuses.append(int(found[1]))
        if b"text/event-stream" in head:
            return statuses
        length = re.search(rb"\r\nContent-Length: ([0-9]+)", head)
        size = int(length[1]) if length else 0
        assert len(rest) >= size
        data = rest[size:]
    return statuses


@LONG
@given(BYTES, CUTS)
@example(GOOD % (len(BODY), BODY), [])
@example(b"GET /mhs/v1/events?session_id=s HTTP/1.1\r\nHost: localhost\r\n\r\nmore", [60])
def test_any_bytes_get_whole_answers_and_find_no_defect(data: bytes, cuts: list[int]) -> None:
    """TPT-011: what is refused closes, and what follows it is not served."""
    answer, door = converse(data, cuts)
    statuses = answers(answer)
    assert 500 not in statuses
    final = [status for status in statuses if status >= 400]
    assert len(final) <= 1
    assert not final or statuses[-1] == final[0]
    assert door.streams.open_now == 0
    assert len(door.entered) <= len(statuses)


@given(st.lists(st.integers(0, 300), max_size=8))
def test_a_good_request_is_served_however_it_is_cut(cuts: list[int]) -> None:
    answer, door = converse(2 * (GOOD % (len(BODY), BODY)), cuts)
    assert answers(answer) == [200, 200]
    assert door.entered == [BODY, BODY]


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)


@given(TEXTS, st.none() | TEXTS)
def test_what_a_query_names_is_found_in_it(session_id: str, subscription_id: str | None) -> None:
    """TPT-017: whatever characters an id has, once they are encoded."""
    named = {"subscription_id": subscription_id} if subscription_id is not None else {}
    target = "/mhs/v1/events?" + urlencode({**named, "session_id": session_id})
    wanted = Wanted.of(target.encode(), [])
    assert (wanted.session_id, wanted.subscription_id, wanted.after) == (session_id, subscription_id, {})


@given(st.binary(max_size=60), st.binary(max_size=40), st.booleans())
def test_any_query_and_any_last_event_id_are_understood_or_refused(
    query: bytes, last_event_id: bytes, has_session: bool
) -> None:
    """TPT-018: what is understood is what was said, to the byte; an id of nobody's names nothing."""
    target = b"/mhs/v1/events?" + (b"session_id=s" if has_session else query)
    refusal = None
    try:
        wanted = Wanted.of(target, [(b"last-event-id", last_event_id)])
    except Refused as refused:
        refusal = refused
    if refusal is not None:
        assert (refusal.status, refusal.fault.mhs_code) == (400, "MHS.PROTOCOL.INVALID_REQUEST")
        return
    assert wanted.session_id
    for subscription_id, seq in wanted.after.items():
        name, _, number = last_event_id.rpartition(b":")
        assert (subscription_id.encode(), seq) == (name, int(number))


@given(st.from_regex(r"[!-~]{1,128}", fullmatch=True), st.integers(0, 2**53))
def test_the_id_of_an_event_is_a_last_event_id(subscription_id: str, seq: int) -> None:
    """TPT-016, TPT-018: what stands in the id of an event is what a client sends to go on behind it."""
    framed = frame(subscription_id, seq, b"{}").split(b"\n")[0].removeprefix(b"id: ")
    wanted = Wanted.of(b"/mhs/v1/events?session_id=s", [(b"last-event-id", framed)])
    assert wanted.after == {subscription_id: seq}


MESSAGES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=40)
EVENTS = st.lists(
    st.builds(Sent, st.just("sub_A"), st.integers(0, 2**53), MESSAGES.map(str.encode)), max_size=8
)


@given(EVENTS, CUTS)
def test_events_come_out_of_the_stream_as_they_went_in(events: list[Sent], cuts: list[int]) -> None:
    """TPT-016: one message an event, however the stream is cut on its way."""
    data = b"retry: 3000\n\n: keepalive\n\n".join(
        [b"", *(frame(event.subscription_id, event.seq, event.message) for event in events)]
    )
    parser = SseParser()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    found = [message for start, end in pairwise(edges) for message in parser.feed(data[start:end])]
    assert found == [
        SseMessage("mhs.event", event.message.decode(), f"{event.subscription_id}:{event.seq}")
        for event in events
    ]


def test_the_strategy_reaches_served_requests() -> None:
    """The good request of the seeds is one, so that the fuzzing above is not of refusals alone."""
    answer, door = converse(GOOD % (len(BODY), BODY), [10])
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="POST", target="/", headers=[("Host", "x")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(answer)
    response = reader.next_event()
    assert isinstance(response, h11.Response)
    assert response.status_code == 200
    assert door.entered == [BODY]
