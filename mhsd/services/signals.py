"""What a driver says by raising, as the faults that a command's receipt and a read have in common."""

from mhsd.base.errors import Fault
from mhsd.driver import Busy, DriverFailed, LinkDown


def device_failed(error: DriverFailed, message: str, *, retryable: bool | None = None) -> Fault:
    """The device was asked and refused, with its own code in the details."""
    details = {
        **(error.details or {}),
        **({"native_code": error.native_code} if error.native_code is not None else {}),
    }
    return Fault(error.mhs_code, message, details=details or None, retryable=retryable)


def device_busy(error: Busy) -> Fault:
    """The device did nothing and says when to ask again."""
    return Fault("MHS.DEVICE.BUSY", error.message, details={"retry_after_ms": error.retry_after_ms})


def link_down(error: LinkDown) -> Fault:
    """Nothing was sent, and the link is made anew by itself."""
    return Fault("MHS.DEVICE.FAULT", error.message, details={"reason": "link_down"})
