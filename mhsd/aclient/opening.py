"""From the name of an endpoint to a client of it; `mhsd.aconnect` [TPT-054]."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from os import PathLike
from typing import TYPE_CHECKING, cast

import trio

from mhsd.aclient.background import outlasting
from mhsd.aclient.client import AsyncClient
from mhsd.aclient.events import EventHub
from mhsd.aclient.http import HttpTransport
from mhsd.aclient.stdio import StdioTransport
from mhsd.aclient.transport import AsyncTransport
from mhsd.client.backoff import ATTEMPTS
from mhsd.client.calls import DEFAULT_TIMEOUT_S, check_timeout
from mhsd.client.endpoint import Endpoint, HttpEndpoint, endpoint_of
from mhsd.client.errors import error
from mhsd.client.http import Tls
from mhsd.client.token_file import BadTokenFile, is_token, read_token
from mhsd.client.transport import NotSent

if TYPE_CHECKING:
    from mhsd.protocol.dispatch import Dispatch
    from mhsd.protocol.peer import Peer

CLOSE_S = 60.0
"""How long leaving a client may take: a child has its grace to reach its safe state, and is killed after that."""

SCHEMES_WS = ("ws://", "wss://")


@asynccontextmanager
async def open_client(
    url_or_argv: str | Sequence[str] | Endpoint | Dispatch,
    *,
    token_file: str | PathLike[str] | None = None,
    token: str | None = None,
    tls: Tls | None = None,
    peer: Peer | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    attempts: int = ATTEMPTS,
    name: str = "mhsd-python",
) -> AsyncIterator[AsyncClient]:
    """A client of an endpoint for the block: `http(s)://…`, `mhs://…`, `ws(s)://…`, `unix:PATH`, `stdio:COMMAND`, a
    command as a list of words, or a Dispatch of this process, which `peer` enters.

    A command is started as a child; leaving the block ends it, and ChildFailed says if it ended badly. Certificates for
    https are named by `tls`, else by MHS_CA_FILE, MHS_CERT_FILE and MHS_KEY_FILE. A connection that broke is tried
    again `attempts` times at most. BadEndpoint and BadTokenFile (both ValueErrors) for arguments that cannot be used,
    AuthError for plain HTTP to another machine, TransportError when a command does not start. HTTP connects at the
    first call.
    """
    check_timeout(timeout_s)
    if token_file is not None:
        token = read_token(token_file)
    elif token is not None and not is_token(token):
        raise BadTokenFile("the token is not one word of printable ASCII")
    hub = EventHub()
    async with outlasting() as nursery:
        transport = await _transport(
            url_or_argv, hub, nursery, token=token, tls=tls, peer=peer, attempts=attempts
        )
        client = AsyncClient(transport, nursery, hub, timeout_s=timeout_s, attempts=attempts, name=name)
        try:
            yield client
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                await client.close()


async def _transport(
    endpoint: str | Sequence[str] | Endpoint | Dispatch,
    hub: EventHub,
    nursery: trio.Nursery,
    *,
    token: str | None,
    tls: Tls | None,
    peer: Peer | None,
    attempts: int,
) -> AsyncTransport:
    if peer is not None:
        # A program that reaches its endpoint by a network does not load the endpoint itself.
        from mhsd.aclient.inproc import InProcessTransport

        inside = InProcessTransport(cast("Dispatch", endpoint), peer, hub)
        nursery.start_soon(inside.run)
        return inside
    tls = tls or Tls.of(os.environ)
    if isinstance(endpoint, str) and endpoint.startswith(SCHEMES_WS):
        # Most programs use none, and its library takes as long to import as all the rest.
        from mhsd.aclient.ws import WsTransport, parse_ws

        return WsTransport(parse_ws(endpoint), hub, nursery, token=token, tls=tls, attempts=attempts)
    place = endpoint_of(cast("str | Sequence[str] | Endpoint", endpoint))
    if isinstance(place, HttpEndpoint):
        return HttpTransport(place, hub, token=token, tls=tls, attempts=attempts)
    try:
        return await StdioTransport.start(place, hub, nursery)
    except NotSent as problem:
        raise error(
            "MHS.TRANSPORT.UNAVAILABLE", str(problem), "Check the command after stdio: for spelling."
        ) from None
