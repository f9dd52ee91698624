"""What the fixed tools do: every one of them asks the endpoint, and none is a way round it [TPT-044].

Which fixed tools there are, and what they take, is for `fixed`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from mhsd.aclient.background import background
from mhsd.aclient.client import AsyncClient
from mhsd.aclient.session import AsyncSession
from mhsd.base.errors import Fault
from mhsd.client.documents import Receipt
from mhsd.client.errors import MHSError
from mhsd.client.naming import devices_of
from mhsd.mcp import fixed
from mhsd.mcp.artifacts import Artifacts
from mhsd.mcp.evidence import EvidenceReader
from mhsd.mcp.fixed import FixedTool
from mhsd.mcp.host import Job
from mhsd.mcp.leases import Lease, Leases
from mhsd.mcp.progress import following
from mhsd.mcp.projection import Projection
from mhsd.mcp.reach import Reach
from mhsd.mcp.results import document_result, safety_result

Arguments = Mapping[str, Any]

READ_DEADLINE_S = 25.0
"""How long a look waits for a device; common hosts give a call up after 30 s or more [TPT-042]."""

CANCEL_DEADLINE_S = 25.0
"""How long a cancellation is waited for; the device has its grace to reach the safe state."""


class FixedCalls:
    """Carries out the calls of fixed tools."""

    def __init__(self, client: AsyncClient, leases: Leases, reach: Reach, artifacts: Artifacts) -> None:
        self._client = client
        self._leases = leases
        self._reach = reach
        self._evidence_of = EvidenceReader(client, artifacts)
        self._table: Mapping[str, Callable[[Job, Arguments], Awaitable[dict[str, Any]]]] = {
            fixed.DEVICES: self._devices,
            fixed.INSPECT: self._inspect,
            fixed.READ: self._read,
            fixed.SAFETY: self._safety,
            fixed.OPERATIONS: self._operations,
            fixed.EVIDENCE: self._evidence,
            fixed.ESTOP: self._estop,
            fixed.RESET: self._reset,
            fixed.PERMIT: self._permit,
        }

    async def call(self, job: Job, tool: FixedTool, arguments: Arguments) -> dict[str, Any]:
        """The result of one call; Fault or MHSError where there is none."""
        return await self._table[tool.name](job, tool.arguments(arguments))

    # Looking

    async def _devices(self, job: Job, arguments: Arguments) -> dict[str, Any]:
        projection = await self._reach.sure()
        # The tools are known from before; whether anybody is there to serve them is asked now.
        listed = await self._client.call("mhs.devices.list")
        self._reach.seen(each["device_id"] for each in devices_of(listed))
        return document_result(projection.devices())

    async def _inspect(self, job: Job, arguments: Arguments) -> dict[str, Any]:
        projection = await self._reach.sure()
        return document_result(projection.inspected(await self.manifest(projection, arguments)))

    async def manifest(self, projection: Projection, arguments: Arguments) -> dict[str, Any]:
        """One manifest as the endpoint has it now; with the states, unless the policy forbids to read them."""
        device_id = projection.device_id(arguments.get("device_id"))
        with_state = projection.reading_refusal(device_id) is None
        return await self._client.call(
            "mhs.devices.get", {"device_id": device_id, "include_state": with_state}
        )

    async def _read(self, job: Job, arguments: Arguments) -> dict[str, Any]:
        projection = await self._reach.sure()
        resource_id = arguments["resource_id"]
        device_id = projection.device_of(resource_id, arguments.get("device_id"))
        fields = arguments.get("fields", ())
        return document_result(await self.state(projection, device_id, resource_id, fields))

    async def state(
        self, projection: Projection, device_id: str, resource_id: str, fields: Any = ()
    ) -> dict[str, Any]:
        """The state of one resource; read once more where the session for reading had ended."""
        refusal = projection.reading_refusal(device_id)
        if refusal is not None:
            raise refusal

        async def ask(session: AsyncSession) -> dict[str, Any]:
            deadline_ms = round(READ_DEADLINE_S * 1000)
            return await session.read(resource_id, fields=fields, deadline_ms=deadline_ms)

        return await self._leases.reading(device_id, _mode(projection, device_id), ask)

    async def _safety(self, job: Job, arguments: Arguments) -> dict[str, Any]:
        projection = await self._reach.sure()
        device_id = projection.device_id(arguments.get("device_id"))
        status = await self._client.call(
            "mhs.safety.status", {"device_id": device_id}, deadline_s=READ_DEADLINE_S
        )
        return document_result({**status, "risk_class": projection.manifests[device_id].get("risk_class")})

    async def _evidence(self, job: Job, arguments: Arguments) -> dict[str, Any]:
        return document_result(await self._evidence_of.document(arguments))

    # Operations

    async def _operations(self, job: Job, arguments: Arguments) -> dict[str, Any]:
        projection = await self._reach.sure()
        cancelled = arguments.get("cancel_operation_id")
        operation_id = arguments.get("operation_id")
        if cancelled is not None:
            return document_result(await self._cancel(projection, cancelled, arguments))
        if operation_id is not None:
            wait_ms = arguments.get("wait_ms", 0)
            return document_result(await self._one(job, projection, operation_id, wait_ms, arguments))
        return document_result(await self._list(projection, arguments))

    async def _list(self, projection: Projection, arguments: Arguments) -> dict[str, Any]:
        """The operations of every session of this connection."""
        device_id = arguments.get("device_id")
        wanted = [projection.device_id(device_id)] if device_id is not None else list(projection.manifests)
        found: dict[str, dict[str, Any]] = {}
        for lease in self._leases.live():
            if lease.device_id not in wanted:
                continue
            try:
                listed = await lease.session.operations()
            except MHSError as refusal:
                if not self._leases.note(lease, refusal):
                    raise
                continue  # What a session did is over with it.
            found |= {str(each.get("operation_id")): each for each in listed}
        return {"operations": [found[each] for each in sorted(found, reverse=True)]}

    async def _one(
        self, job: Job, projection: Projection, operation_id: str, wait_ms: int, arguments: Arguments
    ) -> Receipt:
        """The receipt of one operation, at its end or when the time is up, whichever comes first."""
        receipt, lease = await self._find(projection, operation_id, arguments)
        if receipt.final or wait_ms == 0:
            return receipt
        session, command_id = lease.session, str(receipt.get("command_id"))
        with trio.move_on_after(wait_ms / 1000) as scope:
            async with background() as nursery, following(nursery, job, session, command_id):
                nursery.start_soon(_cancel_when, job.cancelled, scope)
                return await session.wait(receipt)
        return await session.operation(operation_id)

    async def _cancel(self, projection: Projection, operation_id: str, arguments: Arguments) -> Receipt:
        _, lease = await self._find(projection, operation_id, arguments)
        return await lease.session.cancel(operation_id, deadline_s=CANCEL_DEADLINE_S)

    async def _find(
        self, projection: Projection, operation_id: str, arguments: Arguments
    ) -> tuple[Receipt, Lease]:
        """The operation, and the session in which it was found: its own where that lives, else one for reading."""
        asked = arguments.get("device_id")
        device_ids = [projection.device_id(asked)] if asked is not None else list(projection.manifests)
        leases = [lease for lease in self._leases.live() if lease.device_id in device_ids]
        for lease in leases:
            try:
                return await lease.session.operation(operation_id), lease
            except MHSError as refusal:
                if not self._leases.note(lease, refusal) and refusal.mhs_code != "MHS.OPERATION.UNKNOWN":
                    raise
        for device_id in device_ids:
            lease = await self._leases.for_reading(device_id, _mode(projection, device_id))
            try:
                return await lease.session.operation(operation_id), lease
            except MHSError as refusal:
                if refusal.mhs_code != "MHS.OPERATION.UNKNOWN":
                    raise
        raise Fault("MHS.OPERATION.UNKNOWN", f"there is no operation {operation_id[:64]} of yours here")

    # Safety

    async def _estop(self, job: Job, arguments: Arguments) -> dict[str, Any]:
        """Asks for nothing first, neither a session nor the devices [CORE-076]."""
        reason = arguments.get("reason", fixed.DEFAULT_REASON)
        return safety_result(await self._client.estop(reason, device_id=arguments.get("device_id")))

    async def _reset(self, job: Job, arguments: Arguments) -> dict[str, Any]:
        projection = await self._reach.sure()
        device_id = projection.device_id(arguments.get("device_id"))
        lease = await self._leases.for_reading(device_id, _mode(projection, device_id))
        return safety_result(await lease.session.reset(device_id))

    async def _permit(self, job: Job, arguments: Arguments) -> dict[str, Any]:
        """A permit for the session in which the capability's tool will use it."""
        projection = await self._reach.sure()
        device_id = projection.device_id(arguments.get("device_id"))
        mode = _mode(projection, device_id)
        lease = await self._leases.for_command(device_id, arguments["capability_id"], mode)
        permit = await lease.session.permit(
            arguments["capability_id"],
            arguments["input"],
            resource=arguments.get("resource"),
            ttl_s=arguments.get("ttl_s", fixed.DEFAULT_PERMIT_TTL_S),
        )
        return document_result(permit)


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _mode(projection: Projection, device_id: str) -> str:
    return str(projection.manifests[device_id].get("mode"))
