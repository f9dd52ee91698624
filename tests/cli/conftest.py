"""Real processes: a daemon on a port of its own, and `mhsctl` as a person starts it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

BIN = Path(sys.executable).parent
PATIENCE_S = 60


def environment(**more: str) -> dict[str, str]:
    """What a test's process inherits: nothing that would send it to another endpoint or colour it."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("MHS_", "MHSD_"))}
    return {**kept, "MHSD_RUNTIME_DIR": os.environ["MHSD_RUNTIME_DIR"], "NO_COLOR": "1", **more}


@attrs.frozen
class Done:
    """A program that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Daemon:
    """One `mhsd`; `ctl` runs `mhsctl` against it."""

    def __init__(self, *words: str, cwd: Path, port: str = "0") -> None:
        self.cwd = cwd
        self.log = cwd / "mhsd.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [BIN / "mhsd", *words, "--port", port],
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=cwd,
                env=environment(),
            )
        self.url = str(self._ready()["url"])

    def _ready(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        line = self.process.stdout.readline() if readable else b""
        if not line:
            self.process.kill()
            raise AssertionError(f"mhsd did not start: {self.log.read_text()}")
        ready: dict[str, Any] = json.loads(line)
        return ready

    def ctl(self, *words: str, **more: str) -> Done:
        return ctl(*words, cwd=self.cwd, MHS_ENDPOINT=self.url, **more)

    def start_ctl(self, *words: str) -> subprocess.Popen[str]:
        """`mhsctl` that is still running, for a test that interrupts it."""
        return subprocess.Popen(
            [BIN / "mhsctl", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.cwd,
            env=environment(MHS_ENDPOINT=self.url),
        )

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


def ctl(*words: str, cwd: Path | None = None, program: str = "mhsctl", **more: str) -> Done:
    """Runs a program to its end, with stdin closed."""
    done = subprocess.run(
        [BIN / program, *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        env=environment(**more),
        timeout=PATIENCE_S,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon on the conveyor for tests that leave no trace in each other's way."""
    daemon = Daemon("conveyor-workcell", "--rate-per-s", "10000", cwd=tmp_path_factory.mktemp("shared"))
    yield daemon
    daemon.stop()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon on the conveyor that only this test sees."""
    daemon = Daemon("conveyor-workcell", "--state-dir", "state", cwd=tmp_path)
    yield daemon
    daemon.stop()
