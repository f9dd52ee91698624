"""Every command line of README and the guides does on a daemon what the page says; examples of helps are right."""

from __future__ import annotations

import os
import pty
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mhsd.base.resources import drivers_dir
from mhsd.cli.table import COMMANDS
from tests.cli.conftest import BIN, PATIENCE_S, Daemon, Done, ctl, environment
from tests.cli.shell import Shell, shells

ROOT = Path(__file__).resolve().parents[2]
REFUSED = {
    """mhsctl call -c cap.motion.convey.v1 -i '{"distance_mm": 200, "speed_mm_s": 900}'""",
    """mhsctl call -c cap.actuation.valve.v1 -i '{"open": true}'""",
}
"""What the pages show as refused: above the limit, and after the stop."""

ELSEWHERE = "bench.example"
OWN_TESTS = ("run", "evidence --ledger")
"""What the code API's own tests run, with the scripts that it needs."""

SWEEP = "import mhsd\n\nwith mhsd.lab() as lab:\n    lab.read('world')\n"


def lines_of(page: str) -> list[str]:
    """The lines of a page that start `mhsctl`, in order, without comments and without where their output goes."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    lines = [
        line.partition("  #")[0].partition(" > ")[0].strip()
        for block in blocks
        for line in block.splitlines()
    ]
    return [line for line in lines if line.startswith("mhsctl ") and ELSEWHERE not in line]


class Person:
    """Types the lines of a page one after another, at a terminal, in a directory with the files that they name."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._session = ""

    def types(self, line: str, answer: str) -> Done:
        words = [self._session if word == "SESSION" else word for word in shlex.split(line)[1:]]
        master, slave = pty.openpty()
        try:
            os.write(master, answer.encode())
            done = subprocess.run(
                [BIN / "mhsctl", *words],
                stdin=slave,
                capture_output=True,
                text=True,
                cwd=self._daemon.cwd,
                env=environment(
                    MHS_ENDPOINT=self._daemon.url,
                    PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}",
                    HOME=str(self._daemon.cwd),
                ),
                timeout=PATIENCE_S,
                check=False,
            )
        finally:
            os.close(master)
            os.close(slave)
        opened = re.match(r"session +(mhs_s_\w+)", done.stdout)
        self._session = opened[1] if opened else self._session
        return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def person(own: Daemon) -> Person:
    (own.cwd / "sweep.py").write_text(SWEEP)
    return Person(own)


@pytest.mark.parametrize("page", ["README.md", "spec/guide/cli.md", "spec/guide/python.md"])
def test_every_line_of_a_page_does_what_the_page_says(page: str, person: Person) -> None:
    """In the order of the page, on the device that README starts with."""
    lines = [
        line
        for line in lines_of(page)
        if "-token" not in line and not line.startswith(tuple(f"mhsctl {words}" for words in OWN_TESTS))
    ]
    assert lines
    for line in lines:
        done = person.types(line, "conveyor-workcell\n")
        assert done.code == (1 if line in REFUSED else 0), f"{line}: {done.err}"


def test_the_lines_for_the_power_supply_do_what_the_page_says(tmp_path: Path) -> None:
    """On its twin, with the client's and the operator's token."""
    for name in ("client-token", "operator-token"):
        (tmp_path / name).write_text(f"{name}-secret\n")
        (tmp_path / name).chmod(0o600)
    files = ("--token-file", "client-token", "--operator-token-file", "operator-token")
    daemon = Daemon("scpi-psu", *files, cwd=tmp_path)
    try:
        person = Person(daemon)
        lines = [line for line in lines_of("README.md") if "-token" in line]
        assert len(lines) > 5
        for line in lines:
            done = person.types(line, "")
            assert done.code == 0, f"{line}: {done.err}"
    finally:
        daemon.stop()


# --- the examples of the help -----------------------------------------------------------------


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    yield from shells(monkeypatch, capsys)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files that the examples name, from which no endpoint can be reached."""

    def nobody(*_: object, **__: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", nobody)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    digest = "3f29c1d07a55" + "0" * 52
    (tmp_path / "tokens.toml").write_text(f'[[token]]\nsha256 = "{digest}"\nprincipal = "human:kim"\n')
    (tmp_path / "sweep.py").write_text(SWEEP)
    (tmp_path / "endpoints.json").write_text('{"endpoints": []}')
    (tmp_path / "registry.json").write_text('{"entries": []}')
    for name in ("token", "operator.token"):
        (tmp_path / name).write_text("secret\n")
        (tmp_path / name).chmod(0o600)
    for name in ("bundle.json", "receipt.json", "sweep.ledger.json"):
        (tmp_path / name).write_text("{}")
    shutil.copytree(drivers_dir() / "conveyor_workcell", tmp_path / "my_driver")
    return tmp_path


EXAMPLES = [(command.name, example) for command in COMMANDS for example in command.examples]


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_an_example_of_a_help_is_of_its_command_and_well_formed(
    shell: Shell, directory: Path, name: str, example: str
) -> None:
    words = shlex.split(example.partition(" > ")[0])
    assert words[0] == "mhsctl"
    assert words[1 : 1 + len(name.split())] == name.split()
    if name == "serve":
        words.append("--help")
    if name == "run":
        # A code file ends as Python ends, with the exit functions of its process: they are not to be this one's.
        apart = ctl(*words[1:], cwd=directory, MHS_ENDPOINT="http://127.0.0.1:1")
        code, err = apart.code, apart.err
    else:
        done = shell(*words[1:])
        code, err = done.code, done.err
    assert code != 2, err
    assert "defect" not in err


def test_an_example_that_is_wrong_would_be_noticed(shell: Shell, directory: Path) -> None:
    assert shell("registry", "show", "nothing").code == 2
    assert shell("read").code == 2
