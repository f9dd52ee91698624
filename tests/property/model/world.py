"""The clients of an endpoint: what they send, and what they know from the answers."""

import json
import random
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import trio

from mhsd.base.ids import Ids
from mhsd.protocol.answers import Exchange
from mhsd.protocol.peer import Peer, Principal
from mhsd.wire.canonical import digest
from tests.property.model import steps
from tests.property.model.history import Ask, Grant, Order, Visit
from tests.property.model.lives import QUIET_S, Lives
from tests.property.model.record import PATHS, pick
from tests.property.model.steps import CONFIGURE, FIRE

PRINCIPALS = ("agent:operator", "agent:client")


def _peer(principal: int) -> Peer:
    return Peer(
        Principal(PRINCIPALS[principal], "agent"),
        "operator" if principal == 0 else "client",
        "http",
        authenticated=True,
        rate_exempt=True,
    )


class World(Lives):
    """One example: plays a program against a real endpoint in process, and notes everything that happens."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._client_ids = Ids(self.wall_s, random.Random(2).randbytes)

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
