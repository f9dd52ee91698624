"""Whether there was a reason for a refusal: what a client is told must have been so while it waited."""

from typing import Any

from tests.property.model.history import Ask
from tests.property.model.record import during
from tests.property.model.steps import CONFIGURE, DESCRIBE, FIRE, MOVE, SAMPLE, TRAVEL
from tests.property.model.watch import GUARDED, LIMIT
from tests.property.model.world import World

BAD_READS = frozenset({"fail", "raise", "gap"})


def unfounded(world: World, ask: Ask) -> str | None:
    """What is wrong with the refusal of a command, or None."""
    receipt = ask.result
    assert ask.answered is not None
    if receipt["replayed"]:
        return None
    check = CHECKS.get(receipt["error"]["mhs_code"])
    if check is None:
        return f"nothing in here can be refused as {receipt['error']['mhs_code']}"
    what = receipt["capability_id"]
    span = (ask.sent.mono_s, ask.answered.mono_s)
    device = world.device_of(ask.params["device_id"])
    return None if check(world, ask, what, device, span) else f"{receipt['error']['message']} was not so"


Span = tuple[float, float]


def _latched(world: World, ask: Ask, what: str, device: int, span: Span) -> bool:
    return what in GUARDED and True in during(world.latch_changes[device], *span)


def _interlock(world: World, ask: Ask, what: str, device: int, span: Span) -> bool:
    gates = during(world.gate_changes[device], *span)
    reads = during(world.read_changes[device], *span)
    return what in (MOVE, TRAVEL) and bool(gates - {"closed"} or reads & BAD_READS)


def _revision(world: World, ask: Ask, what: str, device: int, span: Span) -> bool:
    expected = ask.params.get("expected_revision")
    return expected is not None and during(world.revisions[device], *span) != {expected}


def _reuse(world: World, ask: Ask, what: str, device: int, span: Span) -> bool:
    def same(other: Ask) -> bool:
        names = ("input", "patch", "device_id")
        mine = [ask.params.get(name) for name in names]
        return other.principal == ask.principal and [other.params.get(name) for name in names] == mine

    others = [
        a for a in world.asks if a.params.get("command_id") == ask.params["command_id"] and a is not ask
    ]
    # In a batch the id counts once, also where its first use was refused.
    return any(not same(a) or a.scope is ask.scope for a in others)


def _late(world: World, ask: Ask, what: str, device: int, span: Span) -> bool:
    return span[1] - span[0] >= ask.params["deadline_ms"] / 1000 - 0.001


def _unreadable(world: World, ask: Ask, what: str, device: int, span: Span) -> bool:
    reads = during(world.read_changes[device], *span)
    return ask.params.get("input", {}).get("how") == "link_down" or bool(reads & BAD_READS)


def _busy(world: World, ask: Ask, what: str, device: int, span: Span) -> bool:
    if ask.params.get("input", {}).get("how") in ("busy", "busy_late"):
        return True
    return what in GUARDED and any(
        other.life == ask.life
        and other.params.get("device_id") == ask.params["device_id"]
        and other.params.get("capability_id", CONFIGURE) in GUARDED
        and other.params.get("command_id", ask.params["command_id"]) != ask.params["command_id"]
        for other in world.asks
    )


def _over(world: World, ask: Ask, what: str, device: int, span: Span) -> bool:
    visit = world.visit(ask.params["session_id"])
    return visit.closing is not None or visit.expires_mono_s <= span[1] or ask.life in world.drained


def _limit(world: World, ask: Ask, what: str, device: int, span: Span) -> bool:
    value: dict[str, Any] = ask.params.get("input", ask.params.get("patch", {}))
    return what in GUARDED and value.get("speed" if what == CONFIGURE else "amount", 0) > LIMIT


CHECKS = {
    "MHS.CAPABILITY.INPUT_INVALID": lambda w, ask, what, d, s: what == DESCRIBE and ask.params["input"] != {},
    "MHS.SAFETY.ESTOP_LATCHED": _latched,
    "MHS.SAFETY.INTERLOCK_OPEN": _interlock,
    "MHS.SAFETY.ENVELOPE_VIOLATION": _limit,
    "MHS.SAFETY.APPROVAL_REQUIRED": lambda w, ask, what, d, s: what == FIRE and "permit_id" not in ask.params,
    "MHS.SAFETY.PERMIT_INVALID": lambda w, ask, what, d, s: what == FIRE and "permit_id" in ask.params,
    "MHS.CONFLICT.REVISION": _revision,
    "MHS.CONFLICT.COMMAND_ID_REUSE": _reuse,
    "MHS.OUTCOME.TIMEOUT": _late,
    "MHS.DEVICE.FAULT": _unreadable,
    "MHS.ADAPTER.SHIM_FAILED": _unreadable,
    "MHS.DEVICE.BUSY": _busy,
    "MHS.DEVICE.UNCONFIRMED": lambda w, ask, what, d, s: True,
    "MHS.SESSION.CLOSED": _over,
    "MHS.SESSION.EXPIRED": _over,
    "MHS.TRANSPORT.UNAVAILABLE": lambda w, ask, what, d, s: ask.life in w.drained,
    "MHS.LIMIT.RATE_EXCEEDED": lambda w, ask, what, d, s: what == SAMPLE,
    "MHS.LIMIT.OPERATION_LIMIT": lambda w, ask, what, d, s: what == TRAVEL,
}
