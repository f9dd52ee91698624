"""The Trio client over HTTP against endpoints that answer as they please [TPT-012, TPT-013, TPT-062]."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn, cast

import h11
import pytest
import trio
import trio.testing

from mhsd.aclient import AsyncClient, AsyncSession, AsyncSubscription, open_client
from mhsd.aclient.http import Connection, HttpTransport
from mhsd.aclient.streams import Stream
from mhsd.client.endpoint import HttpEndpoint, parse_endpoint
from mhsd.client.errors import AnswerLost, MHSError, SessionError, TransportError
from mhsd.client.http import HttpTransport as SyncTransport
from mhsd.client.http import Tls
from mhsd.client.transport import Lost, NotSent
from tests.cli.tiny import HELLO, Answer, Endpoint, Request, Tiny, http, refusal, result
from tests.unit.test_client_tls import certificate, server_context

Serve = Callable[..., Tiny]
PATIENCE_S = 20


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts endpoints that say hello in order and then answer as they are told."""
    served: list[Tiny] = []

    def start(answer: Answer, tls: Any = None) -> Tiny:
        def greeted(request: Request) -> bytes | Iterator[bytes] | None:
            if request.body and request.method == "mhs.hello":
                return result(request, HELLO)
            return answer(request)

        served.append(Tiny(greeted, tls))
        return served[-1]

    yield start
    for tiny in served:
        tiny.close()


@asynccontextmanager
async def client_of(tiny: Tiny, **more: Any) -> AsyncIterator[AsyncClient]:
    with trio.fail_after(PATIENCE_S):
        async with open_client(tiny.url, **{"timeout_s": 5, **more}) as client:
            yield client


async def test_a_call_is_one_post_with_the_token_in_its_header_alone(serve: Serve) -> None:
    tiny = serve(Endpoint())
    async with client_of(tiny, token="s3cret") as client:
        assert await client.hello() == HELLO
    (request,) = tiny.requests
    assert request.head.startswith("POST /mhs/v1/rpc HTTP/1.1\r\n")
    assert request.header("Host") == tiny.url.removeprefix("http://")
    assert request.header("Content-Type") == "application/json"
    assert request.header("Authorization") == "Bearer s3cret"
    assert b"s3cret" not in request.body


async def test_the_token_of_a_file_is_shown(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-a-file\n")
    file.chmod(0o600)
    tiny = serve(Endpoint())
    async with client_of(tiny, token_file=file) as client:
        await client.hello()
    assert tiny.requests[0].header("Authorization") == "Bearer from-a-file"


@pytest.mark.parametrize("token", ["", "two words", "line\nX-Evil: 1", "l\u00e9mon"])
async def test_what_can_be_no_token_is_refused_before_anything_is_sent(serve: Serve, token: str) -> None:
    tiny = serve(Endpoint())
    with pytest.raises(ValueError, match="not one word of printable ASCII"):
        async with client_of(tiny, token=token):
            pass
    assert tiny.requests == []


@pytest.mark.parametrize("timeout_s", [0, -1, math.inf, math.nan])
async def test_every_client_waits_for_a_finite_time(serve: Serve, timeout_s: float) -> None:
    """[TPT-056]"""
    with pytest.raises(ValueError, match="timeout_s is a number of seconds above 0"):
        async with client_of(serve(Endpoint()), timeout_s=timeout_s):
            pass


async def exhausted(place: object, context: object) -> NoReturn:
    raise NotSent("Too many open files")


async def hanging(place: object, context: object) -> NoReturn:
    await trio.sleep_forever()
    raise AssertionError


@pytest.mark.parametrize("connect", [exhausted, hanging])
async def test_a_stop_takes_a_connection_that_rests_where_it_can_make_none(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, connect: Callable[..., object]
) -> None:
    """As in a program that has no descriptor left, or before an endpoint that lets nobody in any more."""
    tiny = serve(lambda request: result(request, {"status": "completed"}))
    async with client_of(tiny, timeout_s=2) as client:
        await client.hello()
        monkeypatch.setattr("mhsd.aclient.http.connect", connect)
        assert (await client.estop()).ok
    assert [request.connection for request in tiny.requests] == [1, 1]


async def test_calls_one_after_another_share_a_connection(serve: Serve) -> None:
    tiny = serve(lambda request: result(request, {}))
    async with client_of(tiny) as client:
        for _ in range(3):
            await client.call("mhs.devices.list")
    assert [request.connection for request in tiny.requests] == [1, 1, 1, 1]


async def test_a_connection_that_the_endpoint_closed_is_not_used_again(serve: Serve) -> None:
    def answer(request: Request) -> bytes:
        return result(request, {}).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)

    tiny = serve(answer)
    async with client_of(tiny) as client:
        await client.call("mhs.command")
        await client.call("mhs.command")
    assert [request.connection for request in tiny.requests] == [1, 1, 2]


async def test_concurrent_calls_have_connections_of_their_own(serve: Serve) -> None:
    """[TPT-057]"""
    together = threading.Barrier(4, timeout=PATIENCE_S)

    def answer(request: Request) -> bytes:
        together.wait()
        return result(request, {"asked": request.params["n"]})

    tiny = serve(answer)
    answers: dict[int, object] = {}

    async def ask(client: AsyncClient, n: int) -> None:
        answers[n] = await client.call("mhs.devices.get", {"n": n})

    async with client_of(tiny) as client, trio.open_nursery() as nursery:
        for n in range(4):
            nursery.start_soon(ask, client, n)
    assert answers == {n: {"asked": n} for n in range(4)}


async def test_connections_that_rested_too_long_are_not_kept(serve: Serve) -> None:
    together = threading.Barrier(3, timeout=PATIENCE_S)

    def answer(request: Request) -> bytes:
        if request.params:
            together.wait()
        return result(request, {})

    tiny = serve(answer)
    async with client_of(tiny) as client:
        transport = client.transport
        assert isinstance(transport, HttpTransport)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(client.call, "mhs.devices.get", {"together": True})
        assert len(transport._resting) == 3
        oldest, *others = transport._resting
        oldest._used_mono_s = -math.inf
        await client.call("mhs.devices.list")
        assert transport._resting == others


def cut(request: Request) -> None:
    """Closes the connection after the request was read."""


@pytest.mark.parametrize(
    "answer",
    [
        cut,
        lambda _: http(200, b"<html>hello</html>", Content_Type="text/html"),
        lambda _: http(200, b'{"jsonrpc": "2.0", "id": "another", "result": {}}'),
        lambda _: http(200, b"[" * 100_000),
        lambda _: http(502, b"bad gateway"),
        lambda _: http(204),
        lambda _: b"SSH-2.0-OpenSSH\r\n\r\n",
        lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}" + b"x" * 10,
        lambda _: b"HTTP/1.1 200 OK\r\n" + b"X-Long: x\r\n" * 20_000,
        lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}",
    ],
)
async def test_an_answer_that_is_lost_leaves_the_outcome_of_a_command_unknown(
    serve: Serve, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mhsd.client.calls.ANSWER_GRACE_S", 0.2)
    tiny = serve(answer)
    async with client_of(tiny) as client:
        with pytest.raises(AnswerLost) as lost:
            await client.call("mhs.command", deadline_s=0.1)
    assert lost.value.mhs_code in ("MHS.OUTCOME.UNKNOWN", "MHS.OUTCOME.TIMEOUT")
    assert lost.value.retryable is False
    assert tiny.methods() == ["mhs.hello", "mhs.command"]


async def test_an_answer_without_end_is_not_read_to_its_end(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mhsd.aclient.http.MAX_ANSWER_BYTES", 100_000)
    stop = threading.Event()

    def endless(request: Request) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\n\r\n"
        while not stop.is_set():
            yield b"x" * 10_000

    tiny = serve(endless)
    async with client_of(tiny) as client:
        with pytest.raises(AnswerLost, match="longer than 100000 bytes"):
            await client.call("mhs.command")
    stop.set()


async def test_a_peer_that_trickles_cannot_hold_a_call_beyond_its_time(serve: Serve) -> None:
    """[TPT-056]"""
    given_up = threading.Event()

    def trickle(request: Request) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nX-Slow: "
        while not given_up.wait(0.02):
            yield b"x"

    tiny = serve(trickle)
    async with client_of(tiny) as client:
        with pytest.raises(AnswerLost) as lost:
            await client.call("mhs.devices.list", deadline_s=0.2)
    given_up.set()
    assert lost.value.mhs_code == "MHS.OUTCOME.TIMEOUT"


@pytest.mark.parametrize("status", [301, 307])
async def test_a_redirect_is_never_followed(serve: Serve, status: int) -> None:
    other = serve(Endpoint())
    tiny = serve(lambda _: http(status, b"", Location=f"{other.url}/mhs/v1/rpc"))
    async with client_of(tiny, token="s3cret") as client:
        with pytest.raises(TransportError) as failed:
            await client.call("mhs.command")
    assert failed.value.details["http_status"] == status
    assert other.requests == []


async def test_a_full_endpoint_is_asked_again_when_it_says(serve: Serve) -> None:
    """[TPT-012, TPT-020] It has not looked into the request."""

    def answer(request: Request) -> bytes:
        if len(tiny.requests) < 4:
            return refusal(None, "MHS.LIMIT.CONNECTION_LIMIT", 503, details={"retry_after_ms": 5})
        return result(request, {"status": "completed"})

    tiny = serve(answer)
    async with client_of(tiny) as client:
        assert await client.call("mhs.command") == {"status": "completed"}
    assert tiny.methods() == ["mhs.hello", *["mhs.command"] * 3]


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_nobody_at_the_address_is_a_transport_error(scheme: str) -> None:
    tiny = Tiny(Endpoint())
    tiny.close()
    async with open_client(f"{scheme}://127.0.0.1:{tiny.port}") as client:
        with trio.fail_after(PATIENCE_S), pytest.raises(TransportError, match="nothing was sent"):
            await client.call("mhs.command")
        with trio.fail_after(PATIENCE_S), pytest.raises(TransportError, match="nothing was sent"):
            await client.estop()


async def test_a_client_that_was_left_sends_nothing(serve: Serve) -> None:
    tiny = serve(Endpoint())
    async with client_of(tiny) as client:
        await client.hello()
    with pytest.raises(TransportError, match="the client is closed"):
        await client.call("mhs.devices.list")
    assert tiny.methods() == ["mhs.hello"]


# Events.


def message(seq: int) -> bytes:
    params = {"subscription_id": "sub_1", "seq": seq, "ts": "now", "stream": "state", "payload": {}}
    notification = json.dumps({"jsonrpc": "2.0", "method": "mhs.event", "params": params})
    return f"id: sub_1:{seq}\nevent: mhs.event\ndata: {notification}\n\n".encode()


class Streaming:
    """Answers subscribe, and streams what each connection in turn is to bring."""

    def __init__(self, *streams: bytes | Iterator[bytes]) -> None:
        self.streams = list(streams)
        self.asked: list[Request] = []

    def __call__(self, request: Request) -> bytes | Iterator[bytes]:
        if request.body:
            granted = {"subscription_id": "sub_1", "seq_start": 1}
            return result(request, granted if request.method == "mhs.subscribe" else {})
        self.asked.append(request)
        return self.streams.pop(0)


async def _read(subscription: AsyncSubscription, seen: list[int]) -> None:
    async for event in subscription:
        seen.append(event.seq)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"


async def test_a_stream_names_its_session_and_where_it_goes_on(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[TPT-016, TPT-018]"""
    monkeypatch.setattr("mhsd.client.backoff.FIRST_S", 0.001)
    first = b": keepalive\n\n" + message(1)
    chunked = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(first), first)
    over = http(403, b"", Content_Type="text/plain")

    def broken() -> Iterator[bytes]:
        yield HEAD + b"Content-Length: 9999\r\n\r\n" + message(2)
        raise OSError

    streaming = Streaming(HEAD + chunked, broken(), over)
    tiny = serve(streaming)
    seen: list[int] = []
    async with client_of(tiny, token="s3cret") as client:
        session = AsyncSession(client, "mhs_s_1", ["mhs://localhost:7400/lab/one"])
        subscription = await session.subscribe("state")
        with pytest.raises(MHSError) as refused:
            await _read(subscription, seen)
        session.forget()
    assert seen == [1, 2]
    assert refused.value.mhs_code == "MHS.AUTH.FORBIDDEN"
    assert [request.head.split(" ")[1] for request in streaming.asked] == [
        "/mhs/v1/events?session_id=mhs_s_1"
    ] * 3
    assert [request.header("Last-Event-ID") for request in streaming.asked] == [
        "sub_1:0",
        "sub_1:1",
        "sub_1:2",
    ]
    assert {request.header("Authorization") for request in streaming.asked} == {"Bearer s3cret"}
    assert {request.header("Accept") for request in streaming.asked} == {"text/event-stream"}


NO_STREAMS = {
    "another type": HEAD.replace(b"text/event-stream", b"text/html") + b"\r\n" + message(1),
    "compressed": HEAD + b"Content-Encoding: gzip\r\n\r\n\x1f\x8b" + message(1),
}


@pytest.mark.parametrize("kind", NO_STREAMS)
async def test_what_is_no_stream_of_events_is_a_broken_one(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """[TPT-016, TPT-063] Nothing in it would be an event, and the silence would look like peace."""
    monkeypatch.setattr("mhsd.client.backoff.FIRST_S", 0.001)
    tiny = serve(Streaming(*[NO_STREAMS[kind]] * 4))
    async with client_of(tiny, attempts=1) as client:
        subscription = await AsyncSession(client, "mhs_s_1", ["one"], ttl_s=60).subscribe("state")
        with pytest.raises(TransportError, match="answered with no stream of events"):
            await anext(subscription)
    place = parse_endpoint(tiny.url)
    assert isinstance(place, HttpEndpoint)
    transport = SyncTransport(place)
    with pytest.raises(Lost, match="answered with no stream of events"):
        await trio.to_thread.run_sync(transport.open_stream, "mhs_s_1", "")


# TLS.


async def test_a_certificate_that_is_trusted_is_enough(serve: Serve, tmp_path: Path) -> None:
    """[TPT-013]"""
    pair = certificate(tmp_path, "server", "127.0.0.1")
    tiny = serve(lambda request: result(request, {}), server_context(*pair))
    async with client_of(tiny, tls=Tls(ca_file=str(pair[0])), token="s3cret") as client:
        for _ in range(3):
            await client.call("mhs.devices.list")
    assert tiny.requests[0].header("Authorization") == "Bearer s3cret"
    assert len({request.connection for request in tiny.requests}) <= 2


@pytest.mark.parametrize(("address", "trusted"), [("127.0.0.1", False), ("127.0.0.2", True)])
async def test_a_certificate_of_somebody_else_gets_no_token(
    serve: Serve, tmp_path: Path, address: str, trusted: bool
) -> None:
    """[TPT-013]"""
    pair = certificate(tmp_path, "server", address)
    tiny = serve(Endpoint(), server_context(*pair))
    tls = Tls(ca_file=str(pair[0])) if trusted else Tls()
    for url in (tiny.url, tiny.url.replace("https", "wss")):
        with trio.fail_after(PATIENCE_S):
            async with open_client(url, tls=tls, token="s3cret", timeout_s=5) as client:
                with pytest.raises(TransportError, match="certificate"):
                    await client.hello()
    assert tiny.requests == []


async def test_a_session_that_is_over_is_told_by_the_call(serve: Serve) -> None:
    tiny = serve(lambda request: refusal(request, "MHS.SESSION.EXPIRED"))
    async with client_of(tiny) as client:
        with pytest.raises(SessionError):
            await AsyncSession(client, "mhs_s_1", ["mhs://localhost:7400/lab/one"]).read("world")


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\nContent-Le"])
async def test_a_connection_that_ends_before_its_answer_is_said_to_be_closed(part: bytes) -> None:
    """[TPT-062]"""
    near, far = trio.testing.memory_stream_pair()
    connection = Connection(cast(Stream, cast(Any, near)))
    await far.send_all(part)
    await far.send_eof()
    request = h11.Request(method="POST", target="/", headers=[("Host", "x"), ("Content-Length", "0")])
    with pytest.raises(h11.RemoteProtocolError, match="it was closed before an answer came"):
        await connection.request(request)
