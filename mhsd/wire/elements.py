"""What parameters are made of: the texts, numbers and small objects that several methods take.

Names are the wire's and carry its units. Which method takes what is in `params`.
"""

import re
from typing import Annotated, Literal

import attrs

from mhsd.wire.canonical import MAX_SAFE_INTEGER
from mhsd.wire.converter import Rule

LONGEST_IDENTIFIER = 256
"""Characters in an id, a name or a reference; long ones would only swell receipts and logs."""
LONGEST_TEXT = 1024
"""Characters in a text for people, as a reason or a note."""
LONGEST_LEASE = 128
MOST_STREAMS = 256
"""Entries in the `streams` of one subscription."""

_TIMESTAMP = re.compile(r"[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9](\.[0-9]{1,9})?Z")
_DIGEST = re.compile("sha256:[0-9a-f]{64}")


def _at_most(characters: int) -> Rule:
    return Rule(f"a string of at most {characters} characters", lambda text: len(text) <= characters)


def _from(minimum: int) -> Rule:
    return Rule(f"an integer from {minimum} to 2^53-1", lambda number: minimum <= number <= MAX_SAFE_INTEGER)


Identifier = Annotated[
    str,
    Rule(
        f"a string of 1 to {LONGEST_IDENTIFIER} characters",
        lambda text: 1 <= len(text) <= LONGEST_IDENTIFIER,
    ),
]
Timestamp = Annotated[
    str, Rule("RFC 3339 in UTC, as 2026-10-20T07:45:00Z", lambda text: _TIMESTAMP.fullmatch(text) is not None)
]
Text = Annotated[str, _at_most(LONGEST_TEXT)]
Lease = Annotated[str, _at_most(LONGEST_LEASE)]
Seconds = Annotated[int, _from(1)]
Revision = Annotated[int, _from(0)]
Digest = Annotated[
    str, Rule("sha256: and 64 lowercase hex digits", lambda text: _DIGEST.fullmatch(text) is not None)
]
Identifiers = tuple[Identifier, ...]
SomeIdentifiers = Annotated[Identifiers, Rule("an array of at least one string", bool)]


@attrs.frozen(kw_only=True)
class PrincipalRef:
    """Who somebody is, by id and kind."""

    id: Identifier
    kind: Literal["agent", "human", "service"]


@attrs.frozen(kw_only=True)
class PrincipalClaim:
    """Who the caller says it is. The authenticated identity wins; this is kept only as a claim."""

    id: Identifier
    kind: Identifier
    display_name: Text | None = None
    contact: Text | None = None


@attrs.frozen(kw_only=True)
class Approval:
    """A person's consent."""

    principal: PrincipalRef
    approved_at: Timestamp | None = None
    note: Text | None = None


@attrs.frozen(kw_only=True)
class ClientInfo:
    """The program that calls."""

    name: Identifier
    version: Identifier
    transport: Identifier | None = None


@attrs.frozen(kw_only=True)
class CapabilityRequest:
    """One binding that a session asks for: a class, and the resource it acts on."""

    capability_id: Identifier
    resource: Identifier | None = None


@attrs.frozen(kw_only=True)
class DeviceFilter:
    """Which devices to list; every member that is given must hold."""

    mode: Literal["simulated", "hardware", "hybrid", "replay"] | None = None
    risk_class: Literal["R0", "R1", "R2", "R3"] | None = None
    capability: Identifier | None = None
    tag: Identifier | None = None


@attrs.frozen(kw_only=True)
class RevisionFilter:
    """Which recorded revision to read, on a replay device."""

    revision: Revision


Stream = Literal["state", "telemetry", "events", "log", "progress"]
"""What can be subscribed to; `control` comes with every subscription, and `safety` is a type of it [CORE-184]."""

LogLevel = Literal["debug", "info", "warning", "error"]

EventKind = Literal[
    "operation.dispatched",
    "operation.ended",
    "interlock.opened",
    "interlock.closed",
    "permit.issued",
    "permit.used",
    "session.opened",
    "session.ended",
    "device.unreadable",
    "device.readable",
    "device.unconfirmed",
    "device.confirmed",
    "device.crashed",
]
"""What the `events` stream tells of."""


@attrs.frozen(kw_only=True)
class StreamRequest:
    """One stream that is subscribed to. What is left out, is every one that the session covers [EVT-002]."""

    stream: Stream
    device_id: Identifier | None = None
    resource_id: Identifier | None = None
    capability_id: Identifier | None = None


@attrs.frozen(kw_only=True)
class EventsFilter:
    """Which events of the streams are wanted; each member narrows the streams that it makes sense for."""

    kinds: tuple[EventKind, ...] | None = None
    min_level: LogLevel | None = None
    operation_id: Identifier | None = None
    command_id: Identifier | None = None
