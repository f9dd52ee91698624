"""JSON-RPC over WebSocket: one message in a text frame, requests and events on one connection [TPT-021 to TPT-024].

A connection that broke is opened again, and greeted again, when the next call needs one or while a subscription is
open. An e-stop takes a connection of its own: nothing that the others carry is in its way.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

import trio
from trio_websocket import (
    ConnectionClosed,
    ConnectionRejected,
    WebSocketConnection,
    wrap_client_stream,
)

from mhsd.aclient.background import background
from mhsd.aclient.events import EventHub
from mhsd.aclient.link import BadMessage, Link
from mhsd.aclient.streams import GONE, Stream, connect, host_header, text_of
from mhsd.aclient.transport import ALONE_S, EventsWanted, Greet
from mhsd.client.backoff import ATTEMPTS, Backoff
from mhsd.client.endpoint import HttpEndpoint, parse_endpoint
from mhsd.client.errors import MHSError, OutcomeUnknown, TransportError, from_answer, no_more_events
from mhsd.client.http import CONNECT_TIMEOUT_S, Tls
from mhsd.client.http_answers import answer_of
from mhsd.client.sse_source import STEADY_S, may_ask_again
from mhsd.client.transport import MAX_ANSWER_BYTES, Answer, Lost, NotSent, Over

WS_PATH = "/mhs/v1/ws"
SUBPROTOCOL = "mhs.v1"
PING_S = 20.0
PONG_S = 10.0
"""A ping goes out this often; an endpoint that has not answered it for so long is taken for gone [TPT-022]."""

CLOSE_S = 2.0
"""Saying goodbye takes no longer, whatever the endpoint does."""

_QUEUE = 64


def parse_ws(text: str) -> HttpEndpoint:
    """The endpoint that `ws://…` or `wss://…` names; BadEndpoint as for http."""
    place = parse_endpoint("http" + text.removeprefix("ws"))
    assert isinstance(place, HttpEndpoint)
    return place._replace(prefix=place.prefix.removesuffix(WS_PATH))


class _Frames:
    """A WebSocket as a channel of messages."""

    def __init__(self, socket: WebSocketConnection, url: str) -> None:
        self._socket = socket
        self._url = url
        self._closing = trio.Lock()

    async def send(self, message: bytes) -> None:
        """Sends one text message."""
        try:
            await self._socket.send_message(message.decode())
        except ConnectionClosed as problem:
            raise trio.BrokenResourceError(self._reason(problem)) from None

    async def receive(self) -> bytes | None:
        """The next text message."""
        try:
            message = await self._socket.get_message()
        except ConnectionClosed as problem:
            raise BadMessage(self._reason(problem)) from None
        if isinstance(message, bytes):
            raise BadMessage(f"{self._url} sent a binary message")
        return message.encode()

    def _reason(self, problem: ConnectionClosed) -> str:
        if problem.reason is None:
            return f"the connection to {self._url} broke"
        said = f": {problem.reason.reason}" if problem.reason.reason else ""
        return f"{self._url} closed the connection ({problem.reason.code}{said})"

    async def ping(self) -> None:
        """Pings until the endpoint answers no more."""
        with suppress(ConnectionClosed):
            while True:
                await trio.sleep(PING_S)
                with trio.move_on_after(PONG_S) as waiting:
                    await self._socket.ping()
                if waiting.cancelled_caught:
                    return

    async def aclose(self) -> None:
        """Says goodbye, once; whoever else closes it waits until that has been said."""
        async with self._closing:
            with trio.move_on_after(CLOSE_S), suppress(ConnectionClosed):
                await self._socket.aclose()


class _Watched(trio.abc.Stream):
    """A stream that tells when it is gone: trio-websocket waits for a handshake although nothing can come any more."""

    def __init__(self, inner: Stream) -> None:
        self._inner = inner
        self.gone = trio.Event()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As the inner stream."""
        try:
            data = await self._inner.receive_some(max_bytes)
        except GONE:
            self.gone.set()
            raise
        if not data:
            self.gone.set()
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As the inner stream."""
        try:
            await self._inner.send_all(data)
        except GONE:
            self.gone.set()
            raise

    async def wait_send_all_might_not_block(self) -> None:
        """As the inner stream."""
        await self._inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """As the inner stream."""
        await self._inner.aclose()


class Refused(Exception):
    """The endpoint gave this answer in place of a WebSocket."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.answer = answer

    def error(self) -> MHSError:
        """As whoever waits for no answer is told."""
        return from_answer(self.answer.body.get("error"), self.answer.http_status)


class WsTransport:
    """One connection that every task shares, opened when it is needed."""

    name = "ws"
    paced = True

    def __init__(
        self,
        place: HttpEndpoint,
        hub: EventHub,
        nursery: trio.Nursery,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        attempts: int = ATTEMPTS,
    ) -> None:
        place.refuse_insecure()
        self.place = place
        self.url = "ws" + place.url.removeprefix("http")
        self._hub = hub
        self._nursery = nursery
        self._context = (tls or Tls()).context() if place.tls else None
        self._headers = [] if token is None else [(b"Authorization", f"Bearer {token}".encode())]
        self._attempts = attempts
        self._greet: Greet | None = None
        self._current: Link | None = None
        self._greeted: Link | None = None
        """The connection on which hello was said."""
        self._connecting = trio.Lock()
        self._is_closed = False

    async def greet(self, greet: Greet) -> None:
        """Says hello, on this connection and on each later one."""
        self._greet = greet
        try:
            await self._link()
        except Refused as refused:
            raise refused.error() from None

    async def exchange(
        self, request_id: str, body: bytes, timeout_s: float, *, urgent: bool = False
    ) -> Answer:
        """One request and its answer within `timeout_s`; an urgent one has a connection of its own."""
        try:
            return await self._exchange(request_id, body, trio.current_time() + timeout_s, urgent=urgent)
        except Refused as refused:
            # Of a request whose connection was refused nothing has left, as of one that is refused unread.
            return refused.answer

    async def _exchange(self, request_id: str, body: bytes, until_mono_s: float, *, urgent: bool) -> Answer:
        if urgent:
            with suppress(NotSent, Refused):
                return await self._exchange_alone(request_id, body, until_mono_s)
        link = await self._in_time(self._link, until_mono_s)
        return await link.exchange(request_id, body, _left_s(until_mono_s), urgent=urgent)

    async def _exchange_alone(self, request_id: str, body: bytes, until_mono_s: float) -> Answer:
        is_another_there = self._current is not None and self._current.why_broken is None
        patience_s = min(ALONE_S, _left_s(until_mono_s) / 2) if is_another_there else math.inf
        link = await self._in_time(self._open, min(until_mono_s, trio.current_time() + patience_s))
        try:
            return await link.exchange(request_id, body, _left_s(until_mono_s), urgent=True)
        finally:
            link.fail("its call is over")

    async def _in_time(self, connect: Callable[[], Awaitable[Link]], until_mono_s: float) -> Link:
        began_mono_s = trio.current_time()
        with trio.move_on_at(until_mono_s):
            return await connect()
        raise NotSent(f"{self.url} took no connection within {max(0, until_mono_s - began_mono_s):.3g} s")

    async def _link(self) -> Link:
        """The connection that there is, or a new one; hello has been said on it, if it has been said at all."""
        async with self._connecting:
            link = self._current
            if link is None or link.why_broken is not None:
                link = await self._open()
            if self._greet is not None and link is not self._greeted:
                await self._say_hello(self._greet, link)
            self._current = link
            return link

    async def _say_hello(self, greet: Greet, link: Link) -> None:
        try:
            await greet(link.exchange)
        except (OutcomeUnknown, TransportError) as problem:
            # Hello got lost: of the call that waits for this connection nothing has left.
            link.fail(str(problem))
            raise NotSent(str(problem)) from None
        except BaseException:
            link.fail("hello was refused")
            raise
        self._greeted = link

    async def _open(self) -> Link:
        if self._is_closed:
            raise Over("the client is closed")
        stream = await connect(self.place, self._context)
        link: Link = await self._nursery.start(self._serve, stream)
        return link

    async def _serve(self, stream: Stream, *, task_status: trio.TaskStatus[Link]) -> None:
        """Runs one connection to its end; NotSent or Refused where it does not become a WebSocket."""
        link: Link | None = None
        try:
            async with background() as nursery:
                frames = _Frames(await self._upgraded(stream, nursery), self.url)
                link = Link(frames, self._hub, self.url)
                task_status.started(link)
                async with background() as beside:
                    beside.start_soon(self._watch, frames, link)
                    # Whoever gives a link up leaves its connection to be closed here.
                    beside.start_soon(_cancel_when, link.broken, beside.cancel_scope)
                    await link.run()
                await frames.aclose()
        except NotSent:
            raise
        except Exception as problem:
            # Its reader raises what comes of a peer's bytes; a refusal is one of them, and ends this connection only.
            cause = _first_of(problem)
            if link is not None:
                link.fail(f"{self.url} broke the rules of WebSocket ({type(cause).__name__})")
            elif isinstance(cause, ConnectionRejected):
                raise self._refusal(cause) from None
            else:
                raise NotSent(f"{self.url} began no WebSocket: {text_of(cause)}") from None
        finally:
            await trio.aclose_forcefully(stream)

    async def _watch(self, frames: _Frames, link: Link) -> None:
        await frames.ping()
        link.fail(f"{self.url} does not answer any more")

    async def _upgraded(self, stream: Stream, nursery: trio.Nursery) -> WebSocketConnection:
        watched = _Watched(stream)
        socket: WebSocketConnection | None = None
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                async with background() as beside:
                    beside.start_soon(_cancel_when, watched.gone, beside.cancel_scope)
                    socket = await wrap_client_stream(
                        nursery,
                        # It asks of a stream no more than this one has.
                        cast("trio.SocketStream", watched),
                        host_header(self.place),
                        self.place.prefix + WS_PATH,
                        subprotocols=[SUBPROTOCOL],
                        extra_headers=self._headers,
                        message_queue_size=_QUEUE,
                        max_message_size=MAX_ANSWER_BYTES,
                    )
        except trio.TooSlowError:
            raise NotSent(f"{self.url} began no WebSocket within {CONNECT_TIMEOUT_S:g} s") from None
        if socket is None:
            raise NotSent(f"{self.url} closed the connection before it was a WebSocket")
        return socket

    def _refusal(self, refused: ConnectionRejected) -> NotSent | Refused:
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in refused.headers or ()
        }
        if refused.status_code >= 500:
            return NotSent(f"{self.url} answered HTTP {refused.status_code}")
        try:
            return Refused(answer_of(self.url, "", refused.status_code, headers.get, refused.body or b""))
        except Lost as problem:
            return NotSent(str(problem))

    async def bring_events(self, wanted: EventsWanted) -> None:
        """They come with the answers; when the connection breaks, a new one takes over the session [TPT-063]."""
        backoff = Backoff(attempts=self._attempts)
        link = self._current  # It brought the grant, and may have broken since.
        assert link is not None
        while True:
            began_mono_s, taken = trio.current_time(), self._hub.taken
            await link.broken.wait()
            wanted.interrupt()
            if self._hub.taken > taken or trio.current_time() - began_mono_s > STEADY_S:
                backoff.reset()
            link = await self._take_over(wanted, backoff)

    async def _take_over(self, wanted: EventsWanted, backoff: Backoff) -> Link:
        """A connection to which the events of the session come, because it was the last that used it."""
        while True:
            at_least_s = 0.0
            try:
                link = await self._link()
                await wanted.touch()
            except NotSent as problem:
                why = str(problem)
            except (OutcomeUnknown, TransportError) as problem:
                why = problem.message
            except Refused as refused:
                refusal = refused.error()
                if not may_ask_again(refusal, was_open=True):
                    raise refusal from None
                why, at_least_s = refusal.message, refused.answer.retry_after_s or 0.0
            else:
                return link
            pause_s = backoff.pause_s(at_least_s)
            if pause_s is None:
                raise no_more_events(why)
            await trio.sleep(pause_s)

    async def aclose(self) -> None:
        """Says goodbye."""
        self._is_closed = True
        if self._current is not None:
            await self._current.aclose()


def _left_s(until_mono_s: float) -> float:
    return max(0.001, until_mono_s - trio.current_time())


def _first_of(problem: BaseException) -> BaseException:
    """What a group of exceptions is about."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
