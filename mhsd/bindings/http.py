"""Puts the HTTP binding together: names, descriptor, schemas, and the front that serves them."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from mhsd.bindings.checks import Names
from mhsd.bindings.descriptor import descriptor
from mhsd.bindings.front import Front
from mhsd.bindings.local import MOST_CONNECTIONS, LocalSocket
from mhsd.bindings.routes import ROUTES
from mhsd.bindings.site import DESCRIPTOR, WS, WS_TICKET, Document, Site
from mhsd.bindings.tls import Address, Listening, port_of
from mhsd.config import Config
from mhsd.protocol.auth import TokenFiles
from mhsd.protocol.dispatch import Dispatch
from mhsd.services.endpoint import Endpoint
from mhsd.wire.json_text import encode

Urls = tuple[str | None, str | None]
"""Where an endpoint is found by HTTP and by WebSocket; nowhere where it is on stdio alone."""


def open_http(config: Config, door: Dispatch, tokens: TokenFiles, listening: Listening) -> Front:
    """The front of this endpoint, ready to `serve`.

    A listener of WebSocket alone takes it from the others [MHSD-1-09].
    """
    # An endpoint without HTTP need not wait for the library to load.
    from mhsd.bindings.ws import websocket_routes

    ports = [port_of(listeners) for listeners in (listening.http, listening.ws) if listeners]
    of_ports = [_url(config, port) for port in ports]
    url, ws_url = of_ports[0], "ws" + of_ports[-1].removeprefix("http") + WS
    names = _names(config, listening.addresses, ports)
    site = _site(config, door, tokens, names=names, urls=(url, ws_url), auth=_auth(config, tokens))
    sockets = websocket_routes()
    tickets = {WS_TICKET: sockets[WS_TICKET]}
    ws_site = attrs.evolve(site, routes={**sockets, DESCRIPTOR: ROUTES[DESCRIPTOR]})
    return Front(
        attrs.evolve(site, routes={**ROUTES, **(tickets if listening.ws else sockets)}),
        listening.http,
        url=url,
        ws_url=ws_url,
        max_connections=config.max_connections,
        further=dict.fromkeys(listening.ws, ws_site),
    )


def open_local(
    config: Config, door: Dispatch, tokens: TokenFiles, socket: LocalSocket, *, urls: Urls
) -> Front:
    """The front of the local socket, for an endpoint that is otherwise at `urls`.

    It serves no WebSocket: whoever can reach it has no need of one.
    """
    names = Names.of([], [], [], port=0, tls=False)
    site = _site(config, door, tokens, names=names, urls=urls, auth=["local"])
    return Front(site, [socket.listener], url=f"unix:{socket.path}", max_connections=MOST_CONNECTIONS)


def _url(config: Config, port: int) -> str:
    """Where clients find a port. Behind a public URL a proxy leads to every port by the path."""
    scheme = "http" if config.tls_cert is None else "https"
    return (config.public_url or f"{scheme}://{_literal(config.host)}:{port}").rstrip("/")


def _names(config: Config, addresses: Sequence[Address], ports: Sequence[int]) -> Names:
    """The hosts by which the endpoint is addressed, and the origins of its pages, on any of its ports."""
    public = [config.public_url.partition("://")[2].rstrip("/")] if config.public_url else []
    of_ports = [
        Names.of(
            [config.host, *(address for _, address in addresses)],
            [*config.allowed_host, *public],
            config.allowed_origin,
            port=port,
            tls=config.tls_cert is not None,
        )
        for port in ports
    ]
    origins: frozenset[str] = frozenset().union(*(names.origins for names in of_ports))
    return attrs.evolve(of_ports[0], origins=origins)


def _site(
    config: Config, door: Dispatch, tokens: TokenFiles, *, names: Names, urls: Urls, auth: Sequence[str]
) -> Site:
    endpoint, (url, ws_url) = door.endpoint, urls
    return Site(
        door=door,
        tokens=tokens,
        names=names,
        routes=ROUTES,
        descriptor=descriptor(endpoint, url=url, ws_url=ws_url, auth=auth, shows_devices="local" in auth),
        schema=lambda ref: _document(endpoint, ref),
        max_request_bytes=config.max_request_bytes,
        socket_timeout_s=config.socket_timeout_s,
    )


def _literal(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _auth(config: Config, tokens: TokenFiles) -> list[str]:
    """What admits a caller [TPT-014, TPT-058]."""
    if not tokens.configured:
        return ["local"]
    return ["bearer", "mtls"] if config.client_ca is not None else ["bearer"]


def _document(endpoint: Endpoint, ref: str) -> Document:
    found = endpoint.schemas.get(ref)
    return Document(encode(found["schema"]), found["digest"], found["media_type"])
