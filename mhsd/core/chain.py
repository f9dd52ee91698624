"""The chain of receipts: how one is linked to the one before it, and how a bundle of them is checked [EVID-003].

Decides what a digest covers and what makes a bundle valid. Where receipts are kept, and who may read them, is for
others.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeGuard

import attrs

from mhsd.base.resources import schema_document
from mhsd.core.heads import HeadCheck, ed25519
from mhsd.wire.canonical import MAX_SAFE_INTEGER, NotCanonical, canonical, digest, sha256_text
from mhsd.wire.schema import Validator, compile_schema

CHAIN_BROKEN = "MHS.EVIDENCE.CHAIN_BROKEN"
RECEIPT_INVALID = "MHS.EVIDENCE.RECEIPT_INVALID"
SIGNATURE_INVALID = "MHS.EVIDENCE.SIGNATURE_INVALID"

BUNDLE_VERSION = "1.0.0"

MOST_ERRORS = 256
"""Errors that a report lists; a further entry counts the others, so that a report always fits a message."""

_LONGEST_DETAIL = 1000
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def link(body: Mapping[str, Any], prev_digest: str) -> tuple[bytes, str]:
    """The canonical bytes of a receipt and its digest as the successor of `prev_digest` [PROTO-012].

    `body` is the receipt without `evidence` and with `replayed: false`, which is what every verifier hashes; a body
    of another shape is a ValueError, one without canonical form NotCanonical.
    """
    if "evidence" in body or body.get("replayed") is not False:
        raise ValueError("a receipt enters the chain without evidence and with replayed false")
    data = canonical(body)
    return data, sha256_text(data + prev_digest.encode())


def genesis_digest(genesis: Mapping[str, Any]) -> str:
    """What stands before the first receipt: the digest of `{endpoint_id, created_at, mhs_version}`."""
    return digest(genesis)


ReceiptErrors = Callable[[dict[str, Any]], list[str]]
"""What is wrong with a receipt by its schema, one sentence each."""


def receipt_errors(receipt: dict[str, Any]) -> list[str]:
    """What receipt.schema.json has against a receipt [EVID-004]; the first call compiles the schema."""
    return [f"{error['path'] or '/'}: {error['message']}" for error in _receipt_schema().errors(receipt)]


@cache
def _receipt_schema() -> Validator:
    return compile_schema(schema_document("receipt"), resolve=schema_document)


def verify_bundle(
    bundle: Any, receipt_errors: ReceiptErrors = receipt_errors, *, public_key: str | None = None
) -> dict[str, Any]:
    """The report on a bundle: `{valid, checked, head_digest, errors, from_seq, contiguous, signature}`.

    Any endpoint's will do. Never raises for a bad bundle: what cannot be read is an error of the report [EVID-003,
    EVID-004]. With `public_key`, the endpoint's as it is known from elsewhere, every receipt must be covered by a
    signature of that key.
    """
    check = BundleCheck(bundle, receipt_errors, public_key=public_key)
    for receipt in check.receipts:
        check.add(receipt)
    return check.report()


class BundleCheck:
    """A check in steps, so that a caller can do other work between receipts: `add` each of `receipts`, then `report`.

    Broken links, numbers and bodies are CHAIN_BROKEN; a receipt (or a bundle) of the wrong shape is RECEIPT_INVALID.
    After an error the check goes on from the digest that the receipt itself states, so one alteration is one error.
    A bundle marked `selection` has holes by its nature: its receipts are checked each for itself, and the report
    says `contiguous: false`.
    """

    def __init__(self, bundle: Any, receipt_errors: ReceiptErrors, *, public_key: str | None = None) -> None:
        self._bundle: Mapping[str, Any] = bundle if isinstance(bundle, Mapping) else {}
        self._public_key = public_key
        self._receipt_errors = receipt_errors
        self._errors: list[dict[str, Any]] = []
        self._unlisted = 0
        self._checked = 0
        self._from_seq: int | None = None
        self._last: _Place | None = None
        self._contiguous = True
        receipts = self._bundle.get("receipts")
        self.receipts: list[Any] = receipts if isinstance(receipts, list) else []
        self._selection = self._bundle.get("selection") is not None
        self._genesis: str | None = self._check_envelope(bundle)
        info = self._bundle.get("endpoint_info")
        info = info if isinstance(info, Mapping) else {}
        of_whom = (info.get("endpoint_id"), self._genesis)
        self._signature = HeadCheck(self._bundle.get("signature"), *of_whom)
        self._checkpoint = HeadCheck(info.get("checkpoint"), *of_whom)
        self._see(0, self._genesis)

    def _check_envelope(self, bundle: Any) -> str | None:
        """What the bundle says of itself; returns the digest that stands before the first receipt."""
        if not isinstance(bundle, Mapping):
            self._error(None, RECEIPT_INVALID, "the bundle is no JSON object")
            return None
        if not isinstance(bundle.get("receipts"), list):
            self._error(None, RECEIPT_INVALID, "the bundle has no list of receipts")
        if bundle.get("bundle_version") != BUNDLE_VERSION:
            self._error(None, RECEIPT_INVALID, f"bundle_version is not {BUNDLE_VERSION}")
        info = bundle.get("endpoint_info")
        stated = info.get("genesis_digest") if isinstance(info, Mapping) else None
        if not isinstance(info, Mapping) or not _is_digest(stated):
            self._error(None, RECEIPT_INVALID, "endpoint_info has no genesis_digest")
            return None
        self._check_genesis(info, stated)
        return stated

    def _check_genesis(self, info: Mapping[str, Any], stated: str) -> None:
        if "genesis" not in info:
            # The wire protocol only asks for the digest; the record beside it is what this endpoint adds.
            return
        genesis = info["genesis"]
        if not isinstance(genesis, Mapping):
            self._error(None, RECEIPT_INVALID, "endpoint_info.genesis is no JSON object")
        elif _digest_or_none(genesis) != stated:
            self._error(None, CHAIN_BROKEN, "endpoint_info.genesis does not have the stated genesis_digest")
        elif genesis.get("endpoint_id") != info.get("endpoint_id"):
            self._error(None, CHAIN_BROKEN, "endpoint_info.endpoint_id is not that of the genesis record")

    def add(self, receipt: Any) -> None:
        """Check the next receipt in the bundle's order."""
        self._checked += 1
        if not isinstance(receipt, dict):
            self._error(None, RECEIPT_INVALID, f"entry {self._checked} of receipts is no JSON object")
            return
        place = _place_of(receipt)
        seq = place.seq if place is not None else None
        faults = self._receipt_errors(receipt)
        if faults:
            self._error(seq, RECEIPT_INVALID, "; ".join(faults))
        if place is None:
            self._error(
                None, CHAIN_BROKEN, f"entry {self._checked} of receipts has no usable evidence member"
            )
            return
        if self._from_seq is None:
            self._from_seq = place.seq
            self._see(place.seq - 1, place.prev_digest)
        self._check_link(place)
        place.computed = _recompute(receipt, place.prev_digest)
        if place.computed != place.digest:
            self._error(place.seq, CHAIN_BROKEN, "the receipt does not have the digest that it states")
        self._see(place.seq, place.computed)
        self._last = place

    def turn(self, page: Mapping[str, Any]) -> None:
        """Go on with the next page of the same export: its receipts are added next, and its head counts from now on."""
        self._bundle = {**self._bundle, "head_digest": page.get("head_digest")}
        if page.get("signature") is not None:
            # It lies among the receipts of its own page.
            signature = self._signature
            self._signature = HeadCheck(page["signature"], signature.endpoint_id, signature.genesis_digest)

    def _see(self, seq: int, digest: str | None) -> None:
        self._signature.see(seq, digest)
        self._checkpoint.see(seq, digest)

    def _check_link(self, place: "_Place") -> None:
        before = self._last
        if place.seq == 1 and place.prev_digest != self._genesis:
            self._contiguous = False
            self._error(1, CHAIN_BROKEN, "prev_digest is not the genesis digest")
        if before is None or (self._selection and place.seq > before.seq + 1):
            return
        if place.seq != before.seq + 1:
            self._contiguous = False
            self._error(place.seq, CHAIN_BROKEN, f"seq {place.seq} follows seq {before.seq}")
        elif place.prev_digest != before.digest:
            self._contiguous = False
            self._error(place.seq, CHAIN_BROKEN, "prev_digest is not the digest of the receipt before")

    def report(self) -> dict[str, Any]:
        """The verification report, after the last receipt; call it once."""
        self._check_head()
        signature = self._check_signature()
        if self._unlisted:
            self._errors.append(_entry(None, CHAIN_BROKEN, f"{self._unlisted} further errors are not listed"))
        return {
            "valid": not self._errors,
            "checked": self._checked,
            "head_digest": self._genesis if self._last is None else self._last.computed,
            "errors": self._errors,
            "from_seq": self._from_seq,
            "contiguous": self._contiguous and not self._selection,
            "signature": signature,
        }

    def _check_signature(self) -> dict[str, Any]:
        """What the report says of the signature and of the signed checkpoint that the bundle starts from."""
        verify = ed25519() if self._signature.member or self._checkpoint.member else None
        state, detail = self._signature.verdict(self._public_key, verify)
        member = self._signature.member if self._signature.readable else {"seq": None, "public_key": None}
        seq = member["seq"]
        unsigned = self._checked
        if state == "valid" and seq is not None:
            unsigned = 0 if self._last is None else max(0, self._last.seq - seq)
        if state == "invalid" or (self._public_key is not None and state != "valid"):
            self._error(seq, SIGNATURE_INVALID, f"signature: {detail}")
        elif self._public_key is not None and unsigned:
            self._error(seq, SIGNATURE_INVALID, f"{unsigned} receipts after the signed head are not covered")
        checkpoint, why = self._checkpoint.verdict(None, verify)
        # A bundle may start anywhere after the checkpoint; then the two say nothing of each other.
        if checkpoint == "invalid" and self._starts_at_checkpoint():
            self._error(self._from_seq, SIGNATURE_INVALID, f"endpoint_info.checkpoint: {why}")
        elif checkpoint == "invalid":
            checkpoint = "unchecked"
        return {
            "state": state,
            **({} if detail is None else {"detail": detail}),
            "seq": seq,
            "public_key": member["public_key"],
            "unsigned_receipts": unsigned,
            "checkpoint": checkpoint,
        }

    def _starts_at_checkpoint(self) -> bool:
        return self._from_seq is None or self._checkpoint.member["seq"] >= self._from_seq - 1

    def _check_head(self) -> None:
        stated = self._bundle.get("head_digest")
        expected = self._genesis if self._last is None else self._last.digest
        if stated != expected and expected is not None:
            seq = None if self._last is None else self._last.seq
            what = "the genesis digest" if self._last is None else "the digest of the last receipt"
            self._error(seq, CHAIN_BROKEN, f"head_digest is not {what}")

    def _error(self, seq: int | None, mhs_code: str, detail: str) -> None:
        if len(self._errors) >= MOST_ERRORS:
            self._unlisted += 1
            return
        self._errors.append(_entry(seq, mhs_code, detail[:_LONGEST_DETAIL]))


@attrs.define
class _Place:
    """Where a receipt says that it stands, and the digest that its content has there."""

    seq: int
    prev_digest: str
    digest: str
    computed: str | None = None


def _place_of(receipt: Mapping[str, Any]) -> _Place | None:
    evidence = receipt.get("evidence")
    if not isinstance(evidence, Mapping):
        return None
    seq, prev_digest, stated = (evidence.get(name) for name in ("seq", "prev_digest", "digest"))
    if type(seq) is float and seq.is_integer():
        seq = int(seq)
    if type(seq) is not int or not 1 <= seq <= MAX_SAFE_INTEGER:
        return None
    if not isinstance(prev_digest, str) or not isinstance(stated, str):
        return None
    return _Place(seq, prev_digest, stated) if _is_digest(prev_digest) and _is_digest(stated) else None


def _is_digest(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _recompute(receipt: Mapping[str, Any], prev_digest: str) -> str | None:
    """The digest that the receipt's content has after `prev_digest`; None when it has no canonical form.

    An answer to a repeated command says `replayed: true`; the chain holds it as false.
    """
    body = {name: value for name, value in receipt.items() if name != "evidence"}
    if body.get("replayed") is True:
        body["replayed"] = False
    try:
        return sha256_text(canonical(body) + prev_digest.encode())
    except NotCanonical:
        return None


def _digest_or_none(value: Mapping[str, Any]) -> str | None:
    try:
        return digest(value)
    except NotCanonical:
        return None


def _entry(seq: int | None, mhs_code: str, detail: str) -> dict[str, Any]:
    return {"seq": seq, "mhs_code": mhs_code, "detail": detail}
