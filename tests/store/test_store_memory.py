"""Without a state directory: the same store in a private directory that does not outlive the process."""

import sys
import tempfile
from pathlib import Path

import pytest
import trio

from tests.store.store_builders import opened, run_commands


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def entries(directory: Path) -> list[Path]:
    return list(directory.iterdir())


async def test_the_store_is_private_and_is_removed_at_the_end(temp: Path) -> None:
    async with opened(None) as store:
        assert store.kind == "memory"
        await run_commands(store, range(1, 5))
        (directory,) = entries(temp)
        assert directory.stat().st_mode & 0o777 == 0o700
        assert store.head()[0] == 4
    assert entries(temp) == []


async def test_two_of_them_do_not_meet(temp: Path) -> None:
    async with opened(None) as first, opened(None) as second:
        await run_commands(first, range(1, 4))
        assert (first.head()[0], second.head()[0]) == (3, 0)
        assert len(entries(temp)) == 2


async def test_what_a_killed_process_left_is_removed_at_the_next_start(temp: Path) -> None:
    script = (
        "import os, pathlib, sys, tempfile\n"
        "tempfile.tempdir = sys.argv[1]\n"
        "from mhsd.store.directories import open_scratch_dir\n"
        "directory, lock = open_scratch_dir()\n"
        "(directory / 'receipts.db').write_text('secret')\n"
        "os._exit(9)\n"
    )
    await trio.run_process([sys.executable, "-c", script, str(temp)], check=False)
    (stale,) = entries(temp)
    async with opened(None):
        assert not stale.exists()


async def test_directories_and_links_of_others_are_left_alone(
    temp: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "precious").write_text("keep")
    (temp / "mhsd-store-link").symlink_to(elsewhere)
    (temp / "mhsd-store-file").write_text("keep")
    (temp / "another-store").mkdir()
    async with opened(None):
        pass
    assert [path.name for path in entries(elsewhere)] == ["precious"]
    assert {path.name for path in entries(temp)} == {"mhsd-store-link", "mhsd-store-file", "another-store"}
