"""What `make dist` makes serves the fixture from a fresh environment that knows nothing of the checkout.

The steps are those of the Dockerfile: build without isolation, a new environment, the pinned versions.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 60


def environment(**more: str) -> dict[str, str]:
    """The caller's environment without anything that could lead Python or mhsd back to the checkout."""
    kept = {name: text for name, text in os.environ.items() if not re.match("PYTHON|VIRTUAL_ENV|MHS", name)}
    return kept | {"MHSD_RUNTIME_DIR": os.environ["MHSD_RUNTIME_DIR"]} | more


def run(*argv: str | Path, cwd: Path) -> str:
    """Run a program to its end and return its stdout; its stderr is the failure's text."""
    done = subprocess.run(
        argv, cwd=cwd, env=environment(), capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{argv}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist, so that the sdist is proved complete too."""
    target = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", target, ROOT, cwd=target)
    (built,) = target.glob("mhsd-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, elsewhere: Path) -> Path:
    """The programs' directory of a new environment that has only the wheel and what it needs."""
    programs = elsewhere / "venv" / "bin"
    run(sys.executable, "-m", "venv", elsewhere / "venv", cwd=elsewhere)
    run(
        programs / "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel, cwd=elsewhere
    )
    return programs


@contextmanager
def serving(
    programs: Path, cwd: Path, *options: str
) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """The installed daemon on a free port and its ready line; stopped by SIGTERM, and that must exit 0."""
    log = cwd / "mhsd.log"
    with log.open("wb") as stderr:
        argv = [programs / "mhsd", "conveyor-workcell", "--port", "0", *options]
        daemon = subprocess.Popen(argv, cwd=cwd, env=environment(), stdout=subprocess.PIPE, stderr=stderr)
    assert daemon.stdout is not None
    try:
        assert select.select([daemon.stdout], [], [], START_LIMIT_S)[0], log.read_text()
        line = daemon.stdout.readline()
        assert line, log.read_text()
        yield daemon, json.loads(line)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(timeout=30) == 0, log.read_text()
    finally:
        daemon.kill()
        daemon.wait()
        daemon.stdout.close()


def test_the_wheel_has_the_tables_and_the_drivers_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "mhsd/_spec/methods.toml" in names
    assert "mhsd/_spec/errors.toml" in names
    assert any(re.fullmatch(r"mhsd/_spec/schemas/receipt\.schema\.json", name) for name in names)
    for driver in ("conveyor_workcell", "scpi_psu"):
        assert f"mhsd/_drivers/{driver}/driver.py" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert [name for name in names if "/tests/" in name or "__pycache__" in name] == []
    assert {name.split("/")[0] for name in names if not re.match(r"mhsd-[^/]+\.dist-info/", name)} == {"mhsd"}


def test_the_fresh_environment_imports_the_wheel_and_not_the_checkout(
    installed: Path, elsewhere: Path
) -> None:
    where = run(installed / "python", "-c", "import mhsd; print(mhsd.__file__)", cwd=elsewhere)
    assert Path(where.strip()).is_relative_to(elsewhere)
    assert not (elsewhere / "spec").exists()


def test_every_program_of_the_wheel_says_its_version(installed: Path, elsewhere: Path) -> None:
    version = run(installed / "python", "-c", "import mhsd; print(mhsd.__version__)", cwd=elsewhere).strip()
    for program in ("mhsctl", "mhs", "openmhs"):
        assert version in run(installed / program, "version", cwd=elsewhere)
    assert version in run(installed / "python", "-m", "mhsd", "version", cwd=elsewhere)


def test_the_wheel_serves_the_fixture_durably(installed: Path, elsewhere: Path) -> None:
    """A command on the installed daemon is in its evidence, before and after a restart."""
    with serving(installed, elsewhere, "--state-dir", "state") as (_, ready):
        assert ready["mhs_ready"] is True
        assert ready["devices"] == 1
        where = ("-e", ready["url"], "--json")
        step = ("call", *where, "-c", "cap.world.step.v1", "-i", '{"ticks": 7}')
        receipt = json.loads(run(installed / "mhsctl", *step, cwd=elsewhere))
        assert receipt["status"] == "completed"
        assert receipt["output"]["tick"] == 7
    with serving(installed, elsewhere, "--state-dir", "state") as (_, ready):
        report = json.loads(
            run(installed / "mhsctl", "evidence", "-e", ready["url"], "--verify", "--json", cwd=elsewhere)
        )
        assert receipt["receipt_id"] in json.dumps(report) or report["checked"] >= 1


def test_the_wheel_serves_over_stdio(installed: Path, elsewhere: Path) -> None:
    command = f"stdio:{installed / 'mhsd'} --stdio conveyor-workcell"
    devices = json.loads(run(installed / "mhsctl", "devices", "-e", command, "--json", cwd=elsewhere))
    assert "conveyor-workcell" in json.dumps(devices)
