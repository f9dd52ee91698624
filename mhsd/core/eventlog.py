"""The events that one subscription keeps, and what a consumer that reads them gets [EVT-001, EVT-006, EVT-008].

A ring that is bounded in events and in bytes, with one cursor for each consumer. What has fallen off in front of a
cursor is a gap; it is computed when the consumer reads and is stored nowhere, so it is told once, in its place, and
never names an event that is still delivered.
"""

from collections import deque
from collections.abc import Callable, Iterable

import attrs

MAX_BYTES = 1 << 20
"""Bytes of events that one subscription keeps, in addition to the bound on their number."""

LARGEST_NUMBER = 1 << 53
"""A seq above this is a decimal string on the wire: not every JSON reader has larger integers."""

_LAG_BYTES = 512
"""Room that is made for the event that tells of a consumer's lag."""


def seq_value(seq: int) -> int | str:
    """A seq as it stands in JSON [EVT-001]."""
    return seq if seq <= LARGEST_NUMBER else str(seq)


@attrs.frozen
class Gap:
    """Events that a consumer will never see: `first` to `last`, both of them lost."""

    first: int
    last: int

    @property
    def dropped(self) -> int:
        return self.last - self.first + 1


Item = Gap | tuple[int, bytes]
"""A gap, or the seq of an event and its text."""


@attrs.define(eq=False)
class Cursor:
    """Where one consumer stands. `behind` is true from its first loss until it has caught up.

    One that begins behind what is kept is late and not slow: its gap says all that there is to say.
    """

    next_seq: int
    behind: bool = False


class EventLog:
    """The ring of one subscription. Everything is synchronous, and nothing in it knows a clock."""

    def __init__(self, first_seq: int, max_events: int, max_bytes: int = MAX_BYTES) -> None:
        self.first_seq = first_seq
        self.next_seq = first_seq
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._texts: deque[bytes] = deque()
        self._bytes = 0
        self._settled_seq = first_seq - 1
        """Up to here every event was delivered to somebody or is lost for everybody."""
        self.delivered = 0
        """How many different events at least one consumer has taken."""

    @property
    def oldest_seq(self) -> int:
        """The oldest event that is still kept, or the next one where none is."""
        return self.next_seq - len(self._texts)

    def append(self, text: bytes) -> int:
        """Keep one event more and let the oldest fall off where there is no room; its seq."""
        seq = self.next_seq
        self.next_seq = seq + 1
        self._texts.append(text)
        self._bytes += len(text)
        while len(self._texts) > self._max_events or self._bytes > self._max_bytes:
            self._bytes -= len(self._texts.popleft())
        return seq

    def cursor(self, after: int | None = None) -> Cursor:
        """A new consumer: from the first seq on, or from the one after `after`, as far as there is such a one."""
        start = self.first_seq if after is None else after + 1
        next_seq = min(max(start, self.first_seq), self.next_seq)
        return Cursor(next_seq, behind=next_seq < self.oldest_seq)

    def has_more(self, cursor: Cursor) -> bool:
        return cursor.next_seq < self.next_seq

    def note_lag(self, cursor: Cursor, text_of: Callable[[int], bytes]) -> bool:
        """Append the event that tells of a lag, once for each time that this consumer has fallen behind.

        `text_of` makes it from the number of events that the consumer has lost. It takes its place in the ring like
        any other, so the ring does not grow by it.
        """
        if cursor.behind or cursor.next_seq >= self.oldest_seq:
            return False
        cursor.behind = True
        while self._texts and (
            len(self._texts) >= self._max_events or self._bytes + _LAG_BYTES > self._max_bytes
        ):
            self._bytes -= len(self._texts.popleft())
        self.append(text_of(self.oldest_seq - cursor.next_seq))
        return True

    def read(self, cursor: Cursor, max_bytes: int) -> Iterable[Item]:
        """What comes next for this consumer: at most one gap, then events until `max_bytes` are reached.

        At least one event, however long it is. Iterate to the end: the cursor moves as items are taken.
        """
        oldest = self.oldest_seq
        if cursor.next_seq < oldest:
            gap = Gap(cursor.next_seq, oldest - 1)
            cursor.next_seq = oldest
            self._settle(gap.last, 0)
            yield gap
        taken = 0
        while cursor.next_seq < self.next_seq and taken < max_bytes:
            seq = cursor.next_seq
            text = self._texts[seq - self.oldest_seq]
            cursor.next_seq = seq + 1
            self._settle(seq, 1)
            taken += len(text)
            yield seq, text
        if cursor.next_seq == self.next_seq:
            cursor.behind = False

    def _settle(self, seq: int, delivered: int) -> None:
        # What fell off before one consumer has fallen off before all: only new ground counts.
        if seq > self._settled_seq:
            self._settled_seq = seq
            self.delivered += delivered

    @property
    def dropped(self) -> int:
        """Events of the subscription that nobody has taken, or will take when it ends now [EVT-004]."""
        return self.next_seq - self.first_seq - self.delivered
