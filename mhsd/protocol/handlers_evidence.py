"""Evidence: the chain of receipts, exported in pages and checked [EVID-001 to EVID-004], and what was tested.

None of it needs a session [EVID-002].
"""

import re
from collections.abc import Awaitable
from typing import Any

from mhsd.base.errors import Fault
from mhsd.protocol.context import Context
from mhsd.services.conformance import conformance_report
from mhsd.services.endpoint import SERVER
from mhsd.services.evidence import export, verify
from mhsd.wire.json_text import Raw
from mhsd.wire.params import ConformanceReportParams, EvidenceExportParams, EvidenceVerifyParams

_SESSION_ID = re.compile(r"mhs_s_[0-9A-Za-z_-]{1,154}")
"""Sessions of former processes stand in the chain too, so only the form of an id can be judged."""


def evidence_export(context: Context, params: EvidenceExportParams) -> Awaitable[Raw]:
    """One page of the chain as a bundle. A filter that can match nothing is refused, never answered empty."""
    endpoint = context.endpoint
    if params.device_id is not None:
        context.device(params.device_id)
    elif context.peer.devices is not None:
        raise Fault(
            "MHS.AUTH.FORBIDDEN",
            f"this token is for single devices: name one of {', '.join(context.peer.devices)} in device_id",
            details={"field": "device_id"},
        )
    if params.session_id is not None and _SESSION_ID.fullmatch(params.session_id) is None:
        raise Fault(
            "MHS.PROTOCOL.INVALID_PARAMS",
            "session_id is no session id; those of this endpoint begin with mhs_s_",
            details={"field": "session_id"},
        )
    return export(endpoint.store, params, server=SERVER, created_at=context.wall(), limits=endpoint.limits)


def evidence_verify(context: Context, params: EvidenceVerifyParams) -> Awaitable[dict[str, Any]]:
    """The report on a bundle, of this endpoint or of another."""
    return verify(params)


def report(context: Context, params: ConformanceReportParams) -> Awaitable[Raw]:
    """The conformance report that was stored last, or one that says that nothing was run [CORE-190]."""
    return conformance_report(context.endpoint, params, created_at=context.wall())
