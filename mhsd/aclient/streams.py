"""Connections to an endpoint: TCP, TLS or a local socket, opened within a time and checked before they are used."""

from __future__ import annotations

import select
import ssl

import trio

from mhsd.client.endpoint import HttpEndpoint
from mhsd.client.http import CONNECT_TIMEOUT_S, tls_advice
from mhsd.client.transport import NotSent

GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""What a stream raises when the other end, or the way there, is gone."""

READ_BYTES = 65536

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


async def connect(place: HttpEndpoint, context: ssl.SSLContext | None) -> Stream:
    """A stream to the endpoint, with its certificate and name checked where the address says https [TPT-013].

    Raises NotSent where there is none within CONNECT_TIMEOUT_S.
    """
    try:
        with trio.fail_after(CONNECT_TIMEOUT_S):
            return await _connect(place, context)
    except trio.TooSlowError:
        raise NotSent(f"{place.url} took no connection within {CONNECT_TIMEOUT_S:g} s") from None
    except (*GONE, UnicodeError) as problem:
        told = f"cannot connect to {place.url}: {text_of(problem)}"
        raise NotSent(told, advice=tls_advice(problem.__cause__ or problem)) from None


async def _connect(place: HttpEndpoint, context: ssl.SSLContext | None) -> Stream:
    if place.socket_path is not None:
        return await trio.open_unix_socket(place.socket_path)
    inner = await trio.open_tcp_stream(place.host, place.port)
    if context is None:
        return inner
    stream = trio.SSLStream(inner, context, server_hostname=place.host, https_compatible=True)
    try:
        await stream.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return stream


def has_unread(stream: Stream) -> bool:
    """Whether bytes or an end have arrived: on a connection that rests, either means that it is over."""
    inner = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    waiting = select.poll()
    waiting.register(inner.socket, select.POLLIN)
    return bool(waiting.poll(0))


def host_header(place: HttpEndpoint) -> str:
    """What the request names as its host."""
    host = f"[{place.host}]" if ":" in place.host else place.host
    return host if place.port == (443 if place.tls else 80) else f"{host}:{place.port}"


def text_of(problem: BaseException) -> str:
    """What went wrong, in a few words for a person."""
    inner = problem.__cause__ if isinstance(problem, trio.BrokenResourceError) else None
    problem = inner or problem
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({problem.verify_message})"
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    return str(problem) or type(problem).__name__
