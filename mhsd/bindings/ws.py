"""WebSocket: one JSON-RPC message or batch in a text message, in both directions [TPT-021 to TPT-024].

Decides when a connection is closed, with which code, and what its peer has to do to keep it. Messages are entered and
answered as on stdio, by `conversation`; the session and its operations outlive the connection [TPT-061].
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio
from trio_websocket import ConnectionClosed
from wsproto.events import TextMessage
from wsproto.utilities import LocalProtocolError

from mhsd.base.errors import Fault
from mhsd.bindings import checks, limits
from mhsd.bindings.callers import Caller, is_still_allowed
from mhsd.bindings.checks import Refused
from mhsd.bindings.conversation import Bounds, Conversation
from mhsd.bindings.lingering import linger
from mhsd.bindings.replies import JSON, NEVER_STORE, Reply
from mhsd.bindings.site import WS, WS_TICKET, Route, Site, Upgrade, Visit, lasting
from mhsd.bindings.tickets import EXPIRES_IN_S, MOST_TICKETS, Tickets, shown_in
from mhsd.bindings.writing import write_now
from mhsd.bindings.ws_socket import Piece, Socket, Wire, lone_message, masked_size, text_frame
from mhsd.bindings.ws_upgrade import SUBPROTOCOL, opening
from mhsd.protocol.answers import Exchange
from mhsd.protocol.peer import Peer
from mhsd.wire.framing import mentions_stop
from mhsd.wire.json_text import bytes_exceeded, encode

if TYPE_CHECKING:
    import h11

log = logging.getLogger("mhsd.ws")

PING_S = 20.0
PONG_S = 10.0
"""A ping goes out this often; a peer that has not answered it for so long is taken for gone [TPT-022]."""

CLOSE_S = 2.0
"""Saying goodbye takes no longer, whatever the peer does."""

RECHECK_S = 1.0
"""How often the credential of a connection is looked at that sends nothing [TPT-059, MHSD-9a-89]."""

BOUNDS = Bounds(read_ahead_bytes=1 << 20, outgoing_bytes=1 << 20)
"""There may be as many of these connections as there may be connections at all, so each may keep less than stdio."""

VIOLATION, POLICY, TOO_LONG, GOING_AWAY = 1002, 1008, 1009, 1001

_ANSWERS_S = 1.0
_TURN_S = 0.001
"""Pieces of messages are taken in for so long, then everybody else may run."""
_NEARLY_EMPTY_BYTES = 16384


class WebSockets:
    """What serves the path of the WebSockets of one endpoint."""

    def __init__(self, tickets: Tickets) -> None:
        self._tickets = tickets

    def authenticate(self, caller: Caller, request: h11.Request, site: Site) -> Peer:
        """As on HTTP, or by a ticket in the query, which then is all that counts [TPT-023]."""
        ticket = shown_in(request.target)
        peer = lasting(caller, request, site) if ticket is None else self._tickets.redeem(ticket)
        if peer is None:
            raise checks.unauthenticated()
        return attrs.evolve(peer, binding="ws", needs_hello=True, remembers_ids=True)

    async def issue(self, visit: Visit) -> Reply:
        """A ticket for whoever asks; a body is read and means nothing."""
        await visit.connection.body(visit.request, visit.peer)
        try:
            visit.connection.site.door.charge(visit.peer)
        except Fault as too_fast:
            raise Refused(429, too_fast) from None
        ticket = self._tickets.issue(visit.peer)
        if ticket is None:
            fault = Fault(
                "MHS.LIMIT.CONNECTION_LIMIT",
                f"one principal may have {MOST_TICKETS} tickets at a time that are not used",
                details={"retry_after_ms": EXPIRES_IN_S * 1000},
            )
            raise Refused(429, fault)
        return Reply(200, encode({"ticket": ticket, "expires_in_s": EXPIRES_IN_S}), (JSON, NEVER_STORE))

    async def serve(self, visit: Visit) -> None:
        """Turn the connection into a WebSocket and serve it to its end."""
        first = opening(visit.request)
        await WebSocket(visit.connection.upgrade(visit.peer), first).run()


def websocket_routes() -> dict[str, Route]:
    """The paths of WebSocket, with tickets of their own."""
    sockets = WebSockets(Tickets())
    return {
        WS: Route("GET", sockets.serve, authenticate=sockets.authenticate),
        WS_TICKET: Route("POST", sockets.issue, authenticate=lasting),
    }


class WebSocket:
    """One connection."""

    def __init__(self, upgrade: Upgrade, first: bytes) -> None:
        self._door = upgrade.site.door
        self._stream = upgrade.stream
        self._leaving = upgrade.leaving
        self._peer = attrs.evolve(upgrade.peer, events=self._door.events())
        self._can_be_revoked = upgrade.site.tokens.configured
        self._most_bytes = upgrade.site.max_request_bytes
        self._reading = trio.CancelScope()
        self._waiting_for_close = trio.CancelScope()
        self._read_all = trio.Event()
        self._over = trio.Event()
        self._farewell: tuple[int, str] | None = None
        self._talk = Conversation(
            self._door,
            self._peer,
            self._stream,
            frame=text_frame,
            write_now=partial(write_now, self._stream),
            bounds=BOUNDS,
            on_gone=self._over.set,
        )
        self._wire = Wire(self._stream, first, upgrade.ahead, self._talk.outgoing)
        self._socket = Socket(self._wire, self._receive, self._serve_unreadable_stop)
        self._pieces: list[bytes] = []
        self._size = 0
        self._fragments = 0
        self._excess: trio.MemorySendChannel[bytes] | None = None
        self._turn_ends_mono_s = 0.0
        self._reading_since_mono_s = 0.0
        """Since when the peer can be heard; infinite while nothing is read, because too much has been already."""

    async def run(self) -> None:
        """Serve until either side closes or the peer is gone."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await nursery.start(self._talk.run)
                nursery.start_soon(self._read)
                await self._socket.accept(SUBPROTOCOL)
                self._wire.open()
                nursery.start_soon(self._keep_alive)
                nursery.start_soon(self._watch_front)
                if self._can_be_revoked:
                    nursery.start_soon(self._watch_credential)
                await self._over.wait()
                with trio.move_on_after(CLOSE_S):
                    await self._say_goodbye()
                nursery.cancel_scope.cancel()
        finally:
            self._talk.outgoing.gone = True
            if self._peer.events is not None:
                self._peer.events.close()

    # Ends

    def end(self, code: int, reason: str) -> None:
        """Close the connection; messages that come from now on are not served."""
        if not self._over.is_set():
            log.debug("closed a WebSocket: %d %s", code, reason)
            self._farewell = code, reason
            self._over.set()

    async def _say_goodbye(self) -> None:
        if self._farewell is not None:
            code, reason = self._farewell
            if code in (GOING_AWAY, TOO_LONG):
                with trio.move_on_after(_ANSWERS_S):
                    await self._talk.answered()
            with self._waiting_for_close:
                await self._socket.aclose(code, reason)
        self._reading.cancel()
        await self._read_all.wait()
        await self._talk.outgoing.room(0)
        await linger(self._stream)

    async def _watch_front(self) -> None:
        await self._leaving.wait()
        self.end(GOING_AWAY, "The endpoint is shutting down.")

    async def _watch_credential(self) -> None:
        while True:
            await trio.sleep(RECHECK_S)
            self._is_still_allowed()

    def _is_still_allowed(self) -> bool:
        """Whether the credential is still worth what it was when the connection was opened; else this ends it."""
        if self._can_be_revoked and not is_still_allowed(self._peer):
            self.end(POLICY, "The credential of this connection is not valid any more.")
            return False
        return True

    async def _keep_alive(self) -> None:
        while True:
            await trio.sleep(PING_S)
            await self._talk.outgoing.room(_NEARLY_EMPTY_BYTES)
            sent_mono_s = trio.current_time()
            with trio.move_on_after(PONG_S) as waiting:
                try:
                    await self._socket.ping()
                except (ConnectionClosed, LocalProtocolError):
                    return
            if waiting.cancelled_caught and self._reading_since_mono_s <= sent_mono_s:
                self.end(VIOLATION, f"No pong came within {PONG_S:g} s.")

    # Reading

    async def _read(self) -> None:
        with self._reading:
            try:
                await self._socket.read()
            except LocalProtocolError:
                # A ping that crossed our close frame: the library answers it although nothing may follow that frame.
                log.debug("a ping came after the end")
        self._read_all.set()
        self._waiting_for_close.cancel()
        self._over.set()

    async def _receive(self, piece: Piece) -> None:
        """One piece of a message; what it belongs to is entered, or refused, at its end."""
        if trio.current_time() > self._turn_ends_mono_s:
            await trio.lowlevel.checkpoint()
            self._turn_ends_mono_s = trio.current_time() + _TURN_S
        if self._over.is_set():
            return
        if not isinstance(piece, TextMessage):
            await self._serve_misplaced_stop(bytes(piece.data) if piece.message_finished else None)
            self.end(VIOLATION, "A message is a text, and no binary frame.")
            return
        data = piece.data.encode()
        self._size += len(data)
        self._fragments += piece.frame_finished
        if self._excess is not None or self._is_too_long(0):
            await self._pass_over(data, is_last=piece.message_finished)
            return
        self._pieces.append(data)
        if piece.message_finished:
            message = b"".join(self._pieces)
            self._begin_next()
            self._take_in(message)
            if self._talk.is_full:
                self._reading_since_mono_s = float("inf")
                await self._talk.keep_up()
                self._reading_since_mono_s = trio.current_time()

    def _begin_next(self) -> None:
        self._pieces.clear()
        self._size = self._fragments = 0

    def _take_in(self, message: bytes) -> None:
        if self._is_still_allowed():
            self._talk.take_in(message, is_alone=len(self._wire.slice) == masked_size(len(message)))

    async def _serve_unreadable_stop(self) -> None:
        await self._serve_misplaced_stop(lone_message(self._wire.slice))

    async def _serve_misplaced_stop(self, message: bytes | None) -> None:
        """A stop in a binary message, or in a text that is no UTF-8, is one before the connection is closed
        [CORE-076]."""
        if message is None or not mentions_stop(message) or self._over.is_set():
            return
        if self._is_still_allowed():
            entered = self._door.begin(message, self._peer)
            self._talk.answer_to(entered if isinstance(entered, Exchange) else await entered)

    def _is_too_long(self, more_bytes: int) -> bool:
        """Whether the message has more bytes, or is in more pieces, than one may be, and so much more."""
        most_bytes = self._most_bytes + more_bytes
        return self._size > most_bytes or self._fragments > limits.most_chunks(most_bytes)

    async def _pass_over(self, data: bytes, *, is_last: bool) -> None:
        """Keep nothing of a message that is too long, but have it searched for stops as it comes."""
        if self._excess is None:
            if not self._is_still_allowed():
                return
            self._excess, pieces = trio.open_memory_channel[bytes](0)
            self._nursery.start_soon(self._refuse_long, pieces)
            data = b"".join((*self._pieces, data))
            self._pieces.clear()
        try:
            await self._excess.send(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # It has been refused by now, or is about to be.
        if is_last or self._is_too_long(limits.SEARCH_BYTES):
            self._excess.close()

    async def _refuse_long(self, pieces: trio.MemoryReceiveChannel[bytes]) -> None:
        """Search what comes, within bounds, then answer and close [CORE-076, TPT-020, MHSD-9a-90]."""
        search = self._door.search(self._peer)
        try:
            with pieces, trio.move_on_after(limits.SEARCH_S):
                async for piece in pieces:
                    await search.feed(piece)
            search.cut()
            if self._size > self._most_bytes:
                code, fault = TOO_LONG, bytes_exceeded(self._most_bytes)
            else:
                refused = checks.invalid(
                    400, "The message is in too many fragments.", "Send longer fragments."
                )
                code, fault = POLICY, refused.fault
            self._talk.answer_to(self._door.refuse(await search.explain(fault), 413))
            self.end(code, fault.message)
        finally:
            search.abandon()
