"""The signed heads of a store: when the chain's head is stated and signed, and what is written then."""

from collections.abc import Callable

from mhsd.base.clock import rfc3339
from mhsd.core.heads import head_text
from mhsd.store.ledger import Statement
from mhsd.store.signing import Signer

SIGN_EVERY = 256
"""Receipts after which the head is signed even under load; a quiet second has it signed too."""

_INSERT = (
    "INSERT OR REPLACE INTO signed_heads (seq, digest, signed_at, public_key, value) VALUES (?, ?, ?, ?, ?)"
)

Head = tuple[int, str]
"""(seq, digest) of a receipt at the chain's end."""


class Heads:
    """The head that is durable and the one that was signed last. `now` is wall time in seconds since 1970."""

    def __init__(
        self,
        signer: Signer | None,
        *,
        endpoint_id: str,
        genesis_digest: str,
        head: Head,
        signed_seq: int,
        now: Callable[[], float],
    ) -> None:
        self._of_whom = (endpoint_id, genesis_digest)
        self.signer = signer
        self.head = head
        self.signed_seq = signed_seq
        self._now = now

    @property
    def unsigned(self) -> bool:
        """Whether there is a receipt that no signed head covers; a store that does not sign has none."""
        return self.signer is not None and self.head[0] > self.signed_seq

    @property
    def ready(self) -> bool:
        """Whether a signature would hold nobody up."""
        return self.signer is None or self.signer.ready

    def due(self, head: Head) -> bool:
        return head[0] - self.signed_seq >= SIGN_EVERY

    def statement(self, head: Head) -> Statement:
        """What states this head as of now, signed where there is a key."""
        seq, digest = head
        signed_at = rfc3339(self._now())
        if self.signer is None:
            return _INSERT, (seq, digest, signed_at, None, None)
        text = head_text(*self._of_whom, seq=seq, digest=digest, signed_at=signed_at)
        return _INSERT, (seq, digest, signed_at, self.signer.public_key, self.signer.sign(text))

    def signed(self, head: Head) -> None:
        """This head's statement is durable."""
        self.signed_seq = max(self.signed_seq, head[0])
