"""Events as the synchronous client gets them, from real daemons and over connections that break."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

import mhsd
from tests.bindings.code_endpoints import WAYS, Places, places
from tests.bindings.proxy import Proxy, open_proxy
from tests.cli.conftest import Daemon
from tests.lab import PATIENCE_S, Lab, ask_until, running
from tests.unit.test_client_tls import certificate

STEP = "cap.world.step.v1"
CONVEY = "cap.motion.convey.v1"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with places(tmp_path_factory.mktemp("events"), "conveyor-workcell") as found:
        yield found


@pytest.fixture(params=WAYS)
def place(request: pytest.FixtureRequest, served: Places) -> str | Sequence[str]:
    return served[request.param]


def told(subscription: mhsd.Subscription) -> mhsd.Event:
    """The next event, which must come."""
    event = subscription.get(PATIENCE_S)
    assert event is not None
    return event


def states(subscription: mhsd.Subscription, count: int) -> list[mhsd.Event]:
    return [told(subscription) for _ in range(count)]


def steps(session: mhsd.Session, count: int) -> None:
    for _ in range(count):
        assert session.invoke(STEP, {"ticks": 1}).ok


def test_events_come_in_order_and_belong_to_what_was_done(place: str | Sequence[str]) -> None:
    """[TPT-054]"""
    with mhsd.connect(place) as client, client.session() as session:
        with session.subscribe([{"stream": "state", "resource_id": "world"}, "progress"]) as subscription:
            receipt = session.invoke(CONVEY, {"distance_mm": 10, "speed_mm_s": 200}, wait=True)
            steps(session, 1)
            seen = []
            while not seen or seen[-1].stream != "state":
                seen.append(told(subscription))
        first = subscription.granted["seq_start"]
        assert [event.seq for event in seen] == list(range(first, first + len(seen)))
        progress = [
            event.payload["status"]
            for event in seen
            if event.stream == "progress" and event.payload["operation_id"] == receipt.operation_id
        ]
        assert (progress[0], progress[-1]) == ("running", "completed")
        assert seen[-1].payload["tick"] == session.read("world")["state"]["tick"]
        assert not any(event.is_gap for event in seen)


def test_several_subscriptions_and_sessions_of_a_client_do_not_mix(place: str | Sequence[str]) -> None:
    with mhsd.connect(place) as client, client.session() as one, client.session() as two:
        world = one.subscribe({"stream": "state", "resource_id": "world"})
        belt = one.subscribe({"stream": "state", "resource_id": "belt"})
        other = two.subscribe("state", rate_hz=50)
        steps(two, 1)
        two.write("belt", {"speed_mm_s": 71})
        two.write("belt", {"speed_mm_s": 72})
        assert told(world)["resource_id"] == "world"
        assert [told(belt).payload["speed_mm_s"] for _ in range(2)] == [71, 72]
        assert told(other)["subscription_id"] == other.subscription_id
        assert belt.close()["delivered"] >= 2
        assert belt.close() == {}
        assert (belt.get(), belt.over) == (None, True)
        assert not world.over


def test_the_loop_over_events_ends_when_nothing_comes_and_when_the_session_is_closed(
    place: str | Sequence[str],
) -> None:
    with mhsd.connect(place) as client:
        session = client.session()
        for event in session.events("progress", timeout_s=0.01):
            raise AssertionError(f"nothing has happened, but {event} came")
        subscription = session.subscribe("state")
        steps(session, 1)
        session.close()
        assert [event.stream for event in subscription] in ([], ["state"])
        assert subscription.over


def test_a_session_that_is_ended_from_elsewhere_ends_its_subscriptions_with_the_reason(
    place: str | Sequence[str],
) -> None:
    with mhsd.connect(place) as client:
        session = client.session(ttl_s=3)
        subscription = session.subscribe("progress")
        client.call("mhs.session.close", {"session_id": session.session_id})
        with pytest.raises(mhsd.SessionError) as ended:
            subscription.get(PATIENCE_S)
        assert ended.value.mhs_code == "MHS.SESSION.CLOSED"
        assert subscription.close() == {}


def test_a_child_that_dies_ends_its_subscriptions(served: Places) -> None:
    with mhsd.connect(served["stdio"]) as client:
        session = client.session()
        subscription = session.subscribe("state")
        child: int = client.transport._child.pid  # type: ignore[attr-defined]
        os.killpg(child, signal.SIGKILL)
        with pytest.raises(mhsd.TransportError, match="the events have ended"):
            subscription.get(PATIENCE_S)
        client.transport._closed = True  # type: ignore[attr-defined] # Its end was meant and is no failure.


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_events_come_over_tls_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = certificate(tmp_path, "server", "127.0.0.1")
    daemon = Daemon("conveyor-workcell", "--tls-cert", str(cert), "--tls-key", str(key), cwd=tmp_path)
    monkeypatch.setenv("MHS_CA_FILE", str(cert))
    try:
        with mhsd.connect(daemon.url) as client, client.session() as session:
            subscription = session.subscribe({"stream": "state", "resource_id": "world"})
            steps(session, 3)
            assert [event.payload["tick"] for event in states(subscription, 3)] == [1, 2, 3]
            assert subscription.close()["delivered"] == 3
    finally:
        assert daemon.stop() == 0


async def aside(work: Any, *arguments: Any) -> Any:
    """What blocks, in a thread, so that the proxy goes on."""
    return await trio.to_thread.run_sync(functools.partial(work, *arguments))


def port_of(lab: Lab) -> int:
    return int(lab.ready["url"].rsplit(":", 1)[1])


async def test_a_stream_that_is_cut_goes_on_where_it_was(tmp_path: Path) -> None:
    """[TPT-061, TPT-063, TPT-064]"""
    with running("http", tmp_path) as lab:
        async with open_proxy(port_of(lab)) as proxy:
            await aside(_goes_on_where_it_was, proxy, lab.ready["url"], trio.lowlevel.current_trio_token())


def _goes_on_where_it_was(proxy: Proxy, url: str, token: trio.lowlevel.TrioToken) -> None:
    with (
        mhsd.connect(url) as direct,
        direct.session() as working,
        mhsd.connect(f"http://127.0.0.1:{proxy.port}") as client,
        client.session() as session,
    ):
        subscription = session.subscribe({"stream": "state", "resource_id": "world"})
        steps(working, 2)
        seen = states(subscription, 2)
        for _ in range(3):
            trio.from_thread.run_sync(proxy.cut, trio_token=token)
            steps(working, 2)
            seen += states(subscription, 2)
    first = subscription.granted["seq_start"]
    assert [event.seq for event in seen] == list(range(first, first + 8))
    assert [event.payload["tick"] for event in seen] == list(range(1, 9))


async def test_what_fell_off_while_a_client_was_away_is_a_gap(tmp_path: Path) -> None:
    """[TPT-063, EVT-007] And the state is read before what comes after it is trusted."""
    with running("http", tmp_path, "--event-buffer", "4") as lab:
        async with open_proxy(port_of(lab)) as proxy:
            await aside(_tells_of_a_gap, proxy, lab.ready["url"], trio.lowlevel.current_trio_token())


def _tells_of_a_gap(proxy: Proxy, url: str, token: trio.lowlevel.TrioToken) -> None:
    def away() -> None:
        proxy.refusing = True
        proxy.cut()

    def back() -> None:
        proxy.refusing = False

    with (
        mhsd.connect(url) as direct,
        direct.session() as working,
        mhsd.connect(f"http://127.0.0.1:{proxy.port}") as client,
        client.session() as session,
    ):
        subscription = session.subscribe({"stream": "state", "resource_id": "world"})
        steps(working, 1)
        seen = states(subscription, 1)
        trio.from_thread.run_sync(away, trio_token=token)
        steps(working, 10)
        trio.from_thread.run_sync(back, trio_token=token)
        while not seen[-1].is_gap:
            assert not subscription.state_is_unknown
            seen.append(told(subscription))
        assert subscription.state_is_unknown
        (read,) = subscription.reconcile()
        assert not subscription.state_is_unknown
        assert (read.payload["tick"], read.seq, read["client"]) == (11, seen[-1].seq, True)
        assert read["revision"] == session.read("world")["revision"]
        while seen[-1].payload.get("tick") != 11:
            seen.append(told(subscription))
    (gap,) = [event for event in seen if event.is_gap]
    expected = subscription.granted["seq_start"]
    for event in seen:
        assert (event["from"] if event.is_gap else event.seq) == expected
        expected = event.seq + 1
    assert gap["dropped"] == gap["to"] - gap["from"] + 1 > 0


async def test_a_command_whose_connection_is_cut_is_looked_up_and_runs_once(tmp_path: Path) -> None:
    """[TPT-062]"""
    with running("http", tmp_path) as lab:
        async with open_proxy(port_of(lab)) as proxy:
            await aside(_runs_once, proxy, lab, trio.lowlevel.current_trio_token())


def _runs_once(proxy: Proxy, lab: Lab, token: trio.lowlevel.TrioToken) -> None:
    def when_running() -> None:
        direct = mhsd.connect(lab.ready["url"])
        with direct, direct.session() as session:
            ask_until(lambda: session.read("belt")["state"]["running"], bool)
        trio.from_thread.run_sync(proxy.cut, trio_token=token)

    with mhsd.connect(f"http://127.0.0.1:{proxy.port}") as client, client.session() as session:
        cutting = threading.Thread(target=when_running)
        cutting.start()
        receipt = session.invoke(CONVEY, {"distance_mm": 300, "speed_mm_s": 200}, wait=True)
        cutting.join()
        assert receipt.status == "completed"
        executed = [each["command_id"] for each in session.export_evidence()["receipts"]]
        assert executed == [receipt["command_id"]]
