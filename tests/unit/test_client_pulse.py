"""Heartbeats go out while something is open, and only then."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from mhsd.client.errors import MHSError, error
from mhsd.client.pulse import Pulse

PATIENCE_S = 20.0


class Heart:
    """Counts the heartbeats; each may end badly."""

    def __init__(self, *outcomes: MHSError) -> None:
        self.beats = threading.Semaphore(0)
        self.outcomes = list(outcomes)
        self.over: list[MHSError] = []
        self.ended = threading.Event()

    def beat(self) -> None:
        self.beats.release()
        if self.outcomes:
            raise self.outcomes.pop(0)

    def session_over(self, problem: MHSError) -> None:
        self.over.append(problem)
        self.ended.set()

    def pulse(self, look: Callable[[], Any] = lambda: None) -> Pulse:
        return Pulse(self.beat, look, self.session_over, 0.005)

    def beats_again(self) -> bool:
        return self.beats.acquire(timeout=PATIENCE_S)


def test_heartbeats_go_out_while_something_is_open() -> None:
    """[MHSD-4-29]"""
    heart = Heart()
    pulse = heart.pulse()
    with pulse.held():
        assert heart.beats_again()
        with pulse.held():
            assert heart.beats_again()
        assert heart.beats_again()
    pulse.end()


def test_nothing_is_sent_while_nothing_is_open_and_again_when_something_is() -> None:
    looked = threading.Semaphore(0)
    heart = Heart()
    pulse = heart.pulse(looked.release)
    with pulse.held():
        assert heart.beats_again()
    # Whatever was begun is over when the thread rests, which it says by looking no more.
    while looked.acquire(timeout=0.05):
        continue
    while heart.beats.acquire(blocking=False):
        continue
    assert not heart.beats.acquire(timeout=0.05)
    with pulse.held():
        assert heart.beats_again()
    pulse.end()


def test_what_has_ended_unwatched_is_let_go_before_the_next_heartbeat() -> None:
    heart = Heart()
    looked = threading.Event()

    def look() -> None:
        if not looked.is_set():
            looked.set()
            pulse.release()

    pulse = heart.pulse(look)
    pulse.hold()
    assert looked.wait(PATIENCE_S)
    assert not heart.beats.acquire(timeout=0.05)
    pulse.end()


def test_a_heartbeat_that_gets_lost_is_followed_by_the_next() -> None:
    heart = Heart(error("MHS.OUTCOME.UNKNOWN", "lost"), error("MHS.TRANSPORT.UNAVAILABLE", "not sent"))
    pulse = heart.pulse()
    with pulse.held():
        for _ in range(3):
            assert heart.beats_again()
    assert heart.over == []
    pulse.end()


def test_a_heartbeat_that_is_refused_is_the_last_and_is_told() -> None:
    refusal = error("MHS.AUTH.UNAUTHENTICATED", "the token was revoked")
    heart = Heart(refusal)
    pulse = heart.pulse()
    with pulse.held():
        assert heart.ended.wait(PATIENCE_S)
        assert heart.over == [refusal]
        assert heart.beats_again()
        assert not heart.beats.acquire(timeout=0.05)
    with pulse.held():
        assert not heart.beats.acquire(timeout=0.05)
