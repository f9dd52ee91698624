"""JSON-RPC over HTTP/1.1 on Trio: h11 over kept connections, bounded in time and size [TPT-010, TPT-012]."""

from __future__ import annotations

import math
import ssl
from contextlib import suppress

import h11
import trio

from mhsd.aclient.events import EventHub
from mhsd.aclient.sse import stream_events
from mhsd.aclient.streams import GONE, READ_BYTES, Stream, connect, has_unread, host_header, text_of
from mhsd.aclient.transport import ALONE_S, EventsWanted, Greet
from mhsd.client.backoff import ATTEMPTS, Backoff
from mhsd.client.endpoint import HttpEndpoint
from mhsd.client.errors import from_answer
from mhsd.client.http import CONNECT_TIMEOUT_S, IDLE_S, Tls
from mhsd.client.http_answers import answer_of, check_stream
from mhsd.client.transport import MAX_ANSWER_BYTES, Answer, Lost, NotSent, Over

BROKEN = (*GONE, h11.ProtocolError)


class Connection:
    """One HTTP connection, used by one exchange at a time."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._h11 = h11.Connection(h11.CLIENT)
        self._used_mono_s = trio.current_time()

    def is_fresh(self) -> bool:
        """Whether a resting connection can carry another request."""
        return trio.current_time() - self._used_mono_s < IDLE_S and not has_unread(self._stream)

    async def request(self, request: h11.Request, body: bytes = b"") -> h11.Response:
        """Sends one request and reads the head of its response."""
        sent = self._h11.send(request) or b""
        if body:
            sent += self._h11.send(h11.Data(data=body)) or b""
        await self._stream.send_all(sent + (self._h11.send(h11.EndOfMessage()) or b""))
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("the connection ended before a response")

    async def piece(self) -> bytes | None:
        """The next piece of the response's body; None at its end."""
        event = await self._next()
        return bytes(event.data) if isinstance(event, h11.Data) else None

    async def _next(self) -> object:
        while (event := self._h11.next_event()) is h11.NEED_DATA:
            received = bytes(await self._stream.receive_some(READ_BYTES))
            if not received and self._h11.their_state is h11.SEND_RESPONSE:
                # h11 would say so in its own words.
                raise h11.RemoteProtocolError("it was closed before an answer came")
            self._h11.receive_data(received)
        return event

    def rest(self) -> bool:
        """Makes ready for another request; False where the response was the last one of this connection."""
        self._used_mono_s = trio.current_time()
        has_more = bool(
            self._h11.trailing_data[0]
        )  # Bytes that answer nothing would answer the next request.
        if has_more or self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        return True

    async def aclose(self) -> None:
        """Closes at once, without a farewell."""
        await trio.aclose_forcefully(self._stream)


class EventStream:
    """A response that does not end."""

    def __init__(self, connection: Connection, url: str) -> None:
        self._connection = connection
        self._url = url

    async def read(self) -> bytes:
        """The next bytes; b"" at the end, Lost where the connection broke."""
        try:
            return await self._connection.piece() or b""
        except BROKEN as problem:
            raise Lost(f"the connection to {self._url} broke: {text_of(problem)}") from None

    async def aclose(self) -> None:
        """Closes it at once."""
        await self._connection.aclose()


class HttpTransport:
    """POSTs to one endpoint; as many connections as there are concurrent calls, kept for the next ones [TPT-057].

    Redirects are never followed: a token and a command go only where the caller said.
    """

    name = "http"
    paced = True

    def __init__(
        self,
        place: HttpEndpoint,
        hub: EventHub,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        attempts: int = ATTEMPTS,
    ) -> None:
        place.refuse_insecure()
        self.place = place
        self.url = place.url
        self._hub = hub
        self._attempts = attempts
        self._context: ssl.SSLContext | None = (tls or Tls()).context() if place.tls else None
        self._token = token
        self._resting: list[Connection] = []
        self._closed = False

    async def greet(self, greet: Greet) -> None:
        """Says hello; HTTP has no state that would need another one later."""
        await greet(self.exchange)

    def headers(self, **more: str) -> list[tuple[str, str]]:
        """The headers of every request of this client; underscores in the names become dashes."""
        headers = {"Host": host_header(self.place), **more}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return [(name.replace("_", "-"), value) for name, value in headers.items()]

    async def exchange(
        self, request_id: str, body: bytes, timeout_s: float, *, urgent: bool = False
    ) -> Answer:
        """One request and its answer within `timeout_s`; an urgent one has a connection of its own."""
        connection: Connection | None = None
        try:
            with trio.fail_after(timeout_s):
                connection = await (self._urgent_connection() if urgent else self.connection())
                return await self._post(connection, request_id, body)
        except trio.TooSlowError:
            late = f"{self.url} did not answer within {timeout_s:g} s"
            raise (NotSent(late) if connection is None else Lost(late, timed_out=True)) from None
        except BROKEN as problem:
            # What broke one connection may have broken those that rest, too.
            await self._drop_resting()
            raise Lost(f"the connection to {self.url} broke: {text_of(problem)}") from None

    async def _post(self, connection: Connection, request_id: str, body: bytes) -> Answer:
        headers = self.headers(
            Content_Type="application/json", Accept="application/json", Content_Length=str(len(body))
        )
        request = h11.Request(method="POST", target=self.place.rpc_path, headers=headers)
        kept = False
        try:
            head = await connection.request(request, body)
            content = await self.content(connection)
            answer = answer_of(self.url, request_id, head.status_code, headers_of(head).get, content)
            kept = connection.rest() and not self._closed
        finally:
            await (self._keep(connection) if kept else connection.aclose())
        return answer

    async def _keep(self, connection: Connection) -> None:
        """Keeps a connection for the next call, and none for ever: what rests longest goes when its time is over."""
        self._resting.append(connection)
        if not self._resting[0].is_fresh():
            await self._resting.pop(0).aclose()

    @staticmethod
    async def content(connection: Connection) -> bytes:
        """The body of a response, which is not longer than any answer is."""
        content = bytearray()
        while (piece := await connection.piece()) is not None:
            content += piece
            if len(content) > MAX_ANSWER_BYTES:
                raise h11.RemoteProtocolError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
        return bytes(content)

    async def connection(self, *, fresh: bool = False) -> Connection:
        """A connection that nobody else uses: one that rests, or a new one; NotSent where there is none."""
        if self._closed:
            raise Over("the client is closed")
        while self._resting and not fresh:
            connection = self._resting.pop()
            if connection.is_fresh():
                return connection
            await connection.aclose()
        return Connection(await connect(self.place, self._context))

    async def _urgent_connection(self) -> Connection:
        """A new connection, which nothing can be in the way of; where there is none to be had, one that rests."""
        with suppress(NotSent), trio.move_on_after(ALONE_S if self._resting else math.inf):
            return await self.connection(fresh=True)
        return await self.connection()

    async def bring_events(self, wanted: EventsWanted) -> None:
        """Server-sent events over a connection of their own, which is opened again when it breaks."""
        await stream_events(self._open_stream, self._hub.take, wanted, Backoff(attempts=self._attempts))

    async def _open_stream(self, session_id: str, last_event_id: str | None) -> EventStream:
        more = {} if last_event_id is None else {"Last_Event_ID": last_event_id}
        headers = self.headers(Accept="text/event-stream", Cache_Control="no-store", **more)
        request = h11.Request(method="GET", target=self.place.events_path(session_id), headers=headers)
        connection: Connection | None = None
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                connection = await self.connection(fresh=True)
                head = await connection.request(request)
                if head.status_code == 200:
                    check_stream(self.url, headers_of(head).get)
                    stream, connection = EventStream(connection, self.url), None
                    return stream
                content = await self.content(connection)
        except trio.TooSlowError:
            raise Lost(f"{self.url} began no stream within {CONNECT_TIMEOUT_S:g} s") from None
        except BROKEN as problem:
            raise Lost(f"the connection to {self.url} broke: {text_of(problem)}") from None
        finally:
            if connection is not None:
                await connection.aclose()
        answer = answer_of(self.url, "", head.status_code, headers_of(head).get, content)
        raise from_answer(answer.body.get("error"), head.status_code)

    async def aclose(self) -> None:
        """Closes the connections that rest; a call that is under way ends by itself."""
        self._closed = True
        await self._drop_resting()

    async def _drop_resting(self) -> None:
        resting, self._resting = self._resting, []
        for connection in resting:
            await connection.aclose()


def headers_of(head: h11.Response) -> dict[str, str]:
    """The headers of a response by their names in lower case."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
