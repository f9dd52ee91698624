"""The feed of one device: what happens on it becomes events, for whoever has subscribed to them [EVT-005, CORE-184].

Publishing is synchronous, waits for nobody and costs one look into a dictionary where nobody has subscribed. A text
is encoded once and shared by all subscriptions. What a driver shows is checked against the schema that its manifest
declares for the stream; what does not fit is not sent.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from mhsd.base.errors import Fault
from mhsd.core.events import PER_RESOURCE, STREAMS, EventFilter, Selection, covers, event_tail
from mhsd.core.operations import Operation, storable
from mhsd.core.pacing import Demand
from mhsd.driver.manifest import Manifest
from mhsd.wire.elements import EventKind, LogLevel, Stream
from mhsd.wire.json_text import encode
from mhsd.wire.schema import Validator, compile_schema

log = logging.getLogger("mhsd.events")

STATE_WATCH_HZ = 5.0
"""How often a state is looked at that may change by itself, unless its stream declares a native_rate_hz."""

TELEMETRY_HZ = 1.0
"""How often a telemetry stream is sampled that declares no native_rate_hz."""

INTERLOCKS = ""
"""Stands for the interlocks where the polling names a resource."""

LONGEST_LOG_TEXT = 2000
"""Characters of a log record's text; a longer one is cut there."""


class Subscriber(Protocol):
    """A subscription, as the feeds see it."""

    @property
    def principal_id(self) -> str: ...
    @property
    def wanted(self) -> EventFilter: ...
    @property
    def rate_hz(self) -> float | None: ...
    def send(self, tail: bytes, key: Hashable = None, *, last: bool = False) -> None: ...


@attrs.define(eq=False)
class _Shown:
    """What subscribers know of a resource: the state that was read last since somebody has subscribed to it."""

    state: bytes
    revision: int


class Feed:
    """What one device tells. `wall` writes the time of an event."""

    def __init__(self, device_id: str, manifest: Manifest, wall: Callable[[], str]) -> None:
        self.device_id = device_id
        self._manifest = manifest
        self._wall = wall
        self._subscribers: dict[Stream, dict[Subscriber, list[Selection]]] = {name: {} for name in STREAMS}
        self._covering: dict[Subscriber, None] = {}
        self._demand: Demand[tuple[Stream, str]] = Demand()
        """How often each state and each telemetry is wanted."""
        self._schemas: dict[tuple[str, str], Validator] = {}
        self._shown: dict[str, _Shown] = {}
        self._interlocks: dict[str, str] = {}
        self.changed: Callable[[], None] = lambda: None
        """Called when subscriptions came or went: the polling of the device follows them."""
        self.malformed = 0
        """Payloads that the driver showed and that did not fit the declared schema."""

    # Who listens.

    def join(self, subscriber: Subscriber, selections: Iterable[Selection]) -> None:
        """From now on the subscriber gets these streams of the device, and its control events."""
        self._covering[subscriber] = None
        for selection in selections:
            self._subscribers[selection.stream].setdefault(subscriber, []).append(selection)
            for key, rate_hz in self._wanted_rate(subscriber, selection):
                self._demand.add(key, rate_hz)
        self.changed()

    def leave(self, subscriber: Subscriber) -> None:
        """From now on the subscriber gets nothing more."""
        self._covering.pop(subscriber, None)
        for subscribers in self._subscribers.values():
            for selection in subscribers.pop(subscriber, ()):
                for key, rate_hz in self._wanted_rate(subscriber, selection):
                    self._demand.remove(key, rate_hz)
        for name in [name for name in self._shown if ("state", name) not in self._demand]:
            # Nobody follows from here on what becomes of it.
            del self._shown[name]
        if not self._subscribers["events"]:
            self._interlocks.clear()
        self.changed()

    def wants(self, stream: Stream) -> bool:
        """Whether anybody has subscribed to this stream of the device."""
        return bool(self._subscribers[stream])

    def rates(self) -> dict[tuple[Stream, str], float]:
        """How often each state, each telemetry and the interlocks have to be read, in Hz, for those who want it most.

        The interlocks stand there as the resource `INTERLOCKS` of the events stream.
        """
        rates = self._demand.rates()
        interlocks = self._manifest.safety.interlocks.values()
        if interlocks and self._subscribers["events"]:
            watch_hz = max(interlock.watch_hz for interlock in interlocks)
            rates["events", INTERLOCKS] = min(STATE_WATCH_HZ, watch_hz)
        return rates

    def _wanted_rate(
        self, subscriber: Subscriber, selection: Selection
    ) -> Iterable[tuple[tuple[Stream, str], float]]:
        """How often what is selected has to be read for this subscriber; nothing of a stream that is not read."""
        if selection.stream in PER_RESOURCE and selection.resource_id is not None:
            rate_hz = self._native_rate(selection.stream, selection.resource_id)
            if subscriber.rate_hz is not None:
                rate_hz = min(rate_hz, subscriber.rate_hz)
            yield (selection.stream, selection.resource_id), rate_hz

    def _declared(self, stream: str, resource_id: str) -> Mapping[str, Any]:
        return next(
            entry
            for entry in self._manifest.streams
            if entry["stream"] == stream and entry.get("resource_id") == resource_id
        )

    def _native_rate(self, stream: Stream, resource_id: str) -> float:
        """A state that declares no rate is looked at as often as its telemetry, where it has such, if not too often."""
        declared = {
            entry["stream"]: float(entry["native_rate_hz"])
            for entry in self._manifest.streams
            if entry.get("resource_id") == resource_id and "native_rate_hz" in entry
        }
        if stream == "telemetry":
            return declared.get("telemetry", TELEMETRY_HZ)
        return declared.get("state", min(STATE_WATCH_HZ, declared.get("telemetry", STATE_WATCH_HZ)))

    # State and telemetry.

    def show(
        self,
        states: Mapping[str, Mapping[str, Any]],
        revision: int,
        hash_of: Callable[[str, Mapping[str, Any]], str],
        moved: Iterable[str] | None = None,
    ) -> None:
        """Tell of every state that is not the one that subscribers know [EVT-005].

        The first state that is seen after a subscription is the one that changes count from. `moved` names the
        resources that a mutation has just changed: they are told of with the new revision, whatever was seen before.
        """
        for name, state in states.items():
            text = self._encoded("state", name, state) if ("state", name) in self._demand else None
            if text is None:
                continue
            known = self._shown.get(name)
            if moved is not None and name in moved:
                is_news = known is None or known.state != text or known.revision != revision
            else:
                is_news = known is not None and known.state != text
            if known is None or is_news:
                self._shown[name] = _Shown(text, revision)
            if is_news:
                self._send_state(name, state, revision, hash_of)

    def begin(self, states: Mapping[str, Mapping[str, Any]], revision: int) -> None:
        """Take these states as those that changes count from, where none is known yet."""
        for name, state in states.items():
            if name not in self._shown and ("state", name) in self._demand:
                text = self._encoded("state", name, state)
                if text is not None:
                    self._shown[name] = _Shown(text, revision)

    def unknown_states(self, resource_ids: Iterable[str]) -> tuple[str, ...]:
        """Those of these resources that no state is known of, from which a change could be told."""
        return tuple(name for name in resource_ids if name not in self._shown)

    def _send_state(
        self,
        name: str,
        state: Mapping[str, Any],
        revision: int,
        hash_of: Callable[[str, Mapping[str, Any]], str],
    ) -> None:
        payload = self._payload("state", name, state)
        if payload is None:
            return
        try:
            state_hash = hash_of(name, state)
        except Fault as fault:
            self._refuse("state", name, fault.message)
            return
        tail = event_tail(
            "state",
            self._wall(),
            payload,
            device_id=self.device_id,
            resource_id=name,
            revision=revision,
            state_hash=state_hash,
        )
        for subscriber in self._listeners("state", name):
            subscriber.send(tail, ("state", self.device_id, name))

    def sample(self, states: Mapping[str, Mapping[str, Any]], revision: int) -> None:
        """Send one sample of telemetry of each of these resources."""
        for name, state in states.items():
            is_wanted = ("telemetry", name) in self._demand
            payload = self._payload("telemetry", name, state) if is_wanted else None
            if payload is not None:
                tail = event_tail(
                    "telemetry",
                    self._wall(),
                    payload,
                    device_id=self.device_id,
                    resource_id=name,
                    revision=revision,
                )
                for subscriber in self._listeners("telemetry", name):
                    subscriber.send(tail, ("telemetry", self.device_id, name))

    def _listeners(self, stream: Stream, resource_id: str) -> list[Subscriber]:
        subscribers = self._subscribers[stream].items()
        return [each for each, selections in subscribers if covers(selections, None, resource_id)]

    def _payload(self, stream: Stream, resource_id: str, state: Mapping[str, Any]) -> bytes | None:
        """The state as the stream's declared schema has it; None where it does not fit it [EVT-005]."""
        key = (stream, resource_id)
        if key not in self._schemas:
            self._schemas[key] = compile_schema(self._declared(stream, resource_id)["schema"])
        payload = projected(state, self._declared(stream, resource_id)["schema"])
        errors = self._schemas[key].errors(payload)
        if errors:
            self._refuse(stream, resource_id, f"{errors[0]['path']}: {errors[0]['message']}")
            return None
        return self._encoded(stream, resource_id, payload)

    def _encoded(self, stream: Stream, resource_id: str, value: Any) -> bytes | None:
        """A driver's value as JSON; None where it is none, as NaN or what contains itself."""
        try:
            return encode(value)
        except (TypeError, ValueError, RecursionError):
            self._refuse(stream, resource_id, "it is no JSON")
            return None

    def _refuse(self, stream: Stream, resource_id: str, why: str) -> None:
        self.malformed += 1
        # A driver may do this many times a second: what is said of it becomes rarer.
        if self.malformed & (self.malformed - 1) == 0:
            log.error(
                "%s: %d payloads of its driver did not fit their streams and were not sent; now %s of %s: %s",
                self.device_id,
                self.malformed,
                stream,
                resource_id,
                why,
            )

    # Events.

    def note(self, kind: EventKind, payload: Mapping[str, Any], *, resource_id: str | None = None) -> None:
        """Tell of something on the device that concerns no operation."""
        if not self._subscribers["events"]:
            return
        tail = self._event(kind, payload, resource_id)
        for subscriber, selections in self._subscribers["events"].items():
            wanted = subscriber.wanted
            if (
                wanted.takes_kind(kind)
                and wanted.takes_operation(None, None)
                and covers(selections, payload.get("capability_id"), resource_id)
            ):
                subscriber.send(tail)

    def note_operation(self, kind: EventKind, operation: Operation, **members: Any) -> None:
        """Tell of an operation. Another principal learns neither its ids nor more of it than that it is [CORE-151]."""
        if not self._subscribers["events"]:
            return
        attempt = operation.attempt
        told = {"capability_id": attempt.capability_id, "long_running": operation.long_running, **members}
        common = {name: value for name, value in told.items() if value is not None}
        ids = {"operation_id": operation.operation_id, "command_id": attempt.command_id}
        own: bytes | None = None
        foreign: bytes | None = None
        for subscriber, selections in self._subscribers["events"].items():
            is_own = subscriber.principal_id == attempt.session.principal_id
            if not covers(selections, attempt.capability_id, attempt.resource):
                continue
            if not subscriber.wanted.takes_kind(kind):
                continue
            if not subscriber.wanted.takes_operation(*(ids.values() if is_own else (None, None))):
                continue
            if is_own:
                own = own or self._event(kind, {**ids, **common}, attempt.resource)
            else:
                foreign = foreign or self._event(kind, common, attempt.resource)
            subscriber.send((own if is_own else foreign) or b"")

    def _event(self, kind: EventKind, payload: Mapping[str, Any], resource_id: str | None) -> bytes:
        return event_tail(
            "events",
            self._wall(),
            encode({"kind": kind, **payload}),
            device_id=self.device_id,
            resource_id=resource_id,
        )

    def saw_interlocks(self, states: Mapping[str, str]) -> None:
        """Tell of every interlock that is not as it was seen last; one that cannot be read is open."""
        if not self._subscribers["events"]:
            return
        for name in self._manifest.safety.interlocks:
            state = "closed" if states.get(name) == "closed" else "open"
            known = self._interlocks.get(name)
            self._interlocks[name] = state
            if known is not None and known != state:
                kind: EventKind = "interlock.closed" if state == "closed" else "interlock.opened"
                self.note(kind, {"interlock_id": name, "hard": self._manifest.safety.interlocks[name].hard})

    # Progress.

    def progress(self, operation: Operation, status: str | None = None) -> None:
        """Tell its principal how far an operation is; with its final `status` for the last time."""
        if not self._subscribers["progress"]:
            return
        attempt = operation.attempt
        tail: bytes | None = None
        for subscriber, selections in self._subscribers["progress"].items():
            if (
                subscriber.principal_id == attempt.session.principal_id
                and subscriber.wanted.takes_operation(operation.operation_id, attempt.command_id)
                and covers(selections, attempt.capability_id, attempt.resource)
            ):
                tail = tail or self._progress(operation, status or "running")
                subscriber.send(tail, ("progress", operation.operation_id), last=status is not None)

    def _progress(self, operation: Operation, status: str) -> bytes:
        payload = {
            "operation_id": operation.operation_id,
            "command_id": operation.attempt.command_id,
            "status": status,
            **operation.progress,
        }
        if status == "completed":
            payload["percent"] = 100
        return event_tail(
            "progress",
            self._wall(),
            encode(payload),
            device_id=self.device_id,
            resource_id=operation.attempt.resource,
        )

    # Log and safety.

    def record(self, level: LogLevel, number: int, logger: str, message: str) -> None:
        """Send one log record about the device."""
        payload = {"level": level, "logger": logger, "message": storable(message, LONGEST_LOG_TEXT)}
        tail = event_tail("log", self._wall(), encode(payload), device_id=self.device_id)
        for subscriber in self._subscribers["log"]:
            if subscriber.wanted.takes_level(number):
                subscriber.send(tail)

    def safety(self, payload: Mapping[str, Any]) -> None:
        """Send a safety event to every subscription whose session covers the device [EVT-005, CORE-184]."""
        if not self._covering:
            return
        tail = event_tail("control", self._wall(), encode(payload), type="safety", device_id=self.device_id)
        for subscriber in self._covering:
            subscriber.send(tail)


def projected(state: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a state that a stream carries: a closed schema with fewer fields leaves the others out."""
    properties: Sequence[str] | None = schema.get("properties")
    if properties is None or schema.get("additionalProperties") is not False:
        return state
    return {name: value for name, value in state.items() if name in properties}
