"""Discovery: hello, the devices and their manifests, the schemas. None of it needs a session."""

from collections.abc import Awaitable
from typing import Any

import trio

from mhsd import MHS_VERSION
from mhsd.base.errors import Fault
from mhsd.driver import Reading
from mhsd.protocol.context import Context
from mhsd.services.served_device import ServedDevice
from mhsd.wire.elements import DeviceFilter
from mhsd.wire.json_text import Raw
from mhsd.wire.params import DevicesGetParams, DevicesListParams, HelloParams, SchemaGetParams

STATE_READ_S = 5.0
"""How long devices.get, which has no deadline of its own, waits for the state."""


def hello(context: Context, params: HelloParams) -> Raw:
    """The server's identity, limits and features [PROTO-013, PROTO-018, PROTO-019]."""
    if not any(version.split(".")[0] == MHS_VERSION.split(".")[0] for version in params.protocol_versions):
        raise Fault(
            "MHS.PROTOCOL.VERSION_UNSUPPORTED",
            f"this endpoint speaks MHS {MHS_VERSION} and none of {', '.join(params.protocol_versions) or 'nothing'}",
            details={"protocol_versions": [MHS_VERSION]},
        )
    context.peer.greeted = True
    time = {"now": context.wall(), "mono_ms": int(trio.current_time() * 1000)}
    if context.peer.devices is None:
        return context.endpoint.server_info(time)
    return context.endpoint.server_info(time, [device.summary() for device in context.devices().values()])


def devices_list(context: Context, params: DevicesListParams) -> dict[str, Any]:
    """Summaries or whole manifests of the devices that match the filter [PROTO-020]."""
    chosen = [d for d in context.devices().values() if _matches(d, params.filter)]
    full = params.detail == "full"
    return {"devices": [device.described if full else device.summary() for device in chosen]}


def _matches(device: ServedDevice, wanted: DeviceFilter | None) -> bool:
    if wanted is None:
        return True
    manifest = device.host.manifest
    return (
        wanted.mode in (None, device.host.mode)
        and wanted.risk_class in (None, manifest.risk_class)
        and (wanted.capability is None or bool(manifest.bindings_of(wanted.capability)))
        and (wanted.tag is None or wanted.tag in manifest.profile.get("tags", ()))
    )


def devices_get(context: Context, params: DevicesGetParams) -> dict[str, Any] | Awaitable[dict[str, Any]]:
    """One manifest, with each resource's state unless it is declined [PROTO-021]."""
    device = context.device(params.device_id)
    return _with_state(device) if params.include_state else device.described


async def _with_state(device: ServedDevice) -> dict[str, Any]:
    reading: Reading | None = None
    with trio.move_on_after(STATE_READ_S):
        reading = await device.host.read(device.host.all_resources())
    if reading is None:
        raise Fault(
            "MHS.OUTCOME.TIMEOUT",
            f"{device.device_id} did not show its state within {STATE_READ_S:g} s",
            details={"reason": "state_unreadable"},
            remediation="Ask again with include_state false to get the manifest alone.",
        )
    resources = [
        {**resource, "state": reading.resources[resource["resource_id"]]}
        for resource in device.described["resources"]
    ]
    return {**device.described, "resources": resources}


def schema_get(context: Context, params: SchemaGetParams) -> dict[str, Any]:
    """A document that this endpoint validates against [PROTO-022]."""
    if params.device_id is not None:
        context.device(params.device_id)
    return context.endpoint.schemas.get(params.ref, params.device_id, params.resource)
