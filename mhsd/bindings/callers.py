"""Who sends a request: what the transport vouches for, and never what a message says [TPT-058]."""

from __future__ import annotations

import os

import attrs

from mhsd.bindings import checks
from mhsd.bindings.checks import Headers
from mhsd.protocol.auth import TokenFiles, principal_of
from mhsd.protocol.peer import Peer


@attrs.frozen
class Certificate:
    """A client's certificate, as TLS has verified it."""

    der: bytes
    subject: tuple[tuple[str, str], ...]


@attrs.frozen
class Caller:
    """What is known of the other end of a connection: its certificate under TLS, its user on a local socket."""

    certificate: Certificate | None = None
    uid: int | None = None

    def peer(self, headers: Headers, tokens: TokenFiles) -> Peer:
        """Who sends a request: by its bearer token, else by its certificate or its user; Refused with 401 for
        nobody [TPT-014]."""
        shown = bool(checks.values(headers, b"authorization"))
        if self.uid is not None and not (shown and tokens.configured):
            return local_peer(self.uid, tokens)
        identity = tokens.authenticate(checks.bearer_of(headers))
        if identity is None and not shown and self.certificate is not None:
            identity = tokens.authenticate_certificate(self.certificate.der, self.certificate.subject)
        if identity is None:
            raise checks.unauthenticated()
        return Peer(
            identity.principal,
            identity.role,
            "http",
            authenticated=tokens.configured,
            devices=identity.devices,
            capabilities=identity.capabilities,
        )


def is_still_allowed(peer: Peer) -> bool:
    """Whether the credential that this peer has shown is worth now what it was worth then [TPT-059]."""
    assert peer.recheck is not None
    try:
        return peer.recheck().has_rights_of(peer)
    except checks.Refused:
        return False


UNKNOWN = Caller()
"""Somebody on TCP without a certificate."""


def local_peer(uid: int, tokens: TokenFiles) -> Peer:
    """A user of this machine: the one that the endpoint runs as (and root) may do what the local principal may;
    another one, whom --socket-group has let in, may only stop and read the status."""
    is_own = uid in (os.geteuid(), 0)
    return Peer(
        principal_of(uid),
        tokens.local.role if is_own else "reader",
        "http",
        authenticated=True,
        stop_only=not is_own,
    )
