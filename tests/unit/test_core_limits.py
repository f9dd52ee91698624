"""Limits: refused at the first step outside, never clamped, boundary values inside."""

import json
import math
from typing import Any

import pytest

from mhsd.core.limits import limit_refusal
from mhsd.driver.manifest import Limit
from mhsd.wire.canonical import stays_canonical

SPEED = Limit(-40, 150, "Cel")


def refused(value: Any, limit: Limit = SPEED) -> bool:
    return limit_refusal({"setpoint_cel": value}, {"setpoint_cel": limit}) is not None


@pytest.mark.parametrize("value", [-40, -40.0, 150, 150.0, 0, math.nextafter(150, 0), math.nextafter(-40, 0)])
def test_a_value_on_or_within_the_bounds_is_allowed(value: float) -> None:
    assert not refused(value)


@pytest.mark.parametrize(
    "value", [-41, 151, math.nextafter(150, 200), math.nextafter(-40, -50), 10**300, -(2**53)]
)
def test_a_value_outside_by_the_smallest_step_is_refused(value: float) -> None:
    assert refused(value)


@pytest.mark.parametrize(
    ("limit", "inside", "outside"),
    [(Limit(0, None, "V"), 1e300, -5e-324), (Limit(None, 0, "V"), -1e300, 5e-324)],
)
def test_a_side_without_a_bound_is_open(limit: Limit, inside: float, outside: float) -> None:
    assert not refused(inside, limit)
    assert refused(outside, limit)


def test_a_bound_of_zero_is_a_bound() -> None:
    assert refused(-1, Limit(0, None, "V"))
    assert refused(1, Limit(None, 0, "V"))


@pytest.mark.parametrize("value", [True, False, "900", None, [900], {"value": 900}])
def test_what_is_no_number_is_the_schemas_to_refuse_and_a_boolean_is_none(value: Any) -> None:
    assert not refused(value, Limit(100, 200, "V"))


@pytest.mark.parametrize("values", [None, True, 900, "900", [900]])
def test_an_input_that_is_no_object_has_no_fields_to_limit(values: Any) -> None:
    assert limit_refusal(values, {"setpoint_cel": SPEED}) is None


def test_a_field_that_is_absent_or_unlimited_is_not_refused() -> None:
    assert limit_refusal({"rate_cel_min": 1e9}, {"setpoint_cel": SPEED}) is None
    assert limit_refusal({"setpoint_cel": 1e9}, {}) is None


@pytest.mark.parametrize(
    ("value", "source", "limit"), [(151, "manifest", 150), (-40.5, "site", -40), (1000, "site", 150)]
)
def test_the_refusal_names_field_value_limit_unit_and_source(value: float, source: str, limit: int) -> None:
    fault = limit_refusal({"setpoint_cel": value}, {"setpoint_cel": Limit(-40, 150, "Cel", source, source)})
    assert fault is not None
    assert fault.mhs_code == "MHS.SAFETY.ENVELOPE_VIOLATION"
    assert fault.retryable is False
    assert fault.details == {
        "field": "setpoint_cel",
        "value": value,
        "limit": limit,
        "unit": "Cel",
        "source": source,
    }
    assert all(part in fault.message for part in ("setpoint_cel", str(value), str(limit), "Cel", source))
    json.dumps(fault.error(), allow_nan=False)


def test_every_limited_field_is_looked_at() -> None:
    limits = {"a": Limit(0, 1, "V"), "b": Limit(0, 1, "V")}
    fault = limit_refusal({"a": 1, "b": 2}, limits)
    assert fault is not None
    assert fault.details is not None
    assert fault.details["field"] == "b"


@pytest.mark.parametrize("value", [1e16, 2.0**53, 1e300, -1e300, 1e-300 - 41])
def test_a_refused_value_of_any_size_can_stand_in_a_receipt(value: float) -> None:
    fault = limit_refusal({"setpoint_cel": value}, {"setpoint_cel": SPEED})
    assert fault is not None
    assert stays_canonical(fault.receipt_error())
    assert fault.details is not None
    assert float(fault.details["value"]) == value
