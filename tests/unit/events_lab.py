"""An endpoint in the test's own process, on Trio's clock, and a client that reads its events."""

import json
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from mhsd.config import Limits
from mhsd.driver.loader import LoadedDevice, load_target
from mhsd.protocol.answers import Exchange
from mhsd.protocol.dispatch import Dispatch
from mhsd.protocol.peer import Peer, Principal
from mhsd.services.device_host import DeviceHost
from mhsd.services.endpoint import Endpoint, open_endpoint
from mhsd.services.subscriptions import EventStream
from mhsd.store import open_store
from tests.documents import check, check_error, check_result

ENDPOINT = "mhs://localhost:7400"
CONVEYOR = f"{ENDPOINT}/lab/conveyor-workcell"
ALL = [{"stream": name} for name in ("state", "telemetry", "events", "log", "progress")]


class Client:
    """One connection of one principal."""

    def __init__(self, endpoint: Endpoint, name: str = "human:ann", *, role: Any = "operator") -> None:
        self.endpoint = endpoint
        self.events: EventStream = endpoint.subscriptions.connection()
        self.door = Dispatch(endpoint)
        self.peer = Peer(Principal(name, "human"), role, "stdio", rate_exempt=True, events=self.events)
        self.session_id = ""

    async def ask(self, method: str, **params: Any) -> Any:
        """The result of a call, or its error object, each checked against its schema."""
        if self.session_id:
            params = {"session_id": self.session_id, **params}
        answer = json.loads(
            await self.send({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) or b""
        )
        if "error" in answer:
            check_error(answer["error"])
            return answer["error"]
        check_result(method, answer["result"])
        return answer["result"]

    async def send(self, message: Any) -> bytes | None:
        entered = self.door.begin(json.dumps(message).encode(), self.peer)
        exchange: Exchange = await entered if isinstance(entered, Awaitable) else entered
        return exchange.body

    async def open(self, *, ttl_s: int = 86_400, device_ids: Sequence[str] = ()) -> "Client":
        asked = {
            "device_ids": list(device_ids or self.endpoint.devices),
            "capabilities": ["*"],
            "mode": "simulated",
            "ttl_s": ttl_s,
        }
        self.session_id = (await self.ask("mhs.session.open", **asked))["session_id"]
        return self

    async def subscribe(self, streams: Any = None, **more: Any) -> Any:
        return await self.ask("mhs.subscribe", streams=streams or ALL, **{"deadline_ms": 5000, **more})

    async def command(self, capability_id: str, value: Any, **more: Any) -> Any:
        params = {"command_id": self.endpoint.ids.ulid(), "deadline_ms": 30_000, **more}
        return await self.ask("mhs.command", capability_id=capability_id, input=value, **params)

    async def step(self, ticks: int = 1) -> Any:
        return await self.command("cap.world.step.v1", {"ticks": ticks})

    def taken(self, max_bytes: int = 1 << 20) -> list[dict[str, Any]]:
        """The events that there are now, checked."""
        return checked(self.events, max_bytes)

    async def settled(self) -> list[dict[str, Any]]:
        """The events when nothing goes on any more."""
        await trio.testing.wait_all_tasks_blocked()
        return self.taken()


def checked(stream: EventStream, max_bytes: int = 1 << 20) -> list[dict[str, Any]]:
    """What a consumer takes now: whole notifications, each valid, with the seq that its delivery says [EVT-005]."""
    events = []
    for delivery in stream.take(max_bytes):
        assert b"\n" not in delivery.message
        message = json.loads(delivery.message)
        assert message.keys() == {"jsonrpc", "method", "params"}
        assert (message["jsonrpc"], message["method"]) == ("2.0", "mhs.event")
        event = message["params"]
        check("event", event)
        assert (event["subscription_id"], int(event["seq"])) == (delivery.subscription_id, delivery.seq)
        events.append(event)
    return events


def of(events: list[dict[str, Any]], stream: str) -> list[dict[str, Any]]:
    return [event for event in events if event["stream"] == stream]


@asynccontextmanager
async def served(
    *devices: LoadedDevice, limits: Limits | None = None, target: str = "conveyor-workcell"
) -> AsyncIterator[Endpoint]:
    """An endpoint that serves these devices, or the one of `target`."""
    loaded = devices or (load_target(target, backend="fake", options={}),)
    at = "2026-10-20T07:45:00.000Z"
    async with (
        open_store(None, endpoint_id=ENDPOINT, mhs_version="1.0", created_at=at, inline=True) as store,
        open_endpoint(
            endpoint_id=ENDPOINT, devices=loaded, store=store, limits=limits or Limits()
        ) as endpoint,
    ):
        yield endpoint


def host_of(endpoint: Endpoint) -> DeviceHost:
    """That of the first device."""
    return next(iter(endpoint.devices.values())).host
