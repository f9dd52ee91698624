"""Events from their sources to a consumer, inside the endpoint: what black-box tests can only wait for."""

import gc
import logging
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mhsd.config import Limits
from mhsd.core.events import EventFilter, Selection
from mhsd.driver import DriverFailed, Reading
from mhsd.driver.loader import load_target
from mhsd.services.subscriptions import Subscription
from tests.unit.events_lab import CONVEYOR, Client, checked, host_of, of, served

BENCH = str(Path(__file__).parent.parent / "behaviour" / "bench")
STATE = [{"stream": "state"}]
BELT = [{"stream": "telemetry", "resource_id": "belt"}]
CONVEY = "cap.motion.convey.v1"


# State.


async def test_a_command_s_change_is_told_with_the_new_revision_and_hash() -> None:
    """[EVT-005, EVT-001]"""
    async with served() as endpoint:
        client = await Client(endpoint).open()
        grant = await client.subscribe(STATE)
        receipt = await client.step(3)
        (event,) = await client.settled()
        assert event["seq"] == grant["seq_start"]
        assert (event["device_id"], event["resource_id"]) == (CONVEYOR, "world")
        assert event["payload"]["tick"] == 3
        assert event["revision"] == receipt["state_revision_after"]
        read = await client.ask("mhs.resource.read", resource_id="world", deadline_ms=1000)
        assert event["state_hash"] == read["state_hash"]


async def test_a_write_a_stop_a_reset_and_a_restore_are_told(autojump_clock: trio.testing.MockClock) -> None:
    """[EVT-005]"""
    async with served() as endpoint:
        client = await Client(endpoint).open()
        snapshot = await client.ask("mhs.snapshot", device_id=CONVEYOR, deadline_ms=1000)
        await client.subscribe(STATE)
        ulid = endpoint.ids.ulid
        await client.ask(
            "mhs.resource.write",
            resource_id="belt",
            patch={"speed_mm_s": 5},
            command_id=ulid(),
            deadline_ms=1000,
        )
        await client.ask("mhs.safety.estop", reason="test")
        await trio.sleep(0.1)
        await client.ask("mhs.safety.reset", device_id=CONVEYOR, deadline_ms=1000)
        await client.ask(
            "mhs.restore", device_id=CONVEYOR, snapshot=snapshot, command_id=ulid(), deadline_ms=1000
        )
        states = of(client.taken(), "state")
        told = [(event["resource_id"], event["revision"]) for event in states]
        assert told[:3] == [("belt", 1), ("world", 2), ("world", 3)]
        assert {revision for _, revision in told[3:]} == {4}, (
            "a restored state is a new one, whatever it equals"
        )
        assert states[0]["payload"]["speed_mm_s"] == 5
        assert [event["payload"]["estop"] for event in states[1:3]] == ["engaged", "released"]


async def test_what_changes_by_itself_is_told_at_the_next_look(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """[EVT-002]"""
    async with served() as endpoint:
        client = await Client(endpoint).open()
        await client.subscribe(STATE)
        await trio.sleep(1)
        assert client.taken() == []
        host_of(endpoint).driver.world.door = "open"  # type: ignore[attr-defined]
        await trio.sleep(0.5)
        (event,) = client.taken()
        assert event["payload"]["door"] == "open"
        assert event["revision"] == 0, "what moves by itself moves no revision"


async def test_a_change_between_the_subscription_and_the_first_look_is_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """[EVT-008] The state at the subscription is what changes count from."""
    async with served() as endpoint:
        client = await Client(endpoint).open()
        await client.subscribe(STATE)
        host_of(endpoint).driver.world.door = "open"  # type: ignore[attr-defined]
        await trio.sleep(1)
        assert [event["payload"]["door"] for event in client.taken()] == ["open"]


async def test_what_nobody_follows_any_more_is_not_where_later_changes_count_from() -> None:
    """[EVT-005]"""
    async with served() as endpoint:
        client = await Client(endpoint).open()
        feed = host_of(endpoint).feed
        await client.subscribe([{"stream": "state", "resource_id": "world"}])
        belt = await client.subscribe([{"stream": "state", "resource_id": "belt"}])
        assert feed.unknown_states(["belt", "valve", "world"]) == ("valve",)
        await client.ask("mhs.unsubscribe", subscription_id=belt["subscription_id"])
        assert feed.unknown_states(["belt", "valve", "world"]) == ("belt", "valve")
        await client.step()
        assert [event["resource_id"] for event in await client.settled()] == ["world"]


async def test_what_was_read_before_a_command_s_end_does_not_contradict_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """[EVT-005] A slow look that began before a command has nothing to tell after it."""
    async with served() as endpoint:
        client = await Client(endpoint).open()
        await client.subscribe(STATE)
        driver, slow = host_of(endpoint).driver, trio.Event()
        read, held = driver.read, [True]

        async def slow_once(resource_ids: Sequence[str]) -> Reading:
            reading = await read(resource_ids)
            if held and len(resource_ids) == 3:
                held.clear()
                await slow.wait()
            return reading

        driver.read = slow_once  # type: ignore[method-assign]
        await trio.sleep(0.3)
        assert not held, "the look has begun"
        await client.step(7)
        slow.set()
        await trio.sleep(1)
        assert [event["payload"]["tick"] for event in client.taken()] == [7]


async def test_an_interlock_that_opens_by_itself_is_told(autojump_clock: trio.testing.MockClock) -> None:
    """[EVT-005]"""
    async with served() as endpoint:
        client = await Client(endpoint).open()
        await client.subscribe([{"stream": "events"}])
        for state in ("open", "closed"):
            host_of(endpoint).driver.world.door = state  # type: ignore[attr-defined]
            await trio.sleep(1)
        assert [event["payload"] for event in client.taken()] == [
            {"kind": "interlock.opened", "interlock_id": "door_closed", "hard": True},
            {"kind": "interlock.closed", "interlock_id": "door_closed", "hard": True},
        ]


async def test_a_field_that_moves_by_itself_is_told_of_and_moves_neither_revision_nor_hash(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """[PROTO-023, EVT-005]"""
    async with served(load_target(BENCH, backend="fake", options={})) as endpoint:
        client = await Client(endpoint).open()
        await client.subscribe([{"stream": "state", "resource_id": "left"}])
        await trio.sleep(2)
        events = client.taken()
        assert 9 <= len(events) <= 11, "two seconds at 5 Hz"
        assert len({event["payload"]["reads"] for event in events}) == len(events)
        assert len({(event["revision"], event["state_hash"]) for event in events}) == 1


# Telemetry.


async def test_telemetry_comes_at_its_native_rate_and_only_while_the_belt_runs(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """[EVT-002, MHSD-3-08]"""
    async with served() as endpoint:
        client = await Client(endpoint).open()
        await client.subscribe(BELT)
        await trio.sleep(5)
        assert client.taken() == []
        await client.command(CONVEY, {"distance_mm": 200, "speed_mm_s": 100})
        events = client.taken()
        assert 97 <= len(events) <= 101, "two seconds at 50 Hz"
        assert all(event["payload"]["running"] for event in events)
        positions = [event["payload"]["position_mm"] for event in events]
        assert positions == sorted(positions)
        await trio.sleep(5)
        assert client.taken() == []


async def test_rate_hz_is_a_maximum_for_each_resource_and_the_last_value_arrives(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """[EVT-002]"""
    async with served() as endpoint:
        client = await Client(endpoint).open()
        await client.subscribe([{"stream": "progress"}], rate_hz=4)
        await client.command(CONVEY, {"distance_mm": 200, "speed_mm_s": 100})
        events = of(await client.settled(), "progress")
        assert 8 <= len(events) <= 11, "two seconds at 4 Hz, and the last"
        assert events[0]["payload"]["status"] == "running"
        assert events[0]["payload"]["percent"] == 0
        assert (events[-1]["payload"]["status"], events[-1]["payload"]["percent"]) == ("completed", 100)
        await trio.sleep(5)
        assert client.taken() == [], "what the last one has superseded does not follow it"


async def test_each_resource_is_paced_by_itself(autojump_clock: trio.testing.MockClock) -> None:
    """[EVT-002]"""
    async with served() as endpoint:
        client = await Client(endpoint).open()
        await client.subscribe(STATE, rate_hz=1)
        driver: Any = host_of(endpoint).driver
        for number in range(30):
            driver.world.tick = number
            driver.belt.position_mm = number
            await trio.sleep(0.1)
        await trio.sleep(3)
        events = client.taken()
        for name in ("world", "belt"):
            own = [event for event in events if event["resource_id"] == name]
            assert 3 <= len(own) <= 5
        assert [e["payload"]["tick"] for e in events if e["resource_id"] == "world"][-1] == 29


async def test_what_a_look_costs_does_not_grow_with_the_number_of_subscribers() -> None:
    """[EVT-002, EVT-006]"""
    asked = 0

    class Counting:
        principal_id = "human:ann"
        wanted = EventFilter()

        @property
        def rate_hz(self) -> float:
            nonlocal asked
            asked += 1
            return 2.0

        def send(self, tail: bytes, key: Hashable = None, *, last: bool = False) -> None:
            pass

    async with served() as endpoint:
        feed = host_of(endpoint).feed
        crowd = [Counting() for _ in range(100)]
        for each in crowd:
            feed.join(each, [Selection("telemetry", CONVEYOR, "belt"), Selection("state", CONVEYOR, "belt")])
        asked = 0
        assert feed.rates() == {("telemetry", "belt"): 2.0, ("state", "belt"): 2.0}
        assert asked == 0
        for each in crowd:
            feed.leave(each)
        assert feed.rates() == {}


async def test_a_device_is_read_no_more_often_than_anybody_wants_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """[EVT-002] Two subscriptions, one look; none, no look."""
    async with served() as endpoint:
        driver: Any = host_of(endpoint).driver
        read, reads = driver.read, []

        async def counted(resource_ids: Sequence[str]) -> Reading:
            reads.append(tuple(resource_ids))
            reading: Reading = await read(resource_ids)
            return reading

        driver.read = counted
        driver.belt.running = True
        client = await Client(endpoint).open()
        await trio.sleep(10)
        assert len(reads) <= 1, "a session's own look at the interlocks"
        grants = [await client.subscribe(BELT, rate_hz=rate_hz) for rate_hz in (2, 5)]
        reads.clear()
        await trio.sleep(10)
        assert 49 <= len(reads) <= 51
        for grant in grants:
            await client.ask("mhs.unsubscribe", subscription_id=grant["subscription_id"])
        reads.clear()
        await trio.sleep(10)
        assert reads == []


async def test_a_device_that_cannot_be_read_is_told_once_and_its_telemetry_goes_on_when_it_can(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """[EVT-002]"""
    async with served() as endpoint:
        driver: Any = host_of(endpoint).driver
        driver.belt.running = True
        client = await Client(endpoint).open()
        await client.subscribe([*BELT, {"stream": "events"}], rate_hz=2)
        await trio.sleep(1)
        assert of(client.taken(), "telemetry")
        read = driver.read

        async def fails(resource_ids: Sequence[str]) -> Reading:
            raise DriverFailed("MHS.DEVICE.FAULT", "the line is dead")

        async def hangs(resource_ids: Sequence[str]) -> Reading:
            await trio.sleep_forever()
            raise AssertionError

        for broken in (fails, hangs):
            driver.read = broken
            await trio.sleep(100)
            kinds = [event["payload"]["kind"] for event in of(client.taken(), "events")]
            assert kinds == ["device.unreadable"]
            driver.read = read
            await trio.sleep(60)
            events = client.taken()
            assert [event["payload"]["kind"] for event in of(events, "events")] == ["device.readable"]
            assert len(of(events, "telemetry")) > 50


async def test_what_does_not_fit_the_declared_schema_is_not_sent_and_counted(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """[EVT-005]"""
    async with served() as endpoint:
        host = host_of(endpoint)
        driver: Any = host.driver
        client = await Client(endpoint).open()
        await client.subscribe(STATE)
        driver.world.door = "ajar"
        await trio.sleep(1)
        driver.belt.position_mm = float("nan")
        await trio.sleep(1)
        assert client.taken() == []
        assert host.feed.malformed >= 2
        assert "did not fit" in caplog.text
        driver.world.door = "open"
        await trio.sleep(1)
        assert [event["payload"]["door"] for event in client.taken()] == ["open"]


@pytest.mark.parametrize("shown", [5, None, [], {"tick": {1, 2}}, "cyclic"], ids=str)
async def test_a_driver_that_shows_nonsense_ends_neither_its_commands_nor_its_polling(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, shown: Any
) -> None:
    """[EVT-005]"""
    if shown == "cyclic":
        shown = {}
        shown["tick"] = shown
    async with served() as endpoint:
        driver: Any = host_of(endpoint).driver
        client = await Client(endpoint).open()
        await client.subscribe([*STATE, *BELT], rate_hz=1)
        driver.belt.running = True
        read = driver.read

        async def nonsense(resource_ids: Sequence[str]) -> Reading:
            reading: Reading = await read(resource_ids)
            return Reading({**reading.resources, "world": shown, "belt": shown}, reading.interlocks)

        driver.read = nonsense
        client.taken()
        await trio.sleep(3)
        await client.command("cap.actuation.valve.v1", {"open": True})
        await trio.sleep(60)
        assert not {"world", "belt"} & {event.get("resource_id") for event in client.taken()}
        driver.read = read
        await trio.sleep(60)
        assert of(client.taken(), "telemetry")
        assert (await client.step())["status"] == "completed"


@pytest.mark.parametrize("shown", [None, ["door_closed"], "closed"], ids=str)
async def test_a_driver_that_shows_no_interlocks_is_unreadable_and_still_stopped(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, shown: Any
) -> None:
    """[EVT-005, SAFE-002]"""
    async with served() as endpoint:
        driver: Any = host_of(endpoint).driver
        client = await Client(endpoint).open()
        await client.subscribe([{"stream": "events"}])
        read = driver.read

        async def nonsense(resource_ids: Sequence[str]) -> Reading:
            return Reading((await read(resource_ids)).resources, shown)

        driver.read = nonsense
        await trio.sleep(1)
        assert [event["payload"]["kind"] for event in client.taken()] == ["device.unreadable"]
        refused = await client.command("cap.actuation.valve.v1", {"open": True})
        assert (refused["status"], refused["error"]["mhs_code"]) == ("rejected", "MHS.SAFETY.INTERLOCK_OPEN")
        assert (await client.ask("mhs.safety.estop"))["status"] == "completed"
        driver.read = read
        await trio.sleep(10)
        assert "device.readable" in {event["payload"].get("kind") for event in client.taken()}


async def test_no_look_is_taken_while_a_stop_is_under_way(autojump_clock: trio.testing.MockClock) -> None:
    """[CORE-076, EVT-002] A stop shares its line with nobody."""
    async with served() as endpoint:
        driver: Any = host_of(endpoint).driver
        driver.belt.running = True
        client = await Client(endpoint).open()
        await client.subscribe(BELT)
        read, reads, stopped = driver.read, [0], trio.Event()
        estop = driver.estop

        async def counted(resource_ids: Sequence[str]) -> Reading:
            reads[0] += 1
            reading: Reading = await read(resource_ids)
            return reading

        async def slow_stop(reason: str) -> bool:
            await stopped.wait()
            return bool(await estop(reason))

        driver.read, driver.estop = counted, slow_stop
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.ask, "mhs.safety.estop")
            await trio.sleep(0.05)
            reads[0] = 0
            await trio.sleep(3)
            assert reads[0] == 0
            stopped.set()


# Operations, sessions and the log.


async def test_another_principal_learns_of_an_operation_without_its_ids_and_no_progress() -> None:
    """[CORE-151, CORE-184]"""
    async with served() as endpoint:
        ann = await Client(endpoint).open()
        bob = await Client(endpoint, "human:bob").open()
        for client in (ann, bob):
            await client.subscribe([{"stream": "events"}, {"stream": "progress"}])
        await ann.step()
        mine, theirs = await ann.settled(), await bob.settled()
        assert len(of(mine, "progress")) == 2
        assert all("operation_id" in event["payload"] for event in of(mine, "events"))
        assert of(theirs, "progress") == []
        kinds = [event["payload"]["kind"] for event in of(theirs, "events")]
        assert kinds == ["operation.dispatched", "operation.ended"]
        assert not any({"operation_id", "command_id"} & event["payload"].keys() for event in theirs)


async def test_a_filter_lets_through_what_it_names() -> None:
    """[EVT-002]"""
    async with served() as endpoint:
        client = await Client(endpoint).open()
        command_id = endpoint.ids.ulid()
        await client.subscribe([{"stream": "progress"}], filter={"command_id": command_id})
        await client.subscribe(
            [{"stream": "events"}], filter={"kinds": ["operation.ended", "interlock.opened"]}
        )
        await client.subscribe([{"stream": "events", "capability_id": "x-cap.sim.door.v1"}])
        await client.step()
        await client.command("cap.world.step.v1", {"ticks": 1}, command_id=command_id)
        await client.command("x-cap.sim.door.v1", {"closed": False})
        events = await client.settled()
        assert [event["payload"]["command_id"] for event in of(events, "progress")] == [command_id] * 2
        by_subscription: dict[str, list[str]] = {}
        for event in of(events, "events"):
            by_subscription.setdefault(event["subscription_id"], []).append(event["payload"]["kind"])
        kinds, of_door = by_subscription.values()
        assert kinds == ["operation.ended", "operation.ended", "interlock.opened", "operation.ended"]
        assert of_door == ["operation.dispatched", "operation.ended"]


async def test_permits_and_the_sessions_of_others_are_events() -> None:
    """[EVT-005]"""
    async with served() as endpoint:
        ann = await Client(endpoint).open()
        await ann.subscribe([{"stream": "events"}])
        bob = await Client(endpoint, "human:bob").open()
        await bob.ask("mhs.session.close")
        permit = await ann.ask(
            "mhs.safety.permit",
            capability_id="cap.actuation.purge.v1",
            input_digest="sha256:" + "0" * 64,
            ttl_s=10,
        )
        events = [event["payload"] for event in await ann.settled()]
        assert [event["kind"] for event in events] == ["session.opened", "session.ended", "permit.issued"]
        assert events[0]["principal"] == {"id": "human:bob", "kind": "human"}
        assert events[1]["reason"] == "closed"
        assert events[2]["permit_id"] == permit["permit_id"]
        assert bob.session_id not in str(events)


async def test_the_log_has_the_records_about_the_device_and_no_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """[EVT-005, PROTO-042]"""
    caplog.set_level("DEBUG", "mhsd")
    pair = [
        load_target(name, backend="fake", options={}) for name in ("conveyor-workcell", "thermal-chamber")
    ]
    async with served(*pair) as endpoint:
        conveyor, chamber = (device.host for device in endpoint.devices.values())
        client = await Client(endpoint).open(device_ids=[CONVEYOR])
        await client.subscribe([{"stream": "log"}], filter={"min_level": "info"})
        conveyor.driver.log.info("the belt was oiled")
        conveyor.driver.log.debug("not of interest")
        chamber.driver.log.warning("the door of the chamber is warm")
        conveyor.doubt("x" * 5000)
        try:
            raise RuntimeError("a secret")
        except RuntimeError:
            conveyor.driver.log.exception("it failed")
        await trio.to_thread.run_sync(conveyor.driver.log.warning, "from a thread")
        records = [event["payload"] for event in await client.settled()]
        assert [(record["level"], record["message"][:20]) for record in records] == [
            ("info", "the belt was oiled"),
            ("error", f"{CONVEYOR}"[:20]),
            ("error", "it failed"),
            ("warning", "from a thread"),
        ]
        assert all(len(record["message"]) <= 2000 for record in records)
        assert "a secret" not in str(records)


async def test_no_event_holds_what_the_manifest_declares_as_secret() -> None:
    """[EVID-002, EVT-005]"""
    async with served(load_target(BENCH, backend="fake", options={})) as endpoint:
        client = await Client(endpoint).open()
        await client.subscribe([{"stream": "events"}, {"stream": "progress"}, {"stream": "log"}])
        receipt = await client.command("x-cap.test.identify.v1", {})
        assert receipt["redacted_fields"] == ["/output/serial"]
        events = await client.settled()
        assert of(events, "events")
        assert "4711" not in str(events)


# Safety.


async def test_the_log_of_a_device_has_what_its_link_says_of_it(caplog: pytest.LogCaptureFixture) -> None:
    """[EVT-005] A link knows its device by the path alone."""
    caplog.set_level("WARNING", "mhsd")
    async with served(target="scpi-psu") as endpoint:
        driver: Any = host_of(endpoint).driver
        client = await Client(endpoint).open()
        await client.subscribe([{"stream": "log"}])
        logging.getLogger("mhsd.driver.scpi").warning("%s: stop, attempt %d", driver.link.name, 1)
        (told,) = client.taken()
        assert told["payload"]["message"] == "/bench/psu: stop, attempt 1"


async def test_an_emergency_stop_is_in_the_log_of_every_device_that_it_stops(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """[EVT-005]"""
    caplog.set_level("WARNING", "mhsd")
    pair = [
        load_target(name, backend="fake", options={}) for name in ("conveyor-workcell", "thermal-chamber")
    ]
    async with served(*pair) as endpoint:
        client = await Client(endpoint).open()
        await client.subscribe([{"stream": "log"}])
        await client.ask("mhs.safety.estop", reason="test")
        records = of(await client.settled(), "log")
        for device_id in endpoint.devices:
            (mine,) = [event["payload"]["message"] for event in records if event["device_id"] == device_id]
            assert mine == f"EMERGENCY STOP of {device_id} by human:ann"


async def test_safety_events_come_on_control_whatever_was_subscribed_to() -> None:
    """[EVT-005, CORE-184]"""
    async with served() as endpoint:
        client = await Client(endpoint).open()
        await client.subscribe([{"stream": "log"}], filter={"min_level": "error"}, rate_hz=0.001)
        await client.ask("mhs.safety.estop", reason="smoke")
        await client.ask("mhs.safety.reset", device_id=CONVEYOR, deadline_ms=1000)
        events = await client.settled()
        assert [(event["stream"], event["type"]) for event in events] == [("control", "safety")] * 3
        payloads = [event["payload"] for event in events]
        assert [payload["kind"] for payload in payloads] == [
            "estop.engaged",
            "estop.confirmed",
            "estop.reset",
        ]
        assert payloads[0]["reason"] == "smoke"
        assert payloads[1]["safe_state_achieved"] is True
        assert [payload["estop"] for payload in payloads] == ["engaged", "engaged", "released"]


async def test_a_stop_that_is_not_confirmed_is_told_as_such(caplog: pytest.LogCaptureFixture) -> None:
    """[EVT-005, CORE-184]"""
    async with served() as endpoint:
        driver: Any = host_of(endpoint).driver

        async def unconfirmed(reason: str) -> bool:
            return False

        driver.estop = unconfirmed
        client = await Client(endpoint).open()
        await client.subscribe([{"stream": "events"}])
        await client.ask("mhs.safety.estop")
        told = [event["payload"]["kind"] for event in await client.settled()]
        assert sorted(told) == ["device.unconfirmed", "estop.engaged", "estop.unconfirmed"]


# Consumers.


async def test_a_consumer_that_does_not_read_loses_the_oldest_and_is_told_which() -> None:
    """[EVT-006, EVT-008]"""
    async with served(limits=Limits(max_buffered_events=4)) as endpoint:
        client = await Client(endpoint).open()
        start = (await client.subscribe(STATE))["seq_start"]
        for _ in range(10):
            await client.step()
        gap, *rest = await client.settled()
        assert (gap["stream"], gap["type"], gap["payload"]) == ("control", "gap", {})
        assert (gap["from"], gap["to"], gap["dropped"]) == (start, start + 6, 7)
        assert gap["seq"] == gap["to"]
        assert [event["seq"] for event in rest] == [start + 7, start + 8, start + 9, start + 10]
        assert (rest[-1]["type"], rest[-1]["payload"]) == ("backpressure", {"dropped": 7})
        await client.step()
        (event,) = await client.settled()
        assert event["stream"] == "state", "a gap and a lag are told once"


async def test_a_slow_consumer_takes_nothing_from_a_fast_one() -> None:
    """[EVT-006]"""
    async with served(limits=Limits(max_buffered_events=4)) as endpoint:
        client = await Client(endpoint).open()
        session = endpoint.sessions.find(client.session_id, "human:ann")
        grant = await client.subscribe(STATE)
        slow, fast = (endpoint.subscriptions.stream(session) for _ in range(2))
        seen = []
        for _ in range(10):
            await client.step()
            await trio.testing.wait_all_tasks_blocked()
            seen += checked(fast)
        assert [event["payload"]["tick"] for event in seen] == list(range(1, 11))
        assert checked(slow)[0]["type"] == "gap"
        ended = await client.ask("mhs.unsubscribe", subscription_id=grant["subscription_id"])
        assert ended["delivered"] + ended["dropped"] == ended["seq_end"] - grant["seq_start"] + 1
        assert ended["dropped"] == 0, "the fast one had them all"


async def test_unsubscribe_counts_what_was_dropped_and_delivers_nothing_more() -> None:
    """[EVT-004]"""
    async with served() as endpoint:
        client = await Client(endpoint).open()
        grant = await client.subscribe(STATE)
        for _ in range(3):
            await client.step()
        await trio.testing.wait_all_tasks_blocked()
        assert len(client.taken(max_bytes=1)) == 1
        ended = await client.ask("mhs.unsubscribe", subscription_id=grant["subscription_id"])
        assert ended == {"seq_end": grant["seq_start"] + 2, "delivered": 1, "dropped": 2}
        await client.step()
        assert await client.settled() == []
        again = await client.ask("mhs.unsubscribe", subscription_id=grant["subscription_id"])
        assert again["data"]["details"]["reason"] == "subscription_unknown"


async def test_an_ended_subscription_is_forgotten_though_its_next_turn_is_far_away(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """[EVT-006]"""

    def remembered() -> int:
        gc.collect()
        return sum(isinstance(each, Subscription) for each in gc.get_objects())

    async with served() as endpoint:
        client = await Client(endpoint).open()
        before = remembered()
        for rate_hz in (1e-6, 1e-3):
            grant = await client.subscribe(STATE, rate_hz=rate_hz)
            await client.step()
            await client.step()
            assert len(await client.settled()) == 1, "the second is held back"
            await client.ask("mhs.unsubscribe", subscription_id=grant["subscription_id"])
        assert remembered() == before
        await client.subscribe(STATE, rate_hz=1)
        await client.step()
        await client.step()
        await trio.sleep(2)
        assert len(client.taken()) == 2


async def test_a_session_uses_no_seq_twice() -> None:
    """[EVT-001]"""
    async with served() as endpoint:
        client = await Client(endpoint).open()
        used: set[int] = set()
        for _ in range(3):
            grants = [await client.subscribe(STATE) for _ in range(2)]
            assert not used & {grant["seq_start"] for grant in grants}
            assert min(grant["seq_start"] for grant in grants) > max(used, default=0)
            await client.step()
            seqs = [event["seq"] for event in await client.settled()]
            assert len(seqs) == len(set(seqs)) >= 2
            assert not used & set(seqs)
            used |= set(seqs)
            await client.ask("mhs.unsubscribe", subscription_id=grants[0]["subscription_id"])


async def test_what_a_lost_connection_has_left_goes_to_the_one_that_uses_the_session_next() -> None:
    """[TPT-061]"""
    async with served() as endpoint:
        first = await Client(endpoint).open()
        start = (await first.subscribe(STATE))["seq_start"]
        await first.step()
        assert len(await first.settled()) == 1
        first.events.close()
        second, idle = Client(endpoint), Client(endpoint)
        second.session_id = idle.session_id = first.session_id
        await trio.testing.wait_all_tasks_blocked()
        await second.step()
        await second.step()
        await idle.step()
        assert [event["seq"] for event in await second.settled()] == [start + 1, start + 2, start + 3]
        assert idle.taken() == []


async def test_what_a_connection_leaves_late_goes_to_the_one_that_has_used_the_session_meanwhile() -> None:
    """[TPT-061, TPT-063] So it is when a client is back before its old connection is found to be gone."""
    async with served() as endpoint:
        first = await Client(endpoint).open()
        start = (await first.subscribe(STATE))["seq_start"]
        second, third = Client(endpoint), Client(endpoint)
        second.session_id = third.session_id = first.session_id
        for client in (first, second, third, second):
            await client.ask("mhs.session.heartbeat")
        await second.step()
        assert [event["seq"] for event in await first.settled()] == [start]
        await second.step()
        await trio.testing.wait_all_tasks_blocked()
        first.events.close()
        assert [event["seq"] for event in await second.settled()] == [start + 1]
        assert third.taken() == []


async def test_the_reply_comes_before_the_first_event_in_a_batch_too() -> None:
    """[EVT-001]"""
    async with served() as endpoint:
        client = await Client(endpoint).open()
        asked = {"session_id": client.session_id, "deadline_ms": 5000}
        command = {
            **asked,
            "capability_id": "cap.world.step.v1",
            "input": {"ticks": 1},
            "command_id": endpoint.ids.ulid(),
        }
        batch = [
            {"jsonrpc": "2.0", "id": 1, "method": "mhs.subscribe", "params": {**asked, "streams": STATE}},
            {"jsonrpc": "2.0", "id": 2, "method": "mhs.command", "params": command},
        ]
        early: list[Any] = []

        async def take() -> None:
            await client.events.wait()
            early.extend(client.taken())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            await client.send(batch)
            assert early == []
        assert [event["payload"]["tick"] for event in early] == [1]


async def test_a_crowd_of_consumers_is_woken_and_each_gets_everything() -> None:
    """[EVT-006]"""
    async with served() as endpoint:
        client = await Client(endpoint).open()
        session = endpoint.sessions.find(client.session_id, "human:ann")
        await client.subscribe(STATE)
        got: list[int] = []

        async def follow() -> None:
            stream = endpoint.subscriptions.stream(session)
            seen = 0
            while seen < 5:
                await stream.wait()
                seen += len(checked(stream))
            stream.close()
            got.append(seen)

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(follow)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(5):
                await client.step()
        assert got == [5] * 50


# Ends.


async def test_a_subscription_ends_with_its_session_and_its_streams_with_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """[EVT-003, CORE-085]"""
    async with served() as endpoint:
        client = await Client(endpoint).open(ttl_s=5)
        session = endpoint.sessions.find(client.session_id, "human:ann")
        grant = await client.subscribe(STATE)
        assert grant["expires_at"] == session.expires_at
        stream = endpoint.subscriptions.stream(session)
        await client.step()
        await trio.sleep(6)
        await stream.wait()
        assert [event["payload"]["tick"] for event in checked(stream)] == [1]
        assert stream.ended
        assert not host_of(endpoint).feed.wants("state")
        assert (await client.ask("mhs.unsubscribe", subscription_id="sub_x"))["data"]["mhs_code"].endswith(
            "EXPIRED"
        )


async def test_a_session_that_ends_while_its_states_are_read_grants_no_subscription(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """[EVT-003, SESS-004]"""
    async with served() as endpoint:
        driver: Any = host_of(endpoint).driver
        client = await Client(endpoint).open(ttl_s=1)

        async def hangs(resource_ids: Sequence[str]) -> Reading:
            await trio.sleep_forever()
            raise AssertionError

        driver.read = hangs
        await trio.sleep(0.5)
        refused = await client.subscribe(STATE)
        assert refused["data"]["mhs_code"] == "MHS.SESSION.EXPIRED"


async def test_after_a_close_its_connection_gets_nothing_more() -> None:
    """[SESS-006, EVT-003]"""
    async with served() as endpoint:
        client = await Client(endpoint).open()
        await client.subscribe(STATE)
        await client.step()
        await client.ask("mhs.session.close")
        assert await client.settled() == []
        assert not client.events.ended, "the connection itself goes on"


async def test_safety_events_still_go_out_when_the_endpoint_drains(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """[CORE-184, EVT-003]"""
    async with served() as endpoint:
        client = await Client(endpoint).open()
        session = endpoint.sessions.find(client.session_id, "human:ann")
        await client.subscribe([{"stream": "progress"}])
        stream = endpoint.subscriptions.stream(session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.command, CONVEY, {"distance_mm": 10_000, "speed_mm_s": 100})
            await trio.sleep(1)
            checked(stream)
            nursery.start_soon(client.ask, "mhs.safety.estop")
            await endpoint.drain()
        events = checked(stream)
        assert {event["type"] for event in of(events, "control")} == {"safety"}
        assert of(events, "progress")[-1]["payload"]["status"] == "cancelled"
        assert stream.ended
        assert client.events.ended
