"""THE boundary from exceptions to answers: a Fault is its own answer, anything else is a defect of the endpoint."""

import logging

from mhsd.base.errors import Fault
from mhsd.store import StoreFailed

log = logging.getLogger("mhsd.dispatch")


def answer_fault(error: Exception, method: str) -> Fault:
    """What a peer is told of an exception: no traceback, and nothing of a native message [PROTO-042]."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, StoreFailed):
        return Fault("MHS.INTERNAL.STORE_UNAVAILABLE", f"{error}; nothing was done")
    log.error("%s failed", method, exc_info=error)
    return Fault(
        "MHS.INTERNAL.ERROR",
        f"the endpoint failed on {method}",
        details={"exception_type": type(error).__name__},
    )
