"""Arguments divide into input and controls, and a call has the command_id that its token gives [TPT-033, TPT-036]."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhsd.base.errors import Fault
from mhsd.base.ids import is_ulid
from mhsd.mcp.controls import CONTROL_PROPERTIES, Controls, command_id_of, split_arguments
from mhsd.mcp.results import fault_result
from mhsd.wire.schema import compile_schema
from tests.unit.mcp_fixtures import NAMED, projection_of

TOOLS = projection_of().tools
STEP, CONVEY = TOOLS[f"{NAMED}world_step"], TOOLS[f"{NAMED}motion_convey"]
FRESH = "01ARYZ6S41000G40R40M30E209"


def refused(arguments: Mapping[str, Any], meta: Mapping[str, Any] | None = None) -> Fault:
    with pytest.raises(Fault) as caught:
        STEP.split(arguments, meta)
    assert caught.value.mhs_code == "MHS.CAPABILITY.INPUT_INVALID"
    return caught.value


def test_controls_never_reach_the_input() -> None:
    """[TPT-033, CORE-131]"""
    given_input, controls = STEP.split(
        {
            "ticks": 3,
            "session_id": "mhs_s_x",
            "command_id": FRESH,
            "expected_revision": 0,
            "permit_id": "permit_x",
            "deadline_ms": 500,
        }
    )
    assert given_input == {"ticks": 3}
    assert controls == Controls("mhs_s_x", FRESH, 0, "permit_x", 500)


def test_a_call_without_controls_has_none() -> None:
    assert STEP.split({"ticks": 1}) == ({"ticks": 1}, Controls())


def test_the_callers_arguments_are_left_as_they_are() -> None:
    arguments = {"ticks": 1, "deadline_ms": 5}
    STEP.split(arguments)
    assert arguments == {"ticks": 1, "deadline_ms": 5}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "input: must have the member ticks"),
        ({"ticks": 0}, "ticks: must be at least 1 {tick}"),
        ({"ticks": "3"}, "ticks: must be of type integer"),
        ({"ticks": True}, "ticks: must be of type integer"),
        ({"ticks": 3, "tocks": 1}, "input: must not have the member 'tocks'; allowed are: ticks"),
    ],
)
def test_input_that_does_not_fit_is_refused_with_the_reason_of_the_field(
    arguments: dict[str, Any], reason: str
) -> None:
    """[TPT-036, TPT-038]"""
    fault = refused(arguments)
    result = fault_result(fault)
    assert result["content"][0]["text"] == f"MHS.CAPABILITY.INPUT_INVALID: {reason}"
    assert result["isError"] is True
    assert result["structuredContent"]["mhs_error"] == fault.data()


def test_a_value_outside_a_limit_is_the_endpoints_to_refuse() -> None:
    """[TPT-038, CORE-131]"""
    beyond = {"distance_mm": 10, "speed_mm_s": 900}
    assert CONVEY.listing.x_mhs is not None
    assert CONVEY.listing.x_mhs["effective_limits"]["speed_mm_s"]["max"] == 500
    assert CONVEY.split(beyond)[0] == beyond


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("session_id", 7),
        ("session_id", None),
        ("session_id", ""),
        ("command_id", 7),
        ("command_id", ""),
        ("permit_id", ["p"]),
        ("expected_revision", "3"),
        ("expected_revision", 3.0),
        ("expected_revision", True),
        ("expected_revision", -1),
        ("deadline_ms", "500"),
        ("deadline_ms", 500.0),
        ("deadline_ms", 0),
        ("deadline_ms", False),
        ("deadline_ms", None),
    ],
)
def test_a_control_of_another_type_is_refused_by_its_name(name: str, value: Any) -> None:
    """[TPT-033]"""
    fault = refused({"ticks": 1, name: value})
    assert fault.details is not None
    assert [error["path"] for error in fault.details["errors"]] == [f"/{name}"]


def test_every_defect_of_a_control_is_named_at_once() -> None:
    fault = refused({"deadline_ms": 0, "permit_id": 1})
    assert fault.message.startswith("permit_id: ")
    assert "; deadline_ms: " in fault.message
    assert fault.message.endswith("; input: must have the member ticks")


def test_every_field_that_is_wrong_is_named_at_once() -> None:
    """[TPT-038]"""
    schema = compile_schema(
        {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "minimum": 1, "x-mhs-unit": "mm"},
                "b": {"type": "object", "properties": {"c": {"type": "string"}}},
                "d": {"$ref": "#/definitions/d"},
                "e": {"type": "boolean"},
            },
            "definitions": {"d": {"type": "string"}},
            "required": ["f"],
        }
    )
    for arguments, reasons in (
        (
            {"a": 0, "b": {"c": 1}, "d": "x", "e": True},
            "input: must have the member f; a: must be at least 1 mm; b/c: must be of type string",
        ),
        ({"d": 1, "f": 1}, "d: must be of type string"),
        ({"a": 0, "f": 1}, "a: must be at least 1 mm"),
    ):
        with pytest.raises(Fault) as caught:
            split_arguments(schema, arguments)
        assert caught.value.message == reasons


def test_a_call_that_names_nothing_gets_a_fresh_command_id() -> None:
    """[TPT-036]"""
    minted = iter([FRESH])
    assert Controls().command_id_for(STEP.name, lambda: next(minted)) == FRESH


def test_a_ulid_is_the_command_id_itself() -> None:
    assert Controls(command_id=FRESH).command_id_for(STEP.name, lambda: "") == FRESH


@pytest.mark.parametrize("controls", [Controls(command_id="again"), Controls(retry_token="again")])
def test_a_token_is_the_first_half_of_a_digest_as_a_ulid(controls: Controls) -> None:
    """[TPT-036]"""
    first = hashlib.sha256(f"{STEP.name}\nagain".encode()).digest()[:16]
    alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    number = int.from_bytes(first, "big")
    expected = "".join(alphabet[number >> shift & 31] for shift in range(125, -1, -5))
    assert controls.command_id_for(STEP.name, lambda: "") == expected


def test_a_ulid_as_a_retry_token_is_a_token() -> None:
    made = Controls(retry_token=FRESH).command_id_for(STEP.name, lambda: "")
    assert made == command_id_of(STEP.name, FRESH) != FRESH


def test_a_token_is_of_its_tool() -> None:
    assert command_id_of(STEP.name, "t") != command_id_of(CONVEY.name, "t")


@given(token=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_every_token_gives_a_ulid(token: str) -> None:
    assert is_ulid(command_id_of(STEP.name, token))


@pytest.mark.parametrize("command_id", [FRESH, "something"])
def test_a_retry_token_and_a_command_id_exclude_each_other(command_id: str) -> None:
    """[TPT-036, MHSD-9a-83]"""
    fault = refused({"ticks": 1, "command_id": command_id}, {"retryToken": "t"})
    assert "retryToken" in fault.message


@pytest.mark.parametrize("token", ["", 7, True, ["t"]])
def test_a_retry_token_is_a_text(token: Any) -> None:
    assert "retryToken" in refused({"ticks": 1}, {"retryToken": token}).message


def test_other_members_of_meta_are_nobodys_business() -> None:
    meta = {"progressToken": 7, "retryToken": "t"}
    assert STEP.split({"ticks": 1}, meta)[1] == Controls(retry_token="t")


@given(
    names=st.sets(st.sampled_from(sorted(CONTROL_PROPERTIES))),
    ticks=st.integers(1, 100_000),
)
def test_input_and_controls_are_the_whole_of_the_arguments(names: set[str], ticks: int) -> None:
    values = {name: 1 if CONTROL_PROPERTIES[name]["type"] == "integer" else "x" for name in names}
    split_input, controls = STEP.split({**values, "ticks": ticks})
    assert split_input == {"ticks": ticks}
    assert {name: getattr(controls, name) for name in names} == values


def test_controls_say_of_themselves_that_they_are_optional() -> None:
    """[TPT-033]"""
    assert all(re.match("Optional control", each["description"]) for each in CONTROL_PROPERTIES.values())
