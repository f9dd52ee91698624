"""What the service manager is told, over a socket of the test's own, and the unit that asks for it."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mhsd.config import OPTIONS, Config
from mhsd.daemon.systemd import Notifier

UNIT = Path(__file__).resolve().parents[2] / "scripts" / "systemd" / "mhsd.service"


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A service manager's socket, and how NOTIFY_SOCKET names it."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@mhsd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(name.replace("@", "\0", 1))
        sock.settimeout(10)
        yield sock, name


def test_ready_watchdog_and_stopping_are_told(manager: tuple[socket.socket, str]) -> None:
    sock, name = manager
    notifier = Notifier.of({"NOTIFY_SOCKET": name})
    notifier.ready("serving 1 device(s)")
    assert sock.recv(4096).decode().split("\n") == [
        "READY=1",
        "STATUS=serving 1 device(s)",
        f"MAINPID={os.getpid()}",
    ]
    notifier.alive()
    assert sock.recv(4096) == b"WATCHDOG=1"
    notifier.stopping()
    assert sock.recv(4096).startswith(b"STOPPING=1\n")


def test_the_variables_are_taken_away_so_that_no_child_speaks_for_the_daemon() -> None:
    environ = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1", "OTHER": "stays"}
    Notifier.of(environ)
    assert environ == {"OTHER": "stays"}


@pytest.mark.parametrize(
    ("environ", "interval_s"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_told_twice_in_its_time_if_it_is_this_process_that_it_watches(
    environ: dict[str, str], interval_s: float | None
) -> None:
    assert Notifier.of({"NOTIFY_SOCKET": "/run/x", **environ}).watchdog_interval_s == interval_s


def test_without_a_manager_nothing_is_told_and_nothing_fails() -> None:
    notifier = Notifier.of({"WATCHDOG_USEC": "3000000"})
    assert notifier.watchdog_interval_s is None
    notifier.ready("")
    notifier.alive()
    notifier.stopping()


@pytest.mark.parametrize("name", ["/nowhere/notify", "vsock:2:1"])
def test_a_manager_that_cannot_be_reached_is_logged(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Notifier.of({"NOTIFY_SOCKET": name}).ready("")
    assert len(caplog.records) == 1


def test_a_manager_that_does_not_read_never_blocks(manager: tuple[socket.socket, str]) -> None:
    notifier = Notifier.of({"NOTIFY_SOCKET": manager[1]})
    for _ in range(5000):
        notifier.alive()


def entries() -> dict[str, dict[str, list[str]]]:
    """Section to key to values; a key may stand more than once."""
    found: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in UNIT.read_text().splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = match[1]
        elif line and not line.startswith(("#", ";")):
            key, mark, value = line.partition("=")
            assert mark, line
            found.setdefault(section, {}).setdefault(key, []).append(value)
    return found


def test_the_unit_waits_for_readiness_watches_and_hardens() -> None:
    service = entries()["Service"]
    expected = {
        "Type": "notify",
        "NotifyAccess": "main",
        "StateDirectory": "mhsd",
        "RuntimeDirectory": "mhsd",
        "Restart": "on-failure",
        "KillSignal": "SIGTERM",
        "KillMode": "mixed",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "PrivateTmp": "yes",
        "CapabilityBoundingSet": "",
    }
    assert {key: service[key] for key in expected} == {key: [value] for key, value in expected.items()}
    assert service["User"] not in (["root"], ["0"])
    assert int(service["WatchdogSec"][0]) > 0


def test_the_unit_gives_a_stop_more_time_than_the_daemon_takes() -> None:
    from mhsd.daemon.run import LONGEST_STOP_MARGIN_S

    longest_s = 2 * Config().stop_grace_s + LONGEST_STOP_MARGIN_S
    assert int(entries()["Service"]["TimeoutStopSec"][0]) > longest_s


def test_the_unit_sets_no_variable_that_mhsd_does_not_know() -> None:
    known = {option.variable for option in OPTIONS} | {"MHSD_RUNTIME_DIR"}
    names = {value.partition("=")[0] for value in entries()["Service"]["Environment"]}
    assert {name for name in names if name.startswith("MHSD_")} <= known


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_understands_every_line_of_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / "mhsd.service"
    text = UNIT.read_text().replace("ExecStart=/opt/mhsd/bin/mhsd", "ExecStart=/bin/true")
    copy.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if "mhsd.service" in line]
    assert complaints == []
    assert done.returncode == 0, done.stderr
