"""Snapshots: what one says, and what stands against restoring one [PROTO-034, PROTO-035].

A snapshot names the device, instance, mode and fidelity that it was taken of, and is restored to nothing else. What
is sent back is a stranger's document: nothing in it is believed that cannot be recomputed or compared.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import attrs

from mhsd.base.errors import Fault
from mhsd.base.resources import schema_document
from mhsd.core.hashes import device_hash
from mhsd.core.limits import LimitFacts, limit_refusal
from mhsd.wire.canonical import digest
from mhsd.wire.json_text import excerpt
from mhsd.wire.schema import Validator, compile_schema

State = Mapping[str, Mapping[str, Any]]
"""`{resource_id: state}` of a whole device."""

REQUIRED = ("device_id", "instance_id", "mode", "fidelity_digest", "state_hash")
"""What a snapshot must have to be restored, beside the state itself."""


@attrs.frozen(eq=False)
class Origin:
    """A device as its snapshots name it; `states` has the schema of each resource's state."""

    device_id: str
    instance_id: str
    mode: str
    fidelity: Mapping[str, Any]
    states: Mapping[str, Validator]
    exclusions: Mapping[str, Sequence[str]]
    limits: Mapping[str, Mapping[str, LimitFacts]] = attrs.Factory(dict)
    """The limits of what may be written, by resource: a restore is no way round them."""

    def identity(self) -> dict[str, str]:
        """What a snapshot of this device, and of no other, has."""
        return {
            "device_id": self.device_id,
            "instance_id": self.instance_id,
            "fidelity_digest": digest(self.fidelity),
        }

    def snapshot_refusal(self) -> Fault | None:
        """MHS.MODE.SNAPSHOT_UNSUPPORTED for a device whose state cannot be taken whole [PROTO-034]."""
        if self.mode in ("simulated", "replay") and self.fidelity["snapshot_restore"]:
            return None
        return Fault(
            "MHS.MODE.SNAPSHOT_UNSUPPORTED",
            f"{self.device_id} is {self.mode} and cannot be snapshotted"
            if self.mode not in ("simulated", "replay")
            else f"{self.device_id} does not support snapshots",
            details={"mode": self.mode, "snapshot_restore": self.fidelity["snapshot_restore"]},
        )

    def snapshot(self, state: State, revision: int, created_at: str) -> dict[str, Any]:
        """The result of `mhs.snapshot`: the whole state, and what it is the state of."""
        document = {
            **self.identity(),
            "mode": self.mode,
            "revision": revision,
            "state_hash": device_hash(state, self.exclusions),
            "snapshot": state,
            "created_at": created_at,
        }
        return {**document, "state": state, "snapshot_digest": snapshot_digest(document)}


def snapshot_digest(document: Mapping[str, Any]) -> str:
    """The digest of a snapshot, `state` and the digest itself left out; NotCanonical when there is no JCS form.

    A document that has its state under the alias alone is digested as if it stood under `snapshot`.
    """
    aliased = {"snapshot": document["state"]} if "state" in document else {}
    named = {name: value for name, value in document.items() if name not in ("state", "snapshot_digest")}
    return digest({**aliased, **named})


@attrs.frozen(eq=False)
class Restoration:
    """A snapshot on its way into a device: `document` is what was sent, in canonical values."""

    document: Mapping[str, Any]
    origin: Origin

    @property
    def state(self) -> State:
        """The state to restore. Only what `refusal` has nothing against has one."""
        state: State = self.document["snapshot" if "snapshot" in self.document else "state"]
        return state

    @property
    def state_hash(self) -> str:
        """The hash that the device must show afterwards."""
        state_hash: str = self.document["state_hash"]
        return state_hash

    def output(self) -> dict[str, Any]:
        """The output of a restore that was seen to work."""
        return {"snapshot_digest": snapshot_digest(self.document), "state_hash": self.state_hash}

    def mode_refusal(self) -> Fault | None:
        """MHS.MODE.RESTORE_UNSUPPORTED for a device that cannot be set to a former state."""
        if self.origin.mode == "simulated" and self.origin.fidelity["snapshot_restore"]:
            return None
        return Fault(
            "MHS.MODE.RESTORE_UNSUPPORTED",
            f"{self.origin.device_id} is {self.origin.mode} and cannot be restored",
            details={"mode": self.origin.mode, "snapshot_restore": self.origin.fidelity["snapshot_restore"]},
        )

    def refusal(self, latched: bool) -> Fault | None:
        """The first thing that stands against this snapshot, before anything is done with it [PROTO-035]."""
        for check in (_complete, _same_mode, _same_origin, _hashes, _well_formed, _fits, _within_limits):
            fault = check(self)
            if fault is not None:
                return fault
        return self._latch_refusal(latched)

    def _latch_refusal(self, latched: bool) -> Fault | None:
        shown = self.state.get("world", {}).get("estop")
        if shown not in ("engaged", "released") or (shown == "engaged") == latched:
            return None
        return _mismatch("latch", f"the snapshot shows the emergency stop {shown}, which it is not now")


def not_restored(restoration: Restoration, seen: str | None, *, rolled_back: bool) -> Fault:
    """A restore that did not give the state of the snapshot; `seen` is the hash of what the device showed instead."""
    found = {"expected_state_hash": restoration.state_hash, "observed_state_hash": seen}
    details = {"reason": "not_reproduced", "rolled_back": rolled_back, **found}
    if rolled_back:
        message = "the device did not show the snapshot's state; it has its former state again"
        return Fault("MHS.CONFLICT.STATE_HASH", message, details=details)
    message = "the device shows neither the snapshot's state nor its former one"
    return Fault("MHS.OUTCOME.UNKNOWN", message, details=details)


def _mismatch(reason: str, message: str, **details: Any) -> Fault:
    return Fault("MHS.CONFLICT.SNAPSHOT_MISMATCH", message, details={"reason": reason, **details})


def _complete(restoration: Restoration) -> Fault | None:
    document = restoration.document
    missing = [name for name in REQUIRED if name not in document]
    if "snapshot" not in document and "state" not in document:
        missing.append("snapshot")
    if not missing:
        return None
    return _mismatch("incomplete", f"the snapshot lacks {', '.join(missing)}", missing=missing)


def _same_mode(restoration: Restoration) -> Fault | None:
    """A snapshot of hardware is never restored, and any other only in the mode that it was taken in."""
    mode, here = restoration.document["mode"], restoration.origin.mode
    if mode == here and mode != "hardware":
        return None
    return Fault(
        "MHS.MODE.RESTORE_UNSUPPORTED",
        f"the snapshot was not taken in the mode of {restoration.origin.device_id}, which is {here}",
        details={"field": "mode", "mode": here},
    )


def _same_origin(restoration: Restoration) -> Fault | None:
    for name, expected in restoration.origin.identity().items():
        if restoration.document[name] != expected:
            return _mismatch(name, f"the snapshot has another {name} than the device", expected=expected)
    return None


def _hashes(restoration: Restoration) -> Fault | None:
    """The state_hash recomputes from each state document that was sent, by its own exclusions."""
    for name in ("snapshot", "state"):
        state = restoration.document.get(name, {})
        if not isinstance(state, Mapping):
            return _mismatch("malformed", f"{name} must be an object of states by resource_id", field=name)
        if name not in restoration.document:
            continue
        computed = device_hash(state, restoration.origin.exclusions)
        if computed != restoration.document["state_hash"]:
            return Fault(
                "MHS.CONFLICT.STATE_HASH",
                f"the state_hash of the snapshot does not recompute from its {name}",
                details={"reason": "not_recomputed", "field": name, "computed_state_hash": computed},
            )
    return None


@cache
def _shape() -> Validator:
    return compile_schema(schema_document("snapshot.schema.json"), resolve=schema_document)


def _well_formed(restoration: Restoration) -> Fault | None:
    document = restoration.document
    errors = _shape().errors(document)
    if errors:
        message = f"the snapshot is malformed: {excerpt(errors[0]['path']) or '/'}: {errors[0]['message']}"
        return _mismatch("malformed", message, errors=errors)
    if "snapshot" in document and document.get("state", document["snapshot"]) != document["snapshot"]:
        return _mismatch("state_alias", "state is an alias of snapshot, and the two are not the same")
    computed = snapshot_digest(document)
    if document.get("snapshot_digest", computed) != computed:
        return _mismatch(
            "snapshot_digest", "the snapshot_digest does not recompute", computed_snapshot_digest=computed
        )
    return None


def _fits(restoration: Restoration) -> Fault | None:
    """Every resource of the device has a state in it, no other has, and each state is one of its schema."""
    state, schemas = restoration.state, restoration.origin.states
    if state.keys() != schemas.keys():
        expected = sorted(schemas)
        return _mismatch("resources", f"the snapshot must have {', '.join(expected)}", expected=expected)
    for resource_id, schema in schemas.items():
        errors = schema.errors(state[resource_id])
        if errors:
            message = f"the state of {resource_id} is none of its schema: {errors[0]['message']}"
            return _mismatch("state_schema", message, resource_id=resource_id, errors=errors)
    return None


def _within_limits(restoration: Restoration) -> Fault | None:
    """MHS.SAFETY.ENVELOPE_VIOLATION for a setpoint that could not be written either."""
    faults = (
        limit_refusal(restoration.state[resource_id], limits)
        for resource_id, limits in restoration.origin.limits.items()
    )
    return next((fault for fault in faults if fault is not None), None)
