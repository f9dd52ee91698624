"""Typed bindings as `describe --python` writes them: strict checkers accept them, and they drive the device."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import BIN, Daemon, ctl, environment

TARGETS = ("conveyor-workcell", "thermal-chamber", "scpi-psu", "replay-thermal")
DEVICES = ("conveyor-workcell", "thermal-chamber", "psu", "replay-thermal")
ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """\
import mhsd
from workcell import ConveyorWorkcell, WorldState

with mhsd.connect({url!r}) as client, client.session("conveyor-workcell") as session:
    cell = ConveyorWorkcell(session)
    before: WorldState = cell.read_world()
    receipt: mhsd.Receipt = cell.world_step(ticks=5, deadline_ms=10_000)
    assert receipt.output["tick"] == before["tick"] + 5
    assert cell.write_belt(speed_mm_s=120).ok
    assert cell.read_belt()["speed_mm_s"] == 120
    assert cell.motion_convey(distance_mm=5, speed_mm_s=100, wait=True).ok
    assert cell.motion_convey(distance_mm=5, speed_mm_s=900).mhs_code == "MHS.SAFETY.ENVELOPE_VIOLATION"
    assert cell.sim_fault(kind="busy", times=1).ok
    assert cell.world_step(ticks=1).mhs_code == "MHS.DEVICE.BUSY"
"""
WRONG = """\
from workcell import ConveyorWorkcell


def use(cell: ConveyorWorkcell) -> None:
    cell.world_step(ticks="many")
    cell.world_step()
    cell.sim_fault(kind="explode", times=1)
    cell.motion_convey(distance_mm=5, speed_mm_s=100, dead_line=1)
    cell.read_belt()["speed"]
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    served = Daemon(*TARGETS, cwd=tmp_path_factory.mktemp("python"))
    yield served
    served.stop()


@pytest.fixture(scope="module")
def modules(daemon: Daemon) -> Path:
    """The directory with the bindings of every device."""
    for device in DEVICES:
        done = daemon.ctl("describe", device, "--python")
        assert (done.code, done.err) == (0, "")
        (daemon.cwd / f"{device.replace('-', '_')}.py").write_text(done.out)
    (daemon.cwd / "workcell.py").write_text((daemon.cwd / "conveyor_workcell.py").read_text())
    return daemon.cwd


def check(program: str, *words: str, cwd: Path) -> tuple[int, str]:
    done = subprocess.run(
        [BIN / program, *words], cwd=cwd, capture_output=True, text=True, check=False, env=environment()
    )
    return done.returncode, done.stdout + done.stderr


def test_a_strict_type_checker_accepts_the_bindings_and_finds_what_is_wrong(modules: Path) -> None:
    """[TPT-054]"""
    files = sorted(path.name for path in modules.glob("*.py"))
    assert len(files) == 5
    (modules / "program.py").write_text(PROGRAM.format(url="http://127.0.0.1:1"))
    (modules / "wrong.py").write_text(WRONG)
    # The types of the package itself are checked elsewhere; here it is what a user's checker sees installed.
    code, told = check(
        "mypy", "--strict", "--follow-imports=silent", *files, "program.py", "wrong.py", cwd=modules
    )
    assert code == 1
    errors = [line for line in told.splitlines() if "error:" in line]
    assert len(errors) == 5, told
    assert all(line.startswith("wrong.py:") for line in errors)


def test_the_bindings_are_tidy(modules: Path) -> None:
    settings = ("--config", str(ROOT / "pyproject.toml"), "--no-cache")
    files = [f"{device.replace('-', '_')}.py" for device in DEVICES]
    assert check("ruff", "check", *settings, *files, cwd=modules)[0] == 0
    assert check("ruff", "format", "--check", *settings, *files, cwd=modules)[0] == 0


def test_the_bindings_drive_the_device(daemon: Daemon, modules: Path) -> None:
    (modules / "drive.py").write_text(PROGRAM.format(url=daemon.url))
    done = subprocess.run(
        [sys.executable, "drive.py"],
        cwd=modules,
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_with_json_the_module_is_a_member(daemon: Daemon, modules: Path) -> None:
    done = daemon.ctl("describe", "psu", "--python", "--json")
    assert done.code == 0
    assert set(done.json) == {"device_id", "digest", "module"}
    assert done.json["module"] == (modules / "psu.py").read_text()


def test_one_device_has_to_be_meant(daemon: Daemon) -> None:
    done = ctl("describe", "--python", MHS_ENDPOINT=daemon.url)
    assert done.code == 2
    assert "/bench/psu" in done.err
