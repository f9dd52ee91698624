"""Streams of events on a raw socket: who gets one, what it looks like, how it ends [TPT-016 to TPT-019]."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import pytest
import trio
import trio.testing

from mhsd.base.errors import Fault
from mhsd.bindings import sse
from mhsd.protocol.auth import TokenFiles
from tests.bindings.conftest import Serve, Served
from tests.bindings.fakes import STOP, Client, Events, Sent, call, until

RETRY = "retry: 3000"


def sent(seq: int, text: str = "{}", subscription_id: str = "sub_A") -> Sent:
    return Sent(subscription_id, seq, text.encode())


def block(event: Sent) -> str:
    return f"id: {event.subscription_id}:{event.seq}\nevent: mhs.event\ndata: {event.message.decode()}"


async def streaming(served: Served, *headers: str, version: str = "1.1") -> Client:
    """A client whose stream has begun."""
    client = await served.connect()
    assert (await client.events("?session_id=s", *headers, version=version)).status == 200
    assert await client.block() == RETRY
    return client


# Framing


async def test_events_come_framed_each_with_an_id_of_its_own(served: Served, client: Client) -> None:
    """TPT-016: id, event and one line of data; the retry comes first."""
    answer = await client.events()
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream"
    assert await client.block() == RETRY
    events = [sent(0, '{"seq":0}'), sent(1, '{"seq":"\\u00e4"}'), sent(0, "{}", "sub_B")]
    served.door.streams.opened[0].push(*events)
    assert [await client.block() for _ in events] == [block(event) for event in events]


async def test_nobody_on_the_way_may_keep_pack_or_gather_a_stream(client: Client) -> None:
    """TPT-019: no buffering, no compression, no caching."""
    answer = await client.events("?session_id=s", "Accept-Encoding: gzip")
    assert answer.headers["cache-control"] == "no-store, no-transform"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["transfer-encoding"] == "chunked"
    assert "content-encoding" not in answer.headers


async def test_http_1_0_gets_its_stream_until_the_connection_closes(served: Served) -> None:
    client = await streaming(served, version="1.0")
    served.door.streams.opened[0].push(sent(0))
    assert await client.block() == block(sent(0))
    served.door.streams.opened[0].end()
    with pytest.raises(EOFError):
        await client.block()


async def test_silence_is_broken_by_a_comment(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """TPT-016: a heartbeat, after each time of silence."""
    monkeypatch.setattr(sse, "KEEPALIVE_S", 0.02)
    client = await streaming(served)
    assert [await client.block() for _ in range(3)] == [": keepalive"] * 3
    served.door.streams.opened[0].push(sent(0))
    while (found := await client.block()) == ": keepalive":
        pass
    assert found == block(sent(0))


def test_the_keepalive_is_within_what_the_protocol_says() -> None:
    assert 15 <= sse.KEEPALIVE_S <= 30


# Refusals


async def refused(served: Served, query: str, *headers: str) -> tuple[int, str, str]:
    """Status, code and message of a refusal, which must close the connection."""
    client = await served.connect()
    answer = await client.events(query, *headers)
    assert answer.headers["connection"] == "close"
    assert await client.at_end()
    assert served.door.streams.open_now == 0
    return answer.status, answer.mhs_code, answer.body.decode()


@pytest.mark.parametrize("query", ["", "?", "?session_id=", "?subscription_id=x"])
async def test_a_request_without_a_session_is_400(served: Served, query: str) -> None:
    """TPT-017: a missing id is 400."""
    status, code, _ = await refused(served, query)
    assert (status, code) == (400, "MHS.PROTOCOL.INVALID_REQUEST")
    assert served.door.streams.asked == []


@pytest.mark.parametrize(
    "query",
    [
        "?session_id=s&session_id=s",
        "?session_id=s&subscription_id=a&subscription_id=a",
        "?session_id=s&access_token=s3cret",
        "?session_id=s&ticket=s3cret",
        "?session_id=s&",
        "?session_id=s&&subscription_id=a",
        "?session_id",
        "?session_id=s&=x",
        "?session_id=%ff",
        "?session_id=s;subscription_id=a&x",
        "?" + "&".join(f"p{number}=1" for number in range(500)),
    ],
)
async def test_a_query_that_is_not_understood_is_400_and_is_not_repeated(served: Served, query: str) -> None:
    status, code, body = await refused(served, query)
    assert (status, code) == (400, "MHS.PROTOCOL.INVALID_REQUEST")
    assert "s3cret" not in body
    assert "access_token" not in body
    assert served.door.streams.asked == []


async def test_a_query_is_decoded_and_its_subscription_passed_on(served: Served, client: Client) -> None:
    assert (await client.events("?subscription_id=sub%5FA&session_id=mhs%5Fs")).status == 200
    _, session_id, only, after = served.door.streams.asked[0]
    assert (session_id, only, after) == ("mhs_s", "sub_A", {})


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (Fault("MHS.SESSION.UNKNOWN", "no such session"), 403),
        (Fault("MHS.SESSION.EXPIRED", "expired"), 403),
        (Fault("MHS.SESSION.CLOSED", "closed"), 403),
        (Fault("MHS.RESOURCE.UNKNOWN", "no such subscription"), 404),
        (Fault("MHS.LIMIT.CONNECTION_LIMIT", "all taken", details={"retry_after_ms": 2500}), 429),
    ],
)
async def test_a_stream_that_may_not_be_had_is_refused_with_its_code(
    served: Served, fault: Fault, status: int
) -> None:
    """TPT-017: 403 for the session, 404 for the subscription, 429 for one stream too many."""
    served.door.streams.refusal = fault
    client = await served.connect()
    answer = await client.events()
    assert (answer.status, answer.mhs_code) == (status, fault.mhs_code)
    assert answer.headers.get("retry-after") == ("3" if status == 429 else None)
    assert await client.at_end()


@pytest.mark.parametrize(
    "accept",
    [
        "text/event-stream",
        "Text/Event-Stream",
        "*/*",
        "text/*;q=0.5",
        "application/json, text/event-stream;q=0.1",
        "text/html,*/* ; q=0.8",
    ],
)
async def test_who_takes_event_streams_gets_one(served: Served, accept: str) -> None:
    await streaming(served, f"Accept: {accept}")


@pytest.mark.parametrize(
    "accept", ["", "application/json", "text/html, application/xml", "text/event-stream;q=0", "*/*; q=0.000"]
)
async def test_who_does_not_take_event_streams_is_406(served: Served, accept: str) -> None:
    status, code, body = await refused(served, "?session_id=s", f"Accept: {accept}")
    assert (status, code) == (406, "MHS.PROTOCOL.INVALID_REQUEST")
    assert "text/event-stream" in body


@pytest.mark.parametrize("method", ["POST", "HEAD", "OPTIONS", "get"])
async def test_only_get_is_allowed(served: Served, client: Client, method: str) -> None:
    answer = await client.get("/mhs/v1/events?session_id=s", method=method)
    assert (answer.status, answer.headers["allow"]) == (405, "GET")
    assert served.door.streams.asked == []


@pytest.mark.parametrize("header", ["Origin: null", "Origin: http://evil.example"])
async def test_a_foreign_origin_is_forbidden(served: Served, header: str) -> None:
    status, code, _ = await refused(served, "?session_id=s", header)
    assert (status, code) == (403, "MHS.AUTH.FORBIDDEN")


# Resuming


async def test_the_last_event_id_names_the_subscription_and_the_seq(served: Served, client: Client) -> None:
    """TPT-018: what the client has is not sent again."""
    assert (await client.events("?session_id=s", "Last-Event-ID: sub_01ABC:41")).status == 200
    assert served.door.streams.asked[0][3] == {"sub_01ABC": 41}


@pytest.mark.parametrize(
    "header",
    [
        "Last-Event-ID:",
        "last-event-id: ",
        "Last-Event-ID: 41",
        "Last-Event-ID: sub_A",
        "Last-Event-ID: sub_A:",
        "Last-Event-ID: :41",
        "Last-Event-ID: sub_A:-1",
        "Last-Event-ID: sub_A:4.1",
        "Last-Event-ID: sub A:41",
        "Last-Event-ID: sub_A:\u0664",
        "Last-Event-ID: sub_A:99999999999999999",
        "Last-Event-ID: " + "x" * 200 + ":1",
        "Last-Event-ID: sub_A:1\r\nLast-Event-ID: sub_A:2",
    ],
)
async def test_a_last_event_id_that_is_no_events_names_nothing(
    served: Served, client: Client, header: str
) -> None:
    """TPT-018: resumption is best-effort, and an EventSource that is refused never comes back."""
    assert (await client.events("?session_id=s", header)).status == 200
    assert served.door.streams.asked[0][3] == {}


# The credential

SECRET = "s3cret-of-the-bench"
AUTHORIZATION = f"Authorization: Bearer {SECRET}"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    path.write_text(
        f'[[token]]\nsha256 = "{hashlib.sha256(SECRET.encode()).hexdigest()}"\nprincipal = "agent:a"\n'
    )
    path.chmod(0o600)
    return path


async def test_a_stream_needs_the_token_and_reads_none_from_the_query(serve: Serve, tokens: Path) -> None:
    served = await serve(tokens=TokenFiles.load(tokens, None))
    for query in ("?session_id=s", f"?session_id=s&access_token={SECRET}", f"?token={SECRET}&session_id=s"):
        client = await served.connect()
        answer = await client.events(query)
        assert (answer.status, answer.mhs_code) == (401, "MHS.AUTH.UNAUTHENTICATED")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert served.door.streams.asked == []
    await streaming(served, AUTHORIZATION)
    assert served.door.streams.asked[0][0].principal.id == "agent:a"


async def until_ended(client: Client) -> None:
    """Read until the body of the stream ends as it should."""
    with pytest.raises(EOFError):
        await read_on(client)


async def read_on(client: Client) -> None:
    while await client.block():
        pass


async def keep_busy(events: Events) -> None:
    """Leave the stream no silence."""
    for seq in itertools.count():
        events.push(sent(seq))
        await trio.testing.wait_all_tasks_blocked(0.001)


def change(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


async def test_a_stream_ends_soon_after_its_token_was_taken_back(
    serve: Serve, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TPT-059: at the next look, also where there is no silence."""
    monkeypatch.setattr(sse, "KEEPALIVE_S", 0.05)
    served = await serve(tokens=TokenFiles.load(tokens, None))
    client = await streaming(served, AUTHORIZATION)
    assert await client.block() == ": keepalive"
    change(tokens, hashlib.sha256(SECRET.encode()).hexdigest(), "0" * 64)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_busy, served.door.streams.opened[0])
        await until_ended(client)
        nursery.cancel_scope.cancel()
    await until(lambda: served.door.streams.open_now == 0)


async def test_a_token_that_speaks_for_another_principal_by_now_ends_the_stream(
    serve: Serve, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "KEEPALIVE_S", 0.02)
    served = await serve(tokens=TokenFiles.load(tokens, None))
    client = await streaming(served, AUTHORIZATION)
    change(tokens, "agent:a", "agent:b")
    await until_ended(client)


# How a stream ends


async def ended(served: Served) -> None:
    """The stream has been given back, and its connection too."""
    await until(lambda: served.door.streams.open_now == 0)
    assert served.front.defects == 0


async def test_a_stream_ends_with_its_session_after_the_last_event(served: Served) -> None:
    """TPT-017: what there was is delivered, then the body ends as it should."""
    client = await streaming(served)
    events = served.door.streams.opened[0]
    events.push(sent(0), sent(1))
    events.end()
    assert [await client.block(), await client.block()] == [block(sent(0)), block(sent(1))]
    with pytest.raises(EOFError):
        await client.block()
    assert await client.at_end()
    await ended(served)


@pytest.mark.parametrize("manner", ["close", "half", "reset"])
@pytest.mark.parametrize("ahead", [b"", b"POST /mhs/v1/rpc HTTP/1.1\r\n"], ids=["nothing", "bytes"])
async def test_a_client_that_goes_is_noticed_at_once(served: Served, manner: str, ahead: bytes) -> None:
    """TPT-017: also where it has sent more bytes before, and where it closes only its own half."""
    client = await streaming(served)
    if ahead:
        await client.send(ahead)
        await trio.testing.wait_all_tasks_blocked(0.01)
    if manner == "half":
        await client.stream.send_eof()
    else:
        if manner == "reset":
            client.stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await trio.aclose_forcefully(client.stream)
    await ended(served)
    await until(lambda: not served.front.connections)


async def test_what_is_sent_behind_a_request_for_events_is_never_served(served: Served) -> None:
    client = await served.connect()
    body = call()
    smuggled = (
        b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    await client.send(b"GET /mhs/v1/events?session_id=s HTTP/1.1\r\nHost: localhost\r\n\r\n" + smuggled)
    assert (await client.answer()).headers["connection"] == "close"
    await client.send(smuggled)
    served.door.streams.opened[0].end()
    await ended(served)
    await until(lambda: not served.front.connections)
    assert served.door.entered == []


async def flood(client: Client) -> None:
    while True:
        await client.send(b"x" * 65536)


async def test_what_a_client_floods_a_stream_with_stays_in_its_own_socket(served: Served) -> None:
    """Nothing of it is read, so it costs nothing, and the stream goes on."""
    client = await streaming(served)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(flood, client)
        await trio.testing.wait_all_tasks_blocked(0.05)
        served.door.streams.opened[0].push(sent(0))
        assert await client.block() == block(sent(0))
        nursery.cancel_scope.cancel()
    await trio.aclose_forcefully(client.stream)
    # Its leaving stands behind what was not read: the next thing that is sent finds nobody.
    served.door.streams.opened[0].push(sent(1))
    await trio.testing.wait_all_tasks_blocked(0.05)
    served.door.streams.opened[0].push(sent(2))
    await ended(served)
    assert served.door.entered == []


async def test_the_front_lets_streams_live_until_it_finishes(served: Served) -> None:
    """What the endpoint has to say of its own end still goes out; then the stream ends whole."""
    client = await streaming(served)
    served.front.drain()
    events = served.door.streams.opened[0]
    events.push(sent(7, '{"stream":"control"}'))
    assert await client.block() == block(sent(7, '{"stream":"control"}'))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.front.finish, 5)
        with pytest.raises(EOFError):
            await client.block()
    await ended(served)


async def test_a_stream_that_is_deaf_does_not_hold_up_the_end(served: Served) -> None:
    client = await streaming(served)
    served.door.streams.opened[0].push(*(sent(seq, "x" * 60_000) for seq in range(200)))
    await trio.testing.wait_all_tasks_blocked(0.05)
    served.front.drain()
    with trio.fail_after(5):
        await served.front.finish(patience_s=0.1)
    await ended(served)
    assert client.stream.socket.fileno() > 0


# Slow clients


async def test_a_client_that_does_not_read_is_given_one_handful_at_a_time(served: Served) -> None:
    """TPT-019: what it has not read stays with its subscription, where it is bounded, and is not fetched early."""
    client = await served.connect()
    assert (await client.events()).status == 200
    events = served.door.streams.opened[0]
    pushed = [sent(seq, "x" * 1000) for seq in range(5000)]
    events.push(*pushed)
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert 0 < sum(events.takes) < 1_000_000
    assert max(events.takes) < 70_000
    assert await client.block() == RETRY
    assert [await client.block() for _ in pushed] == [block(event) for event in pushed]


async def test_a_client_that_has_stopped_reading_is_cut_after_the_socket_timeout(serve: Serve) -> None:
    served = await serve(socket_timeout_s=0.3)
    await streaming(served)
    served.door.streams.opened[0].push(*(sent(seq, "x" * 60_000) for seq in range(200)))
    await ended(served)
    await until(lambda: not served.front.connections)


async def test_a_client_that_reads_slowly_but_reads_is_not_cut(serve: Serve) -> None:
    served = await serve(socket_timeout_s=1.0)
    client = await served.connect()
    client.stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 65536)
    assert (await client.events()).status == 200
    events = [sent(seq, "x" * 60_000) for seq in range(80)]
    served.door.streams.opened[0].push(*events)
    assert await client.block() == RETRY
    for event in events:
        assert await client.block() == block(event)
        await trio.sleep(0.03)  # The slowness is what is tested: the whole takes more than twice the timeout.


async def test_an_idle_stream_outlives_the_socket_timeout(serve: Serve) -> None:
    served = await serve(socket_timeout_s=0.1)
    client = await streaming(served)
    with trio.move_on_after(0.4):
        await client.stream.receive_some(1)
    served.door.streams.opened[0].push(sent(0))
    assert await client.block() == block(sent(0))


# Streams and stops


async def test_the_stop_lane_holds_no_stream_and_still_stops(serve: Serve) -> None:
    """TPT-020: streams count as connections, and an e-stop has its place beside them."""
    served = await serve(max_connections=2)
    for _ in range(2):
        await streaming(served)
    client = await served.connect()
    answer = await client.events()
    assert (answer.status, answer.mhs_code) == (503, "MHS.LIMIT.CONNECTION_LIMIT")
    assert (await (await served.connect()).post(STOP)).status == 200
    assert served.door.streams.open_now == 2
