"""What listeners are told of a life of the endpoint: each operation's progress, and every stop [EVT-005, EVT-006]."""

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from mhsd.services.subscriptions import EventStream
from mhsd.wire.elements import StreamRequest
from mhsd.wire.params import SessionOpenParams, SubscribeParams

if TYPE_CHECKING:
    from tests.property.model.lives import Lives

LISTENERS = (("agent:operator", "operator"), ("agent:client", "client"))
LASTING_S = 86_400
UNFINISHED = "running"


class Listener:
    """One principal's subscription on all rigs, which reads whenever it is asked to."""

    def __init__(self, world: "Lives", principal_id: str, role: str) -> None:
        self._world = world
        subscriptions = world.endpoint.subscriptions
        session = world.endpoint.sessions.open(
            SessionOpenParams(
                device_ids=tuple(world.endpoint.devices), capabilities=(), mode="simulated", ttl_s=LASTING_S
            ),
            {"id": principal_id, "kind": "agent"},
            role,
            None,
            None,
        )
        asked = SubscribeParams(
            session_id=session.session_id, streams=(StreamRequest(stream="progress"),), deadline_ms=1
        )
        self._stream: EventStream = subscriptions.connection()
        subscription = subscriptions.open(session, asked, self._stream)
        subscriptions.release(subscription)
        self._next_seq = subscription.log.first_seq
        self.has_lost = False
        self._progress: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._stops: dict[str, list[str]] = defaultdict(list)

    def read(self, max_bytes: int = 1 << 22) -> None:
        """Take what there is; every seq is there once, in order, or in one gap."""
        for delivery in self._stream.take(max_bytes):
            event = json.loads(delivery.message)["params"]
            is_gap = event.get("type") == "gap"
            first = event["from"] if is_gap else event["seq"]
            self._world.expect(first == self._next_seq, f"seq {self._next_seq} is left out before {event}")
            self._next_seq = event["seq"] + 1
            self.has_lost = self.has_lost or is_gap
            if event["stream"] == "progress":
                self._progress[event["payload"]["operation_id"]].append(event["payload"])
            elif event["type"] == "safety":
                self._stops[event["device_id"]].append(event["payload"]["kind"])

    def judge(self, finals: dict[str, str]) -> None:
        """At the end: an operation was told from its dispatch to the status of its receipt, a stop to its outcome."""
        self.read()
        if self.has_lost:
            return
        expect = self._world.expect
        for operation_id, told in self._progress.items():
            statuses = [each["status"] for each in told]
            expect(
                (told[0]["percent"], statuses[0]) == (0, UNFINISHED), f"{operation_id} begins as {told[0]}"
            )
            percents = [each["percent"] for each in told]
            expect(percents == sorted(percents), f"the progress of {operation_id} falls: {percents}")
            expect(
                statuses[1:-1] == [UNFINISHED] * (len(statuses) - 2) and statuses[-1] == finals[operation_id],
                f"{operation_id} is told of as {statuses} and ends as {finals[operation_id]}",
            )
        for device_id, kinds in self._stops.items():
            outcomes = kinds.count("estop.confirmed") + kinds.count("estop.unconfirmed")
            expect(kinds.count("estop.engaged") == outcomes, f"the stops of {device_id} are told as {kinds}")
            expect(kinds[0] == "estop.engaged" or kinds[0] == "estop.reset", f"{device_id}: {kinds}")


def judge(world: "Lives", chain: list[dict[str, Any]]) -> None:
    """The listeners of the last life against the receipts of the chain."""
    finals = {
        receipt["operation_id"]: receipt["status"]
        for receipt in chain
        if "operation_id" in receipt
        and receipt.get("error", {}).get("details", {}).get("reason") != "deadline_exceeded"
    }
    for listener in world.listeners:
        listener.judge(finals)
