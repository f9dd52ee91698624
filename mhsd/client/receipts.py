"""What a receipt says to a client: whether it is the last word, and which operation it belongs to. Pure."""

from collections.abc import Mapping
from typing import Any

FINAL = frozenset({"completed", "failed", "rejected", "cancelled"})
_FINAL_UNKNOWN_REASONS = frozenset({"max_duration_exceeded", "endpoint_restarted"})


def is_final(receipt: Mapping[str, Any]) -> bool:
    """Whether no later receipt can follow.

    `unknown` after a passed deadline is interim, because the command keeps running [PROTO-011]; as the
    driver's or a restarted endpoint's word it is final [MHSD-4-25].
    """
    status = receipt.get("status")
    if status != "unknown":
        return isinstance(status, str) and status in FINAL
    error = receipt.get("error")
    error = error if isinstance(error, dict) else {}
    details = error.get("details")
    reason = details.get("reason") if isinstance(details, dict) else None
    return error.get("mhs_code") != "MHS.OUTCOME.TIMEOUT" or reason in _FINAL_UNKNOWN_REASONS


def operation_of(receipt: Mapping[str, Any]) -> str | None:
    """The operation_id, which everything that was dispatched has."""
    operation_id = receipt.get("operation_id")
    return operation_id if isinstance(operation_id, str) else None
