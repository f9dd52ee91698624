"""Snapshots as documents: what one says, and what keeps one from being restored [PROTO-034, PROTO-035]."""

from collections.abc import Mapping
from typing import Any

import pytest

from mhsd.base.errors import Fault
from mhsd.core.snapshots import Restoration, snapshot_digest
from mhsd.wire.canonical import NotCanonical, digest
from tests.documents import check
from tests.documents import digest as digest_of
from tests.unit.core_builders import AT, DEVICE, STATE, ZEROS, origin, restoration

MISMATCH, STATE_HASH = "MHS.CONFLICT.SNAPSHOT_MISMATCH", "MHS.CONFLICT.STATE_HASH"
UNSUPPORTED = "MHS.MODE.RESTORE_UNSUPPORTED"


def refused(sent: Restoration, *, latched: bool = False) -> tuple[str, str | None] | None:
    """Code and reason of what stands against a snapshot."""
    fault = sent.refusal(latched)
    return None if fault is None else (fault.mhs_code, (fault.details or {}).get("reason"))


def resealed(state: Mapping[str, Any], **changes: Any) -> Restoration:
    """A forged snapshot that holds together: its hash and digest are made for `state`."""
    forged = origin().snapshot(state, 41, AT)
    document = {**forged, "snapshot_digest": None, **changes}
    return Restoration({name: value for name, value in document.items() if value is not None}, origin())


# Taking one.


def test_a_snapshot_says_whose_it_is_and_everything_recomputes() -> None:
    """[PROTO-034, PROTO-012]"""
    taken = origin().snapshot(STATE, 41, AT)
    check("snapshot", taken)
    assert taken["snapshot"] == taken["state"] == STATE
    assert (taken["device_id"], taken["instance_id"]) == (DEVICE, "01J8ZQ3V6Y7M2N4P6R8S0T2V4W")
    assert (taken["mode"], taken["revision"], taken["created_at"]) == ("simulated", 41, AT)
    assert taken["fidelity_digest"] == digest_of(origin().fidelity)
    assert taken["state_hash"] == digest_of({"world": STATE["world"], "belt": {"speed_mm_s": 100}})
    named = {name: value for name, value in taken.items() if name not in ("snapshot_digest", "state")}
    assert taken["snapshot_digest"] == digest_of(named)


@pytest.mark.parametrize(
    ("mode", "supported", "code"),
    [
        ("simulated", True, None),
        ("replay", True, None),
        ("hardware", True, "MHS.MODE.SNAPSHOT_UNSUPPORTED"),
        ("hybrid", True, "MHS.MODE.SNAPSHOT_UNSUPPORTED"),
        ("simulated", False, "MHS.MODE.SNAPSHOT_UNSUPPORTED"),
        ("replay", False, "MHS.MODE.SNAPSHOT_UNSUPPORTED"),
    ],
)
def test_only_a_device_that_is_all_state_is_snapshotted(mode: str, supported: bool, code: str | None) -> None:
    """[PROTO-034]"""
    fault = origin(
        mode=mode, fidelity={**origin().fidelity, "snapshot_restore": supported}
    ).snapshot_refusal()
    assert (fault and fault.mhs_code) == code
    if fault is not None:
        assert fault.details == {"mode": mode, "snapshot_restore": supported}


@pytest.mark.parametrize(
    ("mode", "supported", "code"),
    [
        ("simulated", True, None),
        ("simulated", False, UNSUPPORTED),
        ("replay", True, UNSUPPORTED),
        ("hardware", True, UNSUPPORTED),
        ("hybrid", True, UNSUPPORTED),
    ],
)
def test_only_a_simulated_device_is_restored(mode: str, supported: bool, code: str | None) -> None:
    """[PROTO-035]"""
    here = origin(mode=mode, fidelity={**origin().fidelity, "snapshot_restore": supported})
    fault = Restoration(restoration().document, here).mode_refusal()
    assert (fault and fault.mhs_code) == code


# Sending one back.


def test_a_snapshot_comes_back_as_it_was_taken() -> None:
    """[PROTO-035]"""
    sent = restoration()
    assert refused(sent) is None
    assert sent.state == STATE
    assert sent.state_hash == origin().snapshot(STATE, 41, AT)["state_hash"]


@pytest.mark.parametrize(
    "left_out",
    [("state",), ("snapshot",), ("revision", "created_at", "snapshot_digest"), ("snapshot_digest", "state")],
)
def test_one_name_of_the_state_is_enough_and_what_identifies_nothing_may_be_left_out(
    left_out: tuple[str, ...],
) -> None:
    """[PROTO-034, PROTO-035]"""
    sent = restoration(**dict.fromkeys(left_out))
    assert refused(sent) is None
    assert sent.state == STATE


@pytest.mark.parametrize("name", ["device_id", "instance_id", "mode", "fidelity_digest", "state_hash"])
def test_what_identifies_a_snapshot_is_required(name: str) -> None:
    """[PROTO-035]"""
    fault = restoration(**{name: None}, snapshot_digest=None).refusal(False)
    assert fault is not None
    assert fault.mhs_code == MISMATCH
    assert fault.details == {"reason": "incomplete", "missing": [name]}


def test_a_snapshot_without_any_state_is_incomplete() -> None:
    """[PROTO-035]"""
    assert refused(restoration(snapshot=None, state=None)) == (MISMATCH, "incomplete")
    assert refused(Restoration({}, origin())) == (MISMATCH, "incomplete")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("device_id", f"{DEVICE}-2"),
        ("device_id", 7),
        ("device_id", []),
        ("instance_id", "01J8ZQ3V6Y7M2N4P6R8S0T2V4X"),
        ("fidelity_digest", ZEROS),
        ("fidelity_digest", True),
    ],
)
def test_a_snapshot_of_another_device_instance_or_fidelity_is_refused(name: str, value: Any) -> None:
    """[PROTO-035]"""
    assert refused(restoration(**{name: value})) == (MISMATCH, name)


@pytest.mark.parametrize("mode", ["hardware", "replay", "hybrid", "Simulated", 1])
def test_a_snapshot_of_another_mode_is_not_restored_whatever_else_it_is(mode: Any) -> None:
    """[PROTO-035]"""
    fault = restoration(mode=mode, device_id=f"{DEVICE}-2", state_hash=ZEROS).refusal(False)
    assert fault is not None
    assert fault.mhs_code == UNSUPPORTED


def test_a_snapshot_of_hardware_is_not_restored_even_to_hardware() -> None:
    """[PROTO-035]"""
    sent = Restoration(restoration(mode="hardware").document, origin(mode="hardware"))
    assert refused(sent) == (UNSUPPORTED, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"state_hash": ZEROS},
        {"state_hash": "sha256:no"},
        {"state_hash": 7},
        {"snapshot": {**STATE, "belt": {**STATE["belt"], "speed_mm_s": 101}}},
        {"state": {**STATE, "belt": {**STATE["belt"], "speed_mm_s": 101}}},
        {"snapshot": {**STATE, "extra": {}}},
        {"snapshot": {"world": STATE["world"]}},
        {"snapshot": {}},
        {"snapshot": {**STATE, "belt": 7}},
        {"snapshot": None, "state": {**STATE, "world": {}}},
    ],
)
def test_a_state_that_does_not_have_its_hash_is_refused_as_that(changes: dict[str, Any]) -> None:
    """[PROTO-035]"""
    assert refused(restoration(**changes)) == (STATE_HASH, "not_recomputed")


def test_the_hash_leaves_out_what_moves_by_itself() -> None:
    """[PROTO-034]"""
    moved = {**STATE, "belt": {"speed_mm_s": 100, "measured_mm_s": 3}}
    sent = restoration(snapshot=moved, state=None, snapshot_digest=None)
    assert refused(sent) is None
    assert sent.state == moved


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"snapshot": [], "state": None}, "malformed"),
        ({"snapshot": "x"}, "malformed"),
        ({"state": 7}, "malformed"),
        ({"snapshot_digest": ZEROS}, "snapshot_digest"),
        ({"revision": 42}, "snapshot_digest"),
        ({"created_at": "2026-10-20T07:46:59.221Z"}, "snapshot_digest"),
        ({"created_at": None}, "snapshot_digest"),
        ({"revision": -1}, "malformed"),
        ({"revision": "41"}, "malformed"),
        ({"created_at": "yesterday"}, "malformed"),
        ({"snapshot_digest": "md5:0"}, "malformed"),
        ({"colour": "red"}, "malformed"),
        ({"state": {**STATE, "belt": {"speed_mm_s": 100, "measured_mm_s": 3}}}, "state_alias"),
    ],
)
def test_nothing_in_a_snapshot_is_accepted_that_does_not_hold_together(
    changes: dict[str, Any], reason: str
) -> None:
    """[PROTO-012, PROTO-034, PROTO-035]"""
    assert refused(restoration(**changes)) == (MISMATCH, reason)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({**STATE, "extra": {}}, "resources"),
        ({"world": STATE["world"]}, "resources"),
        ({}, "resources"),
        ({**STATE, "belt": {"speed_mm_s": -1, "measured_mm_s": 0}}, "state_schema"),
        ({**STATE, "belt": {"speed_mm_s": 100}}, "state_schema"),
        ({**STATE, "belt": {**STATE["belt"], "colour": "red"}}, "state_schema"),
    ],
)
def test_a_forged_state_with_a_good_hash_must_still_be_one_of_the_device(state: Any, reason: str) -> None:
    """[PROTO-035]"""
    fault = resealed(state).refusal(False)
    assert fault is not None
    assert (fault.mhs_code, fault.details and fault.details["reason"]) == (MISMATCH, reason)
    if reason == "state_schema":
        assert fault.details is not None
        assert fault.details["resource_id"] == "belt"
        assert fault.details["errors"]


@pytest.mark.parametrize(
    ("shown", "latched", "code"),
    [
        ("released", False, None),
        ("engaged", True, None),
        ("released", True, (MISMATCH, "latch")),
        ("engaged", False, (MISMATCH, "latch")),
    ],
)
def test_a_snapshot_never_sets_the_emergency_stop(shown: str, latched: bool, code: Any) -> None:
    """[PROTO-035]"""
    assert refused(resealed({**STATE, "world": {"estop": shown}}), latched=latched) == code


def test_a_device_without_an_emergency_stop_in_its_state_has_no_latch_to_compare() -> None:
    """[PROTO-035]"""
    belt_only = {name: getattr(origin(), name)["belt"] for name in ("states", "exclusions")}
    plain = origin(states={"belt": belt_only["states"]}, exclusions={"belt": belt_only["exclusions"]})
    sent = Restoration(plain.snapshot({"belt": STATE["belt"]}, 1, AT), plain)
    assert refused(sent, latched=True) is None


def test_the_expected_identity_is_told_and_a_long_stranger_is_not_repeated() -> None:
    """[PROTO-042]"""
    fault = restoration(device_id="x" * 100_000).refusal(False)
    assert isinstance(fault, Fault)
    assert fault.details == {"reason": "device_id", "expected": DEVICE}
    assert len(str(fault.error())) < 1000


# The digest.


def test_the_digest_is_the_same_under_either_name_of_the_state() -> None:
    """[PROTO-036]"""
    document = restoration().document
    named = {name: value for name, value in document.items() if name not in ("state", "snapshot_digest")}
    aliased = {("state" if name == "snapshot" else name): value for name, value in named.items()}
    assert snapshot_digest(document) == snapshot_digest(named) == snapshot_digest(aliased) == digest(named)


def test_what_has_no_canonical_form_has_no_digest() -> None:
    """[PROTO-012]"""
    with pytest.raises(NotCanonical):
        snapshot_digest({"snapshot": {"world": {"tick": 2**53}}})
