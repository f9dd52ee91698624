"""Pacing: never more often than allowed, never a last value lost, and each key by itself [EVT-002]."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from mhsd.core.pacing import Demand, Pacer

OFFERS = st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 3, allow_nan=False)), min_size=1, max_size=40)
RATES = st.sampled_from([0.5, 1.0, 3.0, 10.0])


def sent_of(rate_hz: float, offers: list[tuple[str, float]]) -> list[tuple[float, str, int]]:
    """When what was sent, with somebody who asks whenever something is due, until nothing waits."""
    pacer, now = Pacer(rate_hz), 0.0
    sent: list[tuple[float, str, int]] = []

    def run_until(limit: float) -> None:
        while (due := pacer.next_mono_s()) is not None and due <= limit:
            sent.extend((due, *item) for item in pacer.due(due))

    for number, (key, pause_s) in enumerate(offers):
        now += pause_s
        run_until(now)
        if pacer.offer(key, (key, number), now):
            sent.append((now, key, number))
    run_until(float("inf"))
    return sent


@given(rate_hz=RATES, offers=OFFERS)
def test_no_key_is_sent_more_often_than_its_rate(rate_hz: float, offers: list[tuple[str, float]]) -> None:
    """[EVT-002]"""
    for key in "ab":
        times = [at for at, name, _ in sent_of(rate_hz, offers) if name == key]
        assert all(later - earlier >= 1 / rate_hz - 1e-9 for earlier, later in itertools.pairwise(times))


@given(rate_hz=RATES, offers=OFFERS)
def test_the_last_value_of_every_key_always_arrives_and_in_order(
    rate_hz: float, offers: list[tuple[str, float]]
) -> None:
    """[EVT-002]"""
    sent = sent_of(rate_hz, offers)
    for key in {name for name, _ in offers}:
        numbers = [number for _, name, number in sent if name == key]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == max(number for number, (name, _) in enumerate(offers) if name == key)


def test_what_comes_slower_than_the_rate_is_sent_as_it_comes() -> None:
    """[EVT-002]"""
    pacer = Pacer(10)
    assert all(pacer.offer("a", number, number * 0.1) for number in range(5))
    assert pacer.next_mono_s() is None


def test_a_key_that_is_over_leaves_nothing_behind() -> None:
    """[EVT-002]"""
    pacer = Pacer(1)
    pacer.offer("a", 1, 0.0)
    assert not pacer.offer("a", 2, 0.1)
    pacer.forget("a")
    assert pacer.next_mono_s() is None
    assert pacer.due(10.0) == []


@given(wanted=st.lists(st.tuples(st.sampled_from("ab"), RATES)), left=st.integers(0, 40))
def test_the_demand_is_the_highest_rate_of_those_who_are_left(
    wanted: list[tuple[str, float]], left: int
) -> None:
    """[EVT-002]"""
    demand: Demand[str] = Demand()
    for key, rate_hz in wanted:
        demand.add(key, rate_hz)
    for key, rate_hz in wanted[left:]:
        demand.remove(key, rate_hz)
    rates: dict[str, list[float]] = {}
    for key, rate_hz in wanted[:left]:
        rates.setdefault(key, []).append(rate_hz)
    assert demand.rates() == {key: max(of_key) for key, of_key in rates.items()}
    assert [key in demand for key in "ab"] == [key in rates for key in "ab"]
