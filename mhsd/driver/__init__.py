"""What a driver author sees. A driver directory imports from here and from no other part of mhsd."""

from mhsd.core.hashes import device_hash as device_state_hash
from mhsd.driver.contract import (
    CONFIGURE,
    DESCRIBE,
    Backend,
    Call,
    Command,
    Driver,
    Outcome,
    Progress,
    Reading,
    Settings,
)
from mhsd.driver.errors import (
    Busy,
    Cancelled,
    DriverFailed,
    DriverSignal,
    LinkDown,
    OptionInvalid,
    OutcomeUnknown,
)

__all__ = [
    "CONFIGURE",
    "DESCRIBE",
    "Backend",
    "Busy",
    "Call",
    "Cancelled",
    "Command",
    "Driver",
    "DriverFailed",
    "DriverSignal",
    "LinkDown",
    "OptionInvalid",
    "Outcome",
    "OutcomeUnknown",
    "Progress",
    "Reading",
    "Settings",
    "device_state_hash",
]
