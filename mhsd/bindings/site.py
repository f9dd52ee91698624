"""What the connections of an endpoint share, and the form of the table that says which path leads where.

`routes` holds the table itself. A row says what has to be so before its path is served; `rpc` asks for it, row by
row the same way, so that no path can forget a check [TPT-010].
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import attrs

from mhsd.bindings import checks
from mhsd.bindings.callers import Caller
from mhsd.bindings.replies import Reply
from mhsd.protocol.auth import TokenFiles
from mhsd.protocol.dispatch import Dispatch
from mhsd.protocol.peer import Peer, Principal

if TYPE_CHECKING:
    import h11
    import trio

    from mhsd.bindings.rpc import Connection

RPC = "/mhs/v1/rpc"
EVENTS = "/mhs/v1/events"
DESCRIPTOR = "/.well-known/mhs.json"
SCHEMAS = "/mhs/v1/schema/"
WS = "/mhs/v1/ws"
WS_TICKET = "/mhs/v1/ws-ticket"


@attrs.frozen
class Document:
    """A schema or class document as it is served."""

    body: bytes
    digest: str
    media_type: str = "application/schema+json"


@attrs.frozen
class Site:
    """What all connections of one front share."""

    door: Dispatch
    tokens: TokenFiles
    names: checks.Names
    routes: Mapping[str, Route]
    """By path; a path that ends in a slash stands for all that begin with it."""
    descriptor: bytes
    schema: Callable[[str], Document]
    """The document of a ref; raises Fault for what is not there."""
    max_request_bytes: int
    socket_timeout_s: float

    def route(self, path: str) -> Route:
        """The row of a path; Refused with 404 for one that leads nowhere."""
        found = self.routes.get(path)
        if found is not None:
            return found
        for prefix, route in self.routes.items():
            if prefix.endswith("/") and path.startswith(prefix):
                return route
        raise checks.invalid(404, "There is nothing at this path.", f"Use {', '.join(self.routes)}.")


@attrs.frozen
class Visit:
    """One request that may be served: its head has passed what its route asks for."""

    connection: Connection
    request: h11.Request
    path: str
    peer: Peer


Serve = Callable[[Visit], Awaitable[Reply | None]]
"""Answers a request. None where the client is gone, or was served by other means, and the connection is over."""

Authenticate = Callable[[Caller, "h11.Request", Site], Peer]
"""Says who sends a request; Refused with 401 for nobody."""


def credential(caller: Caller, request: h11.Request, site: Site) -> Peer:
    """By its token, its certificate or its user [TPT-014]."""
    return caller.peer(request.headers, site.tokens)


def lasting(caller: Caller, request: h11.Request, site: Site) -> Peer:
    """As `credential`, for what lives longer than a request: the peer can be asked again who it is."""
    recheck = partial(credential, caller, request, site)
    return attrs.evolve(recheck(), recheck=recheck)


NOBODY = Peer(Principal("nobody", "service"), "reader", "http")


def anybody(caller: Caller, request: h11.Request, site: Site) -> Peer:
    """Nobody is asked for anything: for what is to be found before one has a credential."""
    return NOBODY


@attrs.frozen
class Route:
    """One row of the table."""

    method: str
    """The only one that is allowed."""
    serve: Serve
    authenticate: Authenticate = credential
    carries_stops: bool = False
    """Whether an e-stop can come this way: then it is open to the stop lane and to those who may only stop."""


@attrs.frozen
class Upgrade:
    """A connection that goes on in another protocol. Who takes it over writes all that is written from here on."""

    stream: trio.abc.Stream
    ahead: bytes
    """What has been read already of that which followed the head of the request."""
    peer: Peer
    site: Site
    leaving: trio.Event
    """Set when the front is about to be closed: say goodbye and return within two seconds."""
