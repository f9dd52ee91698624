"""`scripts/setup` finds a Python or says in one line what to install, before it changes anything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# What a stand-in for an interpreter answers to the two questions of the script: is it recent, has it venv?
RECENT_AND_COMPLETE = "exit 0"
RECENT_WITHOUT_VENV = 'case "$2" in *ensurepip*) exit 1;; esac; exit 0'
TOO_OLD = "exit 1"
SHIM_OF_NOTHING = 'echo "no such version" >&2; exit 127'


def which(
    directory: Path, interpreters: dict[str, str], **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `scripts/setup --which` where only the given stand-ins for Python are on the PATH."""
    for tool in ("sh", "dirname"):
        (directory / tool).symlink_to(
            next(Path(p) / tool for p in os.get_exec_path() if (Path(p) / tool).exists())
        )
    for name, body in interpreters.items():
        program = directory / name
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
    argv = [ROOT / "scripts" / "setup", "--which"]
    return subprocess.run(argv, env={"PATH": str(directory)} | environment, capture_output=True, text=True)


def test_the_newest_complete_python_is_chosen(tmp_path: Path) -> None:
    done = which(
        tmp_path,
        {
            "python3.13": SHIM_OF_NOTHING,
            "python3.12": RECENT_WITHOUT_VENV,
            "python3.11": RECENT_AND_COMPLETE,
            "python3": TOO_OLD,
        },
    )
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "python3.11"))


def test_the_caller_may_choose_the_python(tmp_path: Path) -> None:
    done = which(tmp_path, {"python3.13": RECENT_AND_COMPLETE, "mine": RECENT_AND_COMPLETE}, PYTHON="mine")
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "mine"))


def test_without_a_recent_python_one_line_says_what_is_needed(tmp_path: Path) -> None:
    done = which(tmp_path, {"python3": TOO_OLD, "python3.12": SHIM_OF_NOTHING})
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "Python 3.11 or later" in line


def test_without_the_venv_module_one_line_names_the_debian_package(tmp_path: Path) -> None:
    done = which(tmp_path, {"python3": RECENT_WITHOUT_VENV})
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith("apt-get install python3-venv")


@pytest.mark.parametrize("program", ["mhsd", "mhsctl", "mhs", "openmhs"])
def test_the_environment_that_setup_has_made_has_the_four_programs(program: str, tmp_path: Path) -> None:
    """[MHSD-8-07] `make test` sets up and runs in `.venv`, so that this is what `make setup` has made."""
    argv = [Path(sys.executable).parent / program, "--version"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "mhsd" in done.stdout
