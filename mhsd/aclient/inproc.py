"""The endpoint in the same process: requests enter by the one door that every binding uses.

No byte leaves the process, and no check is skipped: what this peer may not do over HTTP it may not do here.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable
from typing import Any

import trio

from mhsd.aclient.events import EventHub
from mhsd.aclient.transport import EventsWanted, Greet
from mhsd.client.errors import no_more_events
from mhsd.client.transport import Answer, Lost, Over, is_answer
from mhsd.protocol.answers import Exchange
from mhsd.protocol.dispatch import Dispatch
from mhsd.protocol.peer import Peer


class InProcessTransport:
    """Enters `Dispatch.begin` as one peer."""

    name = "inproc"
    url = "inproc:"

    def __init__(self, door: Dispatch, peer: Peer, hub: EventHub) -> None:
        self._door = door
        self._peer = peer
        self._hub = hub
        self._events = peer.events = door.events()
        self._closed = False
        self._ended = trio.Event()
        self.paced = not peer.rate_exempt

    async def greet(self, greet: Greet) -> None:
        """Says hello; there is one connection, and it lasts."""
        await greet(self.exchange)

    async def exchange(
        self, request_id: str, body: bytes, timeout_s: float, *, urgent: bool = False
    ) -> Answer:
        """One request and its answer. Who gives up waiting ends the wait, and nothing that has begun."""
        if self._closed:
            raise Over("the client is closed")
        with trio.move_on_after(timeout_s) as scope:
            entered = await self._enter(body)
            exchange = entered if isinstance(entered, Exchange) else await entered
        if scope.cancelled_caught:
            raise Lost(f"the endpoint did not answer within {timeout_s:g} s", timed_out=True)
        value: Any = json.loads(exchange.body) if exchange.body is not None else None
        if not is_answer(value, request_id):
            raise Lost("the endpoint did not answer the request")
        retry_after_ms = exchange.retry_after_ms
        return Answer(value, exchange.status, None if retry_after_ms is None else retry_after_ms / 1000)

    async def _enter(self, body: bytes) -> Exchange | Awaitable[Exchange]:
        """As a binding does it: behind the gate, which a stop does not wait for."""
        if self._door.mentions_stop(body):
            await trio.lowlevel.checkpoint()
            return self._door.begin(body, self._peer)
        received_mono_s = trio.current_time()
        async with self._door.gate:
            return self._door.begin(body, self._peer, received_mono_s)

    async def run(self) -> None:
        """Hands on the events of this connection, until it is cancelled or the endpoint ends."""
        while not self._events.ended:
            await self._events.wait()
            while deliveries := self._events.take():
                for delivery in deliveries:
                    self._hub.take(json.loads(delivery.message)["params"])
                await trio.lowlevel.checkpoint()
        self._ended.set()

    async def bring_events(self, wanted: EventsWanted) -> None:
        """They come with the connection, which ends with the endpoint."""
        await self._ended.wait()
        raise no_more_events("the endpoint has ended")

    async def aclose(self) -> None:
        """Takes no more requests."""
        self._closed = True
        self._events.close()
        await trio.lowlevel.checkpoint()
