"""How a client comes back to an endpoint that it has lost."""

import pytest

from mhsd.client.client import connect
from mhsd.client.errors import MHSError
from mhsd.client.session import Session
from tests.cli.tiny import Endpoint, Request, Tiny


def lost(_: Request) -> None:
    """Closes the connection without an answer."""


@pytest.mark.parametrize("jitter", [0.5, 1.0])
def test_a_client_asks_again_after_growing_pauses_and_gives_up(
    monkeypatch: pytest.MonkeyPatch, jitter: float
) -> None:
    """[TPT-064]"""
    pauses: list[float] = []
    spread: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        spread.append((low, high))
        return jitter

    monkeypatch.setattr("mhsd.client.session.time.sleep", pauses.append)
    monkeypatch.setattr("mhsd.client.session.random.uniform", uniform)
    tiny = Tiny(Endpoint(operations_get=lost))
    try:
        with connect(tiny.url, timeout_s=5.0) as client, pytest.raises(MHSError) as given_up:
            Session(client, "mhs_s_1").operation("op_1")
    finally:
        tiny.close()
    assert given_up.value.mhs_code == "MHS.OUTCOME.UNKNOWN"
    assert pauses == [pytest.approx(jitter * pause_s) for pause_s in (0.2, 0.4, 0.8, 1.6)]
    assert set(spread) == {(0.5, 1.0)}, "two clients do not come back at the same time"
