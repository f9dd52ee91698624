"""From the name of an endpoint to a client of it; `mhsd.aconnect` [TPT-054]."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import trio

from mhsd.aclient.background import background
from mhsd.aclient.client import AsyncClient
from mhsd.aclient.http import HttpTransport
from mhsd.aclient.transport import AsyncTransport
from mhsd.client.calls import DEFAULT_TIMEOUT_S
from mhsd.client.endpoint import BadEndpoint, HttpEndpoint, parse_endpoint
from mhsd.client.http import Tls

if TYPE_CHECKING:
    from mhsd.protocol.dispatch import Dispatch
    from mhsd.protocol.peer import Peer

CLOSE_S = 60.0
"""How long leaving a client may take: a child has its grace to reach its safe state, and is killed after that."""


@asynccontextmanager
async def open_client(
    endpoint: str | Sequence[str] | Dispatch,
    *,
    token: str | None = None,
    tls: Tls | None = None,
    peer: Peer | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    name: str = "mhsd-client",
) -> AsyncIterator[AsyncClient]:
    """A client of an endpoint for the block: `http(s)://…`, `mhs://…`, `unix:PATH`, or a Dispatch of this process,
    which `peer` enters.

    BadEndpoint for an unsupported form, AuthError for plain HTTP to another machine. HTTP connects at the first call.
    """
    async with background() as nursery:
        client = AsyncClient(
            await _transport(endpoint, token, tls, peer, nursery), timeout_s=timeout_s, name=name
        )
        try:
            yield client
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                await client.aclose()


async def _transport(
    endpoint: str | Sequence[str] | Dispatch,
    token: str | None,
    tls: Tls | None,
    peer: Peer | None,
    nursery: trio.Nursery,
) -> AsyncTransport:
    if peer is not None:
        # A program that reaches its endpoint by a network does not load the endpoint itself.
        from mhsd.aclient.inproc import InProcessTransport

        return InProcessTransport(cast("Dispatch", endpoint), peer)
    place = parse_endpoint(cast(str, endpoint))
    if isinstance(place, HttpEndpoint):
        return HttpTransport(place, token=token, tls=tls)
    raise BadEndpoint("stdio")
