"""Plays a program against a real endpoint, in process, on Trio's test clock, and notes everything that happens."""

import json
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import trio

from mhsd.base.clock import Clock, rfc3339
from mhsd.base.ids import Ids
from mhsd.config import Limits
from mhsd.core.receipts import ESTOP, RESET
from mhsd.driver.loader import LoadedDevice, load_target
from mhsd.protocol.dispatch import Dispatch, Exchange
from mhsd.protocol.peer import Peer, Principal
from mhsd.services.endpoint import open_endpoint
from mhsd.store import Receipt, Store, VoidIntent, open_store
from mhsd.wire.canonical import digest
from tests.property.model import steps
from tests.property.model.disk import Disk
from tests.property.model.history import Ask, Grant, Moment, Native, Order, Put, Visit
from tests.property.model.steps import CONFIGURE, FIRE
from tests.property.model.watch import Watch

ENDPOINT = "mhs://localhost:7400"
T = TypeVar("T")
PATHS = ("/test/left", "/test/right")
PRINCIPALS = ("agent:operator", "agent:client")
EPOCH_S = 1_800_000_000.0
STOP_GRACE_S = 2.0
QUIET_S = 90.0
"""After this long without new calls everything has ended: it is more than any max_duration_ms and grace."""

LIMITS = Limits(max_open_operations=2)


@cache
def _loaded(device: int) -> LoadedDevice:
    target = str(Path(__file__).parent / "rig")
    return load_target(target, backend="fake", options={}, path=PATHS[device])


def _peer(principal: int) -> Peer:
    return Peer(
        Principal(PRINCIPALS[principal], "agent"),
        "operator" if principal == 0 else "client",
        "http",
        authenticated=True,
        rate_exempt=True,
    )


class Alarms(logging.Handler):
    """The errors that the endpoint logs, but for those of a driver that breaks and of a disk that is full."""

    EXPECTED = ("driver of %s failed", "the final receipt of %s could not be written")

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        named = record.name in ("mhsd.dispatch", "mhsd.execution")
        if named and not str(record.msg).startswith(self.EXPECTED):
            self.heard.append(self.format(record))


class World:
    """One example: the rigs, the endpoint that serves them in one life after the other, and what was noted."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bodies = [type(_loaded(0).driver)(_loaded(0).driver.settings).body for _ in PATHS]
        self.number = 0
        self.life = -1
        self.faults: list[str] = []
        self.asks: list[Ask] = []
        self.natives: list[Native] = []
        self.puts: list[Put] = []
        self._put_of: dict[str, Put] = {}
        self._stops: dict[tuple[int, int], list[Ask]] = {}
        self.last_asks: list[Ask] = []
        self.seq_before_last = 0
        self.visits: list[Visit] = []
        self.visit_of: dict[str, Visit] = {}
        self.grants: dict[str, Grant] = {}
        self.orders: list[Order] = []
        self.operations: dict[str, str] = {}
        """The newest operation of a command, as clients were told."""
        self.told: dict[str, tuple[str, int]] = {}
        """The command and principal of every operation that anybody was told of."""
        self.unsettled: set[str] = set()
        self.stops = [0, 0]
        self.stopped_number = [-1, -1]
        self.reset_number = [0, 0]
        self.durable_stop = [False, False]
        self.surely_released = [True, True]
        self.revisions: list[list[tuple[Moment, int]]] = [[], []]
        self.latch_changes: list[list[tuple[Moment, bool]]] = [[], []]
        self.gate_changes: list[list[tuple[Moment, str]]] = [[], []]
        self.read_changes: list[list[tuple[Moment, str]]] = [[], []]
        self.drained: set[int] = set()
        self.settled: set[int] = set()
        self.quiet: dict[tuple[int, int, int], Any] = {}
        self.full_lives: set[int] = set()
        self.lives_end: dict[int, float] = {}
        self.alarms = Alarms()
        entropy = random.Random(1)
        self._ids = Ids(self._wall_s, entropy.randbytes)
        self._client_ids = Ids(self._wall_s, random.Random(2).randbytes)

    # What the checks ask.

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.faults.append(f"life {self.life}, {self.now().mono_s} s: {otherwise}")

    def now(self) -> Moment:
        """The next event's moment."""
        self.number += 1
        return Moment(trio.current_time(), self.number)

    def device_id(self, device: int) -> str:
        return ENDPOINT + PATHS[device]

    def device_of(self, device_id: str) -> int:
        return PATHS.index(device_id.removeprefix(ENDPOINT))

    def visit(self, session_id: str) -> Visit:
        return self.visit_of[session_id]

    def surely_latched(self, device: int) -> bool:
        """Whether a stop came after which nobody has asked for a reset."""
        return self.stopped_number[device] > self.reset_number[device]

    def revisions_since(self, device: int, mono_s: float) -> set[int]:
        """The revisions that the device has had from then on."""
        return during(self.revisions[device], mono_s, float("inf"))

    def touch(self, device: int, part: str, how: str) -> None:
        """Somebody does something to a rig: moves its gate, or changes how its link behaves."""
        if part == "gate":
            self.bodies[device].gate = how
            self.gate_changes[device].append((self.now(), how))
        else:
            self.bodies[device].conduct[part] = how
            if part == "read":
                self.read_changes[device].append((self.now(), how))

    def answered_s(self, ask: Ask) -> float:
        """When a call was answered."""
        return float("inf") if ask.answered is None else ask.answered.mono_s

    def put_of(self, receipt_id: str) -> Put | None:
        """How a receipt was handed to the store."""
        return self._put_of.get(receipt_id)

    def stops_at(self, receipt_id: str, device: int) -> int:
        """How many stops there had been when a receipt was handed to the store."""
        put = self._put_of.get(receipt_id)
        return self.stops[device] if put is None else put.stops

    def stops_in(self, life: int, device: int) -> list[Ask]:
        """The stops of a device in one life."""
        return self._stops.get((life, device), [])

    def receipts_in(self, life: int, device: int) -> set[str]:
        """The receipts of a device that were handed to the store in one life."""
        return {
            name
            for name, put in self._put_of.items()
            if put.life == life and self.device_of(put.entry.device_id) == device
        }

    def settled_number(self, native: Native) -> float:
        """When the last receipt of a call was handed to the store."""
        for put in self.puts:
            last = isinstance(put.entry, VoidIntent) or (
                isinstance(put.entry, Receipt) and put.entry.kind == "final"
            )
            if last and put.entry.command_id == native.command_id and put.at.number > native.began.number:
                return put.at.number
        return float("inf")

    @staticmethod
    def _wall_s() -> float:
        return EPOCH_S + trio.current_time()

    # Lives of the endpoint.

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        """The endpoint from its start to its end. Leaving is a crash: what is not on the disk by then is lost."""
        self.life += 1
        self.disk = Disk()
        self.sessions: list[Visit] = []
        self.permits: list[str] = []
        self.unsettled.clear()
        self.dead = False
        self.watches = [Watch(self, device) for device in range(len(PATHS))]
        clock = Clock(now=self._wall_s, mono=trio.current_time)
        async with open_store(
            self.directory,
            endpoint_id=ENDPOINT,
            mhs_version="1.0",
            created_at=rfc3339(clock.now()),
            device_ids=[self.device_id(device) for device in range(len(PATHS))],
            inline=True,
            connect=self.disk.connect,
        ) as store:
            self.store = store
            orderly = self.life - 1 in self.settled and self.life - 1 not in self.full_lives
            self.expect(not (orderly and store.open_intents), "a command was left open by an orderly end")
            self._note_puts(store)
            endpoint_is = open_endpoint(
                endpoint_id=ENDPOINT,
                devices=[self._device(device) for device in range(len(PATHS))],
                store=store,
                limits=LIMITS,
                features=(),
                operator_configured=True,
                stop_grace_s=STOP_GRACE_S,
                clock=clock,
                ids=self._ids,
            )
            async with endpoint_is as self.endpoint, trio.open_nursery() as self.callers:
                self.dispatch = Dispatch(self.endpoint)
                self._check_start()
                self.tasks_at_rest = trio.lowlevel.current_statistics().tasks_living
                try:
                    yield
                finally:
                    self.lives_end[self.life] = trio.current_time()
                    self.disk.full = True
                    self.dead = True
                    self.callers.cancel_scope.cancel()

    def _device(self, device: int) -> LoadedDevice:
        loaded = _loaded(device)
        driver: Any = type(loaded.driver)(loaded.driver.settings)
        driver.body, driver.watcher = self.bodies[device], self.watches[device]
        return LoadedDevice(loaded.manifest, driver, loaded.backend, loaded.directory)

    def _note_puts(self, store: Store) -> None:
        put = store.put
        for device in range(len(PATHS)):
            self.revisions[device].append((self.now(), store.revision(self.device_id(device))))

        def noted(*entries: Any) -> Any:
            ticket = put(*entries)
            if store.failure is None:
                for entry in entries:
                    self._note_put(entry)
            return ticket

        store.put = noted  # type: ignore[method-assign]

    def _note_put(self, entry: Any) -> None:
        at = self.now()
        device = self.device_of(entry.device_id)
        put = Put(self.life, entry, at, self.bodies[device].shown(), self.stops[device])
        self.puts.append(put)
        if isinstance(entry, VoidIntent):
            self.unsettled.discard(entry.command_id)
        if not isinstance(entry, Receipt):
            return
        self._put_of[entry.body["receipt_id"]] = put
        before, after = entry.body["state_revision_before"], entry.body["state_revision_after"]
        known = self.revisions[device][-1][1]
        what = f"{entry.body['status']} {entry.body['capability_id']} on rig {device}"
        self.expect(before == known, f"{what} says that the revision was {before}, not {known}")
        self.expect(after - before in (0, 1), f"{what} moves the revision from {before} to {after}")
        self.expect(entry.revision in (None, after), f"{what} stores revision {entry.revision}, not {after}")
        self.revisions[device].append((at, after))
        if entry.body["capability_id"] in (RESET, ESTOP):
            # Such a receipt takes account of all that has changed by then.
            for native in self.natives:
                if native.device == device and native.command_id in self.unsettled:
                    native.alone = False
        if entry.body["capability_id"] == RESET and entry.body["status"] == "completed":
            overtaken, stopping = self.surely_latched(device), self.watches[device].stops_under_way
            self.expect(not overtaken, f"rig {device} is reset by what came before its stop")
            self.expect(not stopping, f"rig {device} is reset while it is being stopped")
            self.latch_changes[device].append((at, False))
        if entry.kind == "final":
            self.unsettled.discard(entry.command_id)

    def _check_start(self) -> None:
        """After a start the latches are those that were durable, and nothing is in flight."""
        for device in range(len(PATHS)):
            latched = self.endpoint.safety.latched(self.device_id(device))
            if self.durable_stop[device]:
                self.expect(latched, f"rig {device} came up without its latch")
            if self.surely_released[device]:
                self.expect(not latched, f"rig {device} came up latched")
            self.stopped_number[device] = self.now().number if latched else -1
            self.latch_changes[device].append((self.now(), latched))

    # Clients.

    def ask(self, principal: int, method: str, params: dict[str, Any], **envelope: Any) -> Ask:
        """Send one call; its answer is noted when it comes."""
        ask = self._new_ask(principal, method, params)
        message = {"jsonrpc": "2.0", "id": ask.sent.number, "method": method, "params": params, **envelope}
        if envelope.get("id", 0) is None:
            del message["id"]
            ask.notification = True
        self._send(principal, message, [ask])
        return ask

    def _new_ask(self, principal: int, method: str, params: dict[str, Any]) -> Ask:
        ask = Ask(self.life, principal, method, params, self.now(), trio.CancelScope())
        self.asks.append(ask)
        return ask

    def _send(self, principal: int, message: Any, asks: list[Ask]) -> None:
        entered = self.dispatch.begin(json.dumps(message).encode(), _peer(principal))
        if isinstance(entered, Exchange):
            self._answered(asks, entered)
        else:
            self.callers.start_soon(self._await, asks, entered)

    async def _await(self, asks: list[Ask], entered: Awaitable[Exchange]) -> None:
        with asks[0].scope:
            self._answered(asks, await entered)

    def _answered(self, asks: list[Ask], exchange: Exchange) -> None:
        if self.dead:
            return
        at = self.now()
        if exchange.body is None:
            for ask in asks:
                ask.answered = at
            return
        reply = json.loads(exchange.body)
        replies = {each["id"]: each for each in (reply if isinstance(reply, list) else [reply])}
        for ask in asks:
            ask.answered = at
            ask.reply = replies.get(ask.sent.number, reply if len(asks) == 1 else None)
            if not isinstance(reply, list) and "result" in reply:
                ask.data = exchange.body.partition(b'"result":')[2][:-1]
            self._learn(ask)

    def _learn(self, ask: Ask) -> None:
        """What a client knows from an answer on."""
        result = ask.result
        if ask.reply is not None and "error" in ask.reply:
            result = ask.reply["error"]["data"].get("details", {}).get("receipt")
        if not isinstance(result, dict):
            return
        if "operation_id" in result and "command_id" in result:
            self.operations[result["command_id"]] = result["operation_id"]
            owner = PRINCIPALS.index(result["principal"]["id"])
            self.told[result["operation_id"]] = result["command_id"], owner
        if ask.method == "mhs.session.open":
            visit = Visit(
                ask.life,
                ask.principal,
                result["session_id"],
                ask.params["ttl_s"],
                ask.sent.mono_s + ask.params["ttl_s"],
            )
            self.sessions.append(visit)
            self.visits.append(visit)
            self.visit_of[visit.session_id] = visit
        elif "safety_estop" in result.get("capability_id", ""):
            self._learn_stop(ask, result)
        elif ask.method == "mhs.safety.reset" and result["status"] == "completed":
            device = self.device_of(result["device_id"])
            self.surely_released[device] = self.stopped_number[device] < ask.sent.number
        elif ask.method == "mhs.session.close":
            self.visit_of[ask.params["session_id"]].ended = ask.answered
        elif ask.method == "mhs.safety.permit":
            self.permits.append(result["permit_id"])
            self.grants[result["permit_id"]] = Grant(
                ask.life,
                ask.params["session_id"],
                ask.params["device_id"],
                ask.params["input_digest"],
                ask.sent.mono_s + ask.params["ttl_s"],
            )

    def _learn_stop(self, ask: Ask, receipt: dict[str, Any]) -> None:
        """A stop whose answer says that its latch is durable holds after a restart too."""
        for each in receipt.get("x-vendor", {}).get("estop", {}).get("devices", [receipt]):
            device = self.device_of(each["device_id"])
            if each["output"]["latch_durable"] and self.reset_number[device] < ask.sent.number:
                self.durable_stop[device] = True

    async def open(self, principal: int, ttl_s: int, devices: Sequence[int]) -> Visit | None:
        """A session with everything; None where it was not answered in time."""
        ask = self.ask(
            principal,
            "mhs.session.open",
            {
                "device_ids": [self.device_id(device) for device in devices],
                "capabilities": ["*"],
                "mode": "simulated",
                "ttl_s": ttl_s,
            },
        )
        await self.until_answered(ask)
        return self.sessions[-1] if ask.result is not None else None

    async def until_answered(self, ask: Ask) -> None:
        with trio.move_on_after(QUIET_S):
            while ask.answered is None and not ask.lost:  # noqa: ASYNC110
                # On the test clock this takes no time; an answer that never comes must not hold up the test.
                await trio.sleep(0.01)

    def order(self, command: steps.Command) -> dict[str, Any] | None:
        """The parameters of a new command; None where there is nobody to send it."""
        session = pick(self.sessions, command.session)
        if session is None:
            return None
        params: dict[str, Any] = {
            "session_id": session.session_id,
            "device_id": self.device_id(command.device),
            "command_id": self._client_ids.ulid(),
            "deadline_ms": command.deadline_ms,
        }
        if command.what == CONFIGURE:
            method = "mhs.resource.write"
            params |= {"resource_id": "axis", "patch": command.value}
        else:
            method = "mhs.command"
            params |= {"capability_id": command.what, "input": command.value}
        if command.expected is not None:
            revision = self.endpoint.devices[self.device_id(command.device)].host.revision
            params["expected_revision"] = max(0, revision + command.expected)
        permit = pick(self.permits, command.permit) if command.permit is not None else None
        if permit is not None:
            params["permit_id"] = permit
        self.orders.append(Order(session.principal, method, command.device, command.what, params))
        return params

    def again(self, step: steps.Again) -> tuple[Order, dict[str, Any], int] | None:
        """An earlier order as it is sent now, and by whom."""
        order = pick(self.orders, step.of)
        if order is None:
            return None
        own = [visit for visit in self.sessions if visit.principal == order.principal]
        session = pick(own, 0) if step.session is None else pick(self.sessions, step.session)
        if session is None:
            return None
        params = {**order.params, "session_id": session.session_id}
        if step.deadline_ms is not None:
            params["deadline_ms"] = step.deadline_ms
        if not step.expected:
            params.pop("expected_revision", None)
        if step.permit is not None and (permit := pick(self.permits, step.permit)) is not None:
            params["permit_id"] = permit
        if step.amount is not None:
            name = "patch" if order.what == CONFIGURE else "input"
            field = "speed" if order.what == CONFIGURE else "amount"
            params[name] = {**params[name], field: step.amount}
        return order, params, session.principal

    def batch(self, step: steps.Batch) -> None:
        """One message of several commands, sent by whoever sends the first of them."""
        message, asks, sender = [], [], None
        for each in step.of:
            found: tuple[Order, dict[str, Any], int] | None
            if isinstance(each, steps.Again):
                found = self.again(each)
            else:
                params = self.order(each)
                found = None if params is None else (self.orders[-1], params, self.orders[-1].principal)
            if found is None:
                continue
            order, params, principal = found
            sender = principal if sender is None else sender
            ask = self._new_ask(sender, order.method, params)
            asks.append(ask)
            message.append(
                {"jsonrpc": "2.0", "id": ask.sent.number, "method": order.method, "params": params}
            )
        for ask in asks:
            ask.scope = asks[0].scope
            ask.limit_s = max(each.params["deadline_ms"] for each in asks) / 1000
        if message and sender is not None:
            self._send(sender, message, asks)

    def permit(self, step: steps.Permit) -> None:
        session = pick(self.sessions, step.session)
        if session is None:
            return
        value = {"amount": step.amount, "how": step.how, "takes_ms": step.takes_ms}
        self.ask(
            0,
            "mhs.safety.permit",
            {
                "session_id": session.session_id,
                "device_id": self.device_id(step.device),
                "capability_id": FIRE,
                "resource": "axis",
                "input_digest": digest({"capability_id": FIRE, "resource": "axis", "input": value}),
                "ttl_s": step.ttl_s,
                "approvals": [],
            },
        )

    def stop(self, step: steps.Stop) -> Ask:
        """Stop; from the return of this call on the devices are latched."""
        devices = range(len(PATHS)) if step.device is None else [step.device]
        named = {} if step.device is None else {"device_id": self.device_id(step.device)}
        for device in devices:
            self.stops[device] += 1
            self.surely_released[device] = False
        if step.kind == "command":
            params: dict[str, Any] = {
                "capability_id": "cap.motion.estop.v1",
                "input": {"reason": "model"},
                **named,
            }
            ask = self.ask(step.principal, "mhs.command", params)
        else:
            more: dict[str, Any] = {"notification": {"id": None}, "broken": {"jsonrpc": "1.0"}}.get(
                step.kind, {}
            )
            ask = self.ask(step.principal, "mhs.safety.estop", {"reason": "model", **named}, **more)
        for device in devices:
            self._stops.setdefault((self.life, device), []).append(ask)
            self.latch_changes[device].append((ask.sent, True))
            self.stopped_number[device] = self.now().number
            latched = self.endpoint.safety.latched(self.device_id(device))
            self.expect(latched, f"rig {device} is not latched when its stop has been taken in")
        return ask

    def reset(self, device: int, session: Visit, deadline_ms: int) -> Ask:
        self.reset_number[device] = self.now().number
        self.durable_stop[device] = False
        return self.ask(
            session.principal,
            "mhs.safety.reset",
            {
                "session_id": session.session_id,
                "device_id": self.device_id(device),
                "deadline_ms": deadline_ms,
            },
        )

    # Quiet moments.

    def calm(self, device: int) -> bool:
        """Whether nothing is under way on a device."""
        served = self.endpoint.devices[self.device_id(device)]
        return not (
            served.executions.live()
            or not served.host.slot.free
            or self.unsettled
            or self.watches[device].stops_under_way
            or served.host.safety.stop_pending(served.device_id)
            or any(self._open(ask) for ask in self.asks if ask.life == self.life)
        )

    @staticmethod
    def _open(ask: Ask) -> bool:
        """Whether something may still be done for a call; nobody is told when a lost one has ended."""
        return ask.answered is None and (not ask.lost or ask.sent.mono_s + QUIET_S > trio.current_time())

    def note_quiet(self) -> None:
        """At rest, one revision is one state [OP-007]."""
        for device in range(len(PATHS)):
            if not self.calm(device):
                continue
            revision = self.endpoint.devices[self.device_id(device)].host.revision
            shown = self.bodies[device].shown()
            before = self.quiet.setdefault((self.life, device, revision), shown)
            self.expect(before == shown, f"rig {device} shows {shown} and {before} at revision {revision}")


def during(changes: Sequence[tuple[Moment, T]], from_s: float, to_s: float) -> set[T]:
    """What something was in a span of time, both ends included."""
    before = [value for at, value in changes if at.mono_s < from_s]
    return {*before[-1:], *(value for at, value in changes if from_s <= at.mono_s <= to_s)}


def pick(from_these: Sequence[Any], back: int) -> Any:
    """The one that stands so far back from the newest, modulo how many there are; None of none."""
    return from_these[-1 - back % len(from_these)] if from_these else None
