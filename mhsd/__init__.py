"""mhsd serves laboratory instruments over MHS/1.0, and is the client of any such endpoint.

For scripts and notebooks: `mhsd.connect(...)`; for Trio: `mhsd.aconnect(...)`; in code files that `mhsctl run` runs:
`mhsd.lab(...)`. spec/guide/python.md shows each of them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhsd.aclient import AsyncClient, AsyncSession, AsyncSubscription
    from mhsd.aclient import open_client as aconnect
    from mhsd.client.code import CodeClient as Client
    from mhsd.client.code import connect
    from mhsd.client.code_session import CallOptions
    from mhsd.client.code_session import CodeSession as Session
    from mhsd.client.documents import Device, Event, Receipt
    from mhsd.client.errors import (
        AuthError,
        MHSError,
        MHSRejected,
        OutcomeUnknown,
        ProtocolError,
        SessionError,
        TransportError,
    )
    from mhsd.client.events import Subscription
    from mhsd.client.lab import Lab, lab

__version__ = "0.1.0"

SPEC_VERSION = "0.9"
"""The OpenMHS specification line."""

MHS_VERSION = "1.0"
"""The revision of the wire protocol."""

_HOMES = {
    "aconnect": "mhsd.aclient:open_client",
    "AsyncClient": "mhsd.aclient:AsyncClient",
    "AsyncSession": "mhsd.aclient:AsyncSession",
    "AsyncSubscription": "mhsd.aclient:AsyncSubscription",
    "connect": "mhsd.client.code:connect",
    "lab": "mhsd.client.lab:lab",
    "Client": "mhsd.client.code:CodeClient",
    "Session": "mhsd.client.code_session:CodeSession",
    "CallOptions": "mhsd.client.code_session:CallOptions",
    "Lab": "mhsd.client.lab:Lab",
    "Subscription": "mhsd.client.events:Subscription",
    "Receipt": "mhsd.client.documents:Receipt",
    "Device": "mhsd.client.documents:Device",
    "Event": "mhsd.client.documents:Event",
    "MHSError": "mhsd.client.errors:MHSError",
    "MHSRejected": "mhsd.client.errors:MHSRejected",
    "TransportError": "mhsd.client.errors:TransportError",
    "OutcomeUnknown": "mhsd.client.errors:OutcomeUnknown",
    "ProtocolError": "mhsd.client.errors:ProtocolError",
    "AuthError": "mhsd.client.errors:AuthError",
    "SessionError": "mhsd.client.errors:SessionError",
}
"""Where the names of the code API are: loaded when they are asked for, because every program here imports this file."""

__all__ = [
    "MHS_VERSION",
    "SPEC_VERSION",
    "AsyncClient",
    "AsyncSession",
    "AsyncSubscription",
    "AuthError",
    "CallOptions",
    "Client",
    "Device",
    "Event",
    "Lab",
    "MHSError",
    "MHSRejected",
    "OutcomeUnknown",
    "ProtocolError",
    "Receipt",
    "Session",
    "SessionError",
    "Subscription",
    "TransportError",
    "__version__",
    "aconnect",
    "connect",
    "lab",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mhsd' has no attribute {name!r}")
    from importlib import import_module

    module, _, found = home.partition(":")
    value: object = getattr(import_module(module), found)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
