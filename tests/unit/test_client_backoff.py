"""Pauses between attempts to reach an endpoint again."""

from mhsd.client.backoff import Backoff


def test_pauses_grow_to_a_cap_and_end_with_the_budget() -> None:
    """[TPT-064]"""
    backoff = Backoff(first_s=1.0, longest_s=5.0, attempts=5, spread=lambda low, high: high)
    assert [backoff.pause_s() for _ in range(6)] == [1.0, 2.0, 4.0, 5.0, 5.0, None]


def test_a_success_gives_the_whole_budget_back() -> None:
    backoff = Backoff(first_s=1.0, attempts=1, spread=lambda low, high: low)
    assert (backoff.pause_s(), backoff.pause_s()) == (0.5, None)
    backoff.reset()
    assert backoff.pause_s() == 0.5


def test_an_endpoint_that_asks_for_more_time_gets_it() -> None:
    backoff = Backoff(first_s=1.0, attempts=2, spread=lambda low, high: high)
    assert backoff.pause_s(7.5) == 7.5
    assert backoff.pause_s(0.1) == 2.0


def test_two_clients_do_not_come_back_together() -> None:
    pauses = {Backoff(first_s=1.0).pause_s() for _ in range(20)}
    assert len(pauses) > 1
    assert all(pause_s is not None and 0.5 <= pause_s <= 1.0 for pause_s in pauses)
