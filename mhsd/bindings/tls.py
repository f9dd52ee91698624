"""Where HTTP listens, and what makes an address beyond loopback safe enough [TPT-013, TPT-014]."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from mhsd.base.errors import StartError
from mhsd.bindings.front import Listener
from mhsd.config import Config

if TYPE_CHECKING:
    import ssl

_BACKLOG = 128
_NOT_HERE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})

Address = tuple[socket.AddressFamily, str]


@attrs.frozen
class Listening:
    """What an endpoint listens on."""

    addresses: list[Address]
    http: list[Listener]
    ws: list[Listener]
    """The listeners of WebSocket alone; where there are none it is on those of HTTP."""


async def resolve(host: str) -> list[Address]:
    """The addresses that a host name or literal stands for; raises StartError for one that is none."""
    try:
        found = await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no host name"
        raise StartError(f"--host {host!r} is no address of this machine: {reason}", exit_code=2) from None
    addresses = [(family, str(place[0])) for family, _, _, _, place in found]
    return list(dict.fromkeys(addresses))


def check_exposure(config: Config, addresses: list[Address], *, tokens_configured: bool) -> None:
    """Refuse an address beyond loopback without tokens, or without TLS here or upstream [CORE-152]."""
    if config.tls_terminated_upstream and not tokens_configured:
        raise _insecure(
            "--tls-terminated-upstream needs --token-file: everybody who reaches the proxy could act"
        )
    beyond = [text for _, text in addresses if not ipaddress.ip_address(text.partition("%")[0]).is_loopback]
    if not beyond:
        return
    if not tokens_configured:
        raise _insecure(f"listening on {beyond[0]} needs --token-file: everybody who reaches it could act")
    upstream = config.tls_terminated_upstream and (config.public_url or "").startswith("https://")
    if config.tls_cert is None and not upstream:
        raise _insecure(
            f"listening on {beyond[0]} needs --tls-cert and --tls-key,"
            " or --tls-terminated-upstream with --public-url https://..."
        )


def _insecure(message: str) -> StartError:
    return StartError(message, exit_code=4, mhs_code="MHS.AUTH.TRANSPORT_INSECURE")


def server_context(cert: Path, key: Path | None, client_ca: Path | None) -> ssl.SSLContext:
    """TLS 1.2 or newer with this certificate; a client's own one is asked for where an authority is named.

    Who shows no certificate gets as far as the 401: a token may do instead, and the descriptor needs neither.
    """
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    for path in (cert, key, client_ca):
        if path is not None and not path.is_file():
            raise StartError(f"{path} does not exist or is no file", exit_code=2)
    try:
        # Without a password at hand OpenSSL would ask for one on the terminal.
        context.load_cert_chain(cert, key, password=lambda: b"")
    except (OSError, ValueError) as error:
        hint = "; give the key with --tls-key" if key is None else ""
        raise StartError(
            f"cannot use certificate {cert} and its key: {_reason(error)}{hint}", exit_code=2
        ) from None
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except OSError as error:
            raise StartError(f"cannot use the authority {client_ca}: {_reason(error)}", exit_code=2) from None
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


async def listen(addresses: list[Address], port: int, context: ssl.SSLContext | None) -> list[Listener]:
    """Listening sockets on these addresses; raises StartError where the port is taken.

    Port 0 picks one, and the same one for every address. A name such as localhost may stand for an address of
    a family that this machine does not have; it is left out as long as another one is left.
    """
    listeners: list[trio.SocketListener] = []
    missing: OSError | None = None
    for family, address in addresses:
        try:
            listener = await _listen_on(family, address, port)
        except OSError as error:
            missing = error
            if error.errno in _NOT_HERE:
                continue
            break
        listeners.append(listener)
        port = port or listener.socket.getsockname()[1]
    if missing is not None and (missing.errno not in _NOT_HERE or not listeners):
        for listener in listeners:
            await listener.aclose()
        text = f"[{address}]" if family == socket.AF_INET6 else address
        hint = "; give another port, or 0 to pick one" if missing.errno == errno.EADDRINUSE else ""
        raise StartError(f"cannot listen on {text}:{port}: {missing.strerror}{hint}", exit_code=1)
    if context is None:
        return list(listeners)
    return [trio.SSLListener(listener, context, https_compatible=True) for listener in listeners]


async def _listen_on(family: socket.AddressFamily, address: str, port: int) -> trio.SocketListener:
    sock = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        await sock.bind((address, port))
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return trio.SocketListener(sock)


def port_of(listeners: Sequence[Listener]) -> int:
    """The port that is listened on."""
    first = listeners[0]
    inner = first.transport_listener if isinstance(first, trio.SSLListener) else first
    assert isinstance(inner, trio.SocketListener)
    return int(inner.socket.getsockname()[1])
