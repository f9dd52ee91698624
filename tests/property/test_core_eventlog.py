"""The log of a subscription against a list that forgets nothing, with consumers that read as they like [EVT-006]."""

import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mhsd.core.eventlog import Cursor, EventLog, Gap

LONGEST = 900
LAG = b'{"dropped":%d}'


class Consumer:
    """What one consumer has been given so far, and a cursor."""

    def __init__(self, cursor: Cursor, start: int) -> None:
        self.cursor = cursor
        self.next_seq = start
        self.lags = 0
        self.gaps = 0


class AnyReaders(RuleBasedStateMachine):
    """Events are appended and read in any order, in any portions."""

    @initialize(
        first=st.sampled_from([1, 7, 2**53 - 3]),
        max_events=st.integers(1, 6),
        max_bytes=st.integers(300, 4000),
    )
    def begin(self, first: int, max_events: int, max_bytes: int) -> None:
        self.log = EventLog(first, max_events, max_bytes)
        self.max_events, self.max_bytes = max_events, max_bytes
        self.first = first
        self.texts: dict[int, bytes] = {}
        self.taken: set[int] = set()
        self.consumers = [Consumer(self.log.cursor(), first)]

    @rule(size=st.integers(1, LONGEST))
    def append(self, size: int) -> None:
        text = b"x" * size
        seq = self.log.append(text)
        assert seq == self.first + len(self.texts), "seqs rise by one"
        self.texts[seq] = text

    @rule(behind=st.none() | st.integers(-3, 12))
    def join(self, behind: int | None) -> None:
        """A consumer that has seen nothing, or one that resumes; a seq that never was is no harm."""
        after = None if behind is None else self.log.next_seq - 1 - behind
        cursor = self.log.cursor(after)
        start = self.first if after is None else min(max(after + 1, self.first), self.log.next_seq)
        assert cursor.next_seq == start
        self.consumers.append(Consumer(cursor, start))

    @rule(which=st.integers(0, 5), max_bytes=st.integers(1, 2500))
    def read(self, which: int, max_bytes: int) -> None:
        consumer = self.consumers[which % len(self.consumers)]
        lost_before = self.log.oldest_seq - consumer.next_seq
        told: list[bytes] = []

        def lag(dropped: int) -> bytes:
            told.append(LAG % dropped)
            return told[-1]

        if self.log.note_lag(consumer.cursor, lag):
            assert lost_before > 0
            assert json.loads(told[0])["dropped"] == self.log.oldest_seq - consumer.next_seq >= lost_before
            self.texts[self.log.next_seq - 1] = told[0]
            consumer.lags += 1
        taken = 0
        for item in self.log.read(consumer.cursor, max_bytes):
            if isinstance(item, Gap):
                consumer.gaps += 1
                assert taken == 0, "a gap comes before the events that survive"
                assert item.first == consumer.next_seq, "it begins where the consumer stood, and is told once"
                assert item.last == self.log.oldest_seq - 1, "it names nothing that is still delivered"
                assert item.dropped == item.last - item.first + 1 > 0
                consumer.next_seq = item.last + 1
                continue
            seq, text = item
            assert seq == consumer.next_seq, "in order, nothing twice and nothing left out"
            assert text == self.texts[seq]
            assert taken == 0 or taken < max_bytes
            self.taken.add(seq)
            taken += len(text)
            consumer.next_seq = seq + 1
        assert consumer.cursor.next_seq == consumer.next_seq
        assert taken or not self.log.has_more(consumer.cursor)

    @invariant()
    def it_stays_within_its_bounds(self) -> None:
        kept = range(self.log.oldest_seq, self.log.next_seq)
        assert len(kept) <= self.max_events
        assert sum(len(self.texts[seq]) for seq in kept) <= self.max_bytes

    @invariant()
    def a_lag_is_told_no_more_often_than_there_are_gaps(self) -> None:
        assert all(consumer.lags <= consumer.gaps for consumer in self.consumers)

    @invariant()
    def every_event_is_counted_as_delivered_or_as_dropped(self) -> None:
        assert self.log.delivered + self.log.dropped == self.log.next_seq - self.first
        assert self.log.delivered <= len(self.taken)

    def teardown(self) -> None:
        """A consumer that reads to the end stands there, however much it has lost."""
        for consumer in getattr(self, "consumers", []):
            while self.log.has_more(consumer.cursor):
                for item in self.log.read(consumer.cursor, 500):
                    consumer.next_seq = (item.last if isinstance(item, Gap) else item[0]) + 1
            assert consumer.next_seq == self.log.next_seq
            assert consumer.cursor.behind is False


AnyReaders.TestCase.settings = settings(stateful_step_count=40)
TestAnyReaders: Any = AnyReaders.TestCase


class OneReader(RuleBasedStateMachine):
    """With one consumer from the start, what was delivered is exactly what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.log = EventLog(1, 3)
        self.cursor = self.log.cursor()
        self.given = 0

    @rule(count=st.integers(1, 6))
    def append(self, count: int) -> None:
        for _ in range(count):
            self.log.append(b"event")

    @rule(max_bytes=st.integers(1, 30))
    def read(self, max_bytes: int) -> None:
        self.given += sum(not isinstance(item, Gap) for item in self.log.read(self.cursor, max_bytes))

    @invariant()
    def the_counts_are_exact(self) -> None:
        assert self.log.delivered == self.given
        assert self.log.dropped == self.log.next_seq - 1 - self.given


TestOneReader: Any = OneReader.TestCase
