"""What of a subscription has been seen: repetitions are left out, and what is missing is said. Pure [TPT-063, EVT-008].

After a reconnect an endpoint may send events again, or from further on. Whatever it does, the events that leave
here have rising numbers, and each number since `seq_start` is either an event or lies in a gap. After a gap the state
is unknown until it is read again [EVT-007].
"""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

MOST_KEPT = 1024
"""Events of one subscription that are kept until they are taken: as many as an endpoint buffers by default."""

VALUES = ("state", "telemetry")
"""The streams that show what a resource is like."""


class Continuity:
    """The cursor of one subscription, from its `seq_start` on."""

    def __init__(self, seq_start: int | str) -> None:
        self.last = number(seq_start) - 1
        """The number of the newest event that was let through."""

    def take(self, event: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What of an event is new, with a gap before it where numbers are missing; often the event alone."""
        seq = number(event.get("seq"))
        if seq <= self.last:
            return []
        first = number(event.get("from")) if is_gap(event) else seq
        taken = dict(event)
        found = []
        if first > self.last + 1:
            found.append(gap(event, self.last + 1, first - 1))
        elif first <= self.last:
            # A gap that began before what has been seen already is told only as far as it is news.
            taken |= {"from": self.last + 1, "dropped": seq - self.last}
        self.last = seq
        return [*found, taken]


class Backlog:
    """What has arrived of one subscription and was not taken yet: in order, without repetitions, and bounded."""

    def __init__(self, seq_start: int | str, most: int = MOST_KEPT) -> None:
        self._seen = Continuity(seq_start)
        self._kept: deque[dict[str, Any]] = deque()
        self._most = most
        self.taken = self.newest
        """The number of the newest event that was taken."""
        self.state_is_unknown = False
        """Whether a gap was taken since the state was read."""

    @property
    def newest(self) -> int:
        """The number of the newest event that has arrived; the one before the first where none has."""
        return self._seen.last

    def put(self, event: Mapping[str, Any]) -> None:
        """An event has arrived; ValueError for one without a number."""
        self._kept.extend(self._seen.take(event))
        self._fit()

    def interrupt(self, near: Mapping[str, Any]) -> None:
        """The connection broke, and what was on its way is lost: a gap of a size that only the next event tells."""
        self._kept.append(gap(near, self.newest + 1, self.newest))
        self._fit()

    def pop(self) -> dict[str, Any] | None:
        """The oldest; None where there is none."""
        if not self._kept:
            return None
        event = self._kept.popleft()
        self.taken = number(event["seq"])
        self.state_is_unknown |= is_gap(event)
        return event

    @contextmanager
    def reconciled(self) -> Iterator[int]:
        """The state is read in the block, behind the event whose number it is given [EVT-007]."""
        self.state_is_unknown = False  # A gap that is taken meanwhile makes it unknown again.
        try:
            yield self.taken
        except BaseException:
            self.state_is_unknown = True
            raise

    def _fit(self) -> None:
        """Where there are too many, the oldest two become one gap, which takes the place of both."""
        while len(self._kept) > self._most:
            first, second = self._kept.popleft(), self._kept.popleft()
            start = number(first["from"] if is_gap(first) else first["seq"])
            self._kept.appendleft(gap(second, start, number(second["seq"])))


def is_gap(event: Mapping[str, Any]) -> bool:
    """Whether an event says that others are missing: state is unknown until it is read again [EVT-008]."""
    return event.get("stream") == "control" and event.get("type") == "gap"


def gap(near: Mapping[str, Any], first: int, last: int) -> dict[str, Any]:
    """A gap that the client itself reports; `near` is an event of the same subscription and lends it its time."""
    return {
        "subscription_id": near.get("subscription_id"),
        "seq": last,
        "ts": near.get("ts"),
        "stream": "control",
        "type": "gap",
        "from": first,
        "to": last,
        "dropped": last - first + 1,
        "payload": {"client": True},
    }


def resources_of(granted: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The device and resource of everything whose values a subscription brings, each once: `granted` is the endpoint's
    answer to mhs.subscribe."""
    streams = granted.get("streams")
    entries = [each for each in streams if isinstance(each, dict)] if isinstance(streams, list) else []
    found = [
        (str(each.get("device_id")), str(each["resource_id"]))
        for each in entries
        if each.get("stream") in VALUES and "resource_id" in each
    ]
    return list(dict.fromkeys(found))


def state_event(
    subscription_id: str, seq: int, device_id: str, resource_id: str, reading: Mapping[str, Any]
) -> dict[str, Any]:
    """A state event that the client itself makes of what it has read, in the place behind the event of number `seq`."""
    return {
        "subscription_id": subscription_id,
        "seq": seq,
        "ts": reading.get("sampled_at"),
        "stream": "state",
        "device_id": device_id,
        "resource_id": resource_id,
        "revision": reading.get("revision"),
        "state_hash": reading.get("state_hash"),
        "payload": reading.get("state"),
        "client": True,
    }


def number(seq: object) -> int:
    """A sequence number, which is decimal text above 2^53 [EVT-001]; ValueError for anything else."""
    if isinstance(seq, int) and not isinstance(seq, bool):
        return seq
    if isinstance(seq, str) and seq.isdecimal() and seq.isascii():
        return int(seq)
    raise ValueError("no sequence number")
