"""The host policy says what it allows in known keys only, and allows nothing by itself [CORE-130, TPT-053]."""

from pathlib import Path

import pytest

from mhsd.base.errors import StartError
from mhsd.mcp.policy import Policy, checked_policy, parse_policy, read_policy


def refusal(text: str) -> StartError:
    with pytest.raises(StartError) as caught:
        parse_policy(text, "host.toml")
    return caught.value


def test_an_empty_policy_allows_only_what_is_safe() -> None:
    """[CORE-130]"""
    policy = parse_policy("", "host.toml")
    assert policy == Policy()
    assert not any([policy.allow_hardware, policy.operator_tools, policy.allow_external_sessions])
    assert policy.cancel_response == "receipt"


def test_every_key_is_read() -> None:
    text = """
        enabled = true
        allow_hardware = true
        operator_tools = true
        allow_external_sessions = true
        read_only = false
        cancel_response = "none"
        capabilities = ["cap.measure.*"]
        devices = ["/lab/*", "mhs://h/a/b"]
    """
    assert parse_policy(text, "host.toml") == Policy(
        allow_hardware=True,
        operator_tools=True,
        allow_external_sessions=True,
        cancel_response="none",
        capabilities=("cap.measure.*",),
        devices=("/lab/*", "mhs://h/a/b"),
    )


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("allow_hardwear = true", "allow_hardwear"),
        ("[policy]", "policy"),
        ("operator_tools = 1", "operator_tools"),
        ('read_only = "yes"', "read_only"),
        ('cancel_response = "both"', "cancel_response"),
        ("cancel_response = true", "cancel_response"),
        ('capabilities = "cap.x.v1"', "capabilities"),
        ("devices = [1]", "devices"),
        ('devices = [""]', "devices"),
        ("enabled = 1", "enabled"),
    ],
)
def test_a_defect_names_the_file_and_the_key(text: str, key: str) -> None:
    """[TPT-053]"""
    error = refusal(text)
    assert error.exit_code == 2
    assert "host.toml" in error.message
    assert key in error.message


def test_text_that_is_no_toml_is_a_usage_error() -> None:
    error = refusal("= 1")
    assert error.exit_code == 2
    assert "host.toml is not valid TOML" in error.message


def test_a_policy_that_turns_the_projection_off_ends_the_start() -> None:
    """[CORE-130]"""
    error = refusal("enabled = false")
    assert (error.exit_code, error.mhs_code) == (4, "MHS.AUTH.FORBIDDEN")


def test_read_only_leaves_no_operator_tools() -> None:
    assert "read_only" in refusal("read_only = true\noperator_tools = true").message
    with pytest.raises(StartError, match="the command line"):
        checked_policy(Policy(read_only=True, operator_tools=True), "the command line")


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "host.toml"
    file.write_text("read_only = true\n")
    assert read_policy(file).read_only


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_file_that_cannot_be_read_is_a_usage_error(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "host.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StartError, match="cannot read the host policy") as caught:
        read_policy(file)
    assert caught.value.exit_code == 2
    assert str(file) in caught.value.message


@pytest.mark.parametrize(
    ("patterns", "allowed"),
    [
        (None, True),
        ((), False),
        (("mhs://h:1/lab/psu",), True),
        (("mhs://h:1/lab/*",), True),
        (("/lab/psu",), True),
        (("/lab/*",), True),
        (("/psu",), True),
        (("psu",), False),
        (("/lab",), False),
    ],
)
def test_devices_are_named_by_id_or_by_the_end_of_it(patterns: tuple[str, ...] | None, allowed: bool) -> None:
    assert Policy(devices=patterns).allows_device("mhs://h:1/lab/psu") is allowed


@pytest.mark.parametrize("mode", ["hardware", "hybrid"])
def test_hardware_is_for_a_policy_that_allows_it(mode: str) -> None:
    """[CORE-130]"""
    assert not Policy().allows_mode(mode)
    assert Policy(allow_hardware=True).allows_mode(mode)
    assert Policy().allows_mode("simulated")
