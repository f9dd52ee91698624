"""How parameters are read: strictly, with an error that names the member and says what is allowed."""

from collections.abc import Mapping
from typing import Any

import attrs

from mhsd.base.errors import Fault
from mhsd.wire.converter import Hook, Misfit, hook_for
from mhsd.wire.elements import LONGEST_IDENTIFIER, LONGEST_TEXT
from mhsd.wire.json_text import excerpt
from mhsd.wire.params import PARAMS, SafetyEstopParams


def structure(method: str, params: Mapping[str, Any], *, max_deadline_ms: int) -> Any:
    """`params` as the class that PARAMS has for `method`, read strictly.

    Raises Fault DEADLINE_INVALID, before anything else, where a blocking method's `deadline_ms` is missing,
    not an integer of at least 1, or above `max_deadline_ms` [PROTO-010]; Fault INVALID_PARAMS for an unknown,
    missing or wrongly typed member, named in `details.field`. An e-stop's parameters never raise.
    """
    if method == "mhs.safety.estop":
        return _stop_params(params)
    shape, read, blocking = _READERS[method]
    if blocking:
        deadline_ms = params.get("deadline_ms")
        if type(deadline_ms) is not int or not 1 <= deadline_ms <= max_deadline_ms:
            raise _deadline_fault(method, params, max_deadline_ms)
    try:
        return read(params, shape)
    except Misfit as misfit:
        raise _params_fault(method, misfit) from None


def _stop_params(params: Any) -> SafetyEstopParams:
    """Whatever is usable. A member that is not, is None: a stop that names no usable device stops more."""
    if type(params) is not dict:
        return SafetyEstopParams()
    found: dict[str, Any] = {}
    for name in ("device_id", "session_id", "command_id", "trace_id"):
        value = params.get(name)
        if type(value) is str and len(value) <= LONGEST_IDENTIFIER:
            found[name] = value
    reason, deadline_ms = params.get("reason"), params.get("deadline_ms")
    if type(reason) is str:
        found["reason"] = reason[:LONGEST_TEXT]
    if type(deadline_ms) is int and deadline_ms >= 1:
        found["deadline_ms"] = deadline_ms
    return SafetyEstopParams(**found)


def _deadline_fault(method: str, params: Mapping[str, Any], max_deadline_ms: int) -> Fault:
    value = params.get("deadline_ms")
    if "deadline_ms" not in params:
        reason = "missing"
    elif type(value) is not int:
        reason = "not_an_integer"
    else:
        reason = "too_small" if value < 1 else "too_large"
    return Fault(
        "MHS.PROTOCOL.DEADLINE_INVALID",
        f"{method} needs deadline_ms, an integer from 1 to {max_deadline_ms} (milliseconds).",
        details={"field": "deadline_ms", "reason": reason, "minimum": 1, "maximum": max_deadline_ms},
    )


def _params_fault(method: str, misfit: Misfit) -> Fault:
    field = excerpt(misfit.field) if misfit.field else "params"
    details: dict[str, Any] = {"field": field, "reason": misfit.reason}
    if misfit.reason == "unknown_member":
        details["allowed"] = list(misfit.allowed)
        message = f"{method} has no parameter {field!r}; allowed here: {', '.join(misfit.allowed)}."
    else:
        details["expected"] = misfit.expected
        asked = f"needs {field!r}:" if misfit.reason == "missing" else f"takes {field!r} only as"
        message = f"{method} {asked} {misfit.expected}."
    return Fault("MHS.PROTOCOL.INVALID_PARAMS", message, details=details)


def _reader(shape: type) -> tuple[type, Hook, bool]:
    deadline = attrs.fields_dict(shape).get("deadline_ms")
    return shape, hook_for(shape), deadline is not None and deadline.default is attrs.NOTHING


_READERS = {method: _reader(shape) for method, shape in PARAMS.items()}
