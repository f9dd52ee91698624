"""Evidence: the chain of receipts, exported in pages and checked [EVID-001 to EVID-004]. Needs no session."""

from collections.abc import Awaitable
from typing import Any

from mhsd.protocol.context import Context
from mhsd.services.endpoint import SERVER
from mhsd.services.evidence import export, verify
from mhsd.wire.json_text import Raw
from mhsd.wire.params import EvidenceExportParams, EvidenceVerifyParams


def evidence_export(context: Context, params: EvidenceExportParams) -> Awaitable[Raw]:
    """One page of the chain as a bundle."""
    endpoint = context.endpoint
    return export(endpoint.store, params, server=SERVER, created_at=context.wall(), limits=endpoint.limits)


def evidence_verify(context: Context, params: EvidenceVerifyParams) -> Awaitable[dict[str, Any]]:
    """The report on a bundle, of this endpoint or of another."""
    return verify(params)
