"""The page on the code API and its examples: everything that is shown runs, and is what a type checker accepts."""

from __future__ import annotations

import csv
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mhsd.base.resources import spec_file
from tests.cli.conftest import BIN, PATIENCE_S, Daemon, Done, ctl, environment

PAGE = spec_file("guide", "python.md").read_text()
EXAMPLES = spec_file("guide", "examples")
HERE = "http://127.0.0.1:7400"


@pytest.fixture
def conveyor(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon("conveyor-workcell", cwd=tmp_path)
    yield daemon
    daemon.stop()


def blocks(language: str, page: str = PAGE) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def python(*words: str | Path, cwd: Path, **more: str) -> Done:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env=environment(**more),
        timeout=PATIENCE_S,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def page_program(url: str) -> str:
    """All blocks of the page as one program."""
    return "\n\n".join(blocks("python")).replace(HERE, url)


def test_every_block_of_the_page_runs(conveyor: Daemon, tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(page_program(conveyor.url))
    done = python("page.py", cwd=tmp_path, MHS_ENDPOINT=conveyor.url)
    assert (done.code, done.err) == (0, "")
    for told in (
        "mhs://localhost:7400 speaks MHS 1.0",
        "completed {'position_mm': 20}",
        "rejected MHS.SAFETY.ENVELOPE_VIOLATION",
        "MHS.TRANSPORT.UNAVAILABLE True",
        "cancelled True",
        "'engaged': True",
        "progress",
    ):
        assert told in done.out, told


def test_what_the_readme_shows_of_python_runs(conveyor: Daemon, tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (block,) = blocks("python", readme)
    (tmp_path / "page.py").write_text(block.replace(HERE, conveyor.url))
    done = python("page.py", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "completed {'position_mm': 20}" in done.out
    assert "speed_mm_s 120" in done.out.splitlines()[-1]


def test_the_page_and_the_examples_are_typed(tmp_path: Path) -> None:
    """[TPT-054]"""
    (tmp_path / "page.py").write_text(page_program(HERE))
    files = ["page.py", *(str(path) for path in EXAMPLES.glob("*.py"))]
    done = subprocess.run(
        [BIN / "mypy", "--strict", "--follow-imports=silent", *files],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_every_command_line_of_the_page_is_well_formed(conveyor: Daemon, tmp_path: Path) -> None:
    (tmp_path / "sweep.py").write_text("import mhsd\n\nwith mhsd.lab() as lab:\n    lab.read('belt')\n")
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    assert lines
    for line in lines:
        program, *words = shlex.split(line.partition(">")[0].replace(HERE, conveyor.url))
        assert program == "mhsctl"
        assert conveyor.ctl(*words).code == 0, line


def test_the_power_supply_is_swept_into_a_table(tmp_path: Path) -> None:
    daemon = Daemon("scpi-psu", cwd=tmp_path)
    try:
        script = str(EXAMPLES / "psu_sweep.py")
        done = daemon.ctl("run", script, "--to", "2", "--step", "0.5", "-o", "table.csv")
        assert (done.code, done.out) == (0, ""), done.err
        with (tmp_path / "table.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [float(row["set_v"]) for row in rows] == [0, 0.5, 1, 1.5, 2]
        assert [float(row["measured_v"]) for row in rows] == [0, 0.5, 1, 1.5, 2]
        checked = daemon.ctl("evidence", "--ledger", "psu_sweep.ledger.json")
        assert checked.code == 0, checked.out
        assert "13 of 13 entries" in checked.out
        # The session has ended, so the output is off, whatever the table says.
        assert daemon.ctl("read", "output", "--field", "enabled", "--json").json["state"] == {
            "enabled": False
        }
        too_much = daemon.ctl("run", script, "--to", "60", "--step", "20", "-o", "table.csv")
        assert too_much.code == 1
        assert "MHS.SAFETY.ENVELOPE_VIOLATION" in too_much.err or "INPUT_INVALID" in too_much.err
        assert daemon.ctl("read", "output", "--field", "enabled", "--json").json["state"] == {
            "enabled": False
        }
    finally:
        daemon.stop()


def test_the_notebook_runs_as_a_script(conveyor: Daemon, tmp_path: Path) -> None:
    done = python(EXAMPLES / "notebook.py", cwd=tmp_path, MHS_ENDPOINT=conveyor.url)
    assert (done.code, done.err) == (0, "")
    assert "speed_mm_s = 900 mm/s is above the manifest limit" in done.out
    assert done.out.splitlines()[-1] == "True"


def test_the_dashboard_shows_what_happens_and_may_change_nothing(tmp_path: Path) -> None:
    """[TPT-060]"""
    for role in ("reader", "client"):
        words = ("--file", "tokens.toml", "--principal", f"service:{role}", "--role", role, "-o", role)
        assert ctl("token", "new", *words, cwd=tmp_path).code == 0
    daemon = Daemon("conveyor-workcell", "--token-file", "tokens.toml", cwd=tmp_path)
    try:
        shown = subprocess.Popen(
            [sys.executable, EXAMPLES / "dashboard.py", "--token-file", "reader"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment(MHS_ENDPOINT=daemon.url),
        )
        assert shown.stdout is not None
        for resource in ("world", "belt", "valve"):
            assert shown.stdout.readline().startswith(f"/lab/conveyor-workcell now {resource} ")
        call = ("call", "-c", "cap.world.step.v1", "-i", '{"ticks": 7}', "--token-file")
        assert daemon.ctl(*call, "client").code == 0
        for line in shown.stdout:
            if line.startswith("/lab/conveyor-workcell state world {'tick': 7,"):
                break
        else:
            raise AssertionError("the dashboard ended before it showed the step")
        assert daemon.ctl(*call, "reader").code != 0
        shown.terminate()
        shown.wait(PATIENCE_S)
        shown.stdout.close()
    finally:
        daemon.stop()
