"""`mhsd`: flags become settings, and a start that is refused is one line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mhsd import daemon
from mhsd.base.errors import StartError
from mhsd.cli import main
from mhsd.cli.cmd_serve import with_bare_arm
from mhsd.config import Config


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["--arm"], ["--arm=all"]),
        (["--arm", "conveyor-workcell"], ["--arm=all", "conveyor-workcell"]),
        (["--arm", "--port", "0"], ["--arm=all", "--port", "0"]),
        (["--arm", "/bench/psu", "--arm", "/lab/x"], ["--arm", "/bench/psu", "--arm", "/lab/x"]),
        (["--arm=/bench/psu"], ["--arm=/bench/psu"]),
    ],
)
def test_arm_takes_a_path_or_stands_alone(words: list[str], read: list[str]) -> None:
    assert with_bare_arm(words) == read


class Shell:
    """Runs `mhsd` and `mhsctl serve` with a daemon that only notes its settings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.configs: list[Config] = []
        self.outcome: Exception | int = 0
        monkeypatch.setattr(daemon, "main", self._serve)

    def _serve(self, config: Config) -> int:
        self.configs.append(config)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def __call__(self, *words: str) -> int:
        self._monkeypatch.setattr("sys.argv", list(words))
        return main.mhsd() if words[0] == "mhsd" else main.mhsctl()


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(monkeypatch)


def test_the_daemon_and_serve_read_the_same_flags(shell: Shell) -> None:
    words = ["conveyor-workcell", "scpi-psu", "--port", "0", "--arm", "--stop-grace-s", "3", "--stdio"]
    words += ["--option", "/bench/psu:timeout_s=2", "--option", "/bench/psu:idn=x", "--state-dir", "state"]
    assert shell("mhsd", *words) == 0
    assert shell("mhsctl", "serve", *words) == 0
    first, second = shell.configs
    assert first == second
    assert (first.targets, first.port, first.arm, first.stop_grace_s, first.stdio) == (
        ("conveyor-workcell", "scpi-psu"),
        0,
        True,
        3.0,
        True,
    )
    assert [(option.path, option.name, option.text) for option in first.option] == [
        ("/bench/psu", "timeout_s", "2"),
        ("/bench/psu", "idn", "x"),
    ]


def test_flags_that_are_not_given_leave_the_environment_and_the_file_their_say(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MHSD_PORT", "7411")
    monkeypatch.setenv("MHSD_STDIO", "true")
    assert shell("mhsd") == 0
    assert (shell.configs[0].port, shell.configs[0].stdio, shell.configs[0].arm) == (7411, True, False)


def test_the_exit_code_is_the_daemons(shell: Shell) -> None:
    shell.outcome = 1
    assert shell("mhsd") == 1


@pytest.mark.parametrize(
    ("problem", "code", "line"),
    [
        (StartError("no such driver"), 2, "mhsd: no such driver\n"),
        (StartError("port 7400 is busy", exit_code=1), 1, "mhsd: port 7400 is busy\n"),
        (
            StartError("hardware is off", exit_code=4, mhs_code="MHS.AUTH.HARDWARE_DISABLED"),
            4,
            "mhsd: hardware is off (MHS.AUTH.HARDWARE_DISABLED)\n",
        ),
    ],
)
def test_a_start_that_is_refused_is_one_line(
    shell: Shell, problem: StartError, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.outcome = problem
    assert shell("mhsd") == code
    assert capsys.readouterr() == ("", line)
    assert shell("mhsctl", "serve", "--json") == code
    out, err = capsys.readouterr()
    refused = json.loads(out)["error"]
    assert set(refused) == {"mhs_code", "message", "retryable", "data", "remediation"}
    assert (refused["message"], err) == (problem.message, "")
    assert refused["mhs_code"] == (problem.mhs_code or refused["mhs_code"])


@pytest.mark.parametrize(
    "words", [("--port", "x"), ("--frobnicate",), ("--port",), ("--log-format", "xml")], ids=" ".join
)
def test_a_wrong_flag_is_a_usage_error(
    shell: Shell, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell("mhsd", *words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mhsd: ")
    assert shell.configs == []


def test_a_defect_of_a_running_daemon_leaves_its_traceback(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.outcome = RuntimeError("impossible")
    assert shell("mhsd") == 1
    assert "RuntimeError: impossible" in capsys.readouterr().err


def test_a_failure_of_the_machine_is_one_line(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.outcome = OSError(28, "No space left on device")
    assert shell("mhsd") == 1
    err = capsys.readouterr().err
    assert "No space left on device" in err
    assert "Traceback" not in err
