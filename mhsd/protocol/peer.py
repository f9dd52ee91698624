"""Who is at the other end of a connection, and what that connection remembers.

A binding makes one `Peer` for a connection (stdio, WebSocket) or for a request (HTTP) from what the transport has
authenticated; nothing in it ever comes from a message [TPT-058].
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Literal

import attrs

from mhsd.base.errors import Fault
from mhsd.services.subscriptions import EventStream

PrincipalKind = Literal["agent", "human", "service"]
Role = Literal["reader", "client", "operator"]
Binding = Literal["stdio", "http", "ws", "mcp"]

FREE = frozenset({"mhs.hello", "mhs.safety.estop", "mhs.safety.status"})
"""What a peer may call before its hello, and one that may only stop at all."""

REMEMBERED_IDS = 4096
"""A connection refuses an id that is among the last this many it has seen [PROTO-004]."""

_KEPT_CHARACTERS = 64
_KEPT_BITS = 256


@attrs.frozen
class Principal:
    """The identity that acts: what sessions, receipts and rates are bound to."""

    id: str
    kind: PrincipalKind

    def wire(self) -> dict[str, str]:
        """As it stands in receipts and grants."""
        return {"id": self.id, "kind": self.kind}


Recheck = Callable[[], "Peer"]
"""Raises where the sender is nobody any more."""


@attrs.define(eq=False)
class Peer:
    """One authenticated sender of messages.

    `devices` and `capabilities` are the grants of its token, None where the token limits neither.
    `needs_hello` and `remembers_ids` hold on connections that order their messages (stdio, WebSocket), not on HTTP.
    """

    principal: Principal
    role: Role
    binding: Binding
    authenticated: bool = False
    needs_hello: bool = False
    remembers_ids: bool = False
    rate_exempt: bool = False
    devices: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] | None = None
    events: EventStream | None = None
    """Where the events of subscriptions go that are made on this connection; None where they are read elsewhere."""
    recheck: Recheck | None = attrs.field(default=None, repr=False)  # It may hold a token.
    """Says again who the sender is, where a connection lives longer than what it was opened with may be valid."""
    stop_only: bool = False
    """It may say hello, stop and read the safety status, and nothing else."""
    greeted: bool = False
    """Set by the first good hello; until then a peer that needs one may only stop and read status."""
    _recent_ids: dict[str | int | bytes, None] = attrs.field(factory=dict, init=False, repr=False)

    def has_rights_of(self, other: Peer) -> bool:
        """Whether this is the same principal and may do the same things."""
        return all(
            getattr(self, name) == getattr(other, name)
            for name in ("principal", "role", "devices", "capabilities", "stop_only")
        )

    def remember_id(self, request_id: str | int) -> bool:
        """Note the id of a request; False where this connection has used it before [PROTO-004]."""
        if not self.remembers_ids:
            return True
        mark = _mark(request_id)
        if mark in self._recent_ids:
            return False
        self._recent_ids[mark] = None
        if len(self._recent_ids) > REMEMBERED_IDS:
            del self._recent_ids[next(iter(self._recent_ids))]
        return True


def _mark(request_id: str | int) -> str | int | bytes:
    """What is kept of an id: itself, or of one as long as a message can be no more than its digest."""
    if isinstance(request_id, str):
        is_short = len(request_id) <= _KEPT_CHARACTERS
    else:
        is_short = request_id.bit_length() <= _KEPT_BITS
    return request_id if is_short else hashlib.sha256(repr(request_id).encode()).digest()


def stop_only() -> Fault:
    """What a peer is told that may only stop."""
    return Fault(
        "MHS.AUTH.FORBIDDEN",
        "a member of the socket's group may only stop the devices and read their safety status",
        details={"reason": "stop_only"},
    )
