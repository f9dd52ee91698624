"""What an event looks like on the wire, and which events a subscription asked for [EVT-005; MHS-002 section 8].

Decides the shape of `mhs.event` and the table of kinds; when something happens is for the services. The text of an
event is made once, without the two members that differ from subscription to subscription.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import attrs

from mhsd.base.resources import schema_document
from mhsd.core.eventlog import Gap, seq_value
from mhsd.wire.elements import LogLevel, Stream
from mhsd.wire.json_text import encode

STREAMS: tuple[Stream, ...] = get_args(Stream)

PER_RESOURCE: tuple[Stream, ...] = ("state", "telemetry")
"""The streams that a manifest declares for each resource."""

LEVELS: Mapping[LogLevel, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
"""The levels of the log stream, as Python's logging counts them."""


def payload_schema(stream: str) -> dict[str, Any]:
    """The schema of the payloads that the endpoint itself makes: events, log and progress. Self-contained."""
    schema: dict[str, Any] = schema_document("event")["definitions"][stream]
    return schema


def event_tail(stream: str, ts: str, payload: bytes, **members: Any) -> bytes:
    """An event's text from behind its seq on. `payload` is encoded already; a member that is None is left out."""
    present = {name: value for name, value in members.items() if value is not None}
    return b',%b,"payload":%b}}' % (encode({"ts": ts, "stream": stream, **present})[1:-1], payload)


def event_head(subscription_id: str) -> bytes:
    """What stands in front of the seq in every event of a subscription."""
    head = b'{"jsonrpc":"2.0","method":"mhs.event","params":{"subscription_id":%b,"seq":'
    return head % encode(subscription_id)


def event_message(head: bytes, seq: int, tail: bytes) -> bytes:
    """The whole notification, in one line [PROTO-006]."""
    return head + encode(seq_value(seq)) + tail


def gap_tail(gap: Gap, ts: str) -> bytes:
    """A gap is placed at the seq of its last event: what follows continues from there [EVT-006, EVT-008]."""
    members = {"type": "gap", "from": seq_value(gap.first), "to": seq_value(gap.last), "dropped": gap.dropped}
    return event_tail("control", ts, b"{}", **members)


def backpressure_tail(dropped: int, ts: str) -> bytes:
    """Tells that a consumer of the subscription does not keep up [EVT-006]."""
    return event_tail("control", ts, encode({"dropped": dropped}), type="backpressure")


@attrs.frozen(kw_only=True)
class EventFilter:
    """Which events of its streams a subscription wants; None lets everything through."""

    kinds: frozenset[str] | None = None
    min_level: int | None = None
    operation_id: str | None = None
    command_id: str | None = None

    def takes_operation(self, operation_id: str | None, command_id: str | None) -> bool:
        """Whether it wants what concerns this operation, or what concerns none."""
        return self.operation_id in (None, operation_id) and self.command_id in (None, command_id)

    def takes_level(self, level: int) -> bool:
        return self.min_level is None or level >= self.min_level

    def takes_kind(self, kind: str) -> bool:
        return self.kinds is None or kind in self.kinds


@attrs.frozen
class Selection:
    """One entry of the `streams` that a subscription was granted."""

    stream: Stream
    device_id: str
    resource_id: str | None = None
    capability_id: str | None = None

    def wire(self) -> dict[str, str]:
        return {name: value for name, value in attrs.asdict(self).items() if value is not None}


def covers(selections: Sequence[Selection], capability_id: str | None, resource_id: str | None) -> bool:
    """Whether one of the selections is of this capability on this resource; what a selection leaves out, it covers."""
    return any(
        selection.capability_id in (None, capability_id) and selection.resource_id in (None, resource_id)
        for selection in selections
    )
