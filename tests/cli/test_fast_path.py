"""`estop` and `status` stand on the standard library alone (design, cli/fast.py)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.conftest import environment
from tests.cli.tiny import Endpoint, Tiny

FORBIDDEN = [
    "typer",
    "click",
    "rich",
    "trio",
    "attrs",
    "attr",
    "cattrs",
    "fastjsonschema",
    "pydantic",
    "asyncio",
]
PROGRAM = f"""
import sys
from mhsd.cli.main import mhsctl
code = mhsctl()
print(*sorted(set({FORBIDDEN!r}) & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("words", [("estop", "smoke"), ("status",), ("estop", "--help")], ids=" ".join)
def test_the_way_to_the_stop_imports_nothing_it_does_not_need(words: tuple[str, ...]) -> None:
    tiny = Tiny(
        Endpoint(
            safety_estop=lambda _: {"status": "completed", "device_id": "mhs://localhost:7400/lab/one"},
            safety_status=lambda _: {"estop": {"engaged": False}, "interlocks": []},
        )
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words],
            capture_output=True,
            text=True,
            env=environment(MHS_ENDPOINT=tiny.url),
            timeout=60,
            check=False,
        )
    finally:
        tiny.close()
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == ""


@pytest.mark.parametrize(
    ("closing", "reason", "told"),
    [
        ("-- --hot --", b"smoke", "smoke --hot --"),
        (">&- 2>&- <&-", b"smoke", "smoke"),
        ("", "Überhitzung".encode("latin-1"), "\\xdcberhitzung"),
    ],
    ids=["dashes", "closed streams", "another encoding"],
)
def test_a_stop_is_sent_whatever_the_terminal_is(closing: str, reason: bytes, told: str) -> None:
    """[SAFE-002]"""
    tiny = Tiny(
        Endpoint(safety_estop=lambda _: {"status": "completed", "device_id": "mhs://localhost:7400/a"})
    )
    try:
        done = subprocess.run(
            [
                b"/bin/sh",
                b"-c",
                f'"$0" -m mhsd estop "$1" {closing}'.encode(),
                sys.executable.encode(),
                reason,
            ],
            env=environment(MHS_ENDPOINT=tiny.url, PYTHONUTF8="1"),
            timeout=60,
            check=False,
        )
    finally:
        tiny.close()
    assert done.returncode == 0
    assert [request.params["reason"] for request in tiny.requests] == [told]


@pytest.mark.parametrize(
    "words", [("version",), ("registry", "--help"), ("devices", "-e", "http://127.0.0.1:1")], ids=" ".join
)
def test_no_other_command_loads_the_daemon_either(words: tuple[str, ...]) -> None:
    """Each command imports what it needs when it needs it, so that the shell is quick."""
    program = PROGRAM.replace(
        repr(FORBIDDEN), repr(["trio", "h11", "cattrs", "sqlite3", "mhsd.daemon", "mhsd.services"])
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == ""


def test_a_usage_error_of_the_stop_says_that_nothing_was_sent() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mhsd", "estop", "--devise", "x"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "nothing was sent" in done.stderr
