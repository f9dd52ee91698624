"""Reset of a latched stop: every refusal, then the driver's reset, then the latch [SAFE-003, CORE-080 to CORE-087].

A reset never resumes, never moves anything, and never runs a declared re-enable: it only tells of it.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from mhsd.base.errors import Fault
from mhsd.core import receipts
from mhsd.core.operations import native_fault
from mhsd.driver import DriverFailed, DriverSignal, Reading, TerminalStop
from mhsd.services.carriage import Answer, Promise, internal_fault, store_fault
from mhsd.services.contained import contained
from mhsd.services.estop import StopRequest, safety_entry, safety_members
from mhsd.services.served_device import ServedDevice
from mhsd.store import Store, StoreFailed

log = logging.getLogger("mhsd.safety")


def _refused(
    reason: str, message: str, interlocks: list[dict[str, Any]] | None = None, **details: Any
) -> Fault:
    return Fault(
        "MHS.SAFETY.RESET_REFUSED", message, details={"reason": reason, **details}, interlocks=interlocks
    )


def _overtaken() -> Fault:
    return _refused("estop_during_reset", "a new emergency stop came after the reset was sent")


def _terminal(message: str) -> Fault:
    return _refused("terminal_estop", f"this stop cannot be reset from here: {message}")


def _unsafe() -> Fault:
    return _refused("safe_state_unconfirmed", "the safe state of the device could not be confirmed")


def _standing_refusal(device: ServedDevice, request: StopRequest) -> Fault | None:
    """What refuses a reset before anything is asked of the device."""
    host = device.host
    latch = host.safety.latch_of(host.device_id)
    if latch is None and host.unconfirmed is None:
        return _refused("not_latched", f"the emergency stop of {host.device_id} is not latched")
    if latch is not None and latch.stopped_mono_s >= request.received_mono_s:
        # A stop goes ahead of what was sent before it; a reset from before it may not undo it [CORE-082].
        return _overtaken()
    if host.terminal is not None:
        return _terminal(host.terminal)
    running = _running(device)
    if running or not host.slot.free:
        return _refused(
            "operation_running", "an operation of the device has not ended yet", operations=running
        )
    if host.safety.stop_pending(host.device_id):
        return _refused("stop_path_pending", "the stop of the device is still under way")
    return host.crashed


def _open_interlock(device: ServedDevice, reading: Reading) -> Fault | None:
    """The refusal that names the hard interlocks that are open; one that was not read is [SAFE-003]."""
    opened = [
        entry for entry in device.host.interlocks(reading) if entry["hard"] and entry["state"] == "open"
    ]
    if not opened:
        return None
    names = ", ".join(entry["id"] for entry in opened)
    return _refused("interlock", f"hard interlock open: {names}", opened)


def _running(device: ServedDevice) -> list[str]:
    """The operations whose driver call has not returned; one that was given up is among them [MHSD-4-22]."""
    running = {
        carriage.operation.operation_id: None
        for carriage in device.executions.live()
        if carriage.attempt.guarded and carriage.operation is not None
    }
    if device.host.slot.operation is not None:
        running[device.host.slot.operation.operation_id] = None
    return list(running)


class Reset:
    """Releases latches, one device at a time."""

    def __init__(self, store: Store, nursery: trio.Nursery) -> None:
        self._store = store
        self._nursery = nursery

    async def reset(
        self, device: ServedDevice, request: StopRequest, deadline_mono_s: float, forbidden: Fault | None
    ) -> Answer:
        """The reset's receipt. `forbidden` is the refusal of a caller who is no operator [CORE-083].

        What was begun is brought to its end whether or not somebody still waits for it.
        """
        fault = forbidden or _standing_refusal(device, request)
        if fault is None and device.host.resetting:
            fault = _refused("operation_running", "another reset of the device is under way")
        if fault is not None:
            return await self._record(self._body(device, request, "rejected", fault))
        if self._store.failure is not None:
            # A latch that is released without a record of who released it is none.
            return store_fault(self._store.failure)
        host, answer = device.host, Promise()
        host.resetting = True
        # As they are now, when nothing stood against it: what comes from here on overtakes the reset.
        attempt = partial(
            self._attempt, device, request, host.safety.epoch_of(host.device_id), host.unconfirmed
        )
        self._nursery.start_soon(self._carry_contained, device, attempt, deadline_mono_s, answer)
        return await answer.wait()

    async def _carry_contained(
        self,
        device: ServedDevice,
        attempt: Callable[[float], Awaitable[dict[str, Any]]],
        deadline_mono_s: float,
        answer: Promise,
    ) -> None:
        try:
            answer.settle(await self._record(await attempt(deadline_mono_s)))
        except Exception as error:
            # Named boundary: a defect in a reset leaves the latch as it is and ends nothing else.
            log.exception("the reset of %s failed", device.device_id)
            self._begin_to_stop(device, "a reset failed")
            answer.settle(internal_fault(error))
        finally:
            device.host.resetting = False

    async def _attempt(
        self,
        device: ServedDevice,
        request: StopRequest,
        epoch: int,
        doubt: Fault | None,
        deadline_mono_s: float,
    ) -> dict[str, Any]:
        host = device.host
        with trio.move_on_at(deadline_mono_s):
            fault = await self._interlocks_closed(device)
            if fault is None and doubt is not None and not await host.halt("reset", shield=False):
                fault = _unsafe()
            if fault is not None:
                return self._body(device, request, "rejected", fault)
            fault = await self._driver_reset(device)
            if fault is not None:
                return self._failed(device, request, fault)
            try:
                reading = await host.read(host.all_resources())
            except Fault as unreadable:
                return self._failed(device, request, unreadable)
            fault = _open_interlock(device, reading)
            if fault is not None:
                return self._failed(device, request, fault)
            if host.safety.epoch_of(host.device_id) != epoch:
                return self._failed(device, request, _overtaken())
            host.safety.release_begins(host.device_id)
            if self._store.kind == "state_dir" and not await self._store.write_latch(host.safety.snapshot()):
                return self._failed(device, request, store_fault("the latch file"))
            if host.unconfirmed is not doubt:
                return self._failed(device, request, _unsafe())
            return self._released(device, request, epoch, reading)
        return self._too_late(device, request)

    async def _interlocks_closed(self, device: ServedDevice) -> Fault | None:
        host = device.host
        try:
            reading = await host.read(())
        except Fault as fault:
            return _refused(
                "interlock", f"the interlocks cannot be read: {fault.message}", host.interlocks(None)
            )
        return _open_interlock(device, reading)

    async def _driver_reset(self, device: ServedDevice) -> Fault | None:
        try:
            with contained():
                await device.host.driver.reset()
        except TerminalStop as stopped:
            device.host.terminal = stopped.message
            return _terminal(stopped.message)
        except DriverFailed as error:
            return Fault(error.mhs_code, error.message)
        except DriverSignal as error:
            return Fault("MHS.DEVICE.FAULT", f"the device did not confirm the reset: {error}")
        except Exception as error:
            log.exception("driver of %s failed in reset", device.device_id)
            return native_fault(error)
        return None

    def _released(
        self, device: ServedDevice, request: StopRequest, epoch: int, reading: Reading
    ) -> dict[str, Any]:
        host = device.host
        # No checkpoint from here on: the latch and the receipt that reports it belong together.
        if not host.safety.clear(host.device_id, epoch):
            return self._failed(device, request, _overtaken())
        if host.unconfirmed is not None:
            host.unconfirmed = None
            host.feed.note("device.confirmed", {})
        host.feed.safety({"kind": "estop.reset", "estop": "released", "principal": dict(request.principal)})
        log.warning("emergency stop of %s reset by %s", host.device_id, request.principal["id"])
        safety = host.manifest.safety
        output: dict[str, Any] = {
            "reset": True,
            "estop": "released",
            "latched": False,
            "cleared_interlocks": [entry["id"] for entry in host.interlocks(reading) if entry["hard"]],
            "resumed": False,
        }
        if safety.reenable is not None:
            output["reenable"] = safety.reenable
        change = host.settle(reading, host.all_resources())
        effect = {
            "kind": "safety.reset",
            "summary": "emergency stop released; nothing was started",
            "reversible": True,
            "severity": host.manifest.risk_class,
        }
        return {
            **safety_members(device, request, receipts.RESET, {}),
            "status": "completed",
            **change.members(),
            "ended_at": host.wall(),
            "output": output,
            "effects": [effect],
        }

    def _failed(self, device: ServedDevice, request: StopRequest, fault: Fault) -> dict[str, Any]:
        """A refusal after the driver's reset ran: the latch stays, so the device is stopped again [CORE-087]."""
        self._begin_to_stop(device, "a reset failed")
        return self._body(device, request, "failed", fault, changed=True)

    def _too_late(self, device: ServedDevice, request: StopRequest) -> dict[str, Any]:
        """The deadline passed: the latch stays, and the device is put back into its stopped state [PROTO-011]."""
        self._begin_to_stop(device, "a reset did not end in time")
        fault = Fault(
            "MHS.OUTCOME.TIMEOUT",
            "the reset did not end within its deadline; the latch stays engaged",
            details={"reason": "deadline_exceeded"},
        )
        return self._body(device, request, "unknown", fault, changed=True)

    def _begin_to_stop(self, device: ServedDevice, why: str) -> None:
        # From now on, so that no further reset comes between.
        device.host.safety.stop_begins(device.device_id)
        device.host.safety.release_fails(device.device_id)
        self._nursery.start_soon(self._stop_again, device, why)

    async def _stop_again(self, device: ServedDevice, why: str) -> None:
        safety = device.host.safety
        try:
            # The file first: a write of the released latch may be under way that nobody waits for any more.
            await self._store.write_latch(safety.snapshot())
            await device.host.restop(why)
        finally:
            safety.stop_ends(device.device_id)

    def _body(
        self, device: ServedDevice, request: StopRequest, status: str, fault: Fault, *, changed: bool = False
    ) -> dict[str, Any]:
        host = device.host
        unchanged = receipts.Change(host.revision, host.revision, None)
        change = host.settle(None, ()) if changed else unchanged
        return {
            **safety_members(device, request, receipts.RESET, {}),
            "status": status,
            **change.members(),
            "ended_at": host.wall(),
            "effects": [],
            "error": fault.receipt_error(),
        }

    async def _record(self, body: dict[str, Any]) -> Answer:
        try:
            return (await self._store.put(safety_entry(body)).wait())[-1].wire()
        except StoreFailed as error:
            if body["status"] == "completed":
                return Fault(
                    "MHS.OUTCOME.UNKNOWN",
                    "the latch was released, but the receipt of it could not be stored",
                    details={"reason": "receipt_not_stored", "command_id": body["command_id"]},
                )
            return store_fault(error)
