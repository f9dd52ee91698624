"""What a request must be that becomes a WebSocket [TPT-021].

Who sends it, and whether the endpoint is meant by it, has been decided as for every request. What is left is judged
here, and refused in the words of HTTP, before the WebSocket library sees anything of it.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from mhsd.bindings import checks
from mhsd.bindings.checks import Headers

if TYPE_CHECKING:
    import h11

SUBPROTOCOL = "mhs.v1"
_VERSION = b"13"
_KEY_BYTES = 16
_ASK = f"Ask for a WebSocket as RFC 6455 defines it, with Sec-WebSocket-Protocol: {SUBPROTOCOL}."


def opening(request: h11.Request) -> bytes:
    """The request as the WebSocket library is to see it; Refused for one that asks for no WebSocket, or for another.

    It holds nothing but what the library needs for its answer: no ticket, and nothing that could be read otherwise
    there than it was here.
    """
    headers = request.headers
    if b"websocket" not in _listed(headers, b"upgrade") or b"upgrade" not in _listed(headers, b"connection"):
        raise checks.invalid(
            426, "This path serves WebSocket only.", _ASK, ("Upgrade", "websocket"), ("Connection", "Upgrade")
        )
    if checks.values(headers, b"sec-websocket-version") != [_VERSION]:
        raise checks.invalid(
            426,
            "Only version 13 of WebSocket is served.",
            _ASK,
            ("Sec-WebSocket-Version", "13"),
            ("Upgrade", "websocket"),
        )
    if request.http_version != b"1.1" or checks.declared_length(headers) != 0:
        raise checks.invalid(400, "A WebSocket begins with an HTTP/1.1 request that has no body.", _ASK)
    keys = checks.values(headers, b"sec-websocket-key")
    if len(keys) != 1 or not _is_key(keys[0]):
        raise checks.invalid(400, "The request needs one Sec-WebSocket-Key of 16 bytes in base64.", _ASK)
    if SUBPROTOCOL.encode() not in _listed(headers, b"sec-websocket-protocol", lower=False):
        raise checks.invalid(400, f"The client does not offer the subprotocol {SUBPROTOCOL}.", _ASK)
    return (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: %b\r\nSec-WebSocket-Key: %b\r\n\r\n"
        % (SUBPROTOCOL.encode(), keys[0])
    )


def _listed(headers: Headers, name: bytes, *, lower: bool = True) -> list[bytes]:
    """The members of a header that is a list; names of HTTP do not depend on their case, those of subprotocols do."""
    text = b",".join(checks.values(headers, name))
    return [member.strip() for member in (text.lower() if lower else text).split(b",")]


def _is_key(text: bytes) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == _KEY_BYTES
    except binascii.Error:
        return False
