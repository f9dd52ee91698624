"""The envelope's limits, at their boundaries: refused, never clamped."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.behaviour.safety import CONFIGURE, CONVEY, PURGE, STEP, code_of, permit, restored
from tests.lab import Lab, Session

BEYOND = "MHS.SAFETY.ENVELOPE_VIOLATION"


@pytest.fixture
def session(lab: Lab) -> Iterator[Session]:
    with restored(lab) as session:
        yield session


def details(field: str, value: Any, limit: float) -> dict[str, Any]:
    return {"field": field, "value": value, "limit": limit, "unit": "mm/s", "source": "manifest"}


@pytest.mark.parametrize("speed_mm_s", [0, 0.0, 0.001, 499.999, 500, 500.0])
def test_a_value_up_to_its_limit_is_set_as_it_is(session: Session, speed_mm_s: float) -> None:
    """[PROTO-025a, MHSD-4-04]"""
    session.completed(CONFIGURE, {"speed_mm_s": speed_mm_s})
    assert session.read("belt")["state"]["speed_mm_s"] == speed_mm_s


@pytest.mark.parametrize("speed_mm_s", [500.0000001, 500.5, 501, 1000])
def test_a_value_beyond_its_limit_is_refused_and_nothing_is_set(session: Session, speed_mm_s: float) -> None:
    """[PROTO-025a, MHSD-4-04]"""
    session.completed(CONFIGURE, {"speed_mm_s": 250})
    before = session.read("belt")
    for receipt in (
        session.command(CONFIGURE, {"speed_mm_s": speed_mm_s}),
        session.write("belt", {"speed_mm_s": speed_mm_s}),
    ):
        assert (receipt["status"], code_of(receipt)) == ("rejected", BEYOND)
        assert receipt["error"]["details"] == details("speed_mm_s", speed_mm_s, 500)
        assert receipt["error"]["retryable"] is False
    after = session.read("belt")
    assert (after["state"], after["revision"]) == (before["state"], before["revision"])


@pytest.mark.parametrize("speed_mm_s", [-0.001, -1, 1000.001, 1e9, "500", True, None, [500]])
def test_a_value_outside_the_schema_is_no_input(session: Session, speed_mm_s: Any) -> None:
    """[PROTO-027, MHSD-4-04] The schema stands before the limits."""
    for receipt in (
        session.command(CONFIGURE, {"speed_mm_s": speed_mm_s}),
        session.write("belt", {"speed_mm_s": speed_mm_s}),
    ):
        assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.CAPABILITY.INPUT_INVALID")
        assert receipt["error"]["details"]["errors"][0]["path"] == "/speed_mm_s"


@pytest.mark.parametrize(("speed_mm_s", "moves"), [(500, True), (500.01, False), (1000, False)])
def test_a_motion_is_no_faster_than_its_limit(session: Session, speed_mm_s: float, moves: bool) -> None:
    """[MHSD-4-04]"""
    before = session.read("belt")["state"]
    receipt = session.command(CONVEY, {"distance_mm": 1, "speed_mm_s": speed_mm_s})
    after = session.read("belt")["state"]
    if moves:
        assert receipt["status"] == "completed"
        assert after["position_mm"] == before["position_mm"] + 1
    else:
        assert (receipt["status"], code_of(receipt)) == ("rejected", BEYOND)
        assert receipt["error"]["details"] == details("speed_mm_s", speed_mm_s, 500)
        assert after == before


@pytest.mark.parametrize(
    ("capability_id", "value", "inside"),
    [
        (CONVEY, {"distance_mm": 0.999, "speed_mm_s": 500}, False),
        (CONVEY, {"distance_mm": 1, "speed_mm_s": 0.999}, False),
        (CONVEY, {"distance_mm": 100_000.001, "speed_mm_s": 500}, False),
        (STEP, {"ticks": 0}, False),
        (STEP, {"ticks": 1}, True),
        (STEP, {"ticks": 100_000}, True),
        (STEP, {"ticks": 100_001}, False),
        (STEP, {"ticks": 1.5}, False),
        (PURGE, {"duration_ms": 0}, False),
        (PURGE, {"duration_ms": 1}, True),
        (PURGE, {"duration_ms": 10_001}, False),
    ],
    ids=str,
)
def test_the_bounds_of_the_schemas_are_inside(
    session: Session, capability_id: str, value: Any, inside: bool
) -> None:
    """[PROTO-027]"""
    permits = {"permit_id": permit(session, value)["permit_id"]} if capability_id == PURGE else {}
    receipt = session.command(capability_id, value, **permits)
    if inside:
        assert receipt["status"] == "completed"
    else:
        assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.CAPABILITY.INPUT_INVALID")


def test_a_permit_does_not_lift_a_limit(session: Session) -> None:
    """[SAFE-004, MHSD-4-04]"""
    value = {"distance_mm": 1, "speed_mm_s": 501}
    permitted = permit(session, value, CONVEY, resource="belt")["permit_id"]
    assert code_of(session.command(CONVEY, value, permit_id=permitted)) == BEYOND
