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

import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import trio

from mhsd.aclient.caller import AsyncCaller
from mhsd.aclient.events import EventHub
from mhsd.aclient.operations import OnProgress
from mhsd.aclient.pending import Pending
from mhsd.aclient.session import AsyncSession
from mhsd.aclient.transport import AsyncTransport
from mhsd.client import requests
from mhsd.client.backoff import ATTEMPTS
from mhsd.client.calls import DEFAULT_TIMEOUT_S
from mhsd.client.documents import Device, Receipt
from mhsd.client.errors import MHSError
from mhsd.client.evidence import joined, next_page
from mhsd.client.naming import devices_of
from mhsd.client.negotiated import Negotiated
from mhsd.client.requests import DEFAULT_TTL_S, given


class AsyncClient(AsyncCaller, Negotiated):
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
        self._sessions: weakref.WeakSet[AsyncSession] = weakref.WeakSet()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<AsyncClient of {self.transport.url}>"

    def _told(self) -> dict[str, Any]:
        if self._hello is None:
            raise RuntimeError(
                "nothing was negotiated yet: `await client.hello()`, or any other call, comes first"
            )
        return self._hello

    def holds(self, session: AsyncSession) -> None:
        """A session works over this client, and does nothing more when the client is closed."""
        self._sessions.add(session)
        if self._is_closed:
            session.forget()

    async def close(self) -> None:
        """Gives back the connections; over stdio this ends the endpoint, and ChildFailed says if it ended badly.

        A session that is still open ends at the endpoint when its time is over; whoever waits for its events is told.
        """
        self._is_closed = True
        for session in list(self._sessions):
            session.forget()
        await super().close()

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

    def session(
        self,
        device_ids: str | Sequence[str] | None = None,
        capabilities: Sequence[str] | None = None,
        mode: str | None = None,
        ttl_s: int = DEFAULT_TTL_S,
        *,
        principal: Mapping[str, Any] | None = None,
        approved_by: Sequence[str] = (),
    ) -> Pending[AsyncSession]:
        """Opens a session: `async with` closes it behind the block, `await` leaves that to `close`.

        Without `device_ids` it covers the only device, else the error names those there are. `capabilities` are ids or
        patterns like `cap.motion.*`, all of them when left out; `[]` opens a session that only reads. `mode` is that of
        the device when left out. It ends `ttl_s` seconds after the last sign of life; signs of life are sent while a
        call, an operation or a subscription is open. `approved_by` names the people who answer for a device of risk
        class R3.
        """
        return Pending(partial(self._session, device_ids, capabilities, mode, ttl_s, principal, approved_by))

    async def _session(
        self,
        device_ids: str | Sequence[str] | None,
        capabilities: Sequence[str] | None,
        mode: str | None,
        ttl_s: int,
        principal: Mapping[str, Any] | None,
        approved_by: Sequence[str],
    ) -> AsyncSession:
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
        grant = await self._granted(params)
        session_id = requests.member(grant, "session_id")
        return AsyncSession(self, session_id, found, grant=grant, ttl_s=params["ttl_s"])

    async def _granted(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The session that was asked for. Where whoever asks is cancelled meanwhile, it is closed again when it comes:
        nobody else knows of it, and it would take a place at the endpoint for as long as it lives."""
        if self._is_closed:
            return await self.call("mhs.session.open", params)
        outcome: list[dict[str, Any] | MHSError] = []
        answered, unwanted = trio.Event(), trio.Event()

        async def ask() -> None:
            try:
                outcome.append(await self.call("mhs.session.open", params))
            except MHSError as problem:
                outcome.append(problem)
            answered.set()
            if unwanted.is_set() and isinstance(outcome[0], dict):
                with suppress(MHSError):
                    await self.call("mhs.session.close", given(session_id=outcome[0].get("session_id")))

        self.nursery.start_soon(ask)
        try:
            await answered.wait()
        except trio.Cancelled:
            unwanted.set()
            raise
        if isinstance(outcome[0], MHSError):
            raise outcome[0]
        return outcome[0]

    async def wait(self, receipt: Mapping[str, Any], *, on_progress: OnProgress | None = None) -> Receipt:
        """The final receipt of the operation that `receipt` belongs to; a final one is returned as it is.

        When the session of the receipt is over, a new one asks [TPT-061].
        """
        owner = AsyncSession(self, str(receipt.get("session_id")), [str(receipt.get("device_id"))])
        try:
            return await owner.wait(receipt, on_progress=on_progress)
        finally:
            owner.forget()

    async def found_out(self, receipt: Mapping[str, Any], on_progress: OnProgress | None = None) -> Receipt:
        """The final receipt of an operation whose session is over, asked for in a session of its own [TPT-061]."""
        async with self.session([str(receipt.get("device_id"))], []) as reading:
            return await reading.follow(receipt, on_progress)

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

    async def evidence_pages(
        self, *, device_id: str | None = None, session_id: str | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """The endpoint's bundles page by page, for an evidence that is too large to be held whole."""
        asked: Mapping[str, Any] | None = given(
            device_id=None if device_id is None else await self.find(device_id), session_id=session_id
        )
        while asked is not None:
            page = await self.call("mhs.evidence.export", asked)
            asked = next_page(asked, page)
            yield page

    async def export_evidence(
        self, *, device_id: str | None = None, session_id: str | None = None
    ) -> dict[str, Any]:
        """All receipts of the endpoint, or of a device or session, as one bundle."""
        return joined(
            [page async for page in self.evidence_pages(device_id=device_id, session_id=session_id)]
        )
