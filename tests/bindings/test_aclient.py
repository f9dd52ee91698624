"""The Trio client against a whole endpoint, over every way there is to it: one suite for all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mhsd.aclient import AsyncClient, AsyncSession, open_client
from mhsd.client.documents import Event, Receipt
from mhsd.client.errors import AuthError, MHSError, OutcomeUnknown, SessionError, TransportError
from mhsd.client.receipts import is_final
from mhsd.client.stdio import ChildFailed
from mhsd.config import Limits
from mhsd.driver.loader import load_target
from mhsd.protocol.dispatch import Dispatch
from mhsd.protocol.peer import Peer, Principal
from mhsd.services.endpoint import open_endpoint
from mhsd.store import open_store
from tests.lab import CONVEYOR, MHSD, PATIENCE_S, Lab, running

UNHURRIED = ("--rate-per-s", "100000", "--rate-burst", "100000", "--log-level", "warning")
STEP = "cap.world.step.v1"
CONVEY = "cap.motion.convey.v1"
PURGE = "cap.actuation.purge.v1"
FAR = {"distance_mm": 10_000, "speed_mm_s": 100}

Connect = Callable[..., AbstractAsyncContextManager[AsyncClient]]


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One daemon for everything that has an address."""
    with running("http", tmp_path_factory.mktemp("aclient"), *UNHURRIED) as lab:
        yield lab


def socket_of(lab: Lab) -> str:
    """The address of a daemon's local socket."""
    (path,) = (lab.stderr_file.parent / "run").glob("*.sock")
    return f"unix:{path}"


@asynccontextmanager
async def in_process(**more: Any) -> AsyncIterator[AsyncClient]:
    """A client of an endpoint of this process. What the block raises leaves without the endpoint's group around it."""
    failure: MHSError | None = None
    device = load_target("conveyor-workcell", backend="fake", options={})
    endpoint_id, at = "mhs://localhost:7400", "2026-10-20T07:45:00.000Z"
    peer = Peer(Principal("human:ann", "human"), "operator", "http", rate_exempt=True)
    async with (
        open_store(None, endpoint_id=endpoint_id, mhs_version="1.0", created_at=at) as store,
        open_endpoint(endpoint_id=endpoint_id, devices=[device], store=store, limits=Limits()) as endpoint,
        open_client(Dispatch(endpoint), peer=peer, **more) as client,
    ):
        try:
            yield client
        except MHSError as problem:
            failure = problem
    if failure is not None:
        raise failure


@pytest.fixture(params=["inproc", "stdio", "http", "unix", "ws"])
def connect(request: pytest.FixtureRequest) -> Connect:
    """Opens a client of an endpoint with a conveyor, one way after the other."""
    if request.param == "inproc":
        return in_process
    if request.param == "stdio":
        return lambda **more: open_client([str(MHSD), "conveyor-workcell", "--stdio", *UNHURRIED], **more)
    lab: Lab = request.getfixturevalue("daemon")
    place = {"http": lab.ready["url"], "unix": socket_of(lab), "ws": lab.ready.get("ws_url")}[request.param]
    return lambda **more: open_client(place, **more)


async def running_receipt(session: AsyncSession, command_id: str) -> Receipt:
    """The receipt of a command that another task has sent, once it runs."""
    with trio.fail_after(PATIENCE_S):
        while True:
            receipt = await session.look_up(command_id)
            if receipt is not None:
                return receipt


async def test_receipts_are_returned_whatever_they_say(connect: Connect) -> None:
    """[TPT-055] A refusal is an outcome, not an exception."""
    async with connect() as client, client.session() as session:
        before = await session.read("world")
        done = await session.invoke(STEP, {"ticks": 2})
        assert (done.status, done.output["tick"]) == ("completed", before["state"]["tick"] + 2)
        refused = await session.invoke(CONVEY, {"distance_mm": 10, "speed_mm_s": 900})
        assert (refused.status, refused.mhs_code) == ("rejected", "MHS.SAFETY.ENVELOPE_VIOLATION")
        stale = await session.invoke(STEP, {"ticks": 1}, expected_revision=before["revision"])
        assert (stale.status, stale.mhs_code) == ("rejected", "MHS.CONFLICT.REVISION")
        again = await session.invoke(STEP, {"ticks": 2}, command_id=done["command_id"])
        assert (again["receipt_id"], again["replayed"]) == (done["receipt_id"], True)


async def test_what_was_negotiated_and_what_a_device_is_are_told(connect: Connect) -> None:
    """[TPT-056]"""
    async with connect() as client:
        hello = await client.hello()
        assert hello["mhs_version"] == "1.0"
        assert hello["conformance"] == []
        assert hello["limits"]["max_command_deadline_ms"] > 0
        (device,) = await client.devices()
        assert (device.device_id, device.mode, device.risk_class) == (CONVEYOR, "simulated", "R1")
        assert device.fidelity_gaps
        assert (await client.device("conveyor-workcell"))["resources"][0]["state"]
        assert await client.find() == CONVEYOR


async def test_failures_of_a_call_are_raised_by_their_group(connect: Connect) -> None:
    """[TPT-055]"""
    async with connect() as client:
        with pytest.raises(MHSError) as unknown:
            await client.call("mhs.devices.get", {"device_id": "mhs://localhost:7400/none"})
        assert unknown.value.mhs_code == "MHS.DEVICE.UNKNOWN"
        gone = AsyncSession(client, "mhs_s_none", [CONVEYOR])
        with pytest.raises(SessionError):
            await gone.read("world")
        with pytest.raises(MHSError, match="names 0 devices"):
            await client.find("press")


async def test_what_a_block_raises_leaves_the_client_as_it_is(connect: Connect) -> None:
    with pytest.raises(SessionError):
        async with connect() as client, client.session():
            await AsyncSession(client, "mhs_s_none", [CONVEYOR]).read("world")


async def test_many_tasks_share_one_client_and_get_their_own_answers(connect: Connect) -> None:
    """[TPT-057]"""
    wanted = ["tick", "door", "estop"] * 10
    found: list[Any] = [None] * len(wanted)

    async def read(session: AsyncSession, index: int) -> None:
        found[index] = list((await session.read("world", fields=[wanted[index]]))["state"])

    async with connect() as client, client.session() as session:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for index in range(len(wanted)):
                    nursery.start_soon(read, session, index)
    assert found == [[name] for name in wanted]


async def test_cancelling_a_call_leaves_the_operation_running(connect: Connect) -> None:
    """[TPT-055] Only `cancel` cancels."""
    async with connect() as client, client.session() as session:
        command_id = client.ulid()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: session.invoke(CONVEY, FAR, command_id=command_id, wait=True))
            receipt = await running_receipt(session, command_id)
            nursery.cancel_scope.cancel()
        assert receipt.operation_id is not None
        assert (await session.operation(receipt.operation_id)).status == "running"
        assert [each["operation_id"] for each in await session.operations("running")] == [
            receipt.operation_id
        ]
        final = await session.wait(await session.cancel(receipt))
        assert (final.status, final["cancellation"]["safe_state_achieved"]) == ("cancelled", True)


async def test_an_operation_is_followed_to_its_final_receipt(connect: Connect) -> None:
    seen: list[Receipt] = []
    async with connect() as client, client.session() as session:
        near = {"distance_mm": 60, "speed_mm_s": 200}
        with trio.fail_after(PATIENCE_S):
            final = await session.invoke(CONVEY, near, deadline_ms=100, wait=True, on_progress=seen.append)
        assert final.status == "completed"
        assert not any(is_final(receipt) for receipt in seen)
        assert await client.wait(final) == final
        late = await session.invoke(CONVEY, FAR, deadline_ms=100)
        if late.status == "running":
            await session.cancel(late)


async def test_an_emergency_stop_goes_ahead_of_everything(connect: Connect) -> None:
    async with connect() as client, client.session() as session:
        command_id = client.ulid()
        finals: list[Receipt] = []

        async def convey() -> None:
            finals.append(await session.invoke(CONVEY, FAR, command_id=command_id, wait=True))

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(convey)
                await running_receipt(session, command_id)
                stopped = await client.estop("a test")
            assert (stopped.status, stopped.output["latched"]) == ("completed", True)
            assert (await session.safety_status())["estop"]["engaged"]
            assert (finals[0].status, finals[0]["cancellation"]["requested_by"]) == (
                "cancelled",
                "endpoint:estop",
            )
            assert (await session.invoke(STEP, {"ticks": 1})).mhs_code == "MHS.SAFETY.ESTOP_LATCHED"
            assert (await session.reset()).status == "completed"


async def next_of(events: AsyncIterator[Event], stream: str) -> Event:
    """The next event of this stream; no gap may come before it."""
    with trio.fail_after(PATIENCE_S):
        async for event in events:
            assert not event.is_gap
            if event.stream == stream:
                return event
    raise AssertionError("the events have ended")


async def test_events_come_in_order_and_without_holes(connect: Connect) -> None:
    async with connect() as client, client.session() as session:
        streams = ["state", {"stream": "progress"}, "events"]
        async with session.subscribe(streams) as subscription:
            seqs = []
            for _ in range(3):
                done = await session.invoke(STEP, {"ticks": 1})
                event = await next_of(subscription, "state")
                assert event["revision"] == done.revision
                assert event.payload["tick"] == done.output["tick"]
                seqs.append(event.seq)
            assert seqs == sorted(set(seqs))
            ended = await subscription.close()
            assert ended["seq_end"] >= seqs[-1]
            assert await subscription.close() == {}
            assert [event async for event in subscription if event.stream == "state"] == []


async def test_two_subscriptions_of_a_session_get_each_what_they_asked_for(connect: Connect) -> None:
    kinds = {"kinds": ["operation.dispatched"]}
    async with (
        connect() as client,
        client.session() as session,
        session.subscribe("state") as states,
        session.subscribe([{"stream": "events"}], filter=kinds) as events,
    ):
        done = await session.invoke(STEP, {"ticks": 1})
        assert (await next_of(states, "state"))["revision"] == done.revision
        assert (await next_of(events, "events")).payload["operation_id"] == done.operation_id


async def test_a_subscription_ends_with_its_session(connect: Connect) -> None:
    async with connect() as client:
        session = await client.session()
        subscription = await session.subscribe("state")
        await session.close()
        with trio.fail_after(PATIENCE_S):
            assert [event async for event in subscription] == []
        await subscription.close()


async def test_the_events_of_a_loop_have_a_subscription_that_ends_with_it(connect: Connect) -> None:
    """[TPT-054] However often, and however it is left."""
    async with connect() as client, client.session() as session:
        for _ in range(3):
            assert [event async for event in session.events("progress", timeout_s=0.01)] == []
        for _ in range(70):
            async with (
                aclosing(session.events("state")) as events,  # type: ignore[type-var]
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(_steps_until, session, nursery.cancel_scope)
                with trio.fail_after(PATIENCE_S):
                    async for event in events:
                        assert event.stream == "state"
                        break
                nursery.cancel_scope.cancel()


async def _steps_until(session: AsyncSession, scope: trio.CancelScope) -> None:
    """Something happens until the scope is cancelled; the first may have been before the subscription."""
    while not scope.cancel_called:
        await session.invoke(STEP, {"ticks": 1})


async def test_what_is_left_of_a_closed_client_says_so(connect: Connect) -> None:
    """[TPT-055] Nothing waits for ever, and nothing ends the program."""
    async with connect() as client:
        with pytest.raises(RuntimeError, match=r"await client\.hello\(\)"):
            assert client.mhs_version
        session = await client.session()
        assert (client.mhs_version, client.conformance) == ("1.0", [])
        subscription = await session.subscribe("state")
    with trio.fail_after(PATIENCE_S):
        assert [event async for event in subscription if event.stream == "state"] == []
        later = AsyncSession(client, session.session_id, [CONVEYOR])
        begun = {"status": "running", "operation_id": "op_1", "session_id": session.session_id}
        for ask in (
            session.heartbeat(),
            session.read("world"),
            session.invoke(STEP, {}),
            later.operations(),
            _opened(client),
        ):
            with pytest.raises(TransportError, match="nothing was sent"):
                await ask
        with pytest.raises(OutcomeUnknown, match="could not be found out"):
            await client.wait(begun)
        assert await subscription.close() == {}


async def _opened(client: AsyncClient) -> None:
    await client.session()


async def test_a_snapshot_is_restored(connect: Connect) -> None:
    async with connect() as client, client.session() as session:
        kept = await session.snapshot()
        await session.invoke(STEP, {"ticks": 5})
        restored = await session.restore(kept)
        assert restored.status == "completed"
        assert (await session.snapshot())["state_hash"] == kept["state_hash"]


async def test_a_field_is_written(connect: Connect) -> None:
    async with connect() as client, client.session() as session:
        for speed_mm_s in (120, 0):
            receipt = await session.write("belt", {"speed_mm_s": speed_mm_s})
            assert receipt.status == "completed"
            assert (await session.read("belt"))["state"]["speed_mm_s"] == speed_mm_s


async def test_an_operator_permits_one_command(connect: Connect) -> None:
    async with connect() as client, client.session() as session:
        purge = {"duration_ms": 50}
        needed = await session.invoke(PURGE, purge)
        assert needed.mhs_code == "MHS.SAFETY.APPROVAL_REQUIRED"
        permit = await session.permit(PURGE, purge)
        used = await session.invoke(PURGE, purge, permit_id=permit["permit_id"], wait=True)
        assert used.status == "completed"


async def test_the_evidence_holds_what_was_done(connect: Connect) -> None:
    async with connect() as client, client.session() as session:
        done = await session.invoke(STEP, {"ticks": 1})
        bundle = await session.export_evidence()
        assert [receipt["receipt_id"] for receipt in bundle["receipts"]] == [done["receipt_id"]]
        assert bundle["truncation"] is None


async def test_a_session_is_closed_even_when_its_program_is_cancelled(connect: Connect) -> None:
    async with connect() as client:
        with trio.CancelScope() as scope:
            async with client.session() as session:
                scope.cancel()
                await trio.sleep_forever()
        with pytest.raises(SessionError) as refused:
            await session.read("world")
        assert refused.value.mhs_code == "MHS.SESSION.CLOSED"


class CancelledAt(trio.abc.Instrument):
    """Cancels the task that makes it when it goes on for the n-th time."""

    def __init__(self, scope: trio.CancelScope, step: int) -> None:
        self._task = trio.lowlevel.current_task()
        self._scope = scope
        self._left = step

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._left -= task is self._task
        if self._left == 0:
            self._scope.cancel()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_task_may_be_cancelled_at_any_step_and_leaves_nothing(connect: Connect) -> None:
    """[TPT-057] No task, no descriptor, no running operation; the client works on."""

    async def work(client: AsyncClient) -> None:
        async with client.session() as session, session.subscribe("state") as states:
            await session.invoke(STEP, {"ticks": 1}, wait=True)
            await states.get(0.01)
            await session.read("world")

    async with connect() as client:
        await work(client)
        # A heartbeat or a stream that is being closed may have one beside those that rest.
        step, cancelled, most_open = 0, True, descriptors() + 3
        while cancelled:
            step += 1
            with trio.CancelScope() as scope:
                instrument = CancelledAt(scope, step)
                trio.lowlevel.add_instrument(instrument)
                try:
                    await work(client)
                finally:
                    trio.lowlevel.remove_instrument(instrument)
            cancelled = scope.cancel_called
            with trio.fail_after(PATIENCE_S):
                while len(client.nursery.child_tasks) > 1 or descriptors() > most_open:
                    await wait_all_tasks_blocked()
        assert step > 5
        async with client.session() as session:
            assert await session.operations("running") == []


# What only some of them have.


@pytest.mark.parametrize("way", ["url", "ws_url"])
async def test_a_program_that_is_cancelled_as_a_whole_stops_what_it_has_begun(daemon: Lab, way: str) -> None:
    """[SESS-006] What the client has of its own is the last to go, so that the session is closed over it."""
    async with open_client(daemon.ready["url"]) as direct, direct.session() as observer:
        with trio.CancelScope() as scope:
            async with open_client(daemon.ready[way]) as client, client.session() as session:
                begun = await session.invoke(CONVEY, FAR, deadline_ms=50)
                scope.cancel()
                await trio.sleep_forever()
        final = await observer.operation(str(begun.operation_id))
        assert (final.status, final["cancellation"]["safe_state_achieved"]) == ("cancelled", True)


async def test_a_child_that_cannot_be_started_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(MHSError, match="cannot start") as refused:
        async with open_client([str(tmp_path / "none"), "--stdio"]):
            pass
    assert refused.value.mhs_code == "MHS.TRANSPORT.UNAVAILABLE"


async def test_a_child_that_dies_says_why() -> None:
    """[TPT-008] Its status is for the operator, and its last words are in the call that it did not answer."""
    program = "import sys; sys.stdin.readline(); print('the motor is gone', file=sys.stderr); sys.exit(3)"
    client_of = open_client([sys.executable, "-c", program])
    client = await client_of.__aenter__()
    with pytest.raises(MHSError, match=r"status 3\): the motor is gone"):
        await client.hello()
    with pytest.raises(ChildFailed, match="ended with status 3"):
        await client_of.__aexit__(None, None, None)


async def test_a_child_that_ignores_the_end_of_its_input_is_told_and_then_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[TPT-009]"""
    monkeypatch.setattr("mhsd.aclient.stdio.STOP_GRACE_S", 0.3)
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('told', file=sys.stderr, flush=True))\n"
        "request_id = sys.stdin.readline().split('\"id\":\"')[1].split('\"')[0]\n"
        'print(\'{"jsonrpc":"2.0","id":"%s","result":{"mhs_version":"1.0"}}\' % request_id)\n'
        "while True: time.sleep(1)\n"
    )
    with trio.fail_after(PATIENCE_S), pytest.raises(ChildFailed, match=r"status -9\n  told"):
        async with open_client([sys.executable, "-u", "-c", program]) as client:
            await client.hello()


async def test_a_child_that_never_answers_has_failed_to_start_and_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[TPT-007]"""
    monkeypatch.setattr("mhsd.aclient.stdio.STOP_GRACE_S", 3600.0)
    program = "import threading; threading.Event().wait()"

    async def ask_in_vain() -> None:
        async with open_client([sys.executable, "-c", program], timeout_s=0.01) as client:
            with pytest.raises(OutcomeUnknown):
                await client.hello()

    with trio.fail_after(PATIENCE_S), pytest.raises(ChildFailed, match="status -15"):
        await ask_in_vain()


async def test_plain_http_to_another_machine_is_refused() -> None:
    """[TPT-013]"""
    for place in ("http://lab.example:7400", "ws://lab.example:7400"):
        with pytest.raises(AuthError):
            async with open_client(place):
                pass
