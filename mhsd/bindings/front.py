"""The accept loop: takes connections in, guards them from each other, and lets go of them at the end.

Whatever a client does ends its own connection and nothing else. No connection is waited for longer than its
client may stall: sockets carry TCP_USER_TIMEOUT, and closing the front cancels what is left.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress

import trio

from mhsd.bindings.callers import UNKNOWN, Caller, Certificate
from mhsd.bindings.departures import Departures
from mhsd.bindings.limits import ConnectionSlots, Lane
from mhsd.bindings.local import uid_of
from mhsd.bindings.rpc import Connection
from mhsd.bindings.site import Site

log = logging.getLogger("mhsd.http")

_SEND_BUFFER_BYTES = 65536
_ACCEPT_PAUSE_S = 0.1
_HANDSHAKE_S = 10.0
_ENDS = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)

Listener = trio.SocketListener | trio.SSLListener[trio.SocketStream]
ClientStream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


class Front:
    """Serves HTTP on its listeners until it is drained and closed."""

    def __init__(
        self,
        site: Site,
        listeners: Sequence[Listener],
        *,
        url: str,
        ws_url: str | None = None,
        max_connections: int,
        further: Mapping[Listener, Site] | None = None,
    ) -> None:
        self.url = url
        """Where clients find it."""
        self.ws_url = ws_url
        """Where they find WebSocket."""
        self.ended = trio.Event()
        """Never set: HTTP goes on until it is drained."""
        self._listeners = {**dict.fromkeys(listeners, site), **(further or {})}
        self._slots = ConnectionSlots(max_connections)
        self._connections: dict[Connection, Lane] = {}
        self._accepting = trio.CancelScope()
        self._serving = trio.CancelScope()
        self._draining = False
        self._answered = trio.Event()
        self.defects = 0
        """Connections that ended by an exception that is no client's doing."""

    @property
    def connections(self) -> int:
        """How many connections are open, those in the stop lane included."""
        return self._slots.open

    async def serve(self) -> None:
        """Accept and serve until `drain`, then go on with what is in flight until `close` or its end."""
        with self._serving, closing(Departures()) as self._departures:
            async with trio.open_nursery() as watching:
                watching.start_soon(self._departures.run)
                await self._serve_connections()
                watching.cancel_scope.cancel()

    async def _serve_connections(self) -> None:
        async with trio.open_nursery() as connections:
            with self._accepting:
                async with trio.open_nursery() as accepting:
                    for listener, site in self._listeners.items():
                        accepting.start_soon(self._accept, listener, site, connections)
            for listener in self._listeners:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                    await listener.aclose()

    def drain(self) -> None:
        """Accept nobody more, close idle connections, let requests in flight have their answer."""
        self._draining = True
        self._accepting.cancel()
        for connection in list(self._connections):
            connection.drain()
        self._note_answered()

    async def finish(self, patience_s: float) -> None:
        """After `drain`: give what is in flight this long to be written, then cut every connection.

        Streams of events end here and not before: what the endpoint has to say of its own end goes out on them.
        """
        for connection in list(self._connections):
            connection.leave()
        with trio.move_on_after(patience_s):
            await self._answered.wait()
        self.close()

    def close(self) -> None:
        """Cut every connection now; no client can delay it."""
        self._accepting.cancel()
        self._serving.cancel()

    async def _accept(self, listener: Listener, site: Site, connections: trio.Nursery) -> None:
        is_short = False
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:  # Out of descriptors or memory, mostly; it passes, and the daemon stays.
                if not is_short:
                    log.warning("cannot accept: %s; trying every %g s", error.strerror, _ACCEPT_PAUSE_S)
                is_short = True
                await trio.sleep(_ACCEPT_PAUSE_S)
                continue
            is_short = False
            lane = self._lane()
            if lane is None:
                await trio.aclose_forcefully(stream)
            else:
                connections.start_soon(self._guard, stream, site, lane)

    def _lane(self) -> Lane | None:
        """A place for one more connection. Where the stop lane is full, its longest waiter makes room."""
        lane = self._slots.enter()
        if lane is None:
            for waiting, its_lane in self._connections.items():
                if its_lane == "stop" and waiting.give_way():
                    return self._slots.enter_in_place()
        return lane

    async def _guard(self, stream: ClientStream, site: Site, lane: Lane) -> None:
        """One connection, from its first byte to its last; never raises but to be cancelled."""
        try:
            await self._serve(stream, site, lane)
        except* _ENDS as ends:
            log.debug("a connection ended: %r", ends.exceptions[0])
        except* Exception:
            # One client's connection must not end the daemon, whatever it has found in it.
            self.defects += 1
            log.exception("a defect ended a connection")
        finally:
            self._slots.leave()
            await trio.aclose_forcefully(stream)

    async def _serve(self, stream: ClientStream, site: Site, lane: Lane) -> None:
        caller = UNKNOWN
        sock = stream.transport_stream.socket if isinstance(stream, trio.SSLStream) else stream.socket
        if isinstance(stream, trio.SSLStream):
            _tune(sock, site.socket_timeout_s)
            with trio.fail_after(min(_HANDSHAKE_S, site.socket_timeout_s)):
                await stream.do_handshake()
            caller = Caller(certificate=_certificate(stream))
        elif sock.family == socket.AF_UNIX:
            caller = Caller(uid=uid_of(stream))
        else:
            _tune(sock, site.socket_timeout_s)
        connection = Connection(
            stream,
            site,
            lane=lane,
            caller=caller,
            on_answered=self._note_answered,
        )
        if self._draining:
            return
        self._connections[connection] = lane
        try:
            with self._departures.watched(sock.fileno(), connection.note_departure):
                await connection.run()
        finally:
            del self._connections[connection]

    def _note_answered(self) -> None:
        if self._draining and not any(connection.is_answering for connection in self._connections):
            self._answered.set()


def _tune(sock: trio.socket.SocketType, socket_timeout_s: float) -> None:
    """Bound what a client that stalls can hold: time without acknowledgement, and bytes in the kernel."""
    with suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(socket_timeout_s * 1000))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)


def _certificate(stream: trio.SSLStream[trio.SocketStream]) -> Certificate | None:
    """The client's certificate, where it has shown one and TLS has verified it."""
    der = stream.getpeercert(binary_form=True)
    if der is None:
        return None
    named = stream.getpeercert() or {}
    subject = tuple((name, value) for group in named.get("subject", ()) for name, value in group)
    return Certificate(der, subject)
