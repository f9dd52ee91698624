"""Recognises emergency stops in a message, well-formed or not [CORE-076, CORE-183]. Pure, and never raises."""

from typing import Any

import attrs

from mhsd.base.errors import Fault
from mhsd.wire.framing import STOP_CLASS, STOP_METHOD, mentions_stop
from mhsd.wire.jsonrpc import Malformed, Notification, classify

__all__ = ["STOP_CLASS", "STOP_METHOD", "Stop", "find_stops", "mentions_stop"]


@attrs.frozen
class Stop:
    """One stop in a message, served whatever its envelope looks like.

    `defect` is what its answer says of the envelope; None where that is sound, or where nothing is answered.
    """

    id: str | int | None
    params: Any
    notification: bool
    defect: Fault | None
    in_batch: bool
    index: int


def find_stops(value: Any) -> list[Stop]:
    """The stops of one leniently decoded message, in order."""
    elements = value if isinstance(value, list) else [value]
    return [
        stop
        for index, element in enumerate(elements)
        if (stop := _stop_of(element, isinstance(value, list), index)) is not None
    ]


def _stop_of(element: Any, in_batch: bool, index: int) -> Stop | None:
    if not isinstance(element, dict):
        return None
    params = element.get("params")
    if element.get("method") == STOP_METHOD:
        wanted = params
    elif (
        element.get("method") == "mhs.command"
        and isinstance(params, dict)
        and params.get("capability_id") == STOP_CLASS
    ):
        wanted = _from_command(params)
    else:
        return None
    call = classify(element)
    if isinstance(call, Malformed):
        # A notification is not answered, not even to say that its params are no object [PROTO-005].
        defect = None if call.silent else call.fault
        return Stop(call.id, wanted, notification=call.silent, defect=defect, in_batch=in_batch, index=index)
    if isinstance(call, Notification):
        return Stop(None, wanted, notification=True, defect=None, in_batch=in_batch, index=index)
    return Stop(call.id, wanted, notification=False, defect=None, in_batch=in_batch, index=index)


def _from_command(params: dict[str, Any]) -> dict[str, Any]:
    """A command of the stop class takes the stop's path, on any device, bound or not."""
    wanted: dict[str, Any] = {
        name: params[name] for name in ("device_id", "session_id", "command_id") if name in params
    }
    stop_input = params.get("input")
    if isinstance(stop_input, dict) and "reason" in stop_input:
        wanted["reason"] = stop_input["reason"]
    return wanted
