"""README, CONTRIBUTING and the guides name only commands, options, variables and files that exist.

Each command line of their code blocks is tried: `mhsctl` on an endpoint where nobody listens, so that a right line
ends with "not reached" and a wrong one with a usage error; `mhsd` with --help behind it, which parses and ends.
tests/cli/test_documented.py runs them against daemons.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mhsd.base.resources import spec_file
from mhsd.cli.table import COMMANDS
from mhsd.config import OPTIONS

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent
GUIDES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "spec" / "guide").glob("*.md"))
PAGES = {name: (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md", *GUIDES)}
# Commands that ask no endpoint.
LOCAL = {"token", "registry", "discover", "validate", "completion", "version"}
# Where nothing listens: connections to the discard of port 1 are refused at once.
NOBODY = "http://127.0.0.1:1"
# Whoever runs the tests may have `make run` open beside them.
USUAL = "http://127.0.0.1:7400"
USAGE = 2


def command_lines() -> list[str]:
    """Every command of the pages' shell blocks, comments removed."""
    lines: list[str] = []
    for text in PAGES.values():
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
            lines += [line.partition("  #")[0].strip() for line in block.splitlines()]
    return [line for line in lines if line]


def lines_of(program: str) -> list[str]:
    """The command lines that start the program, each once, without where their output goes."""
    lines = (line.partition(" > ")[0] for line in command_lines() if shlex.split(line)[0] == program)
    return list(dict.fromkeys(lines))


def run(argv: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment with an endpoint that nobody serves."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("MHS")}
    environment |= {
        "MHS_ENDPOINT": NOBODY,
        "MHSD_RUNTIME_DIR": os.environ["MHSD_RUNTIME_DIR"],
        "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
    }
    return subprocess.run(
        [PROGRAMS / argv[0], *argv[1:]],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with the files that the pages' commands name."""
    for name in ("client-token", "operator-token"):
        (tmp_path / name).write_text("secret-of-the-test\n")
        (tmp_path / name).chmod(0o600)
    entry = f'[[token]]\nsha256 = "{"0" * 64}"\nprincipal = "human:kim"\n'
    (tmp_path / "tokens.toml").write_text(entry)
    (tmp_path / "sweep.py").write_text("import mhsd\n\nwith mhsd.lab():\n    pass\n")
    ledger = {"ledger_version": "1.0.0", "receipts": []}
    (tmp_path / "sweep.ledger.json").write_text(json.dumps(ledger))
    return tmp_path


@pytest.mark.parametrize("line", lines_of("make"))
def test_every_make_target_exists(line: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(shlex.split(line)[1:]) <= targets


@pytest.mark.parametrize("line", lines_of("mhsctl"))
def test_every_mhsctl_line_is_well_formed(line: str, directory: Path) -> None:
    """Not reached (or, for a reset without a terminal, not allowed); a child on stdio is started and answers."""
    words = shlex.split(line.replace(USUAL, NOBODY))
    done = run(words, directory)
    assert done.returncode in ({0} if "stdio:" in line or words[1] in LOCAL else {3, 4}), done.stderr


@pytest.mark.parametrize("line", lines_of("mhsd"))
def test_every_mhsd_line_is_well_formed(line: str, directory: Path) -> None:
    done = run([*shlex.split(line), "--help"], directory)
    assert done.returncode == 0, done.stderr


def test_a_wrong_line_would_be_noticed(directory: Path) -> None:
    assert run(["mhsctl", "call", "-c", "cap.world.step.v1", "--nonsense"], directory).returncode == USAGE
    assert run(["mhsctl", "read"], directory).returncode == USAGE
    assert run(["mhsd", "--nonsense", "--help"], directory).returncode == USAGE


def test_the_first_session_shows_the_commands_of_an_operator() -> None:
    shown = {shlex.split(line)[1] for line in lines_of("mhsctl")}
    assert {"hello", "devices", "read", "write", "call", "estop", "status", "reset", "evidence"} <= shown
    assert shown <= {command.name.split()[0] for command in COMMANDS}


def test_every_variable_is_read_by_something() -> None:
    options = {option.variable for option in OPTIONS} | {"MHSD_STATE_DIR"}
    sources = (
        "".join(path.read_text() for path in (ROOT / "mhsd").rglob("*.py"))
        + (ROOT / "Dockerfile").read_text()
    )
    for text in PAGES.values():
        for name in re.findall(r"\bMHSD?_[A-Z_]+\b", text):
            assert name in options or name in sources, name


def test_every_file_that_is_named_exists() -> None:
    for page, text in PAGES.items():
        for name in re.findall(r"`((?:spec|scripts|drivers|tests|mhsd)/[\w./-]*)`", text):
            assert (ROOT / name).exists(), name
        for name in re.findall(r"\]\(([\w./-]+)\)", text):
            assert (ROOT / page).parent.joinpath(name).exists(), name


def test_the_list_of_what_is_missing_is_true() -> None:
    """As soon as a method is served, README may no longer call it missing."""
    missing = PAGES["README.md"].partition("## What is not there yet")[2].partition("\n## ")[0]
    methods = spec_file("methods.toml").read_text()
    for word in ("subscribe", "snapshot", "restore", "operations.list"):
        served = re.search(rf'"mhs\.{re.escape(word)}".*served = true', methods)
        assert served is None or word.partition(".")[0] not in missing.lower(), word
