"""The end of a driver's call: the safe state where it was ended early, and what the device shows then."""

from collections.abc import Callable

from mhsd.core.operations import EndingKind, Interrupted, Native, Operation
from mhsd.driver import Reading
from mhsd.services.device_host import STATE_READ_S, DeviceHost


async def look_after(
    host: DeviceHost, operation: Operation, native: Native, end: Callable[[Operation, EndingKind, str], None]
) -> tuple[bool, Reading | None]:
    """Whether the safe state was reached where it was needed, and the state of the device, None where unreadable."""
    if isinstance(native, Interrupted) and operation.ending is None:
        # A driver that is stopped ends whatever it does, what the latch lets through as well.
        if host.latched:
            end(operation, "estop", "endpoint:estop")
        else:
            end(operation, "cancel", "endpoint:driver")
    while True:
        ending = operation.ending
        safe = await _safe_state(host, operation, native)
        reading = None
        if operation.attempt.actuating:
            reading = await host.read_within(host.all_resources(), STATE_READ_S)
        # An e-stop that came during these awaits outranks what they found.
        if operation.ending is ending:
            return safe, reading


async def _safe_state(host: DeviceHost, operation: Operation, native: Native) -> bool:
    """Whether the safe state was reached, for an execution that was ended early [OP-011]."""
    ending = operation.ending
    early = isinstance(native, Interrupted) or (ending is not None and ending.kind in ("estop", "interlock"))
    if not early or not operation.attempt.actuating:
        return True
    assert ending is not None  # look_after() names an ending for every interrupted call
    if ending.kind == "estop":
        return await host.stop_outcome()
    if isinstance(native, Interrupted) and native.safe_state_achieved is not None:
        return native.safe_state_achieved
    return await host.halt(ending.kind)
