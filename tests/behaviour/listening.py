"""Whoever listens to the events of a session: over the connection itself on stdio, over an event stream on HTTP."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.documents import check
from tests.lab import PATIENCE_S, ConnectionWire, Session
from tests.sse import EventReader

Event = dict[str, Any]


class Listener:
    """The events of one subscription, each of them checked, in the order in which they come."""

    def __init__(self, session: Session, grant: Any) -> None:
        self.grant = grant
        self.subscription_id: str = grant["subscription_id"]
        self.next_seq: int = grant["seq_start"]
        wire = session.lab.wire
        self._wire = wire if isinstance(wire, ConnectionWire) else None
        self._reader = (
            None
            if self._wire is not None
            else EventReader(session.lab, session.id, subscription_id=self.subscription_id)
        )

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def next(self) -> Event:
        """The next event; its seq, or what a gap says of it, goes on where the last one ended [EVT-006]."""
        event = self._next()
        check("event", event)
        first = event["from"] if event.get("type") == "gap" else event["seq"]
        assert first == self.next_seq, event
        self.next_seq = event["seq"] + 1
        return event

    def _next(self) -> Event:
        while self._wire is not None:
            message = self._wire.events.get(timeout=PATIENCE_S)
            if isinstance(message, Exception):
                raise message
            assert message.keys() == {"jsonrpc", "method", "params"}
            assert (message["jsonrpc"], message["method"]) == ("2.0", "mhs.event")
            event: Event = message["params"]
            if event["subscription_id"] == self.subscription_id:
                return event
        assert self._reader is not None
        return self._reader.next()

    def take(self, count: int) -> list[Event]:
        return [self.next() for _ in range(count)]

    def until(self, holds: Callable[[Event], bool]) -> list[Event]:
        """Every event up to the first for which this is so, with that one."""
        events = [self.next()]
        while not holds(events[-1]):
            events.append(self.next())
        return events

    def rest(self, session: Session) -> list[Event]:
        """What has come of a subscription that is ended, up to the answer of a call that is made now."""
        session.call("mhs.operations.list")
        if self._reader is not None:
            return list(self._reader.until_end())
        assert self._wire is not None
        waiting = [message["params"] for message in self._wire.events.queue]
        return [event for event in waiting if event["subscription_id"] == self.subscription_id]


@contextmanager
def listening(session: Session, *streams: Any, **more: Any) -> Iterator[Listener]:
    """Subscribe for the block to these streams, given by name or whole."""
    asked = [{"stream": each} if isinstance(each, str) else each for each in streams]
    listener = Listener(session, session.call("mhs.subscribe", streams=asked, deadline_ms=30_000, **more))
    try:
        yield listener
    finally:
        listener.close()
