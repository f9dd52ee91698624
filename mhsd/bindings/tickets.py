"""One-time tickets: how a browser, which can set no header there, opens a WebSocket [TPT-023, TPT-059; MHSD-9a-88].

Whoever may act asks for a ticket by POST and names it in the query of the WebSocket's address. It is worth one
connection within half a minute, and no more than the credential that it was asked for with: what has become of that
is looked at again when it is used.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from urllib.parse import parse_qsl

import attrs
import trio

from mhsd.bindings.callers import is_still_allowed
from mhsd.protocol.peer import Peer

TICKET = "ticket"
EXPIRES_IN_S = 30
MOST_TICKETS = 64
"""Tickets of one principal that have neither been used nor have expired."""

_BYTES = 32


@attrs.frozen
class _Ticket:
    peer: Peer
    expires_mono_s: float


class Tickets:
    """The tickets of one endpoint. Only their digests are kept, and none is ever written anywhere."""

    def __init__(self) -> None:
        self._tickets: dict[bytes, _Ticket] = {}
        """By digest, the oldest first."""
        self._outstanding: Counter[str] = Counter()

    def issue(self, peer: Peer) -> str | None:
        """A ticket for this peer, which can be asked again; None where the principal has as many as it may have."""
        self._sweep()
        if self._outstanding[peer.principal.id] >= MOST_TICKETS:
            return None
        ticket = secrets.token_urlsafe(_BYTES)
        self._tickets[_digest(ticket)] = _Ticket(peer, trio.current_time() + EXPIRES_IN_S)
        self._outstanding[peer.principal.id] += 1
        return ticket

    def redeem(self, ticket: str) -> Peer | None:
        """Who the ticket speaks for, once; None for a ticket that is not worth anything by now."""
        self._sweep()
        digest = _digest(ticket)
        if digest not in self._tickets:
            return None
        peer = self._forget(digest).peer
        return peer if is_still_allowed(peer) else None

    def _sweep(self) -> None:
        now_mono_s = trio.current_time()
        while self._tickets:
            oldest = next(iter(self._tickets))
            if self._tickets[oldest].expires_mono_s > now_mono_s:
                return
            self._forget(oldest)

    def _forget(self, digest: bytes) -> _Ticket:
        ticket = self._tickets.pop(digest)
        self._outstanding[ticket.peer.principal.id] -= 1
        if not self._outstanding[ticket.peer.principal.id]:
            del self._outstanding[ticket.peer.principal.id]
        return ticket


def _digest(ticket: str) -> bytes:
    return hashlib.sha256(ticket.encode("utf-8", "surrogateescape")).digest()


def shown_in(target: bytes) -> str | None:
    """The ticket in the query of a request, None where there is none. Nothing else is ever read from a query."""
    query = target.decode("latin-1").partition("?")[2].partition("#")[0]
    found = [value for name, value in parse_qsl(query, keep_blank_values=True) if name == TICKET]
    return None if not found else found[0] if len(found) == 1 else ""
