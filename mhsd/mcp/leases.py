"""The sessions that the projection holds: one for each device and capability, and one a device for reading [TPT-036].

Decides when one is opened, kept alive and given up. A session covers no more than the calls that use it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import attrs
import trio

from mhsd.aclient.client import AsyncClient
from mhsd.aclient.session import AsyncSession
from mhsd.base.errors import Fault
from mhsd.client.errors import MHSError
from mhsd.client.requests import lifetime_s, member, open_params

log = logging.getLogger("mhsd.mcp")

TTL_S = 3600
"""How long a session lives without a heartbeat."""

ENDED = frozenset({"MHS.SESSION.EXPIRED", "MHS.SESSION.UNKNOWN", "MHS.SESSION.CLOSED"})
"""What a session answers that is no more; a new one is opened then."""


@attrs.define(eq=False)
class Lease:
    """One session of the endpoint."""

    session: AsyncSession
    device_id: str
    capability_id: str | None
    """None: it is for reading."""
    ttl_s: float
    expires_mono_s: float


class Leases:
    """The sessions of one connection, all of one agent [TPT-048]."""

    def __init__(self, client: AsyncClient, client_name: Callable[[], str]) -> None:
        """`client_name` tells how the MCP client calls itself."""
        self._client = client
        self._client_name = client_name
        self._leases: dict[tuple[str, str | None], Lease] = {}
        self._opening = trio.Lock()

    async def for_command(self, device_id: str, capability_id: str, mode: str) -> Lease:
        """The session for commands of this capability."""
        return await self._lease(device_id, capability_id, mode)

    async def for_reading(self, device_id: str, mode: str) -> Lease:
        """The session for reading this device."""
        return await self._lease(device_id, None, mode)

    async def reading(
        self, device_id: str, mode: str, ask: Callable[[AsyncSession], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        """What `ask` answers in the device's reading session; asked once more in a new one where that had ended."""
        lease = await self.for_reading(device_id, mode)
        try:
            return await ask(lease.session)
        except MHSError as refusal:
            if not self.note(lease, refusal):
                raise
        return await ask((await self.for_reading(device_id, mode)).session)

    def own(self, session_id: str) -> Lease:
        """The session of this connection that a call names; MHS.SESSION.UNKNOWN for any other [TPT-048]."""
        for lease in self._leases.values():
            if lease.session.session_id == session_id:
                return lease
        raise Fault(
            "MHS.SESSION.UNKNOWN",
            "session_id names no session that this connection has opened",
            remediation="Leave session_id out; the connection has a session for every tool.",
        )

    def any(self, session_id: str, device_id: str) -> Lease:
        """The session that a call names, where the policy lets it be anybody's; how long it lives is theirs."""
        with suppress(Fault):
            return self.own(session_id)
        session = AsyncSession(self._client, session_id, [device_id], ttl_s=math.inf)
        return Lease(session, device_id, None, math.inf, math.inf)

    def note(self, lease: Lease, refusal: MHSError) -> bool:
        """Forget a session that has ended; True where it has."""
        has_ended = refusal.mhs_code in ENDED
        key = (lease.device_id, lease.capability_id)
        if has_ended and self._leases.get(key) is lease:
            del self._leases[key]
            lease.session.forget()
        return has_ended

    def live(self) -> list[Lease]:
        """The sessions that there are."""
        return list(self._leases.values())

    async def close(self) -> None:
        """End them all; what runs in them is cancelled to the safe state. Bounded, and failures are only logged."""
        async with trio.open_nursery() as nursery:
            for lease in self.live():
                nursery.start_soon(self._close, lease)
        self._leases.clear()

    async def _close(self, lease: Lease) -> None:
        try:
            await lease.session.close()
        except MHSError as problem:
            if problem.mhs_code not in ENDED:
                log.warning("a session of %s was left to expire: %s", lease.device_id, problem)

    async def _heartbeat(self, lease: Lease) -> None:
        answered = await lease.session.heartbeat()
        left_s = lifetime_s(answered, await self._client.endpoint_time_s())
        lease.expires_mono_s = trio.current_time() + left_s

    # Opening

    async def _lease(self, device_id: str, capability_id: str | None, mode: str) -> Lease:
        key = (device_id, capability_id)
        async with self._opening:
            lease = self._leases.get(key)
            if lease is not None and await self._is_fresh(lease):
                return lease
            lease = await self._open(device_id, capability_id, mode)
            self._leases[key] = lease
            return lease

    async def _is_fresh(self, lease: Lease) -> bool:
        """Whether a session can be used, after a heartbeat where less than a third of its life is left."""
        if lease.expires_mono_s - trio.current_time() >= lease.ttl_s / 3:
            return True
        try:
            await self._heartbeat(lease)
        except MHSError as refusal:
            if not self.note(lease, refusal):
                raise
            return False
        return True

    async def _open(self, device_id: str, capability_id: str | None, mode: str) -> Lease:
        params = open_params(
            await self._client.hello(),
            client_name=self._client.name,
            transport="mcp",
            principal={"kind": "agent", "id": agent_of(self._client_name())},
            device_ids=[device_id],
            capabilities=[] if capability_id is None else [capability_id],
            mode=mode,
            ttl_s=TTL_S,
        )
        grant = await self._client.call("mhs.session.open", params)
        left_s = lifetime_s(grant, await self._client.endpoint_time_s())
        session = AsyncSession(
            self._client, member(grant, "session_id"), [device_id], grant=grant, ttl_s=left_s
        )
        return Lease(session, device_id, capability_id, left_s, trio.current_time() + left_s)


def agent_of(client_name: str) -> str:
    """The id of the principal that acts for an MCP client [TPT-036]."""
    return f"agent:mcp/{client_name}"
