"""Whether the process may open as many files as its connections need [TPT-020]."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mhsd.daemon.files import needed_files


def limits_after(soft: int, hard: int, needed: int) -> tuple[int, str]:
    """The soft limit after `allow_files`, and what was logged, in a process of its own."""
    program = (
        "import logging, resource, sys; logging.basicConfig(format='%(message)s');"
        "from mhsd.daemon.files import allow_files; soft, hard, needed = map(int, sys.argv[1:]);"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)); allow_files(needed);"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    arguments = [str(number) for number in (soft, hard, needed)]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    return int(done.stdout), done.stderr


@pytest.mark.parametrize(
    ("soft", "hard", "needed", "then"),
    [(300, 900, 200, 300), (300, 900, 300, 300), (300, 900, 700, 700), (300, 900, 900, 900)],
)
def test_the_limit_is_raised_to_what_is_needed_and_not_lowered(
    soft: int, hard: int, needed: int, then: int
) -> None:
    assert limits_after(soft, hard, needed) == (then, "")


def test_a_limit_that_cannot_be_raised_enough_is_warned_about_in_one_line() -> None:
    """TPT-020: the place that is kept for an e-stop is worth nothing without a descriptor."""
    then, said = limits_after(300, 400, 700)
    assert then == 400
    assert said.count("\n") == 1
    for word in ("400", "700", "e-stop", "ulimit -n", "--max-connections"):
        assert word in said


def test_every_connection_and_the_stop_lanes_are_counted() -> None:
    assert needed_files(256, 1) - needed_files(0, 1) == 256
    assert needed_files(0, 0) > 32 + 2 * 16
