"""Permits: one approval for one exact input, by one principal, once, for a limited time [SAFE-004]."""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from mhsd.base.errors import Fault


@attrs.define(eq=False)
class Permit:
    """Its state moves issued → reserved → used; a refusal before the driver call gives it back.

    `ended` says that its session is over: one that is given back after that is no longer anybody's.
    """

    permit_id: str
    session_id: str
    device_id: str
    capability_id: str
    resource: str
    input_digest: str
    principal_id: str
    expires_mono_s: float
    expires_at: str
    approvals: tuple[Mapping[str, Any], ...]
    state: Literal["issued", "reserved", "used"] = "issued"
    ended: bool = False

    def scope(self) -> dict[str, str]:
        return {
            "device_id": self.device_id,
            "capability_id": self.capability_id,
            "resource": self.resource,
            "input_digest": self.input_digest,
            "principal": self.principal_id,
        }

    def told(self) -> dict[str, str]:
        """What the events of its device say of it."""
        return {
            "permit_id": self.permit_id,
            "capability_id": self.capability_id,
            "expires_at": self.expires_at,
        }


class PermitBook:
    """All permits of the endpoint. They end with the process; expired ones are dropped as new ones come."""

    def __init__(self) -> None:
        self._permits: dict[str, Permit] = {}

    def issue(self, permit: Permit, now_mono_s: float) -> None:
        # An expired permit answers PERMIT_INVALID whether it is remembered or not, so it need not be kept.
        stale = [
            p.permit_id
            for p in self._permits.values()
            if p.expires_mono_s <= now_mono_s and p.state != "reserved"
        ]
        for permit_id in stale:
            del self._permits[permit_id]
        self._permits[permit.permit_id] = permit

    def get(self, permit_id: str | None) -> Permit | None:
        return self._permits.get(permit_id) if permit_id is not None else None

    def refusal(
        self,
        permit_id: str | None,
        *,
        wanted: Mapping[str, str],
        session_id: str,
        own: bool,
        now_mono_s: float,
    ) -> Fault | None:
        """Why this permit does not cover the command, or None. `own` says that this command reserved it itself."""
        if permit_id is None:
            return Fault(
                "MHS.SAFETY.APPROVAL_REQUIRED",
                f"{wanted['capability_id']} needs a permit for exactly this input",
                details={"input_digest": wanted["input_digest"], "capability_id": wanted["capability_id"]},
            )
        permit = self._permits.get(permit_id)
        reason = self._defect(permit, wanted, session_id, own, now_mono_s)
        if reason is None:
            return None
        return Fault(
            "MHS.SAFETY.PERMIT_INVALID",
            f"the permit does not cover this command: {reason}",
            details={"reason": reason},
        )

    @staticmethod
    def _defect(
        permit: Permit | None, wanted: Mapping[str, str], session_id: str, own: bool, now_mono_s: float
    ) -> str | None:
        if permit is None or (permit.ended and not own):
            return "unknown"
        if permit.state == "used" or (permit.state == "reserved" and not own):
            return "already_used"
        if now_mono_s >= permit.expires_mono_s:
            return "expired"
        if permit.principal_id != wanted["principal"]:
            return "other_principal"
        if permit.session_id != session_id:
            return "other_session"
        scope = permit.scope()
        if any(scope[name] != wanted[name] for name in ("device_id", "capability_id", "resource")):
            return "other_capability"
        if permit.input_digest != wanted["input_digest"]:
            return "other_input"
        return None

    def live(self, device_id: str, now_mono_s: float) -> list[dict[str, str]]:
        """The permits that could still be used on a device, as `safety.status` lists them."""
        return [
            {"permit_id": p.permit_id, "capability_id": p.capability_id, "expires_at": p.expires_at}
            for p in self._permits.values()
            if p.device_id == device_id
            and p.state == "issued"
            and not p.ended
            and now_mono_s < p.expires_mono_s
        ]

    def release_session(self, session_id: str) -> None:
        """A session's permits end with it [SESS-004]."""
        for permit in self._permits.values():
            if permit.session_id == session_id:
                permit.ended = True
