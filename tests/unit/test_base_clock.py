"""Times are written one way, and both clocks can be replaced."""

import re

import pytest

from mhsd.base.clock import Clock, rfc3339


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_792_482_300, "2026-10-20T07:45:00.000Z"),
        (1_792_482_300.123, "2026-10-20T07:45:00.123Z"),
        (1_792_482_300.9996, "2026-10-20T07:45:00.999Z"),
        (951_782_400, "2000-02-29T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.000Z"),
    ],
)
def test_a_time_is_utc_with_milliseconds_and_z(seconds: float, text: str) -> None:
    assert rfc3339(seconds) == text


def test_every_millisecond_of_a_second_is_written_as_itself() -> None:
    written = [rfc3339(1_792_482_300 + ms / 1000) for ms in range(1000)]
    assert written == [f"2026-10-20T07:45:00.{ms:03}Z" for ms in range(1000)]


def test_the_clocks_of_the_machine_are_the_default() -> None:
    clock = Clock()
    assert re.fullmatch(r"2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", rfc3339(clock.now()))
    assert clock.mono() <= clock.mono()


def test_a_clock_can_be_handed_in() -> None:
    clock = Clock(now=lambda: 5.0, mono=lambda: 7.0)
    assert (clock.now(), clock.mono()) == (5.0, 7.0)
