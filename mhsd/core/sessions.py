"""Sessions and grants: what a session may do is fixed at its opening and only ever shrinks [SESS-001]."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import attrs

from mhsd.base.errors import Fault

RESERVED_CLASSES = "cap.internal."


class GrantableBinding(Protocol):
    """The part of a binding that grants look at."""

    @property
    def capability_id(self) -> str: ...
    @property
    def resource(self) -> str: ...
    @property
    def actuating(self) -> bool: ...


@attrs.frozen
class Grant:
    """The right to run one binding of one device [CORE-024]."""

    device_id: str
    capability_id: str
    resource: str

    def wire(self) -> dict[str, str]:
        return {"device_id": self.device_id, "capability_id": self.capability_id, "resource": self.resource}


@attrs.define(eq=False)
class Session:
    """One lease on devices. `expires_mono_s` is on the endpoint's monotonic clock; `expires_at` is for people."""

    session_id: str
    principal_id: str
    principal: Mapping[str, str]
    role: str
    mode: str
    ttl_s: int
    device_ids: tuple[str, ...]
    grants: frozenset[Grant]
    expires_mono_s: float
    expires_at: str
    claimed_principal: Mapping[str, Any] | None = None
    approvals: tuple[Mapping[str, Any], ...] = ()
    state: Literal["open", "closed", "expired"] = "open"
    open_operations: set[object] = attrs.Factory(set)
    """The attempts of its long-running commands, from their admission to the return of the driver's call."""
    driven: set[str] = attrs.Factory(set)
    commands: int = 0
    outcomes: Counter[str] = attrs.Factory(Counter)

    def refusal(self, now_mono_s: float) -> Fault | None:
        """Why a call in this session is refused now, or None while it is live [SESS-004]."""
        if self.state == "closed":
            return Fault("MHS.SESSION.CLOSED", f"session {self.session_id} was closed")
        if self.state == "expired" or now_mono_s >= self.expires_mono_s:
            return Fault("MHS.SESSION.EXPIRED", f"session {self.session_id} expired at {self.expires_at}")
        return None

    def may(self, device_id: str, capability_id: str, resource: str) -> bool:
        return Grant(device_id, capability_id, resource) in self.grants

    def summary(self, receipts_head: str) -> dict[str, Any]:
        """The counts that `session.close` reports; `commands` counts every command, rejected ones too."""
        return {
            "commands": self.commands,
            **{name: self.outcomes[name] for name in ("completed", "rejected", "failed", "cancelled")},
            "receipts_head": receipts_head,
        }


def pattern_matches(pattern: str, capability_id: str) -> bool:
    """`*` stands for any characters, dots included.

    Patterns are a caller's: this is linear, where a regular expression of many stars would never end.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == capability_id
    *middle, last = rest
    at, end = len(first), len(capability_id) - len(last)
    if at > end or not (capability_id.startswith(first) and capability_id.endswith(last)):
        return False
    for part in middle:
        found = capability_id.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def _asked_for(wanted: Iterable[Any], binding: GrantableBinding) -> bool:
    for entry in wanted:
        pattern, resource = (entry, None) if isinstance(entry, str) else (entry.capability_id, entry.resource)
        if pattern_matches(pattern, binding.capability_id) and resource in (None, binding.resource):
            return True
    return False


def grants_for(
    wanted: Sequence[Any],
    bindings: Mapping[str, Iterable[GrantableBinding]],
    *,
    role: str,
    token_patterns: Sequence[str] | None,
) -> frozenset[Grant]:
    """The bindings that are asked for, that the devices offer and that the caller's role and token allow.

    A reader is never granted an actuating binding. An empty `wanted` asks for nothing and is granted nothing.
    """
    return frozenset(
        Grant(device_id, binding.capability_id, binding.resource)
        for device_id, offered in bindings.items()
        for binding in offered
        if not binding.capability_id.startswith(RESERVED_CLASSES)
        and _asked_for(wanted, binding)
        and not (role == "reader" and binding.actuating)
        and (token_patterns is None or any(pattern_matches(p, binding.capability_id) for p in token_patterns))
    )
