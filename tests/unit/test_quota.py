"""The token bucket of each principal."""

from __future__ import annotations

import pytest

from mhsd.core.quota import Places, RateLimiter


def test_a_burst_fits_and_the_next_request_waits_for_one_token() -> None:
    limiter = RateLimiter(rate=50, burst=100)
    assert all(limiter.take("a", 1, 10.0) is None for _ in range(100))
    assert limiter.take("a", 1, 10.0) == pytest.approx(1 / 50)


def test_tokens_come_back_at_the_rate_and_never_above_the_burst() -> None:
    limiter = RateLimiter(rate=10, burst=5)
    assert limiter.take("a", 5, 0.0) is None
    assert limiter.take("a", 2, 0.1) == pytest.approx(0.1)
    assert limiter.take("a", 2, 0.2) is None
    assert limiter.take("a", 5, 1000.0) is None
    assert limiter.take("a", 1, 1000.0) is not None


def test_a_batch_over_the_rate_is_refused_whole_and_spends_nothing() -> None:
    limiter = RateLimiter(rate=10, burst=10)
    assert limiter.take("a", 8, 0.0) is None
    assert limiter.take("a", 5, 0.0) == pytest.approx(0.3)
    assert limiter.take("a", 2, 0.0) is None


def test_a_batch_larger_than_the_burst_never_fits() -> None:
    limiter = RateLimiter(rate=10, burst=10)
    assert limiter.take("a", 11, 0.0) == pytest.approx(1.1)
    assert limiter.take("a", 11, 1e6) == pytest.approx(1.1)


def test_principals_do_not_share_a_bucket() -> None:
    limiter = RateLimiter(rate=1, burst=1)
    assert limiter.take("a", 1, 0.0) is None
    assert limiter.take("a", 1, 0.0) is not None
    assert limiter.take("b", 1, 0.0) is None


def test_a_clock_that_stands_still_or_goes_back_gives_no_tokens() -> None:
    limiter = RateLimiter(rate=1, burst=1)
    assert limiter.take("a", 1, 100.0) is None
    assert limiter.take("a", 1, 50.0) is not None


def test_forgotten_buckets_were_full_so_nobody_gains_from_it() -> None:
    limiter = RateLimiter(rate=1, burst=10)
    assert limiter.take("busy", 10, 0.0) is None
    for number in range(5000):
        limiter.take(f"p{number}", 1, 5.0)
    assert limiter.take("busy", 6, 5.0) == pytest.approx(1.0)


def test_a_principal_has_so_many_places_and_no_other_is_hindered() -> None:
    """TPT-017"""
    places = Places(2)
    assert [places.take("a") for _ in range(3)] == [True, True, False]
    assert places.take("b")
    places.leave("a")
    assert [places.take("a"), places.take("a")] == [True, False]


def test_whoever_has_left_every_place_is_forgotten() -> None:
    places = Places(1)
    for number in range(100):
        assert places.take(f"principal {number}")
        places.leave(f"principal {number}")
    assert places == Places(1)
