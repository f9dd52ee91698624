"""Every command explains itself, and the guide says what the programs do."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from mhsd.base.resources import spec_file
from mhsd.cli import exits
from mhsd.cli.table import COMMANDS
from mhsd.config import OPTIONS
from tests.cli.conftest import ctl

APPROVED = Path(__file__).parent / "help"
GUIDE = spec_file("guide", "cli.md").read_text()


NAMES = [command.name for command in COMMANDS] + ["inspect"]
GROUPS = sorted({name.split()[0] for name in NAMES if " " in name})


APPROVED_NAMES = ["", *GROUPS, *(name for name in NAMES if name != "serve")]
"""The options of `serve` are the configuration's, which has tests of its own."""


@pytest.mark.parametrize("name", APPROVED_NAMES)
def test_the_help_of_every_command_is_the_one_that_was_approved(name: str) -> None:
    """[TPT-051] A person reads it, so a change of it is looked at; `MHSD_APPROVE=1` keeps what there is now."""
    if name in ("estop", "status") and sys.version_info >= (3, 13):
        pytest.skip("argparse of this Python words an option otherwise")
    done = ctl(*name.split(), "--help", COLUMNS="80", LINES="40")
    assert (done.code, done.err) == (0, "")
    approved = APPROVED / f"{name.replace(' ', '-') or 'mhsctl'}.txt"
    if os.environ.get("MHSD_APPROVE"):
        APPROVED.mkdir(exist_ok=True)
        approved.write_text(done.out)
    assert done.out == approved.read_text(), "read the new help; MHSD_APPROVE=1 keeps it"


def test_no_help_was_approved_of_a_command_that_is_gone() -> None:
    expected = {name.replace(" ", "-") or "mhsctl" for name in APPROVED_NAMES}
    assert {path.stem for path in APPROVED.iterdir()} == expected


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_with_an_example_and_json(name: str) -> None:
    """[TPT-051]"""
    file = APPROVED / f"{name.replace(' ', '-')}.txt"
    text = file.read_text() if file.exists() else ctl(name, "--help").out
    assert re.search(r"Examples:\n +mhsctl ", text)
    assert "None" not in text
    assert "--json" in text


@pytest.mark.parametrize("program", ["mhsctl", "mhs", "openmhs"])
def test_the_program_lists_every_command_under_each_of_its_names(program: str) -> None:
    done = ctl("--help", program=program)
    assert done.code == 0
    assert f"Usage: {program} " in done.out
    listed = re.findall(r"^  ([a-z]+)  ", done.out.split("Commands:")[1], re.MULTILINE)
    assert set(listed) == {command.name.split()[0] for command in COMMANDS}


def test_the_module_is_the_program_too() -> None:
    done = ctl("-m", "mhsd", "version", "--json", program="python")
    assert done.json == ctl("version", "--json").json


def test_a_command_that_does_not_exist_is_a_usage_error_with_a_hint() -> None:
    done = ctl("devises")
    assert (done.code, done.out) == (2, "")
    assert "Did you mean 'devices'" in done.err


@pytest.mark.parametrize("words", [("mhsd", "--help"), ("mhsctl", "serve", "--help")], ids=" ".join)
def test_the_daemons_help_has_every_option_of_the_configuration(words: tuple[str, ...]) -> None:
    done = ctl(*words[1:], program=words[0])
    assert done.code == 0
    for option in OPTIONS:
        assert (option.metavar if option.positional else option.flag) in done.out


def test_the_guide_has_a_document_for_every_command() -> None:
    titles = re.findall(r"^### (.+)$", GUIDE, re.MULTILINE)
    named = {name.strip() for title in titles for name in title.split(",")}
    assert {command.name for command in COMMANDS} - {"serve"} <= named


def test_the_guide_has_the_exit_codes_of_the_table() -> None:
    section = GUIDE.split("## Exit codes")[1].split("## ")[0]
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)}
    assert codes == {exits.OK, exits.FAILED, exits.USAGE, exits.TRANSPORT, exits.AUTH, exits.INTERRUPTED}


def test_completion_knows_the_commands() -> None:
    done = ctl(_MHSCTL_COMPLETE="complete_bash", COMP_WORDS="mhsctl de", COMP_CWORD="1")
    assert done.out.split() == ["devices", "describe"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_for_the_shell_of_the_person(tmp_path: Path, shell: str) -> None:
    """[MHSD-8-06]"""
    done = ctl("--install-completion", shell, HOME=str(tmp_path))
    assert done.code == 0
    installed = [path for path in tmp_path.rglob("*") if path.is_file() and "mhsctl" in path.read_text()]
    assert installed, done.out + done.err
