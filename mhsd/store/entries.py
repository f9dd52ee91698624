"""What goes into the store and what comes out of it, as values."""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

import attrs

from mhsd.core.heads import SignedHead
from mhsd.wire.canonical import canonical
from mhsd.wire.json_text import Raw

Kind = Literal["rejected", "interim", "final"]

_NOT_REPLAYED = b'"replayed":false'
_REPLAYED = b'"replayed":true'


class StoreFailed(Exception):
    """The store cannot be written or read; nothing more is recorded until a restart."""


@attrs.frozen
class Intent:
    """A command that is about to be dispatched. It reserves (device_id, command_id) until its final receipt.

    `body` is the running snapshot of its receipt: after a crash it becomes the `unknown` one.
    """

    device_id: str
    command_id: str
    input_digest: str
    principal_id: str
    operation_id: str
    session_id: str | None
    body: Mapping[str, Any]


@attrs.frozen
class VoidIntent:
    """The command was not dispatched after all: its reservation ends."""

    device_id: str
    command_id: str


@attrs.frozen
class Receipt:
    """A receipt for the chain: `body` has no `evidence` and `replayed` is False.

    A `final` one ends the command's reservation; `rejected` and `interim` ones leave it as it is. `revision` is the
    device's new revision, None where it did not move.
    """

    kind: Kind
    body: Mapping[str, Any]
    device_id: str
    command_id: str
    operation_id: str | None
    principal_id: str
    revision: int | None = None


Entry = Intent | VoidIntent | Receipt


@attrs.frozen
class StoredReceipt:
    """A receipt with its place in the chain; `data` is its canonical JSON without `evidence`."""

    seq: int
    prev_digest: str
    digest: str
    data: bytes = attrs.field(repr=False)

    @cached_property
    def body(self) -> dict[str, Any]:
        """The receipt as it was chained, decoded once; shared, so it must not be changed."""
        decoded: dict[str, Any] = json.loads(self.data)
        return decoded

    @property
    def receipt_id(self) -> str:
        receipt_id: str = self.body["receipt_id"]
        return receipt_id

    def wire(self, replayed: bool = False) -> Raw:
        """The receipt as an answer: the chained bytes with `evidence` put in [OP-003]."""
        data = self._replayed_data() if replayed else self.data
        evidence = b',"evidence":{"seq":%d,"prev_digest":"%b","digest":"%b"}}'
        return Raw(data[:-1] + evidence % (self.seq, self.prev_digest.encode(), self.digest.encode()))

    def as_dict(self, replayed: bool = False) -> dict[str, Any]:
        """The receipt as an answer, as a dict of the caller's own."""
        answer: dict[str, Any] = json.loads(self.wire(replayed).data)
        return answer

    def _replayed_data(self) -> bytes:
        if self.data.count(_NOT_REPLAYED) == 1:
            return self.data.replace(_NOT_REPLAYED, _REPLAYED)
        # An output may have a member of that name too.
        return canonical({**self.body, "replayed": True})


@attrs.frozen
class CommandRow:
    """What is known of a command: `open` with its latest interim receipt, or `final` with its final one.

    `body` is the intent's, and empty once final; `interim` is None once final. `operation_id` is empty for a
    receipt that belongs to no operation, such as an e-stop's.
    """

    device_id: str
    command_id: str
    input_digest: str
    principal_id: str
    operation_id: str
    session_id: str | None
    state: Literal["open", "final"]
    final: StoredReceipt | None = None
    interim: StoredReceipt | None = None
    body: Mapping[str, Any] = attrs.field(factory=dict, repr=False)


@attrs.frozen
class Page:
    """A run of receipts in the chain's order; `next_seq` is where the next page goes on (exclusive)."""

    receipts: tuple[StoredReceipt, ...]
    next_seq: int
    remaining: int
    first_seq: int = 1
    """The oldest receipt that is kept."""
    head: SignedHead | None = None
    """The newest signed head among these receipts."""
    checkpoint: SignedHead | None = None
    """The signed head before the oldest receipt, once older ones were removed."""
