"""One HTTP/1.1 connection: requests in, answers out, and the limits that hold before a method is looked at.

h11 keeps the state of the protocol, `checks` judges the head, the table of routes says who answers. This module
decides how long a client may take, when a body is read, and how a connection ends: every early refusal closes it,
so that an unread body is never parsed as the next request [TPT-010, TPT-011, TPT-012].
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NoReturn

import h11
import trio

from mhsd.base.errors import Fault
from mhsd.bindings import checks, limits
from mhsd.bindings.callers import UNKNOWN, Caller
from mhsd.bindings.checks import Refused
from mhsd.bindings.limits import Lane
from mhsd.bindings.lingering import linger
from mhsd.bindings.replies import Reply, busy, date, refusal, reply_of
from mhsd.bindings.site import Site, Upgrade, Visit
from mhsd.bindings.writing import write_now
from mhsd.protocol.answers import Exchange
from mhsd.protocol.peer import Peer, stop_only
from mhsd.wire.framing import mentions_stop
from mhsd.wire.json_text import bytes_exceeded

log = logging.getLogger("mhsd.http")

_READ_BYTES = 65536
_SLICE_BYTES = 8192


class Connection:
    """Serves one client until it leaves, is refused, stalls or the endpoint drains."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        site: Site,
        *,
        lane: Lane = "normal",
        caller: Caller = UNKNOWN,
        on_answered: Callable[[], None] = lambda: None,
    ) -> None:
        self._stream = stream
        self.site = site
        self._lane = lane
        self._caller = caller
        self._on_answered = on_answered
        self._timeout_s = site.socket_timeout_s
        if lane == "stop":
            self._timeout_s = min(self._timeout_s, limits.STOP_LANE_TIMEOUT_S)
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.HEAD_BYTES)
        self._method = b""
        self._chunks = 0
        self._draining = False
        self._receiving: trio.CancelScope | None = None
        self.is_answering = False
        """Whether a request has been read whole and its answer not yet written."""
        self._awaiting = trio.CancelScope()
        self._pausing = trio.CancelScope()
        self.has_departed = False
        """Whether the client will send no more; with half a close it may still listen."""
        self._is_gone = False
        self.leaving = trio.Event()
        """Set when what goes on until its client leaves, such as a stream of events, has to end."""

    def drain(self) -> None:
        """Answer the request that has been read, if there is one, then close."""
        self._draining = True
        if self._receiving is not None and not self.is_answering:
            self._receiving.cancel()

    def give_way(self) -> bool:
        """Leave the stop lane to somebody who may be in a hurry; False where a request is being answered."""
        if self.is_answering or self._receiving is None:
            return False
        self._receiving.cancel()
        return True

    def leave(self) -> None:
        """After `drain`: end a stream of events too, once what there is has been sent."""
        self.leaving.set()
        self._pausing.cancel()

    def note_departure(self, is_gone: bool) -> None:
        """The client has closed its half of the connection, or all of it is gone."""
        self.has_departed = True
        self._is_gone = self._is_gone or is_gone
        self._hurry()
        self._pausing.cancel()

    async def run(self) -> None:
        """Answer requests one after the other; returns when the connection is to be closed."""
        while not self._draining:
            try:
                request = await self._head()
                reply = None if request is None else await self._answer(request)
                if reply is None:
                    return
                await self._send(reply)
            except Refused as refused:
                await self._refuse(refused)
                return
            finally:
                self.is_answering = False
                self._on_answered()
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                await linger(self._stream)
                return
            self._http.start_next_cycle()

    # Reading

    async def _head(self) -> h11.Request | None:
        """The head of the next request; None where the client is done or silent, or must give way."""
        begun = bool(self._http.trailing_data[0])
        self._method, self._chunks = b"", 0
        with trio.move_on_after(self._timeout_s) as self._receiving:
            while True:
                event = self._next_event()
                if event is not h11.NEED_DATA:
                    break
                data = await self._read(_READ_BYTES)
                if data and not begun:
                    begun = True
                    self._receiving.deadline = trio.current_time() + self._timeout_s
                self._http.receive_data(data)
        if isinstance(event, h11.Request):
            self._method = event.method
            return event
        if event is h11.NEED_DATA and begun and self._lane == "normal":
            raise self._interrupted("head")
        return None

    async def _read(self, most_bytes: int) -> bytes:
        return bytes(await self._stream.receive_some(most_bytes))

    def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            if "Host:" in str(error):  # h11 judges by itself that Host is missing or there twice [TPT-010].
                raise checks.host_refused() from None
            raise checks.invalid(
                error.error_status_hint,
                "This is not a well-formed HTTP/1.1 request.",
                "Send HTTP/1.1 as RFC 9112 defines it.",
            ) from None

    async def body(self, request: h11.Request, peer: Peer) -> bytes:
        """The body; of one that is too long nothing is served but the stops in it [MHS-002 section 16.2]."""
        limit = self.site.max_request_bytes if self._lane == "normal" else limits.STOP_BODY_BYTES
        declared = checks.declared_length(request.headers)
        asks_first = self._http.they_are_waiting_for_100_continue
        if declared is not None and declared > limit:
            if asks_first:  # Nothing of it was sent, and now nothing will be.
                raise self._too_large(limit)
            await self._refuse_long(b"", limit, peer)
        body, is_long = bytearray(), False
        with trio.move_on_after(self._timeout_s) as self._receiving:
            if asks_first:
                go_on = h11.InformationalResponse(status_code=100, headers=[])
                await self._stream.send_all(self._http.send(go_on) or b"")
            while (piece := await self._piece()) is not None:
                body += piece
                is_long = len(body) > limit or self._chunks > limits.most_chunks(limit)
                if is_long:
                    break
            else:
                return bytes(body)
        if is_long:
            await self._refuse_long(bytes(body), limit, peer)
        raise self._interrupted("body")

    async def _piece(self) -> bytes | None:
        """The next piece of the body, None at its end."""
        while (event := self._next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._read(_READ_BYTES))
        if not isinstance(event, h11.Data):
            return None
        self._chunks += event.chunk_start
        return bytes(event.data)

    async def _refuse_long(self, body: bytes, limit: int, peer: Peer) -> NoReturn:
        """Refuse a body after a search for stops in what has come of it and, within bounds, what still comes."""
        search = self.site.door.search(peer)
        left = limit + limits.SEARCH_BYTES - len(body)
        most_chunks = self._chunks + limits.most_chunks(limits.SEARCH_BYTES)
        try:
            with trio.move_on_after(limits.SEARCH_S) as self._receiving:
                await search.feed(body)
                while left > 0 and self._chunks < most_chunks:
                    piece = None
                    with trio.move_on_after(limits.SEARCH_PAUSE_S):
                        piece = await self._piece()
                    if piece is None:
                        break
                    left -= len(piece)
                    await search.feed(piece)
            search.cut()
            refused = self._too_large(limit, has_stop=search.has_found)
            self.is_answering = search.has_found
            raise Refused(refused.status, await search.explain(refused.fault), *refused.headers)
        finally:
            search.abandon()

    def _interrupted(self, part: str) -> Refused:
        """Why the rest of a request was not waited for; nothing was done of it."""
        if self._draining:
            fault = Fault(
                "MHS.TRANSPORT.UNAVAILABLE", "The endpoint is shutting down.", details={"reason": "draining"}
            )
            return Refused(503, fault)
        if self._lane == "stop":
            return busy()
        fault = Fault(
            "MHS.TRANSPORT.UNAVAILABLE",
            f"The {part} of the request did not come within {self._timeout_s:g} s.",
            remediation="Send the whole request at once.",
        )
        return Refused(408, fault)

    def _too_large(self, limit: int, *, has_stop: bool = False) -> Refused:
        if self._lane == "stop" and not has_stop:
            return busy()
        if self._chunks > limits.most_chunks(limit):
            return checks.invalid(
                400, "The body has too many small chunks.", "Send larger chunks or Content-Length."
            )
        return Refused(413, bytes_exceeded(limit))

    # Answering

    async def _answer(self, request: h11.Request) -> Reply | None:
        """The answer to one request; None where the client has left before it was there."""
        if request.http_version not in (b"1.1", b"1.0"):
            raise checks.invalid(
                505, "Only HTTP/1.1 is served.", "Send HTTP/1.1, and HTTP/2 neither by upgrade nor at once."
            )
        site = self.site
        site.names.check_host(request.headers)
        path = site.names.path_of(request.target)
        site.names.check_origin(request.headers)
        route = site.route(path)
        peer = route.authenticate(self._caller, request, site)
        if request.method != route.method.encode():
            raise checks.invalid(
                405,
                f"Only {route.method} is allowed here.",
                f"Send the request with the method {route.method}.",
                ("Allow", route.method),
            )
        if self._lane == "stop" and not route.carries_stops:
            raise busy()
        if peer.stop_only and not route.carries_stops:
            raise Refused(403, stop_only())
        reply = await route.serve(Visit(self, request, path, peer))
        if request.method == b"GET" and reply is not None and checks.declared_length(request.headers) == 0:
            self._next_event()  # The end of the request, without which h11 starts no next one.
        return reply

    def upgrade(self, peer: Peer) -> Upgrade:
        """Hand the connection over to another protocol; nothing is read or written here from then on."""
        self.is_answering = True
        ahead = self._http.trailing_data[0]
        return Upgrade(self._stream, ahead, peer, self.site, self.leaving)

    async def call(self, body: bytes, peer: Peer) -> Reply | None:
        """The answer of the door; stops pass the gate [CORE-183]."""
        door = self.site.door
        self.is_answering = True
        if mentions_stop(body):
            entered = door.begin(body, peer)
        elif self._lane == "stop":
            raise busy()
        else:
            read_mono_s = trio.current_time()
            async with door.gate:
                entered = door.begin(body, peer, read_mono_s)
        exchange = await self._wait(entered) if isinstance(entered, Awaitable) else entered
        return None if exchange is None else reply_of(exchange)

    async def _wait(self, answer: Awaitable[Exchange]) -> Exchange | None:
        """The answer, or None once the client has left: what it asked for goes on without it [TPT-061]."""
        with trio.CancelScope() as self._awaiting:
            self._hurry()
            return await answer
        return None

    def _hurry(self) -> None:
        """Wait no longer for whom is gone, and only for a while for who may still listen."""
        if self._is_gone:
            self._awaiting.cancel()
        elif self.has_departed:
            self._awaiting.deadline = trio.current_time() + self._timeout_s

    async def pause(self, until: Callable[[], Awaitable[None]], at_most_s: float) -> bool:
        """Wait with a stream for its news; False where they did not come, or the client or the front leaves."""
        with trio.move_on_after(at_most_s) as self._pausing:
            if not self.has_departed and not self.leaving.is_set():
                await until()
                return True
        return False

    # Writing

    async def _send(self, reply: Reply, *, close: bool = False) -> None:
        """Write one answer in one piece; raises TooSlowError at a client that does not read it."""
        headers = [*reply.headers, ("Date", date(int(time.time())))]
        if reply.status not in (204, 304):
            headers.append(("Content-Length", str(len(reply.body))))
        unread = self._http.their_state is h11.SEND_BODY
        if close or unread or self._draining or self._lane == "stop":
            headers.append(("Connection", "close"))
        response = h11.Response(
            status_code=reply.status, headers=headers, reason=HTTPStatus(reply.status).phrase
        )
        data = self._http.send(response) or b""
        if reply.body and self._method != b"HEAD":
            data += self._http.send(h11.Data(data=reply.body)) or b""
        data += self._http.send(h11.EndOfMessage()) or b""
        if self._http.trailing_data[0]:
            # The next request is here already; whoever sends many at once must not keep the others waiting.
            await trio.lowlevel.checkpoint()
        await self._write(data, len(data))

    async def begin(self, *headers: tuple[str, str]) -> None:
        """Send the head of a reply whose end is not known yet; `write` its body, then `end` it."""
        self.is_answering = True
        own = [*headers, ("Date", date(int(time.time()))), ("Connection", "close")]
        response = h11.Response(status_code=200, headers=own, reason=HTTPStatus.OK.phrase)
        await self._write(self._http.send(response) or b"", _SLICE_BYTES)

    async def write(self, data: bytes) -> None:
        """Send a piece of the body at once; raises TooSlowError at a client that has stopped reading.

        One that reads slowly has its time for each slice, so that only a client that has stopped runs out of it.
        """
        await self._write(self._http.send(h11.Data(data=data)) or b"", _SLICE_BYTES)

    async def end(self) -> None:
        """End the body."""
        await self._write(self._http.send(h11.EndOfMessage()) or b"", _SLICE_BYTES)

    async def _write(self, data: bytes, slice_bytes: int) -> None:
        """Write all of it; raises TooSlowError at a client that does not read a slice within the socket's timeout.

        What the socket takes at once, which is mostly everything, costs no turn of the loop.
        """
        data = data[write_now(self._stream, data) :]
        for at in range(0, len(data), slice_bytes):
            with trio.fail_after(self._timeout_s):
                await self._stream.send_all(data[at : at + slice_bytes])

    async def _refuse(self, refused: Refused) -> None:
        exchange = self.site.door.refuse(refused.fault, refused.status)
        # Not the message, which may repeat what the client has sent.
        log.debug("refused: %d %s", refused.status, refused.fault.mhs_code)
        await self._send(refusal(refused, exchange), close=True)
        await linger(self._stream)


async def serve_rpc(visit: Visit) -> Reply | None:
    """A JSON-RPC request or batch [TPT-011, TPT-015]."""
    checks.check_content(visit.request.headers)
    body = await visit.connection.body(visit.request, visit.peer)
    return await visit.connection.call(body, visit.peer)
