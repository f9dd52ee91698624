"""What a driver author sees. A driver directory imports from here and from no other part of mhsd."""

from mhsd.core.hashes import device_hash as device_state_hash
from mhsd.core.hashes import resource_hash as resource_state_hash
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
    TerminalStop,
)
from mhsd.driver.lines import tcp_connect, twin_connect
from mhsd.driver.scpi import Measurement, ScpiLink, Setpoint, Switch

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
    "Measurement",
    "OptionInvalid",
    "Outcome",
    "OutcomeUnknown",
    "Progress",
    "Reading",
    "ScpiLink",
    "Setpoint",
    "Settings",
    "Switch",
    "TerminalStop",
    "device_state_hash",
    "resource_state_hash",
    "tcp_connect",
    "twin_connect",
]
