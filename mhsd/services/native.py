"""The call into a driver: the one place where a driver's code runs for a command, and where its signals are named.

Whatever a driver raises ends here as one of the outcomes of `core.operations` [MHS-002 section 10.2].
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import trio

from mhsd.base.errors import Fault
from mhsd.core.operations import (
    Ending,
    Failed,
    Interrupted,
    Lost,
    Native,
    Operation,
    Refused,
    Returned,
    native_fault,
)
from mhsd.driver import Busy, Call, Cancelled, DriverFailed, LinkDown, OutcomeUnknown
from mhsd.driver.manifest import Binding, Interlock
from mhsd.services.device_host import DeviceHost

log = logging.getLogger("mhsd.execution")

INTERLOCK_OPEN = "MHS.SAFETY.INTERLOCK_OPEN"
DEFAULT_MAX_AGE_MS = 1000


def _failed(error: DriverFailed) -> Failed:
    details = {
        **(error.details or {}),
        **({"native_code": error.native_code} if error.native_code is not None else {}),
    }
    # After its acceptance a command may have had an effect: no failure of it is worth a blind retry [PROTO-041].
    return Failed(Fault(error.mhs_code, error.message, details=details or None, retryable=False))


def _refused(error: Busy) -> Refused:
    return Refused(Fault("MHS.DEVICE.BUSY", error.message, details={"retry_after_ms": error.retry_after_ms}))


def _link_down(error: LinkDown) -> Refused:
    return Refused(Fault("MHS.DEVICE.FAULT", error.message, details={"reason": "link_down"}, retryable=True))


def _lost(error: OutcomeUnknown) -> Lost:
    return Lost(Fault("MHS.OUTCOME.UNKNOWN", error.message, details={"reason": "driver_outcome_unknown"}))


def _interrupted(error: Cancelled) -> Interrupted:
    return Interrupted(error.safe_state_achieved)


SIGNALS: Mapping[type[Exception], Callable[[Any], Native]] = {
    DriverFailed: _failed,
    Busy: _refused,
    LinkDown: _link_down,
    OutcomeUnknown: _lost,
    Cancelled: _interrupted,
}


async def call_driver(
    host: DeviceHost, operation: Operation, binding: Binding, tell: Callable[[Operation, Ending], None]
) -> Native:
    """Run one command in the driver and say how the native call ended.

    The call ends early when `operation.stop_native` is called; the interlocks that are polled are watched beside it,
    and `tell` ends it when one opens. The first thing that happens is the driver's own code: no checkpoint stands
    between the caller's last check and it.
    """
    watched = [host.manifest.safety.interlocks[name] for name in binding.interlocks]
    polled = [interlock for interlock in watched if interlock.watch == "poll"]
    try:
        with trio.CancelScope() as scope:
            operation.stop_native = scope.cancel
            if not polled:
                return await _invoke(host, operation, binding)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_watch, host, operation, polled, tell)
                native = await _invoke(host, operation, binding)
                nursery.cancel_scope.cancel()
                return native
    except Exception as error:
        # A driver's own nursery can raise a group through the scope; what it was is in the log, not in the receipt.
        log.exception("driver of %s failed", host.device_id)
        return Failed(native_fault(error))
    finally:
        operation.stop_native = None
        operation.native_returned = True
    return Interrupted()


async def _invoke(host: DeviceHost, operation: Operation, binding: Binding) -> Native:
    attempt = operation.attempt

    def progress(percent: float | None = None, ticks: int | None = None, message: str | None = None) -> None:
        operation.report(percent, ticks, message)

    call = Call(
        capability_id=attempt.capability_id,
        resource=binding.resource,
        input=attempt.input,
        command_id=attempt.command_id,
        max_duration_ms=binding.max_duration_ms,
        progress=progress,
    )
    try:
        outcome = await host.driver.invoke(call)
    except Exception as error:
        if isinstance(error, DriverFailed) and error.mhs_code == INTERLOCK_OPEN:
            return Failed(await _opened(host, binding, error.message))
        named = SIGNALS.get(type(error))
        if named is not None:
            return named(error)
        log.exception("driver of %s failed in %s", host.device_id, attempt.capability_id)
        return Failed(native_fault(error))
    return Returned(outcome.output, outcome.effects)


async def _opened(host: DeviceHost, binding: Binding, message: str) -> Fault:
    """The fault of a driver that watches its interlocks itself, with those that are open now."""
    reading = await host.read_within((), DEFAULT_MAX_AGE_MS / 1000)
    states = reading.interlocks if reading is not None else {}
    opened = [{"id": name, "state": "open"} for name in binding.interlocks if states.get(name) != "closed"]
    return Fault(INTERLOCK_OPEN, message, details={"reason": "opened_while_running"}, interlocks=opened)


async def _watch(
    host: DeviceHost, operation: Operation, polled: list[Interlock], tell: Callable[[Operation, Ending], None]
) -> None:
    """Poll the interlocks while the command runs; one that opens, or stays unreadable, ends the command.

    A poll that waits behind the device's own call is late, not unreadable, until its max_age_ms has passed.
    """
    period_s = 1 / max(interlock.watch_hz for interlock in polled)
    max_age_s = min(interlock.max_age_ms or DEFAULT_MAX_AGE_MS for interlock in polled) / 1000
    names = [interlock.id for interlock in polled]
    while True:
        await trio.sleep(period_s)
        reading = await host.read_within((), max_age_s)
        states = reading.interlocks if reading is not None else {}
        opened = [{"id": name, "state": "open"} for name in names if states.get(name) != "closed"]
        if opened:
            fault = Fault(
                INTERLOCK_OPEN,
                f"interlock opened while the command ran: {', '.join(entry['id'] for entry in opened)}",
                details={"reason": "opened_while_running"},
                interlocks=opened,
            )
            tell(operation, Ending("interlock", "endpoint:interlock", host.wall(), fault))
            return
