"""Signed heads of the chain: what a signature covers, and what one in a bundle proves [MHSD-5].

Whoever can write an endpoint's files, or a bundle, can compute a whole chain anew; without the endpoint's key they
cannot sign its head. `cryptography` is loaded where a signature is checked, and only there.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs

from mhsd.wire.canonical import MAX_SAFE_INTEGER, NotCanonical, canonical

ALGORITHM = "Ed25519"
_TYPE = "mhs-signed-head"
_LONGEST_KEY = 64
_MEMBERS = {"algorithm": str, "public_key": str, "seq": int, "digest": str, "signed_at": str, "value": str}

State = Literal["none", "valid", "invalid", "unchecked"]


@attrs.frozen
class SignedHead:
    """The digest that the chain had at `seq`; without a key the statement alone, as a store in memory makes it."""

    seq: int
    digest: str
    signed_at: str
    public_key: str | None = None
    value: bytes | None = None

    def wire(self) -> dict[str, Any]:
        """The member of a bundle that carries it; only for one that is signed."""
        assert self.value is not None
        return {
            "algorithm": ALGORITHM,
            "public_key": self.public_key,
            "seq": self.seq,
            "digest": self.digest,
            "signed_at": self.signed_at,
            "value": base64.b64encode(self.value).decode(),
        }


def head_text(endpoint_id: Any, genesis_digest: Any, *, seq: int, digest: str, signed_at: str) -> bytes:
    """The bytes that are signed: the canonical JSON of what is stated and of whom."""
    return canonical(
        {
            "type": _TYPE,
            "endpoint_id": endpoint_id,
            "genesis_digest": genesis_digest,
            "seq": seq,
            "digest": digest,
            "signed_at": signed_at,
        }
    )


Verify = Callable[[bytes, bytes, bytes], bool]
"""(public key, signature, text): whether the signature is that key's."""


def ed25519() -> Verify | None:
    """The check of a signature; None where `cryptography` is not installed."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        return None

    def verify(public_key: bytes, signature: bytes, text: bytes) -> bool:
        try:
            Ed25519PublicKey.from_public_bytes(public_key).verify(signature, text)
        except (InvalidSignature, ValueError):
            return False
        return True

    return verify


@attrs.define
class HeadCheck:
    """What a signed head in a bundle proves. `see` each receipt's place, then ask for the `verdict`."""

    member: Any
    endpoint_id: Any
    genesis_digest: Any
    _found: str | None = None

    def see(self, seq: int, digest: str | None) -> None:
        """A receipt of the bundle, by the digest that its content has; also the one before the first."""
        if self.readable and seq == self.member["seq"]:
            self._found = digest or "none"

    @property
    def readable(self) -> bool:
        """Whether it has the form that this program knows."""
        return (
            isinstance(self.member, Mapping)
            and all(type(self.member.get(name)) is kind for name, kind in _MEMBERS.items())
            and self.member["algorithm"] == ALGORITHM
            and 0 <= self.member["seq"] <= MAX_SAFE_INTEGER
            and len(self.member["public_key"]) <= _LONGEST_KEY
        )

    def verdict(self, expected_key: str | None, verify: Verify | None) -> tuple[State, str | None]:
        """The state, and for all but a valid one why. `expected_key` is the key as it is known from elsewhere."""
        if self.member is None:
            return "none", "there is no signature"
        if not self.readable:
            return "unchecked", "the signature has a form that is not known here"
        if expected_key is not None and self.member["public_key"] != expected_key:
            return "invalid", "it is signed with another key than the one expected"
        if self._found is None:
            return "invalid", f"the signed head, seq {self.member['seq']}, is not in the bundle"
        if self._found != self.member["digest"]:
            return "invalid", f"the receipt at the signed head, seq {self.member['seq']}, has another digest"
        if verify is None:
            return "unchecked", "the package cryptography is not installed"
        return ("valid", None) if self._is_signed(verify) else ("invalid", "the signature is not of that key")

    def _is_signed(self, verify: Verify) -> bool:
        member = self.member
        try:
            key, value = (base64.b64decode(member[name], validate=True) for name in ("public_key", "value"))
            text = head_text(
                self.endpoint_id,
                self.genesis_digest,
                seq=member["seq"],
                digest=member["digest"],
                signed_at=member["signed_at"],
            )
        except (binascii.Error, ValueError, NotCanonical):
            return False
        return verify(key, value, text)
