"""The endpoint: its devices, its safety state, its sessions, and the nursery they live in.

`open_endpoint` brings everything up in the safe order (devices opened, latches restored, interrupted commands
accounted for) and `Endpoint.drain` takes it down again. What a request may do is decided elsewhere.
"""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import attrs
import trio

from mhsd import MHS_VERSION, SPEC_VERSION, __version__
from mhsd.base.clock import Clock, rfc3339
from mhsd.base.errors import Fault, StartError
from mhsd.base.ids import Ids
from mhsd.config import Limits
from mhsd.core import receipts
from mhsd.core.latch import SafetyState
from mhsd.core.permits import PermitBook
from mhsd.driver.loader import LoadedDevice
from mhsd.services.device_host import STATE_READ_S, DeviceHost
from mhsd.services.estop import EmergencyStop
from mhsd.services.recordings import REPLAY_SEEK
from mhsd.services.records import sent_records
from mhsd.services.reset import Reset
from mhsd.services.schemas import SchemaShelf
from mhsd.services.served_device import ServedDevice, run_device
from mhsd.services.session_host import SessionHost
from mhsd.services.subscriptions import Subscriptions
from mhsd.store import Intent, Receipt, Store, StoreFailed
from mhsd.wire.json_text import Raw, encode

log = logging.getLogger("mhsd.endpoint")

NOT_CERTIFIED = "MHS.SAFETY.NOT_CERTIFIED"
SERVER = {"name": "mhsd", "version": __version__}


def device_unknown(device_id: str) -> Fault:
    """The answer to an id of a device that is not served, or not to this caller."""
    return Fault(
        "MHS.DEVICE.UNKNOWN",
        f"this endpoint serves no device {device_id}",
        details={"device_id": device_id},
    )


@attrs.define(eq=False)
class Endpoint:
    """Everything that the handlers of the protocol work on."""

    endpoint_id: str
    devices: Mapping[str, ServedDevice]
    store: Store
    limits: Limits
    features: tuple[str, ...]
    safety: SafetyState
    permits: PermitBook
    sessions: SessionHost
    subscriptions: Subscriptions
    estop: EmergencyStop
    reset: Reset
    schemas: SchemaShelf
    clock: Clock
    ids: Ids
    started_at: str
    operator_configured: bool
    draining: bool = False
    _server_info: bytes | None = None

    def device(self, device_id: str) -> ServedDevice:
        """The served device; MHS.DEVICE.UNKNOWN for any other id."""
        device = self.devices.get(device_id)
        if device is None:
            raise device_unknown(device_id)
        return device

    def summaries(self) -> list[dict[str, Any]]:
        return [device.summary() for device in self.devices.values()]

    def server_info(self, time: Mapping[str, Any], devices: list[dict[str, Any]] | None = None) -> Raw:
        """What `mhs.hello` answers, with these device summaries or those of all.

        For callers who see all of them everything but the time stays the same, and is encoded once.
        """
        if devices is not None:
            return Raw(encode({**self._lasting_info(), "devices": devices, "time": time}))
        if self._server_info is None:
            self._server_info = encode(self._lasting_info())
        return Raw(self._server_info[:-1] + b',"time":' + encode(time) + b"}")

    def _lasting_info(self) -> dict[str, Any]:
        limits = attrs.asdict(self.limits)
        limits["receipt_store"] = self.store.kind
        return {
            "server": SERVER,
            "implementation": SERVER,
            "spec_version": SPEC_VERSION,
            "mhs_version": MHS_VERSION,
            "protocol_versions": [MHS_VERSION],
            "endpoint_id": self.endpoint_id,
            "devices": self.summaries(),
            "limits": limits,
            "started_at": self.started_at,
            "conformance": [],
            "features": [NOT_CERTIFIED, *self.features],
            "safety": {"certified": False, "notice": NOT_CERTIFIED},
        }

    def descriptor_devices(self) -> list[dict[str, Any]]:
        """The devices as the well-known descriptor lists them."""
        return self.summaries()

    async def drain(self) -> None:
        """Take no more commands, bring operations and devices to their safe state, close the sessions [TPT-008].

        Bounded by the stop grace of the devices; the emergency stop stays served meanwhile.
        """
        self.draining = True
        for device in self.devices.values():
            device.host.draining = True
        async with trio.open_nursery() as nursery:
            for device in self.devices.values():
                nursery.start_soon(_drain_device, device)
        for session in self.sessions.live_sessions():
            await self.sessions.close(session, kind="shutdown")
        self.subscriptions.end_all()


async def _drain_device(device: ServedDevice) -> None:
    gone = Fault("MHS.TRANSPORT.UNAVAILABLE", "the endpoint is shutting down")
    device.executions.refuse_queue(gone)
    for carriage in device.executions.live():
        assert carriage.operation is not None
        device.executions.end(carriage.operation, "shutdown", "endpoint:shutdown")
    with trio.move_on_after(2 * device.host.stop_grace_s):
        # Also for what is refused at the last moment: the next start must not find it open.
        for carriage in device.executions.open_in_store():
            await carriage.answered.wait()
    if device.host.manifest.safety.on_shutdown == "safe_state":
        await device.host.halt("shutdown")
    else:
        log.warning("%s was left as it is (on_shutdown = leave)", device.device_id)


@asynccontextmanager
async def open_endpoint(
    *,
    endpoint_id: str,
    devices: Sequence[LoadedDevice],
    store: Store,
    limits: Limits,
    features: Sequence[str] = (),
    armed: frozenset[str] | Literal[True] = frozenset(),
    operator_configured: bool = False,
    stop_grace_s: float = 10.0,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> AsyncIterator[Endpoint]:
    """Serve these devices until the block is left; StartError when one cannot be opened.

    Leaving the block stops what runs in it: call `drain` first, so that the devices are safe by then.
    """
    clock = clock or Clock()
    ids = ids or Ids()
    safety, permits = SafetyState(), PermitBook()
    hosts = [
        DeviceHost(
            loaded,
            endpoint_id=endpoint_id,
            store=store,
            safety=safety,
            permits=permits,
            clock=clock,
            ids=ids,
            armed=armed is True or loaded.manifest.path in armed,
            stop_grace_s=stop_grace_s,
            max_open_operations=limits.max_open_operations,
        )
        for loaded in devices
    ]
    failure: StartError | None = None
    async with trio.open_nursery() as nursery:
        try:
            served = await _start_devices(hosts, nursery)
        except StartError as error:
            failure = error
            nursery.cancel_scope.cancel()
        else:
            subscriptions = Subscriptions(
                served,
                max_subscriptions=limits.max_subscriptions,
                max_events=limits.max_buffered_events,
                clock=clock,
                ids=ids,
            )
            subscriptions.start(nursery)
            sent = sent_records({device_id: device.host for device_id, device in served.items()})
            endpoint = Endpoint(
                endpoint_id=endpoint_id,
                devices=served,
                store=store,
                limits=limits,
                features=(*features, *_features_of(hosts)),
                safety=safety,
                permits=permits,
                sessions=SessionHost(
                    served,
                    nursery=nursery,
                    permits=permits,
                    subscriptions=subscriptions,
                    limits=limits,
                    clock=clock,
                    ids=ids,
                ),
                subscriptions=subscriptions,
                estop=EmergencyStop(store, nursery),
                reset=Reset(store, nursery),
                schemas=SchemaShelf(served),
                clock=clock,
                ids=ids,
                started_at=rfc3339(clock.now()),
                operator_configured=operator_configured,
            )
            try:
                await _recover(endpoint)
            except StartError as error:
                failure = error
            else:
                with sent:
                    yield endpoint
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _features_of(hosts: Sequence[DeviceHost]) -> list[str]:
    """What an endpoint can do because of the devices that it serves [PROTO-018, PROTO-035a]."""
    return [REPLAY_SEEK] if any(host.mode == "replay" for host in hosts) else []


async def _start_devices(hosts: Sequence[DeviceHost], nursery: trio.Nursery) -> dict[str, ServedDevice]:
    """Open the devices; the group that a nursery makes of a StartError is taken apart again."""
    served: dict[str, ServedDevice] = {}
    for host in hosts:
        try:
            served[host.device_id] = await nursery.start(run_device, host)
        except* StartError as group:
            raise _first_leaf(group) from None
    return served


def _first_leaf(group: BaseExceptionGroup[StartError]) -> StartError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, StartError)
    return error


async def _recover(endpoint: Endpoint) -> None:
    """Account for what was in flight when the last process died, and restore the latches [OP-006, CORE-172]."""
    interrupted: set[str] = set()
    unstored: StoreFailed | None = None
    for intent in endpoint.store.open_intents:
        device = endpoint.devices.get(intent.device_id)
        if device is not None:
            interrupted.add(intent.device_id)
        try:
            await endpoint.store.put(_interrupted(endpoint, intent, device)).wait()
        except StoreFailed as error:
            # The devices are brought to their safe state all the same.
            unstored = error
    for device_id, device in endpoint.devices.items():
        record = endpoint.store.latched.get(device_id)
        if record is not None:
            endpoint.safety.engage([device_id], record.reason, record.engaged_at)
            await device.host.restop("the latch was engaged before the restart")
            interrupted.discard(device_id)
    for device_id in interrupted:
        host = endpoint.devices[device_id].host
        if not await host.halt("restart after a command in flight"):
            host.doubt(
                "a command was in flight when the endpoint died, and the safe state could not be confirmed"
            )
    if unstored is not None:
        raise StartError(
            f"{endpoint.store.directory}: {unstored}: free or repair the disk, then start again", exit_code=1
        )
    for device in endpoint.devices.values():
        reading = await device.host.read_within(device.host.all_resources(), STATE_READ_S)
        if reading is not None:
            # A stop before the first command is compared with this: one that changes nothing moves no revision.
            device.host.remember(reading, device.host.all_resources())


def _interrupted(endpoint: Endpoint, intent: Intent, device: ServedDevice | None) -> Receipt:
    """The last receipt of a command whose process died: its outcome stays unknown, and it never runs again."""
    fault = Fault(
        "MHS.OUTCOME.UNKNOWN",
        "the endpoint was restarted while the command was in flight; what it did is not known",
        details={"reason": "endpoint_restarted", "operation_id": intent.operation_id},
    )
    before = endpoint.store.revision(intent.device_id) if device is None else device.host.revision
    if device is not None:
        device.host.revision += 1
    body = {
        **intent.body,
        "status": "unknown",
        "ended_at": rfc3339(endpoint.clock.now()),
        **receipts.Change(before, before + 1, None).members(),
        "effects": [],
        "error": fault.receipt_error(),
    }
    row = endpoint.store.find_command(intent.device_id, intent.command_id)
    if row is not None and row.interim is not None:
        receipts.add_vendor(body, {"reconciles": row.interim.receipt_id})
    return Receipt(
        kind="final",
        body=body,
        device_id=intent.device_id,
        command_id=intent.command_id,
        operation_id=intent.operation_id,
        principal_id=intent.principal_id,
        revision=before + 1,
    )
