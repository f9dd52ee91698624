"""The fixed tools are those of the table, and operator tools are for operators [TPT-044]."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mhsd.base.errors import Fault
from mhsd.mcp.fixed import FIXED, fixed_tools
from mhsd.mcp.policy import Policy

INPUTS = {
    "mhs__devices": set(),
    "mhs__inspect": {"device_id"},
    "mhs__read": {"resource_id", "device_id", "fields"},
    "mhs__safety": {"device_id"},
    "mhs__operations": {"operation_id", "wait_ms", "cancel_operation_id", "device_id"},
    "mhs__evidence": {"last_n", "command_id", "verify"},
    "mhs__estop": {"device_id", "reason"},
    "mhs__reset": {"device_id"},
    "mhs__permit": {"device_id", "capability_id", "resource", "input", "ttl_s"},
}
REQUIRED = {"mhs__read": {"resource_id"}, "mhs__permit": {"capability_id", "input"}}


def test_the_table_is_the_contracts() -> None:
    """[TPT-044]"""
    assert list(FIXED) == list(INPUTS)
    for name, tool in FIXED.items():
        schema = tool.shown("2025-11-25")["inputSchema"]
        assert set(schema["properties"]) == INPUTS[name]
        assert set(schema.get("required", [])) == REQUIRED.get(name, set())
        assert schema["additionalProperties"] is False
        Draft202012Validator.check_schema(schema)


def test_operator_tools_are_listed_only_for_operators() -> None:
    """[TPT-044, CORE-130]"""
    operators = {"mhs__reset", "mhs__permit"}
    assert {tool.name for tool in fixed_tools(Policy())} == set(INPUTS) - operators
    assert {tool.name for tool in fixed_tools(Policy(operator_tools=True))} == set(INPUTS)
    for name, tool in FIXED.items():
        refusal = tool.refusal(Policy())
        assert (refusal is not None) == (name in operators)
        if refusal is not None:
            assert refusal.mhs_code == "MHS.AUTH.FORBIDDEN"
            assert "policy operator_tools=false" in refusal.message


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("mhs__devices", {}),
        ("mhs__read", {"resource_id": "belt", "fields": ["running"]}),
        ("mhs__operations", {"operation_id": "op_x", "wait_ms": 60000}),
        ("mhs__evidence", {"last_n": 50, "verify": False, "include_bundle": True}),
        ("mhs__permit", {"capability_id": "cap.x.v1", "input": {}, "ttl_s": 3600}),
    ],
)
def test_good_arguments_are_taken_as_they_are(name: str, arguments: dict[str, Any]) -> None:
    assert FIXED[name].arguments(arguments) == arguments


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("mhs__operations", {"wait_ms": 100.0}),
        ("mhs__evidence", {"last_n": 10.0}),
        ("mhs__permit", {"capability_id": "cap.x.v1", "input": {"x": 1.0}, "ttl_s": 60.0}),
    ],
)
def test_a_whole_number_may_be_written_as_a_fraction(name: str, arguments: dict[str, Any]) -> None:
    taken = FIXED[name].arguments(arguments)
    assert taken == arguments
    assert not any(type(value) is float for value in taken.values())


@pytest.mark.parametrize(
    ("name", "arguments", "field"),
    [
        ("mhs__devices", {"device_id": "x"}, "device_id"),
        ("mhs__read", {}, "resource_id"),
        ("mhs__read", {"resource_id": 3}, "resource_id"),
        ("mhs__read", {"resource_id": "belt", "fields": []}, "fields"),
        ("mhs__read", {"device_id": 3, "fields": []}, "input: .*resource_id; device_id: .*; fields: "),
        ("mhs__operations", {"wait_ms": 60001}, "wait_ms"),
        ("mhs__evidence", {"last_n": 51}, "last_n"),
        ("mhs__evidence", {"last_n": 0}, "last_n"),
        ("mhs__evidence", {"include_bundle": "yes"}, "include_bundle"),
        ("mhs__permit", {"capability_id": "cap.x.v1"}, "input"),
        ("mhs__permit", {"capability_id": "cap.x.v1", "input": {}, "ttl_s": 3601}, "ttl_s"),
    ],
)
def test_bad_arguments_are_refused_by_their_field(name: str, arguments: dict[str, Any], field: str) -> None:
    """[TPT-038]"""
    with pytest.raises(Fault, match=field) as caught:
        FIXED[name].arguments(arguments)
    assert caught.value.mhs_code == "MHS.CAPABILITY.INPUT_INVALID"


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ({}, {}),
        ({"device_id": "mhs://h/a", "reason": "smoke"}, {"device_id": "mhs://h/a", "reason": "smoke"}),
        ({"device_id": 7, "reason": None, "colour": "red"}, {}),
        ({"device_id": "", "reason": "x"}, {"reason": "x"}),
    ],
)
def test_the_arguments_of_a_stop_are_never_refused(given: dict[str, Any], used: dict[str, Any]) -> None:
    """[TPT-044, CORE-076]"""
    assert FIXED["mhs__estop"].arguments(given) == used


def test_hosts_are_not_told_to_hold_a_stop_back() -> None:
    """[TPT-044]"""
    for name, tool in FIXED.items():
        hints = tool.shown("2025-11-25")["annotations"]
        assert hints["destructiveHint"] is (name in ("mhs__reset", "mhs__permit"))
        assert hints["readOnlyHint"] is (
            name in ("mhs__devices", "mhs__inspect", "mhs__read", "mhs__safety", "mhs__evidence")
        )
