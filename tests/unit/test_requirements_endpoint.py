"""What only shows inside the endpoint: its own failures, slow disks, crashed drivers, and the passing of hours.

The whole endpoint serves the conveyor here, on Trio's test clock and with a store that needs no thread.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mhsd.base.errors import Fault
from mhsd.base.resources import METHODS
from mhsd.config import Limits
from mhsd.driver import Busy, DriverFailed, LinkDown, OutcomeUnknown, Reading
from mhsd.driver.loader import LoadedDevice, load_target
from mhsd.protocol.answers import Exchange
from mhsd.protocol.dispatch import Dispatch
from mhsd.protocol.methods import HANDLERS
from mhsd.protocol.peer import Peer, Principal
from mhsd.services import carriage
from mhsd.services.device_host import DeviceHost
from mhsd.services.endpoint import Endpoint, open_endpoint
from mhsd.services.session_host import REMEMBER_S
from mhsd.store import Receipt, open_store
from mhsd.store.writer import Ticket
from tests.documents import check_error, check_result

ENDPOINT = "mhs://localhost:7400"
CONVEYOR = f"{ENDPOINT}/lab/conveyor-workcell"
STEP = {"capability_id": "cap.world.step.v1", "input": {"ticks": 1}}
WAIT = {"deadline_ms": 30_000}


class Bench:
    """The endpoint as a client of one principal sees it, and what is behind it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._door = Dispatch(endpoint)
        self._peer = Peer(Principal("human:ann", "human"), "operator", "http", rate_exempt=True)
        self._number = 0

    @property
    def host(self) -> DeviceHost:
        """That of the only device."""
        (device,) = self.endpoint.devices.values()
        return device.host

    async def ask(self, method: str, **params: Any) -> Any:
        """The result of a call, or its error object, each checked against its schema."""
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        entered = self._door.begin(json.dumps(message).encode(), self._peer)
        exchange: Exchange = await entered if isinstance(entered, Awaitable) else entered
        assert exchange.body is not None
        answer = json.loads(exchange.body)
        if "error" in answer:
            check_error(answer["error"])
            return answer["error"]
        check_result(method, answer["result"])
        return answer["result"]

    async def open(self, ttl_s: int = 86_400) -> str:
        asked = {
            "device_ids": [self.host.device_id],
            "capabilities": ["*"],
            "mode": "simulated",
            "ttl_s": ttl_s,
        }
        session_id: str = (await self.ask("mhs.session.open", **asked))["session_id"]
        return session_id

    async def step(self, session_id: str, **more: Any) -> Any:
        self._number += 1
        command_id = f"01J8ZQ3V6Y7M2N4P6R8S0T{self._number:04}"
        params = {"session_id": session_id, "command_id": command_id, **STEP, **WAIT, **more}
        return await self.ask("mhs.command", **params)

    async def code_of(self, method: str, **params: Any) -> str:
        """The MHS code of the error that the call must end in."""
        code: str = (await self.ask(method, **params))["data"]["mhs_code"]
        return code


@asynccontextmanager
async def served(
    device: LoadedDevice | None = None, *, state_dir: Path | None = None
) -> AsyncIterator[Bench]:
    device = device or load_target("conveyor-workcell", backend="fake", options={})
    at = "2026-10-20T07:45:00.000Z"
    async with (
        open_store(state_dir, endpoint_id=ENDPOINT, mhs_version="1.0", created_at=at, inline=True) as store,
        open_endpoint(endpoint_id=ENDPOINT, devices=[device], store=store, limits=Limits()) as endpoint,
    ):
        yield Bench(endpoint)


def test_every_served_method_has_a_handler_and_no_other_has() -> None:
    """[MHSD-2-05]"""
    assert set(HANDLERS) == {name for name, row in METHODS.items() if row.served}


# The outcome of a call, where the endpoint itself fails.


async def test_a_failure_of_the_endpoint_after_the_call_is_a_failed_receipt_that_tells_its_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[CORE-071, PROTO-042]"""
    make, failures = carriage.final_entry, [ArithmeticError("a secret of the machine")]

    def final_entry(*given: Any) -> Receipt:
        if failures:
            raise failures.pop()
        return make(*given)

    monkeypatch.setattr("mhsd.services.executions.final_entry", final_entry)
    async with served() as bench:
        session_id = await bench.open()
        receipt = await bench.step(session_id)
        assert (receipt["status"], receipt["error"]["mhs_code"]) == ("failed", "MHS.INTERNAL.ERROR")
        assert receipt["error"]["details"] == {"exception_type": "ArithmeticError"}
        assert receipt["error"]["retryable"] is False
        assert "secret" not in json.dumps(receipt)
        assert (await bench.step(session_id))["status"] == "completed", "and nothing else is held up"


async def test_a_state_that_cannot_be_read_afterwards_counts_as_changed_and_is_never_completed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """[OP-009, OP-014]"""
    async with served() as bench:
        session_id = await bench.open()
        driver, reads = bench.host.driver, 0
        read = driver.read

        async def read_once(resource_ids: Sequence[str]) -> Reading:
            nonlocal reads
            reads += 1
            if reads > 1:
                await trio.sleep_forever()
            return await read(resource_ids)

        driver.read = read_once  # type: ignore[method-assign]
        before = bench.host.revision
        receipt = await bench.step(session_id)
        assert (receipt["status"], receipt["error"]["mhs_code"]) == ("unknown", "MHS.OUTCOME.UNKNOWN")
        assert receipt["error"]["details"]["reason"] == "state_unreadable"
        assert (receipt["state_revision_before"], receipt["state_revision_after"]) == (before, before + 1)
        assert "state_hash_after" not in receipt
        assert "output" not in receipt


@pytest.mark.parametrize(
    ("signal", "mhs_code", "details"),
    [
        (OutcomeUnknown("no answer to MEAS:VOLT?"), "MHS.OUTCOME.TIMEOUT", {"reason": "read_timeout"}),
        (LinkDown("the cable is out"), "MHS.DEVICE.FAULT", {"reason": "link_down"}),
        (Busy(40, "it warms up"), "MHS.DEVICE.BUSY", {"retry_after_ms": 40}),
        (DriverFailed("MHS.DEVICE.FAULT", "overload", "-241"), "MHS.DEVICE.FAULT", {"native_code": "-241"}),
    ],
)
async def test_what_a_driver_says_of_a_read_is_named(
    signal: Exception, mhs_code: str, details: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    """A read has no outcome that could be unknown; an instrument that is silent is late."""
    async with served() as bench:
        session_id = await bench.open()

        async def read(resource_ids: Sequence[str]) -> Reading:
            raise signal

        bench.host.driver.read = read  # type: ignore[method-assign]
        with pytest.raises(Fault) as refused:
            await bench.host.read(("belt",))
        assert (refused.value.mhs_code, refused.value.details) == (mhs_code, details)
        receipt = await bench.step(session_id)
        assert (receipt["status"], receipt["error"]["mhs_code"]) == ("rejected", mhs_code)


# Slow disks.


async def test_a_stop_answers_after_two_seconds_although_the_disk_does_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """[MHSD-5-08, SAFE-002]"""
    async with served() as bench:
        put = bench.endpoint.store.put

        def hangs(*entries: Any) -> Ticket:
            return Ticket(put(*entries).receipts)

        bench.endpoint.store.put = hangs  # type: ignore[method-assign]
        began_mono_s = trio.current_time()
        receipt = await bench.ask("mhs.safety.estop", reason="smoke")
        assert trio.current_time() - began_mono_s == pytest.approx(2, abs=0.01)
        assert receipt["status"] == "completed"
        assert receipt["evidence"] == {"pending": True}
        assert receipt["output"]["latched"] is True
        assert receipt["output"]["latch_durable"] is False
        recorded = (await bench.ask("mhs.evidence.export"))["receipts"]
        assert [each["receipt_id"] for each in recorded] == [receipt["receipt_id"]], (
            "it is recorded all the same"
        )


async def test_the_next_command_runs_while_the_receipt_of_the_last_one_is_written() -> None:
    """[MHSD-4-19] The reply waits for the disk, the device does not."""
    async with served() as bench:
        session_id = await bench.open()
        put, slow = bench.endpoint.store.put, trio.Event()
        released: list[Ticket] = []

        def finals_wait(*entries: Any) -> Ticket:
            ticket = put(*entries)
            if not isinstance(entries[-1], Receipt) or slow.is_set():
                return ticket
            released.append(Ticket(ticket.receipts))
            return released[-1]

        bench.endpoint.store.put = finals_wait  # type: ignore[method-assign]
        receipts: list[Any] = []

        async def step() -> None:
            receipts.append(await bench.step(session_id))

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(step)
            with trio.fail_after(10):
                while len(released) < 2:
                    await trio.lowlevel.checkpoint()
            assert receipts == [], "no reply comes before its receipt is durable"
            assert bench.host.slot.free
            for ticket in released:
                ticket.succeed()
        assert sorted(receipt["output"]["tick"] for receipt in receipts) == [1, 2]


# Restarts.


@pytest.mark.parametrize("confirmed", [True, False])
async def test_a_device_with_a_command_in_flight_is_made_safe_before_it_is_served_again(
    tmp_path: Path, confirmed: bool
) -> None:
    """[MHSD-4-33, CORE-172]"""
    async with served(state_dir=tmp_path) as bench:
        session_id = await bench.open()
        fault = {"capability_id": "x-cap.sim.fault.v1", "input": {"kind": "hang", "times": 1}}
        await bench.step(session_id, **fault)
        in_flight = await bench.step(session_id, deadline_ms=50)
        assert in_flight["status"] == "unknown"
    device = load_target("conveyor-workcell", backend="fake", options={})
    halts: list[str] = []

    async def halt(reason: str) -> bool:
        halts.append(reason)
        return confirmed

    device.driver.halt = halt  # type: ignore[method-assign]
    async with served(device, state_dir=tmp_path) as bench:
        assert len(halts) == 1, "before anybody can ask"
        session_id = await bench.open()
        interrupted = await bench.ask(
            "mhs.operations.get", session_id=session_id, command_id=in_flight["command_id"], **WAIT
        )
        assert interrupted["error"]["details"]["reason"] == "endpoint_restarted"
        receipt = await bench.step(session_id, command_id="01J8ZQ3V6Y7M2N4P6R8S0T9999")
        if confirmed:
            assert receipt["status"] == "completed"
        else:
            assert receipt["error"]["mhs_code"] == "MHS.DEVICE.UNCONFIRMED"
            looking: dict[str, Any] = {"capability_id": "cap.device.describe.v1", "input": {}}
            looking["command_id"] = "01J8ZQ3V6Y7M2N4P6R8S0T9998"
            assert (await bench.step(session_id, **looking))["status"] == "completed", "looking works"


# Crashed drivers.


@pytest.mark.parametrize("in_a_task", [False, True], ids=["itself", "in a task of its own"])
async def test_no_driver_ends_the_program(in_a_task: bool, autojump_clock: trio.testing.MockClock) -> None:
    """[MHSD-4-20] As vendors' libraries do that call sys.exit where they should raise."""

    async def exits(*_: Any) -> Any:
        if not in_a_task:
            raise SystemExit(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exits_itself)

    async def exits_itself() -> None:
        raise SystemExit(1)

    async with served() as bench:
        session_id = await bench.open()
        driver = bench.host.driver
        read = driver.read
        driver.invoke = exits  # type: ignore[method-assign]
        receipt = await bench.step(session_id)
        assert (receipt["status"], receipt["error"]["mhs_code"]) == ("failed", "MHS.ADAPTER.SHIM_FAILED")
        driver.read = exits  # type: ignore[method-assign]
        asked = {"session_id": session_id, "resource_id": "world", **WAIT}
        assert await bench.code_of("mhs.resource.read", **asked) == "MHS.ADAPTER.SHIM_FAILED"
        driver.read = read  # type: ignore[method-assign]
        driver.reset = exits  # type: ignore[method-assign]
        await bench.ask("mhs.safety.estop", reason="a test")
        await trio.sleep(1)  # On the test clock: a stop of the same instant would be later than the reset.
        reset = {"session_id": session_id, "device_id": bench.host.device_id, **WAIT}
        refused = await bench.ask("mhs.safety.reset", **reset)
        assert (refused["status"], refused["error"]["mhs_code"]) == ("failed", "MHS.ADAPTER.SHIM_FAILED")
        driver.estop = driver.halt = exits  # type: ignore[method-assign]
        assert not await bench.host.halt("a test")
        stopped = await bench.ask("mhs.safety.estop", reason="a test")
        assert stopped["error"]["mhs_code"] == "MHS.SAFETY.SAFE_STATE_UNREACHED"


async def test_a_device_whose_driver_ends_the_program_in_the_background_has_crashed() -> None:
    device = load_target("conveyor-workcell", backend="fake", options={})
    crash = trio.Event()

    async def link() -> None:
        await crash.wait()
        raise SystemExit(1)

    async def open_with_link(nursery: trio.Nursery) -> None:
        nursery.start_soon(link)

    device.driver.open = open_with_link  # type: ignore[method-assign]
    async with served(device) as bench:
        session_id = await bench.open()
        crash.set()
        await trio.testing.wait_all_tasks_blocked()
        refused = await bench.step(session_id)
        assert refused["error"]["mhs_code"] == "MHS.ADAPTER.CRASHED"


async def test_a_device_whose_driver_crashed_is_never_shown_as_it_was() -> None:
    """[PROTO-024, MHSD-9a-47]"""
    device = load_target("conveyor-workcell", backend="fake", options={})
    crash = trio.Event()

    async def link() -> None:
        await crash.wait()
        raise OSError("the link to /dev/ttyUSB0 broke")

    async def open_with_link(nursery: trio.Nursery) -> None:
        nursery.start_soon(link)

    device.driver.open = open_with_link  # type: ignore[method-assign]
    async with served(device) as bench:
        session_id = await bench.open()
        read = {"session_id": session_id, "resource_id": "world", **WAIT}
        assert (await bench.ask("mhs.resource.read", **read))["state"]["tick"] == 0
        crash.set()
        await trio.testing.wait_all_tasks_blocked()
        assert await bench.code_of("mhs.resource.read", **read) == "MHS.ADAPTER.CRASHED"
        refused = await bench.step(session_id)
        assert (refused["status"], refused["error"]["mhs_code"]) == ("rejected", "MHS.ADAPTER.CRASHED")
        assert "ttyUSB0" not in json.dumps(refused)
        status = await bench.ask("mhs.safety.status", **WAIT)
        assert [each["state"] for each in status["interlocks"]] == ["open"], "what is not read is not closed"


@pytest.mark.parametrize("confirms", [True, False])
async def test_a_device_whose_driver_crashed_is_brought_to_its_safe_state(confirms: bool) -> None:
    """[CORE-074, MHSD-4-25]"""
    device = load_target("conveyor-workcell", backend="fake", options={})
    halted: list[str] = []

    async def link() -> None:
        raise OSError("the link broke")

    async def open_with_link(nursery: trio.Nursery) -> None:
        nursery.start_soon(link)

    async def halt(reason: str) -> bool:
        halted.append(reason)
        return confirms

    device.driver.open = open_with_link  # type: ignore[method-assign]
    device.driver.halt = halt  # type: ignore[method-assign]
    async with served(device) as bench:
        await trio.testing.wait_all_tasks_blocked()
        assert "the driver crashed" in halted
        (crashed,) = bench.endpoint.devices.values()
        assert (crashed.host.unconfirmed is None) == confirms


# Polled interlocks.


@pytest.mark.parametrize(("takes_s", "ends"), [(0.9, False), (1.1, True)])
async def test_a_poll_may_be_late_until_what_it_would_show_is_too_old(
    autojump_clock: trio.testing.MockClock, takes_s: float, ends: bool
) -> None:
    """[MHSD-9a-63]"""
    device = load_target("thermal-chamber", backend="fake", options={})
    interlock = device.manifest.safety.interlocks["lid_closed"]
    assert (interlock.watch, interlock.max_age_ms) == ("poll", 1000)
    read = device.driver.read

    async def slow_polls(resource_ids: Sequence[str]) -> Reading:
        if not resource_ids:
            await trio.sleep(takes_s)
        return await read(resource_ids)

    async with served(device) as bench:
        session_id = await bench.open()
        ramp = {"capability_id": "cap.thermal.ramp.v1", "input": {"target_cel": 100, "rate_cel_min": 1}}
        going = await bench.step(session_id, deadline_ms=100, **ramp)
        assert going["status"] == "running"
        device.driver.read = slow_polls  # type: ignore[method-assign]
        await trio.sleep(10)
        asked = {"session_id": session_id, "operation_id": going["operation_id"], **WAIT}
        receipt = await bench.ask("mhs.operations.get", **asked)
        if ends:
            assert (receipt["status"], receipt["error"]["mhs_code"]) == (
                "failed",
                "MHS.SAFETY.INTERLOCK_OPEN",
            )
        else:
            assert receipt["status"] == "running"


# The passing of time.


@pytest.mark.parametrize(
    ("ends", "code"), [("close", "MHS.SESSION.CLOSED"), ("expiry", "MHS.SESSION.EXPIRED")]
)
async def test_an_ended_session_is_remembered_for_an_hour(
    autojump_clock: trio.testing.MockClock, ends: str, code: str
) -> None:
    """[SESS-004, MHSD-9a-44]"""
    async with served() as bench:
        session_id = await bench.open(ttl_s=60)
        if ends == "close":
            await bench.ask("mhs.session.close", session_id=session_id)
        else:
            await trio.sleep(61)
        assert await bench.code_of("mhs.session.heartbeat", session_id=session_id) == code
        await trio.sleep(REMEMBER_S - 10)
        assert await bench.code_of("mhs.session.heartbeat", session_id=session_id) == code
        await trio.sleep(20)
        assert await bench.code_of("mhs.session.heartbeat", session_id=session_id) == "MHS.SESSION.UNKNOWN"


async def test_permits_end_when_their_session_expires(autojump_clock: trio.testing.MockClock) -> None:
    """[SESS-004, SAFE-004]"""
    async with served() as bench:
        session_id = await bench.open(ttl_s=60)
        wanted = {"capability_id": "cap.actuation.purge.v1", "input_digest": "sha256:" + "0" * 64}
        permit = await bench.ask(
            "mhs.safety.permit", session_id=session_id, ttl_s=3600, approvals=[], **wanted
        )
        listed = (await bench.ask("mhs.safety.status", **WAIT))["permits"]
        assert [each["permit_id"] for each in listed] == [permit["permit_id"]]
        await trio.sleep(61)
        assert (await bench.ask("mhs.safety.status", **WAIT))["permits"] == []


@pytest.mark.parametrize("ttl_s", [86_401, 10**13])
async def test_a_permit_cannot_be_asked_for_longer_than_a_session_lives(ttl_s: int) -> None:
    """[SAFE-004, PROTO-028]"""
    async with served() as bench:
        refused = await bench.ask(
            "mhs.safety.permit",
            session_id=await bench.open(),
            capability_id="cap.actuation.purge.v1",
            input_digest="sha256:" + "0" * 64,
            ttl_s=ttl_s,
            approvals=[],
        )
        assert refused["data"]["mhs_code"] == "MHS.PROTOCOL.INVALID_PARAMS"
        assert refused["data"]["details"] == {"field": "ttl_s", "limit": 86_400}


@pytest.mark.parametrize("method", ["mhs.session.heartbeat", "mhs.session.close"])
async def test_a_device_that_is_named_beside_a_session_must_be_one_of_it(method: str) -> None:
    """[MHSD-9a-02]"""
    async with served() as bench:
        session_id = await bench.open()
        other = f"{ENDPOINT}/lab/other"
        assert await bench.code_of(method, session_id=session_id, device_id=other) == "MHS.DEVICE.UNKNOWN"
        assert "data" not in await bench.ask(method, session_id=session_id, device_id=CONVEYOR)
