"""How fast the clients send."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from mhsd.base.resources import METHODS
from mhsd.client.client import Client
from mhsd.client.errors import MHSError
from mhsd.client.pacing import STATUS, UNPACED, Pace
from mhsd.client.transport import Answer
from mhsd.core.quota import RateLimiter

LIMITS = {"limits": {"max_rate_per_s": 10, "rate_burst": 20, "max_status_rate_per_s": 5}}


def agreed(hello: Any = LIMITS) -> Pace:
    pace = Pace()
    pace.agree(hello)
    return pace


def test_the_table_of_what_is_not_counted_is_the_endpoints() -> None:
    assert {name for name, row in METHODS.items() if row.rate == "exempt"} == UNPACED
    assert [name for name, row in METHODS.items() if row.rate == "status"] == [STATUS]


def test_a_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    """[MHSD-7-04]"""
    pace = agreed()
    waits = [pace.reserve("mhs.command", 100.0, 60.0) for _ in range(21)]
    assert waits[:18] == [0.0] * 18
    assert waits[18:] == pytest.approx([1 / 9, 2 / 9, 3 / 9])


def test_an_endpoint_that_counts_never_has_to_refuse() -> None:
    """The endpoint's own limiter takes every request of a client that sends as fast as it may."""
    pace, limiter = agreed(), RateLimiter(10, 20)
    now = 1000.0
    for _ in range(500):
        wait_s = pace.reserve("mhs.resource.read", now, 60.0)
        assert wait_s is not None
        now += wait_s
        assert limiter.take("agent:me", 1, now) is None


def test_an_emergency_stop_never_waits() -> None:
    pace = agreed()
    for _ in range(100):
        pace.reserve("mhs.command", 0.0, 1e9)
    assert pace.reserve("mhs.safety.estop", 0.0, 0.0) == 0.0


def test_looking_at_the_safety_status_takes_nothing_from_the_rest() -> None:
    pace = agreed()
    while pace.reserve(STATUS, 0.0, 0.0) is not None:
        pass
    assert pace.reserve("mhs.command", 0.0, 0.0) == 0.0


def test_a_place_that_comes_too_late_is_not_taken() -> None:
    pace = agreed()
    while pace.reserve("mhs.command", 0.0, 0.0) is not None:
        pass
    assert pace.reserve("mhs.command", 0.0, 0.05) is None
    assert pace.reserve("mhs.command", 0.0, 0.2) == pytest.approx(1 / 9)


def test_an_endpoint_that_names_no_limits_gets_the_usual_pace() -> None:
    pace = agreed({})
    assert sum(pace.reserve("mhs.command", 0.0, 0.0) == 0.0 for _ in range(200)) == 90


def test_a_reconnect_is_no_new_burst() -> None:
    pace = agreed()
    while pace.reserve("mhs.command", 0.0, 0.0) is not None:
        pass
    pace.agree(LIMITS)
    assert pace.reserve("mhs.command", 0.0, 0.0) is None


class Counting:
    """A transport that answers everything and notes what it was sent."""

    name = "counting"
    needs_hello = False
    paced = True

    def __init__(self) -> None:
        self.methods: list[str] = []
        self._lock = threading.Lock()

    def exchange(self, request_id: str, body: bytes, timeout_s: float) -> Answer:
        with self._lock:
            self.methods.append(body.decode().split('"method":"')[1].split('"')[0])
        result = {"mhs_version": "1.0", **LIMITS}
        return Answer({"jsonrpc": "2.0", "id": request_id, "result": result})

    def close(self) -> None:
        pass


def test_a_short_program_asks_nothing_that_it_was_not_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that sends more asks for the limits once, and keeps to them."""
    slept: list[float] = []
    now = [50.0]

    def sleep(pause_s: float) -> None:
        slept.append(pause_s)
        now[0] += pause_s

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    transport = Counting()
    with Client(transport) as client:
        for _ in range(8):
            client.call("mhs.devices.list")
        assert transport.methods == ["mhs.devices.list"] * 8
        for _ in range(20):
            client.call("mhs.devices.list")
    assert transport.methods.count("mhs.hello") == 1
    assert len(transport.methods) == 29
    assert slept == pytest.approx([1 / 9] * 11)


def test_a_call_that_would_wait_beyond_its_deadline_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 50.0)
    transport = Counting()
    with Client(transport) as client:
        client.hello()
        for _ in range(18):
            client.call("mhs.devices.list")
        with pytest.raises(MHSError, match="nothing was sent") as refused:
            client.call("mhs.devices.list", deadline_s=0.05)
        assert refused.value.mhs_code == "MHS.LIMIT.RATE_EXCEEDED"
        assert len(transport.methods) == 19
