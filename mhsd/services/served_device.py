"""A device as the endpoint serves it: its host and its executions, together in the device's nursery."""

import logging
from typing import Any

import attrs
import trio

from mhsd.base.errors import Fault, StartError
from mhsd.core.permits import PermitBook
from mhsd.driver import DriverSignal, Reading
from mhsd.services.contained import contained
from mhsd.services.device_host import DeviceHost
from mhsd.services.executions import Executions
from mhsd.services.polling import Poller
from mhsd.services.recordings import open_recording
from mhsd.wire.canonical import digest

log = logging.getLogger("mhsd.device")


@attrs.define(eq=False)
class ServedDevice:
    """One device: what it is (host) and what runs on it (executions)."""

    host: DeviceHost
    executions: Executions
    digest: str
    described: dict[str, Any]
    """The manifest as `devices.get` answers it, without the state."""

    @property
    def device_id(self) -> str:
        return self.host.device_id

    def safety_context(self, reading: Reading | None, permits: PermitBook) -> dict[str, Any]:
        """Risk, e-stop, interlocks and permits, as status and session calls show them; unread interlocks are open."""
        manifest = self.host.manifest
        latch = self.host.safety.latch_of(self.device_id)
        estop: dict[str, Any] = {
            "engaged": latch is not None,
            "latching": manifest.safety.latching,
            "kind": manifest.safety.estop_kind,
            "latency_ms": manifest.safety.latency_ms,
        }
        if latch is not None:
            estop |= {"engaged_at": latch.engaged_at, "reason": latch.reason}
        return {
            "risk_class": manifest.risk_class,
            "estop": estop,
            "interlocks": self.host.interlocks(reading),
            "permits": permits.live(self.device_id, trio.current_time()),
        }

    def summary(self) -> dict[str, Any]:
        manifest = self.host.manifest
        return {
            "device_id": self.device_id,
            "instance_id": self.host.instance_id,
            "display_name": manifest.display_name,
            "mode": self.host.mode,
            "risk_class": manifest.risk_class,
            "profile": dict(manifest.profile),
        }


def describe(host: DeviceHost) -> tuple[dict[str, Any], str]:
    """The manifest as it is served, and its digest: over all but digest, instance_id and states [PROTO-021]."""
    document = {
        **host.manifest.document,
        "device_id": host.device_id,
        "mode": host.mode,
    }
    document.pop("digest", None)
    document.pop("instance_id", None)
    value = digest(document)
    return {**document, "instance_id": host.instance_id, "digest": value}, value


async def run_device(
    host: DeviceHost, *, task_status: trio.TaskStatus[ServedDevice] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve one device until cancelled: its driver's tasks, its executions and their overseer.

    A driver's background task that fails ends only itself: the device then answers MHS.ADAPTER.CRASHED.
    """
    described, value = describe(host)
    async with trio.open_nursery() as nursery:
        executions = Executions(host, nursery, lambda: value)
        await nursery.start(_driver_tasks, host)
        if host.mode == "replay":
            await open_recording(host)
        nursery.start_soon(executions.overseer.run)
        nursery.start_soon(Poller(host, executions.live).run)
        task_status.started(ServedDevice(host, executions, value, described))


async def _driver_tasks(
    host: DeviceHost, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    refused: StartError | None = None
    opened = False
    try:
        with contained():
            async with trio.open_nursery() as nursery:
                try:
                    await host.driver.open(nursery)
                except DriverSignal as error:
                    refused = StartError(
                        f"{host.device_id}: the device cannot be opened: {error}", exit_code=1
                    )
                    nursery.cancel_scope.cancel()
                else:
                    opened = True
                    task_status.started()
                    await trio.sleep_forever()
    except Exception as error:
        if not opened:
            raise
        # Named boundary: the driver's own tasks, which the endpoint outlives.
        log.exception("a background task of %s failed", host.device_id)
        host.crashed = Fault(
            "MHS.ADAPTER.CRASHED",
            f"the driver of {host.device_id} crashed",
            details={"exception_type": type(error).__name__},
        )
        host.feed.note("device.crashed", {"exception_type": type(error).__name__})
        if not await host.halt("the driver crashed"):
            host.doubt("its driver crashed, and the safe state could not be confirmed")
    finally:
        with trio.move_on_after(host.stop_grace_s, shield=True):
            await host.driver.aclose()
    if refused is not None:
        raise refused
