"""The Trio client behind a bad network: nothing runs twice, and nothing is lost without a word [TPT-061 to TPT-064]."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio

from mhsd.aclient import AsyncClient, AsyncSession, AsyncSubscription, open_client
from mhsd.client.documents import Event
from mhsd.client.errors import MHSError, OutcomeUnknown, TransportError
from tests.bindings.proxy import Proxy, open_proxy
from tests.lab import CONVEYOR, PATIENCE_S, Lab, running, ulid

UNHURRIED = ("--rate-per-s", "100000", "--rate-burst", "100000", "--log-level", "warning")
STEP = "cap.world.step.v1"
SLOW = {"capability_id": "cap.motion.convey.v1", "input": {"distance_mm": 100, "speed_mm_s": 200}}
KEPT_EVENTS = 16


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A daemon that keeps few events, so that a gap is soon there."""
    options = (*UNHURRIED, "--event-buffer", str(KEPT_EVENTS))
    with running("http", tmp_path_factory.mktemp("network"), *options) as lab:
        yield lab


@pytest.fixture
async def direct(daemon: Lab) -> AsyncIterator[AsyncClient]:
    """A client that the network does nothing to."""
    async with open_client(daemon.ready["url"]) as client:
        yield client


@pytest.fixture
async def proxy(daemon: Lab) -> AsyncIterator[Proxy]:
    async with open_proxy(int(daemon.ready["url"].rsplit(":", 1)[1])) as proxy:
        yield proxy


@pytest.fixture(params=["http", "ws"])
async def client(request: pytest.FixtureRequest, proxy: Proxy) -> AsyncIterator[AsyncClient]:
    """A client behind the proxy."""
    async with open_client(f"{request.param}://127.0.0.1:{proxy.port}") as client:
        yield client


async def executions_of(client: AsyncClient, command_id: str) -> list[str]:
    """The statuses of the receipts that the chain has of a command."""
    receipts = (await client.export_evidence())["receipts"]
    return [receipt["status"] for receipt in receipts if receipt["command_id"] == command_id]


# Commands.


async def test_a_command_whose_answer_is_cut_off_is_looked_up(
    client: AsyncClient, direct: AsyncClient, proxy: Proxy
) -> None:
    """[TPT-062] It runs once, and its receipt is told."""
    async with client.session() as session:
        for cut_after in (0, 10, 200):
            command_id = ulid()
            proxy.to_client.cut_after = cut_after
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_mend, proxy)
                with trio.fail_after(PATIENCE_S):
                    receipt = await session.invoke(STEP, {"ticks": 1}, command_id=command_id, wait=True)
                nursery.cancel_scope.cancel()
            assert (receipt.status, receipt["command_id"]) == ("completed", command_id)
            assert await executions_of(direct, command_id) == ["completed"]


async def _mend(proxy: Proxy) -> None:
    """Lets bytes pass again once the connections are gone."""
    await proxy.until_idle()
    proxy.to_client.cut_after = proxy.to_endpoint.cut_after = None


async def test_a_command_that_was_cut_off_on_its_way_is_unknown_and_did_not_run(
    client: AsyncClient, direct: AsyncClient, proxy: Proxy
) -> None:
    """[TPT-062, TPT-055]"""
    async with client.session() as session:
        command_id = ulid()
        proxy.to_endpoint.cut_after = 30
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_mend, proxy)
            with trio.fail_after(PATIENCE_S), pytest.raises(OutcomeUnknown) as unknown:
                await session.invoke(STEP, {"ticks": 1}, command_id=command_id)
            nursery.cancel_scope.cancel()
        assert unknown.value.details == {
            "command_id": command_id,
            "device_id": CONVEYOR,
            "session_id": session.session_id,
            "looked_up": "MHS.OPERATION.UNKNOWN",
        }
        assert await executions_of(direct, command_id) == []
        done = await session.invoke(STEP, {"ticks": 1}, command_id=command_id)
        assert done.status == "completed", "the session goes on, and its caller may send it now"


async def test_a_cut_in_the_middle_of_a_command_finds_the_operation_and_follows_it(
    client: AsyncClient, direct: AsyncClient, proxy: Proxy
) -> None:
    """[TPT-061, TPT-062]"""
    finals = []
    async with client.session() as session:
        command_id = ulid()
        params = {**SLOW, "command_id": command_id}

        async def convey() -> None:
            finals.append(await session.invoke(**params, wait=True))

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(convey)
                observer = AsyncSession(direct, session.session_id, [CONVEYOR])
                while await observer.look_up(command_id) is None:
                    pass
                proxy.cut()
    assert [final.status for final in finals] == ["completed"]
    assert await executions_of(direct, command_id) == ["completed"]


async def test_a_question_whose_connection_breaks_is_asked_once_more(
    client: AsyncClient, proxy: Proxy
) -> None:
    async with client.session() as session:
        proxy.to_client.cut_after = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_mend, proxy)
            with trio.fail_after(PATIENCE_S):
                assert (await session.read("world"))["state"]
            nursery.cancel_scope.cancel()


async def test_an_endpoint_that_is_gone_is_told_at_once(client: AsyncClient, proxy: Proxy) -> None:
    session = await client.session()
    proxy.refusing = True
    proxy.cut()
    with trio.fail_after(PATIENCE_S), pytest.raises((TransportError, OutcomeUnknown)):
        await session.read("world")
    proxy.refusing = False
    await session.close()


async def test_a_connection_that_began_without_a_hello_gets_one_when_it_is_needed(
    client: AsyncClient,
) -> None:
    assert (await client.call("mhs.safety.status", {"device_id": CONVEYOR}))["device_id"] == CONVEYOR
    async with client.session() as session:
        assert (await session.read("world"))["state"]


async def test_bytes_that_come_singly_make_no_difference(client: AsyncClient, proxy: Proxy) -> None:
    proxy.to_client.split = proxy.to_endpoint.split = 3
    async with client.session() as session, session.subscribe("state") as states:
        done = await session.invoke(STEP, {"ticks": 1})
        event = await _next(states)
        assert event["revision"] == done.revision


async def test_what_the_network_doubles_runs_once(
    client: AsyncClient, direct: AsyncClient, proxy: Proxy
) -> None:
    """[TPT-062]"""
    async with client.session() as session:
        await session.read("world")
        proxy.to_endpoint.copies = 2
        command_id = ulid()
        with trio.fail_after(PATIENCE_S):
            receipt = await session.invoke(**SLOW, command_id=command_id, wait=True)
        assert receipt.status == "completed"
        proxy.to_endpoint.copies = 1
        assert (await session.read("world"))["revision"] == receipt.revision
    assert await executions_of(direct, command_id) == ["completed"]


async def test_answers_that_the_network_doubles_are_each_taken_once(
    client: AsyncClient, direct: AsyncClient, proxy: Proxy
) -> None:
    """[TPT-062] An answer that comes again is not the answer to what is asked next."""
    session = await client.session()
    await session.read("world")
    proxy.to_client.copies = 2
    with trio.fail_after(PATIENCE_S):
        receipts = [await session.invoke(STEP, {"ticks": 1}, wait=True) for _ in range(5)]
    assert [receipt.status for receipt in receipts] == ["completed"] * 5
    for receipt in receipts:
        assert await executions_of(direct, receipt["command_id"]) == ["completed"]
    session.forget()
    await AsyncSession(direct, session.session_id, [CONVEYOR]).close()


async def test_an_emergency_stop_does_not_wait_for_a_connection_that_is_stuck(
    client: AsyncClient, direct: AsyncClient, proxy: Proxy
) -> None:
    async with client.session() as session, trio.open_nursery() as nursery:
        await session.read("world")
        proxy.to_endpoint.delay_s = 0.2
        nursery.start_soon(_read, session)
        with trio.fail_after(PATIENCE_S):
            before = proxy.connections
            receipt = await client.estop("test")
        assert proxy.connections == before + 1, "it had a connection of its own"
        proxy.to_endpoint.delay_s = 0
        assert receipt.output["latched"] is True
        assert (await direct.reset()).status == "completed"
        nursery.cancel_scope.cancel()


async def _read(session: AsyncSession) -> None:
    await session.read("world")


# Events.


async def _next(subscription: AsyncSubscription) -> Event:
    with trio.fail_after(PATIENCE_S):
        return await anext(subscription)


async def _to_its_end(subscription: AsyncSubscription) -> None:
    with trio.fail_after(PATIENCE_S):
        async for _ in subscription:
            continue


@asynccontextmanager
async def _cut_off(
    proxy: Proxy, direct: AsyncClient, binding: str
) -> AsyncIterator[tuple[AsyncSubscription, AsyncSession]]:
    """A subscription behind the proxy, and a session that nothing is in the way of."""
    async with (
        open_client(f"{binding}://127.0.0.1:{proxy.port}") as client,
        client.session() as session,
        session.subscribe("state") as states,
        direct.session() as other,
    ):
        yield states, other


async def test_a_stream_that_is_cut_goes_on_without_a_hole(proxy: Proxy, direct: AsyncClient) -> None:
    """[TPT-061, TPT-063, TPT-018] Server-sent events are resumed where they stopped."""
    async with _cut_off(proxy, direct, "http") as (states, other):
        seen = []
        for _ in range(3):
            await other.invoke(STEP, {"ticks": 1})
            seen.append(await _next(states))
            proxy.cut()
            await other.invoke(STEP, {"ticks": 1})
            seen.append(await _next(states))
    assert [event.seq for event in seen] == [1, 2, 3, 4, 5, 6]
    assert not any(event.is_gap for event in seen)


async def test_two_subscriptions_over_one_stream_are_both_resumed(proxy: Proxy, direct: AsyncClient) -> None:
    """[TPT-063] Only one of them can be named in Last-Event-ID; what the other gets again is left out."""
    kinds = {"kinds": ["operation.dispatched"]}
    seqs: tuple[list[int], list[int]] = ([], [])
    async with (
        open_client(f"http://127.0.0.1:{proxy.port}") as client,
        client.session() as session,
        session.subscribe("state") as states,
        session.subscribe("events", filter=kinds) as events,
        direct.session() as other,
    ):
        for _ in range(4):
            await other.invoke(STEP, {"ticks": 1})
            for found, subscription in zip(seqs, (states, events), strict=True):
                event = await _next(subscription)
                assert not event.is_gap
                found.append(event.seq)
            proxy.cut()
        assert await other.invoke(STEP, {"ticks": 1})
        assert (await _next(states)).seq == seqs[0][-1] + 1
    assert all(found == list(range(found[0], found[0] + 4)) for found in seqs)


async def test_what_an_endpoint_kept_no_more_is_a_gap(proxy: Proxy, direct: AsyncClient) -> None:
    """[TPT-063, EVT-008]"""
    async with _cut_off(proxy, direct, "http") as (states, other):
        await other.invoke(STEP, {"ticks": 1})
        first = await _next(states)
        proxy.refusing = True
        proxy.cut()
        for _ in range(3 * KEPT_EVENTS):
            last = await other.invoke(STEP, {"ticks": 1})
        proxy.refusing = False
        gap = await _next(states)
        assert gap.is_gap
        assert gap["from"] == first.seq + 1
        assert gap.payload == {}, "the endpoint itself has said so"
        event = await _next(states)
        assert event.seq == gap.seq + 1
        while event.get("revision") != last.revision:
            event = await _next(states)


async def test_a_websocket_that_is_cut_says_that_something_may_be_missing(
    proxy: Proxy, direct: AsyncClient
) -> None:
    """[TPT-063, EVT-007] What was on its way cannot be had again, so that state is read anew."""
    async with _cut_off(proxy, direct, "ws") as (states, other):
        await other.invoke(STEP, {"ticks": 1})
        assert (await _next(states)).seq == 1
        proxy.cut()
        assert not states.state_is_unknown
        gap = await _next(states)
        assert gap.is_gap
        assert gap.payload == {"client": True}
        assert states.state_is_unknown
        found = {event["resource_id"]: event for event in await states.reconcile()}
        assert not states.state_is_unknown
        assert found.keys() == {"world", "belt", "valve"}
        assert found["world"].payload == (await other.read("world"))["state"]
        assert (found["world"].seq, found["world"]["client"]) == (gap.seq, True)
        done = await other.invoke(STEP, {"ticks": 1})
        events = [await _next(states)]
        while events[-1].get("revision") != done.revision:
            events.append(await _next(states))
        assert events[-1].seq == 2


@pytest.mark.parametrize("binding", ["http", "ws"])
async def test_a_client_gives_up_when_its_attempts_are_spent(proxy: Proxy, binding: str) -> None:
    """[TPT-064]"""
    async with open_client(f"{binding}://127.0.0.1:{proxy.port}", attempts=2) as client:
        session = await client.session()
        subscription = await session.subscribe("state")
        await session.invoke(STEP, {"ticks": 1})
        await _next(subscription)
        proxy.refusing = True
        proxy.cut()
        with pytest.raises(MHSError, match="the events have ended") as ended:
            await _to_its_end(subscription)
        assert ended.value.mhs_code == "MHS.TRANSPORT.UNAVAILABLE"
        proxy.refusing = False
        await subscription.close()
        await session.close()


async def test_a_session_that_is_over_ends_its_subscriptions(proxy: Proxy, direct: AsyncClient) -> None:
    async with open_client(f"http://127.0.0.1:{proxy.port}") as client:
        session = await client.session()
        subscription = await session.subscribe("state")
        await AsyncSession(direct, session.session_id, [CONVEYOR]).close()
        with pytest.raises(MHSError) as ended:
            await _to_its_end(subscription)
        assert ended.value.mhs_code == "MHS.SESSION.CLOSED"
