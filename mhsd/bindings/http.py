"""Puts the HTTP binding together: names, descriptor, schemas, and the front that serves them."""

from __future__ import annotations

from collections.abc import Sequence

from mhsd.bindings.checks import Names
from mhsd.bindings.descriptor import descriptor
from mhsd.bindings.front import Front, Listener
from mhsd.bindings.local import MOST_CONNECTIONS, LocalSocket
from mhsd.bindings.routes import ROUTES
from mhsd.bindings.site import Document, Site
from mhsd.bindings.tls import Address, port_of
from mhsd.config import Config
from mhsd.protocol.auth import TokenFiles
from mhsd.protocol.dispatch import Dispatch
from mhsd.services.endpoint import Endpoint
from mhsd.wire.json_text import encode


def open_http(
    config: Config,
    endpoint: Endpoint,
    door: Dispatch,
    tokens: TokenFiles,
    addresses: Sequence[Address],
    listeners: Sequence[Listener],
) -> Front:
    """The front of this endpoint, ready to `serve`."""
    port, tls = port_of(listeners), config.tls_cert is not None
    url = (config.public_url or f"{'https' if tls else 'http'}://{_literal(config.host)}:{port}").rstrip("/")
    public = [config.public_url.partition("://")[2].rstrip("/")] if config.public_url else []
    names = Names.of(
        [config.host, *(address for _, address in addresses)],
        [*config.allowed_host, *public],
        config.allowed_origin,
        port=port,
        tls=tls,
    )
    site = _site(config, endpoint, door, tokens, names=names, url=url, auth=_auth(config, tokens))
    return Front(site, listeners, url=url, max_connections=config.max_connections)


def open_local(
    config: Config,
    endpoint: Endpoint,
    door: Dispatch,
    tokens: TokenFiles,
    socket: LocalSocket,
    *,
    url: str | None,
) -> Front:
    """The front of the local socket, for an endpoint that is otherwise at `url`, or on stdio."""
    names = Names.of([], [], [], port=0, tls=False)
    site = _site(config, endpoint, door, tokens, names=names, url=url, auth=["local"])
    return Front(site, [socket.listener], url=f"unix:{socket.path}", max_connections=MOST_CONNECTIONS)


def _site(
    config: Config,
    endpoint: Endpoint,
    door: Dispatch,
    tokens: TokenFiles,
    *,
    names: Names,
    url: str | None,
    auth: Sequence[str],
) -> Site:
    return Site(
        door=door,
        tokens=tokens,
        names=names,
        routes=ROUTES,
        descriptor=descriptor(endpoint, url=url, auth=auth, shows_devices="local" in auth),
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
