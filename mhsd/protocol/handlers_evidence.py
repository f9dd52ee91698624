"""Evidence: the chain of receipts, exported in pages and checked [EVID-001 to EVID-004]."""

from collections.abc import Awaitable
from typing import Any

from mhsd.protocol.context import Context
from mhsd.wire.params import EvidenceExportParams, EvidenceVerifyParams


def evidence_export(context: Context, params: EvidenceExportParams) -> Awaitable[dict[str, Any]]:
    raise NotImplementedError


def evidence_verify(context: Context, params: EvidenceVerifyParams) -> Awaitable[dict[str, Any]]:
    raise NotImplementedError
