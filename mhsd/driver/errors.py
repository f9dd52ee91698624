"""How a driver says that a call did not end in a result; the endpoint makes receipts of these signals.

| signal         | receipt                                                               |
| -------------- | --------------------------------------------------------------------- |
| DriverFailed   | failed, with the code and the device's own native_code                |
| Busy           | rejected MHS.DEVICE.BUSY, nothing happened                            |
| LinkDown       | rejected, nothing was sent                                            |
| OutcomeUnknown | unknown MHS.OUTCOME.UNKNOWN: something was sent and not confirmed     |
| Cancelled      | cancelled                                                             |
| TerminalStop   | from a stop or a reset: the latch stays until the daemon is restarted |

Any other exception becomes failed MHS.ADAPTER.SHIM_FAILED, and its text is not shown to the peer.
"""

from collections.abc import Mapping
from typing import Any

from mhsd.base.errors import ERRORS


class DriverSignal(Exception):
    """A call that ended without a result, in one of the ways above."""


class DriverFailed(DriverSignal):
    """The device was asked and refused, or is known not to have done it [OP-014].

    `message` and `details` reach the peer and hold nothing secret. `native_code` is the device's own code.
    """

    def __init__(
        self,
        mhs_code: str,
        message: str,
        native_code: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        if mhs_code not in ERRORS:
            raise ValueError(f"{mhs_code} is no MHS code")
        super().__init__(message)
        self.mhs_code = mhs_code
        self.message = message
        self.native_code = native_code
        self.details = details


class Busy(DriverSignal):
    """The device cannot take the call now; it did nothing. Worth a retry after `retry_after_ms`."""

    def __init__(self, retry_after_ms: int, message: str) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms
        self.message = message


class LinkDown(DriverSignal):
    """The device cannot be reached, and nothing was sent to it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class OutcomeUnknown(DriverSignal):
    """Something was sent and no clean answer came: it may have happened [OP-013, OP-014]."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Cancelled(DriverSignal):
    """The call was ended by the driver's own stop; `safe_state_achieved` is None where it cannot tell."""

    def __init__(self, safe_state_achieved: bool | None) -> None:
        super().__init__("the call was stopped")
        self.safe_state_achieved = safe_state_achieved


class TerminalStop(DriverSignal):
    """The stop can be undone only on site, as where it cut a relay or killed the device's program [CORE-087].

    Raised by `estop` after stopping, with what it confirmed, or by `reset`. Every reset is refused from then on.
    """

    def __init__(self, message: str, safe_state_achieved: bool) -> None:
        super().__init__(message)
        self.message = message
        self.safe_state_achieved = safe_state_achieved


class OptionInvalid(ValueError):
    """An option's value passes its schema and still cannot be used; raised by a driver's constructor."""
