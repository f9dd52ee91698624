"""Reading resources, and writing what may be written."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.behaviour.conftest import BENCH
from tests.documents import digest, input_digest
from tests.lab import Lab, Session, request, ulid

CONFIGURE = "cap.device.configure.v1"
WAIT = {"deadline_ms": 30_000}


@pytest.fixture
def bench(pair: Lab) -> Iterator[Session]:
    """A session on the bench, whose state is nested."""
    session = pair.open(device_id=BENCH)
    yield session
    session.close()


# mhs.resource.read


@pytest.mark.parametrize("resource_id", ["world", "belt", "valve"])
def test_a_read_carries_the_hash_of_its_state(session: Session, resource_id: str) -> None:
    """[PROTO-012, PROTO-023]"""
    document = session.read(resource_id)
    assert document["state_hash"] == digest(document["state"])


def test_fields_choose_what_is_read(session: Session) -> None:
    """[PROTO-023]"""
    document = session.read("belt", fields=["running", "speed_mm_s"])
    assert document["state"].keys() == {"running", "speed_mm_s"}
    assert document["state_hash"] == digest(document["state"])


def test_a_field_that_is_not_there_is_named(session: Session) -> None:
    """[PROTO-023]"""
    refused = session.refused("mhs.resource.read", resource_id="belt", fields=["running", "mass"], **WAIT)
    assert refused.code == "MHS.RESOURCE.FIELD_UNKNOWN"
    assert refused.details["fields"] == ["mass"]


@pytest.mark.parametrize("resource_id", ["nothing", "World", "world/tick"])
def test_an_unknown_resource_cannot_be_read(session: Session, resource_id: str) -> None:
    """[PROTO-023]"""
    refused = session.refused("mhs.resource.read", resource_id=resource_id, **WAIT)
    assert refused.code == "MHS.RESOURCE.UNKNOWN"


def test_reading_never_moves_the_revision(session: Session) -> None:
    """[PROTO-023, OP-008]"""
    before = session.revision()
    for resource_id in ("world", "belt", "valve"):
        assert session.read(resource_id)["revision"] == before
    session.lab.call("mhs.safety.status", **WAIT)
    session.lab.call("mhs.evidence.export")
    session.lab.open([]).close()
    assert session.revision() == before


def test_a_read_sees_what_was_done_just_before(session: Session) -> None:
    """[PROTO-024]"""
    for speed_mm_s in (3, 4.5, 0):
        receipt = session.write("belt", {"speed_mm_s": speed_mm_s})
        document = session.read("belt")
        assert document["state"]["speed_mm_s"] == speed_mm_s
        assert document["revision"] == receipt["state_revision_after"]


def test_state_and_revision_of_a_read_belong_together(session: Session) -> None:
    """[PROTO-023, PROTO-024]"""
    lab, before = session.lab, session.read("world")
    steps, reads = [], []
    for _ in range(30):
        steps.append(session.begin("cap.world.step.v1", {"ticks": 1}))
        reads.append(lab.begin("mhs.resource.read", session_id=session.id, resource_id="world", **WAIT))
    for each in reads:
        document = each.result()
        ahead = document["state"]["tick"] - before["state"]["tick"]
        assert document["revision"] == before["revision"] + ahead
        assert document["state_hash"] == digest(document["state"])
    assert {each.result()["status"] for each in steps} == {"completed"}


def test_a_past_revision_is_kept_by_replays_only(session: Session) -> None:
    """[PROTO-024]"""
    revision = session.revision()
    assert session.read("world", filter={"revision": revision})["revision"] == revision
    refused = session.refused(
        "mhs.resource.read", resource_id="world", filter={"revision": revision + 7}, **WAIT
    )
    assert refused.code == "MHS.RESOURCE.UNKNOWN"
    assert refused.details["recorded_revisions"] == [revision]


def test_what_moves_by_itself_is_left_out_of_hash_and_revision(bench: Session) -> None:
    """[PROTO-023, OP-007]"""
    first, second = bench.read("left"), bench.read("left")
    assert first["state"]["reads"] < second["state"]["reads"]
    assert first["state_hash"] == second["state_hash"] == digest({"enabled": first["state"]["enabled"]})
    assert first["revision"] == second["revision"]


# mhs.resource.write


def test_a_write_is_a_command_of_the_configure_binding(session: Session) -> None:
    """[PROTO-025, PROTO-025a, PROTO-036, PROTO-037]"""
    session.write("belt", {"speed_mm_s": 1})
    before = session.revision()
    receipt = session.write("belt", {"speed_mm_s": 120})
    assert receipt["status"] == "completed"
    assert (receipt["capability_id"], receipt["resource_ids"]) == (CONFIGURE, ["belt"])
    assert receipt["output"] == {"applied": {"speed_mm_s": 120}, "revision": before + 1}
    assert (receipt["state_revision_before"], receipt["state_revision_after"]) == (before, before + 1)
    assert receipt["input_digest"] == input_digest(CONFIGURE, "belt", {"speed_mm_s": 120})
    assert [effect["kind"] for effect in receipt["effects"]] == ["belt.configure"]


def test_a_write_and_the_command_that_it_runs_are_one(session: Session) -> None:
    """[PROTO-025a, OP-003]"""
    command_id = ulid()
    written = session.write("belt", {"speed_mm_s": 7}, command_id=command_id)
    commanded = session.command(CONFIGURE, {"speed_mm_s": 7}, command_id=command_id)
    assert commanded == {**written, "replayed": True}


def test_a_write_that_changes_nothing_keeps_the_revision(session: Session) -> None:
    """[OP-007, OP-009]"""
    session.write("belt", {"speed_mm_s": 11})
    before = session.revision()
    receipt = session.write("belt", {"speed_mm_s": 11})
    assert receipt["status"] == "completed"
    assert receipt["state_revision_before"] == receipt["state_revision_after"] == before
    assert receipt["output"] == {"applied": {"speed_mm_s": 11}, "revision": before}


@pytest.mark.parametrize("name", ["configured_speed_mm_s", "", "resource_id", "kind", "state_schema"])
def test_a_field_that_the_resource_does_not_have_is_refused(session: Session, name: str) -> None:
    """[PROTO-025, PROTO-026]"""
    before = session.read("belt")
    receipt = session.write("belt", {"speed_mm_s": 33, name: 1})
    assert receipt["status"] == "rejected"
    assert receipt["error"]["mhs_code"] == "MHS.RESOURCE.FIELD_UNKNOWN"
    assert receipt["error"]["details"]["fields"] == [name]
    assert receipt["capability_id"] == CONFIGURE
    after = session.read("belt")
    assert (after["state"], after["revision"]) == (before["state"], before["revision"])


def test_read_only_fields_are_refused_and_named(session: Session) -> None:
    """[PROTO-025, PROTO-025a]"""
    receipt = session.write("belt", {"position_mm": 1, "running": True, "speed_mm_s": 33})
    assert receipt["status"] == "rejected"
    assert receipt["error"]["mhs_code"] == "MHS.RESOURCE.NOT_WRITABLE"
    assert sorted(receipt["error"]["details"]["fields"]) == ["position_mm", "running"]
    assert receipt["capability_id"] == CONFIGURE


def test_an_unknown_field_is_told_before_a_read_only_one(session: Session) -> None:
    """[PROTO-025]"""
    receipt = session.write("belt", {"position_mm": 1, "mass_kg": 1})
    assert receipt["error"]["mhs_code"] == "MHS.RESOURCE.FIELD_UNKNOWN"


@pytest.mark.parametrize(
    ("patch", "code", "fields"),
    [
        ({"motion": {"jerk": 1}}, "MHS.RESOURCE.FIELD_UNKNOWN", ["motion/jerk"]),
        ({"motion": {"position_mm": 1}}, "MHS.RESOURCE.NOT_WRITABLE", ["motion/position_mm"]),
        (
            {"points": [{"at_mm": 1}, {"at_mm": 2, "seen": True}]},
            "MHS.RESOURCE.NOT_WRITABLE",
            ["points/1/seen"],
        ),
        ({"points": [{"at_mm": 1, "when": 2}]}, "MHS.RESOURCE.FIELD_UNKNOWN", ["points/0/when"]),
    ],
    ids=str,
)
def test_a_patch_is_checked_at_any_depth(
    bench: Session, patch: dict[str, Any], code: str, fields: list[str]
) -> None:
    """[PROTO-025]"""
    receipt = bench.write("axis", patch)
    assert (receipt["status"], receipt["error"]["mhs_code"]) == ("rejected", code)
    assert receipt["error"]["details"]["fields"] == fields


def test_a_nested_patch_is_applied(bench: Session) -> None:
    """[PROTO-025]"""
    receipt = bench.write("axis", {"motion": {"speed_mm_s": 9}, "points": [{"at_mm": 1}]})
    assert receipt["status"] == "completed"
    state = bench.read("axis")["state"]
    assert state["motion"]["speed_mm_s"] == 9
    assert state["points"] == [{"at_mm": 1}]


@pytest.mark.parametrize("speed", [-1, 1000.5, "fast", None, True, [1]], ids=repr)
def test_a_value_outside_the_schema_is_invalid_input(session: Session, speed: Any) -> None:
    """[PROTO-025, PROTO-027]"""
    receipt = session.write("belt", {"speed_mm_s": speed})
    assert receipt["status"] == "rejected"
    assert receipt["error"]["mhs_code"] == "MHS.CAPABILITY.INPUT_INVALID"
    assert receipt["error"]["details"]["errors"][0]["path"] == "/speed_mm_s"


def test_a_value_outside_its_limit_is_an_envelope_violation(session: Session) -> None:
    """[PROTO-025, PROTO-025a]"""
    before = session.read("belt")
    receipt = session.write("belt", {"speed_mm_s": 500.001})
    assert receipt["status"] == "rejected"
    assert receipt["error"]["mhs_code"] == "MHS.SAFETY.ENVELOPE_VIOLATION"
    assert receipt["error"]["details"] == {
        "field": "speed_mm_s",
        "value": 500.001,
        "limit": 500,
        "unit": "mm/s",
        "source": "manifest",
    }
    assert session.read("belt")["state"] == before["state"], "nothing is clamped"


@pytest.mark.parametrize("speed_mm_s", [0, 500])
def test_the_limits_themselves_are_allowed(session: Session, speed_mm_s: int) -> None:
    """[PROTO-025a]"""
    assert session.write("belt", {"speed_mm_s": speed_mm_s})["status"] == "completed"


@pytest.mark.parametrize("resource_id", ["world", "valve"])
def test_a_resource_without_a_configure_binding_cannot_be_written(session: Session, resource_id: str) -> None:
    """[PROTO-025a]"""
    before = session.revision()
    refused = session.refused(
        "mhs.resource.write", resource_id=resource_id, patch={"tick": 1}, command_id=ulid(), **WAIT
    )
    assert refused.code == "MHS.RESOURCE.NOT_WRITABLE"
    assert refused.details["reason"] == "configure_unbound"
    assert session.revision() == before


@pytest.mark.parametrize("capability_id", ["cap.world.step.v1", "cap.motion.convey.v1", "cap.nobody.v1"])
def test_a_patch_is_never_the_input_of_another_class(session: Session, capability_id: str) -> None:
    """[PROTO-025a]"""
    refused = session.refused(
        "mhs.resource.write",
        resource_id="belt",
        capability_id=capability_id,
        patch={"speed_mm_s": 1},
        command_id=ulid(),
        **WAIT,
    )
    assert refused.code == "MHS.RESOURCE.NOT_WRITABLE"
    assert refused.details["reason"] == "write_class_not_configure"


def test_a_write_may_name_the_configure_class(session: Session) -> None:
    """[PROTO-025a]"""
    assert session.write("belt", {"speed_mm_s": 2}, capability_id=CONFIGURE)["status"] == "completed"


def test_an_unknown_resource_cannot_be_written(session: Session) -> None:
    """[PROTO-026]"""
    refused = session.refused(
        "mhs.resource.write", resource_id="door", patch={"speed_mm_s": 1}, command_id=ulid(), **WAIT
    )
    assert refused.code == "MHS.RESOURCE.UNKNOWN"


def test_a_write_holds_to_the_expected_revision(session: Session) -> None:
    """[PROTO-025, OP-005]"""
    revision = session.revision()
    receipt = session.write("belt", {"speed_mm_s": 21}, expected_revision=revision + 1)
    assert receipt["error"]["mhs_code"] == "MHS.CONFLICT.REVISION"
    assert receipt["error"]["current_revision"] == revision
    assert session.write("belt", {"speed_mm_s": 22}, expected_revision=revision)["status"] == "completed"


def test_minus_zero_is_zero(session: Session) -> None:
    """[PROTO-036]"""
    session.write("belt", {"speed_mm_s": 5})
    message = request(
        "mhs.resource.write",
        session_id=session.id,
        resource_id="belt",
        patch={"speed_mm_s": "HERE"},
        command_id=ulid(),
        **WAIT,
    )
    receipt = session.lab.wire.exchange_bytes(json.dumps(message).replace('"HERE"', "-0.0").encode())[
        "result"
    ]
    assert receipt["input_digest"] == input_digest(CONFIGURE, "belt", {"speed_mm_s": 0})
    assert json.dumps(receipt["output"]["applied"]) == '{"speed_mm_s": 0}'
    assert json.dumps(session.read("belt")["state"]["speed_mm_s"]) == "0"
