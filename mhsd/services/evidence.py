"""Evidence: pages of the chain as bundles, and the check of a bundle of any endpoint [EVID-001 to EVID-004].

Decides the shape of a bundle and how large one may be. What a receipt holds was redacted before it was chained, so
nothing is left out here.
"""

from collections.abc import Mapping
from typing import Any

import trio

from mhsd.base.errors import Fault
from mhsd.config import Limits
from mhsd.core.chain import BUNDLE_VERSION, BundleCheck, receipt_errors
from mhsd.store import Page, Store
from mhsd.store.store import PAGE_BYTES, PAGE_ITEMS
from mhsd.wire.json_text import Raw, count_items, encode
from mhsd.wire.params import EvidenceExportParams, EvidenceVerifyParams

_SHARE_OF_MESSAGE = 0.9
"""How much of a message a page's receipts may fill, so that the bundle still fits a request to verify it."""
_ENVELOPE_BYTES = 4096
_ENVELOPE_ITEMS = 100
"""More than a bundle has around its receipts, and a message around the bundle."""


async def export(
    store: Store,
    params: EvidenceExportParams,
    *,
    server: Mapping[str, str],
    created_at: str,
    limits: Limits,
) -> Raw:
    """One bundle of durable receipts, in evidence order, from after `since_receipt` up to a page's limits [EVID-001].

    `device_id` and `session_id` select; such a bundle says so and has holes. `server` is {name, version},
    `created_at` now. Faults: INVALID_PARAMS for an unknown `since_receipt`, EXPORT_TOO_LARGE for a single receipt
    that does not fit a message.
    """
    since_seq = _start(store, params.since_receipt)
    selected = params.device_id is not None or params.session_id is not None
    page = await store.read_page(
        since_seq,
        # The page ends where the newest signature does, so that all of it is covered.
        up_to_seq=None if selected else await store.sign_head(),
        device_id=params.device_id,
        session_id=params.session_id,
        max_receipts=limits.max_export_receipts,
        max_bytes=min(PAGE_BYTES, _share(limits.max_request_bytes, _ENVELOPE_BYTES)),
        max_items=min(PAGE_ITEMS, _share(limits.max_json_items, _ENVELOPE_ITEMS)),
    )
    if params.since_receipt is not None and since_seq < page.first_seq - 1:
        raise _unknown_receipt()
    receipts = b",".join(receipt.wire().data for receipt in page.receipts)
    _check_fits(page, receipts, limits)
    envelope = _envelope(store, params, page, server, created_at)
    # The receipts are put in as the bytes that were chained, never decoded and encoded again.
    head, _, tail = encode(envelope).partition(b'"receipts":[]')
    return Raw(b'%b"receipts":[%b]%b' % (head, receipts, tail))


async def verify(params: EvidenceVerifyParams) -> dict[str, Any]:
    """The report on a bundle [EVID-003, EVID-004]; a malformed one is not valid, which is no fault.

    Other tasks get their turn after each receipt.
    """
    if params.bundle is None:
        raise Fault(
            "MHS.PROTOCOL.INVALID_PARAMS",
            "this endpoint keeps no bundle of that reference: send the bundle itself",
            details={"field": "bundle_ref", "reason": "unknown_bundle"},
        )
    check = BundleCheck(params.bundle, receipt_errors)
    for receipt in check.receipts:
        check.add(receipt)
        await trio.lowlevel.checkpoint()
    if params.bundle.get("signature") is None:
        return check.report()
    # The first signature loads what checks it, which takes a while.
    return await trio.to_thread.run_sync(check.report)


def _start(store: Store, since_receipt: str | None) -> int:
    if since_receipt is None:
        return 0
    seq = store.seq_of(since_receipt)
    if seq is None:
        raise _unknown_receipt()
    return seq


def _unknown_receipt() -> Fault:
    return Fault(
        "MHS.PROTOCOL.INVALID_PARAMS",
        "since_receipt names no receipt that this endpoint keeps",
        details={"field": "since_receipt", "reason": "unknown_receipt"},
    )


def _share(of_message: int, envelope: int) -> int:
    """How much of a message a page's receipts may take; one receipt is a page whatever this is."""
    return max(1, min(int(of_message * _SHARE_OF_MESSAGE), of_message - envelope))


def _check_fits(page: Page, receipts: bytes, limits: Limits) -> None:
    """A page keeps its own bounds unless its only receipt exceeds them."""
    fits_bytes = len(receipts) + _ENVELOPE_BYTES <= limits.max_request_bytes
    if fits_bytes and count_items(receipts) + _ENVELOPE_ITEMS <= limits.max_json_items:
        return
    receipt_id = page.receipts[0].receipt_id
    raise Fault(
        "MHS.EVIDENCE.EXPORT_TOO_LARGE",
        f"receipt {receipt_id} alone does not fit a message of this endpoint",
        details={
            "receipt_id": receipt_id,
            "max_request_bytes": limits.max_request_bytes,
            "max_json_items": limits.max_json_items,
        },
        remediation=f"Go on after it with since_receipt {receipt_id}, or raise the endpoint's message limits.",
    )


def _envelope(
    store: Store,
    params: EvidenceExportParams,
    page: Page,
    server: Mapping[str, str],
    created_at: str,
) -> dict[str, Any]:
    last = page.receipts[-1] if page.receipts else None
    named = {"device_id": params.device_id, "session_id": params.session_id}
    selection = {name: value for name, value in named.items() if value is not None}
    truncation = None
    if page.remaining and last is not None:
        truncation = {
            "reason": "page_limit",
            "next_since_receipt": last.receipt_id,
            "remaining": page.remaining,
        }
    return {
        "bundle_version": BUNDLE_VERSION,
        "endpoint_info": {
            "endpoint_id": store.genesis["endpoint_id"],
            "mhs_version": store.genesis["mhs_version"],
            "server": dict(server),
            "genesis": dict(store.genesis),
            "genesis_digest": store.genesis_digest,
            **({} if page.checkpoint is None else {"checkpoint": page.checkpoint.wire()}),
        },
        "created_at": created_at,
        "receipts": [],
        "head_digest": store.genesis_digest if last is None else last.digest,
        # Raw streams are never part of it, and no device of this endpoint keeps artifacts yet.
        "telemetry": [],
        **({"selection": selection} if selection else {}),
        "truncation": truncation,
        "signature": None if page.head is None else page.head.wire(),
    }
