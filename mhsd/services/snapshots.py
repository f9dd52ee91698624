"""Snapshots of a device: taking one, and the binding that a restore runs as [PROTO-034, PROTO-035].

A restore goes through the envelope and the device's slot like any command. What judges a snapshot is in
`core.snapshots`, and what the driver is asked to do in `native`.
"""

from typing import Any

from mhsd.base.errors import Fault
from mhsd.core.receipts import RESTORE
from mhsd.driver import Reading
from mhsd.driver.classes import CapabilityClass
from mhsd.driver.manifest import Binding, Manifest
from mhsd.services.device_host import DeviceHost, unusable
from mhsd.services.executions import Executions
from mhsd.services.slot import RETRY_AFTER_MS
from mhsd.wire.canonical import NotCanonical
from mhsd.wire.schema import compile_schema

STEADY_READS = 3
"""How often the state is read again when something ran on the device meanwhile."""

RESTORE_MAX_DURATION_MS = 30_000

_DIGEST = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
_CLASS = {
    "input_schema": {
        "type": "object",
        "additionalProperties": False,
        "required": ["snapshot_digest"],
        "properties": {"snapshot_digest": _DIGEST},
    },
    "output_schema": {
        "type": "object",
        "additionalProperties": False,
        "required": ["snapshot_digest", "state_hash"],
        "properties": {"snapshot_digest": _DIGEST, "state_hash": _DIGEST},
    },
}
_EFFECT = {
    "kind": "state.restore",
    "summary": "the device's state is set to that of a snapshot",
    "reversible": True,
    "severity": "R0",
}


def restore_binding(manifest: Manifest) -> Binding:
    """What `mhs.restore` runs as. It sets the whole device, so every hard interlock guards it; nobody is granted it."""
    return Binding(
        capability_id=RESTORE,
        resource="",
        input_schema=_CLASS["input_schema"],
        limits={},
        interlocks=tuple(interlock.id for interlock in manifest.safety.interlocks.values() if interlock.hard),
        permit="none",
        long_running=False,
        max_duration_ms=RESTORE_MAX_DURATION_MS,
        max_rate_per_s=None,
        effects=(_EFFECT,),
        simulation_control=False,
        input=compile_schema(_CLASS["input_schema"]),
        capability=CapabilityClass(
            capability_id=RESTORE,
            document=_CLASS,
            input=compile_schema(_CLASS["input_schema"]),
            output=compile_schema(_CLASS["output_schema"]),
        ),
    )


async def take_snapshot(host: DeviceHost, executions: Executions) -> dict[str, Any]:
    """The whole state of a device between two mutations [PROTO-034]. The caller bounds it in time.

    Raises MHS.MODE.SNAPSHOT_UNSUPPORTED, and MHS.DEVICE.BUSY while an actuating operation runs.
    """
    unsupported = host.origin.snapshot_refusal()
    if unsupported is not None:
        raise unsupported
    for _ in range(STEADY_READS):
        if _driven(host, executions):
            break
        revision = host.revision
        reading = await host.read(host.all_resources())
        if host.revision == revision and not _driven(host, executions):
            return _document(host, reading, revision)
    raise Fault(
        "MHS.DEVICE.BUSY",
        f"{host.device_id} is being driven; its state cannot be taken as a whole",
        details={"retry_after_ms": RETRY_AFTER_MS},
    )


def _document(host: DeviceHost, reading: Reading, revision: int) -> dict[str, Any]:
    try:
        return host.origin.snapshot(reading.resources, revision, host.wall())
    except NotCanonical as error:
        raise unusable(f"the state has no canonical form: {error}") from error


def _driven(host: DeviceHost, executions: Executions) -> bool:
    """Whether something that moves the device runs, is about to, or never came back."""
    return not host.slot.free or any(carriage.attempt.actuating for carriage in executions.live())
