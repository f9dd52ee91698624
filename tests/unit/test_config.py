"""Options: where a value comes from, and which values are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from mhsd.base.errors import StartError
from mhsd.config import DEFAULT_TARGET, OPTIONS, Config, DeviceEntry, DeviceOption, Limits


def load(
    tmp_path: Path, flags: dict[str, Any] | None = None, environ: dict[str, str] | None = None
) -> Config:
    return Config.load(flags or {}, environ or {}, tmp_path)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mhsd.toml"
    path.write_text(text)
    return path


def refusal(
    tmp_path: Path, flags: dict[str, Any] | None = None, environ: dict[str, str] | None = None
) -> str:
    with pytest.raises(StartError) as caught:
        load(tmp_path, flags, environ)
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message
    return caught.value.message


def test_without_anything_the_reference_fixture_is_served_on_loopback(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert (config.host, config.port, config.backend) == ("127.0.0.1", 7400, "fake")
    assert config.devices == (DeviceEntry(DEFAULT_TARGET),)
    assert not config.is_armed("/bench/psu")


def test_a_flag_wins_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    write(tmp_path, "port = 1\nhost = '127.0.0.3'\nmax_batch = 3\n")
    config = load(tmp_path, {"port": 3}, {"MHSD_PORT": "2", "MHSD_HOST": "127.0.0.2"})
    assert (config.port, config.host, config.max_batch) == (3, "127.0.0.2", 3)


def test_a_flag_of_none_and_an_empty_variable_count_as_not_given(tmp_path: Path) -> None:
    write(tmp_path, "port = 1\n")
    assert load(tmp_path, {"port": None, "allowed_host": []}, {"MHSD_PORT": ""}).port == 1


def test_an_unknown_key_names_file_and_key_and_what_was_meant(tmp_path: Path) -> None:
    path = write(tmp_path, "state-dir = '/x'\n")
    message = refusal(tmp_path)
    assert str(path) in message
    assert "'state-dir'" in message
    assert "'state_dir'" in message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("port = '7400'", "port must be a number"),
        ("port = 70000", "at most 65535"),
        ("port = true", "port must be a number"),
        ("port = 1.5", "whole number"),
        ("stdio = 'yes'", "true or false"),
        ("stdio = 1", "true or false"),
        ("allowed_host = 'a'", "list of strings"),
        ("backend = 'real'", "fake, hardware"),
        ("stop_grace_s = nan", "must be a number"),
        ("stop_grace_s = inf", "must be a number"),
        ("max_batch = 0", "at least 1"),
        ("session_max_ttl_s = 2147483648", "session_max_ttl_s must be at most 2147483647, not 2147483648"),
        ("socket_timeout_s = 1e300", "socket_timeout_s must be at most 86400"),
        ("stop_grace_s = 86401", "stop_grace_s must be at most 86400"),
        ("state_dir = ''", "state_dir must not be empty"),
        ("config = 'other.toml'", "unknown key"),
        ("port = ", "not valid TOML"),
        ("device = 3", "[[device]]"),
        ("[[device]]\nbackend = 'fake'", "needs target"),
        ("[[device]]\ntarget = 'a'\nbackend = 'real'", "fake, hardware"),
        ("[[device]]\ntarget = 'a'\npath = 'x'", "not a device path"),
        ("[[device]]\ntarget = 'a'\nlink = 'x'", "unknown key 'link'"),
        ("endpoint_id = 'http://x'", "mhs://"),
        ("tls_key = 'k.pem'", "needs --tls-cert"),
        ("client_ca = 'c.pem'", "needs --tls-cert"),
        ("public_url = 'lab.example'", "https://host"),
        ("allowed_host = ['lab', 'http://lab']", "'http://lab' is neither a host's name nor an address"),
        ("allowed_host = ['*']", "neither"),
        ("allowed_host = ['lab:x']", "neither"),
        ("allowed_origin = ['null']", "--allowed-origin 'null' is not of the form https://host"),
        ("allowed_origin = ['*']", "https://host"),
        ("allowed_origin = ['lab.example']", "https://host"),
        ("allowed_origin = ['https://lab.example', 'https://lab.example/page']", "https://host"),
        ("option = ['timeout_s=2']", "PATH:NAME=VALUE"),
        ("arm = ['psu']", "path of a device"),
    ],
)
def test_a_bad_file_is_one_line_that_names_the_file_or_the_flag(tmp_path: Path, text: str, told: str) -> None:
    write(tmp_path, text + "\n")
    assert told in refusal(tmp_path)


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"MHSD_PORT": "tcp://10.0.0.1:80"}, "MHSD_PORT must be a whole number"),
        ({"MHSD_STDIO": "maybe"}, "MHSD_STDIO must be true or false"),
        ({"MHSD_LOG_FORMAT": "xml"}, "MHSD_LOG_FORMAT must be one of text, json"),
        ({"MHSD_ALLOWED_HOST": "[1]"}, "MHSD_ALLOWED_HOST must be a JSON array of strings"),
        ({"MHSD_CONFIG": "absent.toml"}, "absent.toml does not exist"),
    ],
)
def test_a_bad_variable_is_named(tmp_path: Path, environ: dict[str, str], told: str) -> None:
    assert told in refusal(tmp_path, environ=environ)


def test_variables_hold_switches_numbers_and_lists(tmp_path: Path) -> None:
    environ = {
        "MHSD_STDIO": "yes",
        "MHSD_SOCKET_TIMEOUT_S": "2.5",
        "MHSD_ALLOWED_HOST": "lab, bench.example",
        "MHSD_OPTION": '["/bench/psu:idn=a,b"]',
        "MHSD_ARM": "/bench/psu,/bench/two",
    }
    config = load(tmp_path, environ=environ)
    assert config.stdio
    assert config.socket_timeout_s == 2.5
    assert config.allowed_host == ("lab", "bench.example")
    assert config.option == (DeviceOption("/bench/psu", "idn", "a,b"),)
    assert config.is_armed("/bench/two")
    assert not config.is_armed("/bench/three")


@pytest.mark.parametrize("given", [True, ["all"], [""], "1"])
def test_a_bare_arm_arms_every_device(tmp_path: Path, given: Any) -> None:
    assert load(tmp_path, {"arm": given}).is_armed("/anything")


def test_paths_are_relative_to_whoever_wrote_them(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "site.toml").write_text("state_dir = 'state'\ntargets = ['./psu', 'scpi-psu']\n")
    config = load(tmp_path, {"config": "etc/site.toml", "token_file": "tokens.toml"})
    assert config.state_dir == tmp_path / "etc" / "state"
    assert config.token_file == tmp_path / "tokens.toml"
    assert [entry.target for entry in config.devices] == [str(tmp_path / "etc" / "psu"), "scpi-psu"]


@pytest.mark.parametrize(
    ("target", "entry"),
    [
        ("scpi-psu", DeviceEntry("scpi-psu")),
        ("scpi-psu:hardware", DeviceEntry("scpi-psu", "hardware")),
        ("scpi-psu@/bench/two", DeviceEntry("scpi-psu", None, "/bench/two")),
        ("scpi-psu:hardware@/bench/two", DeviceEntry("scpi-psu", "hardware", "/bench/two")),
        ("scpi-psu@/bench/two:hardware", DeviceEntry("scpi-psu", "hardware", "/bench/two")),
        ("/opt/psu:fake", DeviceEntry("/opt/psu", "fake")),
    ],
)
def test_a_target_may_choose_backend_and_path(tmp_path: Path, target: str, entry: DeviceEntry) -> None:
    assert load(tmp_path, {"targets": [target]}).devices == (entry,)


def test_device_tables_are_served_beside_targets_of_the_file_but_not_beside_given_ones(
    tmp_path: Path,
) -> None:
    write(
        tmp_path,
        "targets = ['a']\n[[device]]\ntarget = 'b'\nbackend = 'hardware'\npath = '/x'\n"
        "options = {link = 'l'}\n",
    )
    b = DeviceEntry("b", "hardware", "/x", {"link": "l"})
    assert load(tmp_path).devices == (DeviceEntry("a"), b)
    assert load(tmp_path, {"targets": ["c"]}).devices == (DeviceEntry("c"),)
    assert load(tmp_path, environ={"MHSD_TARGETS": "c"}).devices == (DeviceEntry("c"),)


def test_a_misspelt_variable_is_reported(tmp_path: Path) -> None:
    environ = {"MHSD_TOKEN_FLE": "x", "MHSD_RUNTIME_DIR": "/run/mhsd", "OTHER": "1"}
    assert load(tmp_path, environ=environ).unknown_variables == ("MHSD_TOKEN_FLE",)


def test_every_option_has_help_and_a_flag_that_is_its_key() -> None:
    fields = {field.name for field in attrs.fields(Config)}
    for option in OPTIONS:
        assert option.key in fields
        assert option.help
        assert option.flag == "--" + option.key.replace("_", "-")
        assert option.variable == f"MHSD_{option.key.upper()}"
        assert option.metavar or option.choices or option.kind == "switch"


def test_limits_advertise_what_was_set_and_defaults_agree(tmp_path: Path) -> None:
    assert Limits.of(load(tmp_path)) == Limits()
    limits = Limits.of(load(tmp_path, {"rate_per_s": 7, "retention_days": 2, "event_buffer": 9}))
    assert (limits.max_rate_per_s, limits.max_receipt_retention_s, limits.max_buffered_events) == (
        7,
        172800,
        9,
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"mcp": True, "stdio": True}, "both want stdin and stdout"),
        ({"endpoint": "http://127.0.0.1:7400"}, "--mcp is not given"),
        ({"mcp": True, "endpoint": "http://127.0.0.1:7400", "targets": ["x"]}, "leave the TARGET out"),
    ],
)
def test_what_an_mcp_start_cannot_mean_is_refused(tmp_path: Path, flags: dict[str, Any], words: str) -> None:
    """TPT-053."""
    with pytest.raises(StartError, match=words) as refused:
        load(tmp_path, flags)
    assert refused.value.exit_code == 2


def test_an_mcp_start_can_come_from_the_file_and_the_environment(tmp_path: Path) -> None:
    """TPT-053."""
    write(tmp_path, "mcp_config = 'policy.toml'\noperator_tools = true\ntargets = ['a']\n")
    environ = {"MHSD_MCP": "1", "MHSD_ENDPOINT": "http://127.0.0.1:7400"}
    config = load(tmp_path, environ=environ)
    assert (config.mcp, config.on_pipes, config.operator_tools) == (True, True, True)
    assert config.mcp_config == tmp_path / "policy.toml"
    assert config.endpoint == "http://127.0.0.1:7400"
    assert not load(tmp_path).on_pipes
