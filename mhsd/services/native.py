"""The call into a driver: the one place where a driver's code runs for a command, and where its signals are named.

Whatever a driver raises ends here as one of the outcomes of `core.operations` [MHS-002 section 10.2].
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
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
from mhsd.core.receipts import RESTORE
from mhsd.core.snapshots import not_restored
from mhsd.driver import Busy, Call, Cancelled, DriverFailed, LinkDown, OutcomeUnknown, Reading
from mhsd.driver.manifest import Binding, Interlock
from mhsd.services.contained import contained
from mhsd.services.device_host import STATE_READ_S, DeviceHost
from mhsd.services.signals import device_busy, device_failed, link_down

log = logging.getLogger("mhsd.execution")

INTERLOCK_OPEN = "MHS.SAFETY.INTERLOCK_OPEN"
DEFAULT_MAX_AGE_MS = 1000
FOREIGN_CANCELS = frozenset({"asyncio.exceptions.CancelledError", "concurrent.futures._base.CancelledError"})


def _failed(error: DriverFailed) -> Failed:
    # After its acceptance a command may have had an effect: no failure of it is worth a blind retry [PROTO-041].
    return Failed(device_failed(error, error.message, retryable=False))


def _busy(error: Busy) -> Refused:
    return Refused(device_busy(error))


def _link_down(error: LinkDown) -> Refused:
    return Refused(link_down(error))


def _lost(error: OutcomeUnknown) -> Lost:
    return Lost(Fault("MHS.OUTCOME.UNKNOWN", error.message, details={"reason": "driver_outcome_unknown"}))


def _interrupted(error: Cancelled) -> Interrupted:
    return Interrupted(error.safe_state_achieved)


SIGNALS: Mapping[type[Exception], Callable[[Any], Native]] = {
    DriverFailed: _failed,
    Busy: _busy,
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
    act = ACTS.get(binding.capability_id, _invoke)
    watched = [host.manifest.safety.interlocks[name] for name in binding.interlocks]
    polled = [interlock for interlock in watched if interlock.watch == "poll"]
    native: Native | None = None
    try:
        with trio.CancelScope() as scope:
            operation.stop_native = scope.cancel
            if not polled:
                native = await act(host, operation, binding)
            else:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_watch, host, operation, polled, tell)
                    native = await act(host, operation, binding)
                    operation.native_returned = True
                    nursery.cancel_scope.cancel()
    except Exception as error:
        # A driver's own nursery can raise a group through the scope; what it was is in the log, not in the receipt.
        log.exception("driver of %s failed", host.device_id)
        return Failed(native_fault(error))
    finally:
        operation.stop_native = None
        operation.native_returned = True
    # What the driver said counts, also where it was told to end in the same instant.
    return native if native is not None else Interrupted()


async def _invoke(host: DeviceHost, operation: Operation, binding: Binding) -> Native:
    attempt = operation.attempt

    def progress(percent: float | None = None, ticks: int | None = None, message: str | None = None) -> None:
        operation.report(percent, ticks, message)
        if not operation.concluded:
            # A call that was given up goes on by itself; what it is, has been told.
            host.feed.progress(operation)

    call = Call(
        capability_id=attempt.capability_id,
        resource=binding.resource,
        input=attempt.input,
        command_id=attempt.command_id,
        max_duration_ms=binding.max_duration_ms,
        progress=progress,
    )
    try:
        with contained():
            outcome = await host.driver.invoke(call)
    except BaseException as error:
        signal = _leaf(error)
        if not isinstance(signal, Exception) and not _is_foreign_cancel(signal):
            raise
        return await _signalled(host, binding, signal)
    return Returned(outcome.output, outcome.effects)


def _leaf(error: BaseException) -> BaseException:
    """The one exception that the driver's own nurseries have wrapped, or the error itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _signalled(host: DeviceHost, binding: Binding, error: BaseException) -> Native:
    """What a driver says by raising."""
    if _is_foreign_cancel(error):
        return Interrupted()
    if isinstance(error, DriverFailed) and error.mhs_code == INTERLOCK_OPEN:
        return Failed(await _opened(host, binding, error.message))
    for signal, named in SIGNALS.items():
        if isinstance(error, signal):
            return named(error)
    log.error("driver of %s failed in %s", host.device_id, binding.capability_id, exc_info=error)
    return Failed(native_fault(error))


def _is_foreign_cancel(error: BaseException) -> bool:
    """Whether another runtime's cancellation came out of the driver [MHS-002 section 10.2].

    By name: neither asyncio nor concurrent.futures is imported for the sake of drivers that use them.
    """
    return any(f"{each.__module__}.{each.__qualname__}" in FOREIGN_CANCELS for each in type(error).__mro__)


async def _restore(host: DeviceHost, operation: Operation, binding: Binding) -> Native:
    """Set the device to a snapshot's state, and back to its own where it does not show it then [PROTO-035].

    It has worked when the state that is read back has the snapshot's hash; it has failed when the device shows the
    state that it had before; anything between is unknown, with the hash of what was seen.
    """
    restoration = operation.attempt.restoration
    assert restoration is not None  # RESTORE is bound to nothing: only mhs.restore makes such an attempt
    try:
        before = await host.read(host.all_resources())
        former = host.state_hash(before)
    except Fault as fault:
        return Refused(fault)
    native: Native = Returned(restoration.output(), None)
    try:
        with contained():
            await host.driver.restore(restoration.state)
    except Exception as error:
        native = await _signalled(host, binding, _leaf(error))
    if isinstance(native, Refused | Lost | Interrupted):
        return native
    seen = await _seen(host)
    if isinstance(native, Returned) and seen == restoration.state_hash:
        return native
    left = seen if seen == former else await _put_back(host, before)
    if left != former:
        return Lost(not_restored(restoration, left, rolled_back=False))
    return native if isinstance(native, Failed) else Failed(not_restored(restoration, seen, rolled_back=True))


async def _put_back(host: DeviceHost, before: Reading) -> str | None:
    try:
        with contained():
            await host.driver.restore(before.resources)
    except Exception:
        # Whatever the driver says here, what counts is the state that it shows.
        log.exception("driver of %s failed to take back its former state", host.device_id)
    return await _seen(host)


async def _seen(host: DeviceHost) -> str | None:
    """The hash of the state that the device shows; None where it shows none."""
    reading = await host.read_within(host.all_resources(), STATE_READ_S)
    try:
        return host.state_hash(reading) if reading is not None else None
    except Fault:
        return None


ACTS: Mapping[str, Callable[[DeviceHost, Operation, Binding], Awaitable[Native]]] = {RESTORE: _restore}
"""The classes that are no command of the driver's, and what is done for them."""


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
        reading = await host.read_within((), max_age_s, shield=False)
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
