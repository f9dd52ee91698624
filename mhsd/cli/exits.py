"""The one table of exit codes, for every command [TPT-052]."""

from collections.abc import Iterable, Mapping
from typing import Any

OK = 0
"""A completed receipt, accepted or running work, or a command without a receipt that did what it says."""
FAILED = 1
"""A receipt that is rejected, failed, cancelled or unknown, an invalid document, any other answered error."""
USAGE = 2
"""Bad flags, an input that is no JSON object, a missing file, an unsupported form of endpoint."""
TRANSPORT = 3
"""Nothing was sent, or the answer was lost and the command may have run."""
AUTH = 4
"""Authentication or authorisation, a reset without a person at a terminal included."""
INTERRUPTED = 130
"""Ctrl-C."""

_BY_STATUS = {"completed": OK, "accepted": OK, "running": OK}
_LOST = frozenset({"MHS.OUTCOME.TIMEOUT", "MHS.OUTCOME.UNKNOWN"})


def of_error(mhs_code: str) -> int:
    """The exit code of an error for which no receipt exists."""
    if mhs_code.startswith("MHS.AUTH."):
        return AUTH
    if mhs_code.startswith("MHS.TRANSPORT.") or mhs_code in _LOST:
        return TRANSPORT
    return FAILED


def of_receipt(receipt: Mapping[str, Any]) -> int:
    """The exit code of a receipt: by its status, whatever its error, except a refusal of `MHS.AUTH.*`."""
    error = receipt.get("error")
    mhs_code = error.get("mhs_code") if isinstance(error, Mapping) else None
    status = receipt.get("status")
    if status == "rejected" and isinstance(mhs_code, str) and mhs_code.startswith("MHS.AUTH."):
        return AUTH
    return _BY_STATUS.get(str(status), FAILED)


def of_devices(codes: Iterable[int]) -> int:
    """The exit code of one command on several devices: 0 when all are, else 3 or 4 when all failures share
    it, else 1."""
    failures = {code for code in codes if code != OK}
    if not failures:
        return OK
    return failures.pop() if len(failures) == 1 else FAILED
