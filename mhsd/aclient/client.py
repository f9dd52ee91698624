"""The code API for Trio: one endpoint for any number of tasks [TPT-054].

Decides how the methods of the protocol look in Python, as `mhsd.client.code` does for programs that wait. A refusal of
a command is a receipt that is returned; what is raised are failures of the transport, the protocol, authentication and
sessions [TPT-055]. Every call has a finite deadline [TPT-056].

Concurrency [TPT-057]: every method may be called from any number of tasks of one Trio run at once. Over HTTP each call
has a connection of its own while it lasts; on stdio and WebSocket an id tells its answer from the others. Calls do not
wait for each other, except for their turn where the endpoint limits the rate, and an e-stop waits for nothing.
Cancelling a call ends the wait and nothing else: what the endpoint has begun goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from mhsd.aclient.caller import AsyncCaller
from mhsd.aclient.events import EventHub
from mhsd.aclient.session import AsyncSession, OnProgress
from mhsd.aclient.transport import AsyncTransport
from mhsd.client import requests
from mhsd.client.backoff import ATTEMPTS
from mhsd.client.calls import DEFAULT_TIMEOUT_S
from mhsd.client.documents import Device, Receipt
from mhsd.client.errors import SessionError
from mhsd.client.evidence import joined, next_page
from mhsd.client.naming import devices_of
from mhsd.client.requests import DEFAULT_TTL_S, given


class AsyncClient(AsyncCaller):
    """One endpoint and one caller; `open_client` makes one and closes it. `nursery` is for its own tasks."""

    def __init__(
        self,
        transport: AsyncTransport,
        nursery: trio.Nursery,
        hub: EventHub,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        attempts: int = ATTEMPTS,
        name: str = "mhsd-client",
    ) -> None:
        super().__init__(transport, timeout_s=timeout_s, attempts=attempts, name=name)
        self.nursery = nursery
        self.hub = hub

    async def devices(self) -> list[Device]:
        """The manifests of all devices: mode, risk class, fidelity gaps, capabilities with their limits [TPT-056]."""
        answered = await self.call("mhs.devices.list", {"detail": "full"})
        return [Device(found) for found in devices_of(answered)]

    async def device(self, device_id: str | None = None) -> Device:
        """One device's manifest with its current state; without an id that of the only device.

        Wherever a device is named here, its id, its path, the last word of its path or its display name will do.
        """
        return Device(await self.call("mhs.devices.get", {"device_id": await self.find(device_id)}))

    async def find(self, device_id: str | None = None) -> str:
        """The whole id of a device; MHSError that names the devices where not exactly one is meant."""
        return requests.device_named(await self.hello(), device_id)

    async def open_session(
        self,
        device_ids: str | Sequence[str] | None = None,
        capabilities: Sequence[str] | None = None,
        mode: str | None = None,
        ttl_s: int = DEFAULT_TTL_S,
        *,
        principal: Mapping[str, Any] | None = None,
        approved_by: Sequence[str] = (),
    ) -> AsyncSession:
        """Opens a session, which stays open until it is closed or `ttl_s` seconds pass without a sign of life.

        Without `device_ids` it covers the only device, else the error names those there are. `capabilities` are ids or
        patterns like `cap.motion.*`, all of them when left out; `[]` opens a session that only reads. `mode` is that of
        the device when left out. `approved_by` names the people who answer for a device of risk class R3.
        """
        hello = await self.hello()
        named = [device_ids] if device_ids is None or isinstance(device_ids, str) else device_ids
        found = [requests.device_named(hello, each) for each in named]
        params = requests.open_params(
            hello,
            client_name=self.name,
            transport=self.transport.name,
            principal=requests.claimed_principal() if principal is None else principal,
            device_ids=found,
            capabilities=["*"] if capabilities is None else capabilities,
            mode=requests.mode_of(hello, found) if mode is None else mode,
            ttl_s=ttl_s,
            approvals=requests.approvals(approved_by),
        )
        grant = await self.call("mhs.session.open", params)
        session_id = requests.member(grant, "session_id")
        return AsyncSession(self, session_id, found, grant=grant, ttl_s=params["ttl_s"])

    @asynccontextmanager
    async def session(
        self,
        device_ids: str | Sequence[str] | None = None,
        capabilities: Sequence[str] | None = None,
        mode: str | None = None,
        ttl_s: int = DEFAULT_TTL_S,
        *,
        principal: Mapping[str, Any] | None = None,
        approved_by: Sequence[str] = (),
    ) -> AsyncIterator[AsyncSession]:
        """As `open_session`, for the block: leaving it closes the session."""
        async with await self.open_session(
            device_ids, capabilities, mode, ttl_s, principal=principal, approved_by=approved_by
        ) as session:
            yield session

    async def wait(self, receipt: Mapping[str, Any], *, on_progress: OnProgress | None = None) -> Receipt:
        """The final receipt of the operation that `receipt` belongs to; a final one is returned as it is.

        When the session of the receipt is over, a new one asks [TPT-061].
        """
        device_id = str(receipt.get("device_id"))
        owner = AsyncSession(self, str(receipt.get("session_id")), [device_id])
        try:
            return await owner.wait(receipt, on_progress=on_progress)
        except SessionError:
            async with self.session([device_id], []) as reading:
                return await reading.wait(receipt, on_progress=on_progress)
        finally:
            owner.forget()

    # Safety: none of it waits for a session.

    async def safety_status(self, device_id: str | None = None) -> dict[str, Any]:
        """Latch, interlocks, permits and safe state of one device."""
        return await self.call("mhs.safety.status", {"device_id": await self.find(device_id)})

    async def estop(self, reason: str | None = None, *, device_id: str | None = None) -> Receipt:
        """Latches the e-stop of one device, or of all; the receipt says of each what was confirmed."""
        if device_id is not None and not device_id.startswith("mhs://"):
            # A whole id needs no look-up, which would be one more thing that can fail.
            device_id = await self.find(device_id)
        return Receipt(await self.call("mhs.safety.estop", given(reason=reason, device_id=device_id)))

    async def reset(self, device_id: str | None = None) -> Receipt:
        """Releases a latched e-stop, as an operator: look at the device before."""
        async with self.session(await self.find(device_id), []) as session:
            return await session.reset()

    async def permit(
        self,
        session_id: str,
        capability_id: str,
        input: Mapping[str, Any],
        *,
        resource: str | None = None,
        device_id: str | None = None,
        ttl_s: int = 300,
        approved_by: Sequence[str] = (),
    ) -> dict[str, Any]:
        """As an operator: approves one command with exactly this input, once, for a session that is open.

        Its `permit_id` is for the `invoke` of that session.
        """
        device_id = await self.find(device_id)
        if resource is None:
            resource = requests.only_resource(await self.device(device_id), capability_id)
        return await self.call(
            "mhs.safety.permit",
            {
                "session_id": session_id,
                "device_id": device_id,
                "capability_id": capability_id,
                "resource": resource,
                "input_digest": requests.input_digest(capability_id, resource, input),
                "ttl_s": ttl_s,
                "approvals": requests.approvals(approved_by),
            },
        )

    # Evidence.

    async def export_evidence(
        self, *, device_id: str | None = None, session_id: str | None = None
    ) -> dict[str, Any]:
        """All receipts of the endpoint, or of a device or session, as one bundle."""
        selection = given(device_id=device_id and await self.find(device_id), session_id=session_id)
        pages: list[dict[str, Any]] = []
        asked: Mapping[str, Any] | None = selection
        while asked is not None:
            pages.append(await self.call("mhs.evidence.export", asked))
            asked = next_page(asked, pages[-1])
        return joined(pages)
