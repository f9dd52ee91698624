"""A state directory that cannot be used ends the start in one line, and one that can be is used by one daemon."""

import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from mhsd.base.errors import StartError
from mhsd.store.database import migrations
from tests.store.store_builders import final, intent, opened, put, run_commands


async def refusal(state_dir: Path, **options: Any) -> StartError:
    with pytest.raises(StartError) as caught:
        async with opened(state_dir, **options):
            pass
    assert "\n" not in caught.value.message
    assert str(state_dir) in caught.value.message
    return caught.value


async def filled(state_dir: Path) -> Path:
    async with opened(state_dir) as store:
        await run_commands(store, range(1, 6))
    return state_dir


async def test_a_second_daemon_is_told_who_has_the_directory(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        error = await refusal(tmp_path / "state")
        assert error.exit_code == 1
        assert str(os.getpid()) in error.message
        await put(store, final(1))


async def test_the_directory_is_free_when_its_daemon_ended_even_by_a_crash(tmp_path: Path) -> None:
    script = (
        "import os, sys, pathlib\n"
        "from mhsd.store.lock import take_lock\n"
        "lock = take_lock(pathlib.Path(sys.argv[1]))\n"
        "os._exit(9)\n"
    )
    done = await trio.run_process([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == 9
    async with opened(tmp_path):
        pass
    async with opened(tmp_path):
        pass


async def test_the_state_of_another_endpoint_is_refused(tmp_path: Path) -> None:
    await filled(tmp_path / "state")
    error = await refusal(tmp_path / "state", endpoint_id="mhs://elsewhere:7400")
    assert error.exit_code == 1
    assert "mhs://localhost:7400" in error.message
    assert "mhs://elsewhere:7400" in error.message
    async with opened(tmp_path / "state") as store:
        assert store.head()[0] == 5


async def test_missing_parents_are_made(tmp_path: Path) -> None:
    async with opened(tmp_path / "a" / "b" / "state") as store:
        assert store.kind == "state_dir"


def a_file(path: Path) -> None:
    path.write_text("I am a file")


def a_file_above(path: Path) -> None:
    path.parent.write_text("I am a file")


def a_lock_that_is_a_directory(path: Path) -> None:
    (path / "lock").mkdir(parents=True)


def a_latch_that_is_a_directory(path: Path) -> None:
    (path / "latch").mkdir(parents=True)


def a_database_that_is_a_directory(path: Path) -> None:
    (path / "receipts.db").mkdir(parents=True)


def a_database_of_noise(path: Path) -> None:
    path.mkdir()
    (path / "receipts.db").write_bytes(b"no database at all" * 1000)


def a_database_of_another_program(path: Path) -> None:
    path.mkdir()
    db = sqlite3.connect(path / "receipts.db")
    db.execute("CREATE TABLE recipes (name)")
    db.close()


@pytest.mark.parametrize(
    "prepare",
    [
        a_file,
        a_file_above,
        a_lock_that_is_a_directory,
        a_latch_that_is_a_directory,
        a_database_that_is_a_directory,
        a_database_of_noise,
        a_database_of_another_program,
    ],
)
async def test_what_is_no_state_directory_is_refused(tmp_path: Path, prepare: Callable[[Path], None]) -> None:
    path = tmp_path / "place" / "state"
    path.parent.parent.mkdir(exist_ok=True)
    if prepare is not a_file_above:
        path.parent.mkdir()
    prepare(path)
    assert (await refusal(path)).exit_code == 2


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
async def test_a_directory_without_permission_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.mkdir(mode=0o500)
    assert (await refusal(path)).exit_code == 2


async def test_permission_is_asked_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    error = await refusal(tmp_path / "state")
    assert error.exit_code == 2
    assert "not readable and writable" in error.message


async def test_a_truncated_database_is_refused(tmp_path: Path) -> None:
    path = await filled(tmp_path / "state")
    with (path / "receipts.db").open("r+b") as file:
        file.truncate(5000)
    assert (await refusal(path)).exit_code == 2


@pytest.mark.parametrize("table", ["schema_version", "meta", "receipts", "intents", "devices"])
async def test_a_damaged_page_of_any_table_is_refused(tmp_path: Path, table: str) -> None:
    path = await filled(tmp_path / "state")
    db = sqlite3.connect(path / "receipts.db")
    (page,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    db.close()
    with (path / "receipts.db").open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xa5" * 4096)
    assert (await refusal(path)).exit_code == 2


async def test_a_changed_last_receipt_is_refused(tmp_path: Path) -> None:
    path = await filled(tmp_path / "state")
    db = sqlite3.connect(path / "receipts.db")
    db.execute("UPDATE receipts SET body = replace(body, 'completed', 'cancelled') WHERE seq = 5")
    db.commit()
    db.close()
    error = await refusal(path)
    assert error.exit_code == 2
    assert "receipt 5" in error.message


async def test_a_schema_from_the_future_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = await filled(tmp_path / "state")
    newest = migrations()[-1][0]
    db = sqlite3.connect(path / "receipts.db")
    db.execute("INSERT INTO schema_version VALUES (?, '2030-01-01T00:00:00.000Z')", (newest + 1,))
    db.commit()
    db.close()
    error = await refusal(path)
    assert error.exit_code == 2
    assert f"schema version {newest + 1}" in error.message


async def test_a_new_store_records_its_schema_version(tmp_path: Path) -> None:
    path = await filled(tmp_path / "state")
    db = sqlite3.connect(path / "receipts.db")
    versions = [row[0] for row in db.execute("SELECT version FROM schema_version ORDER BY version")]
    db.close()
    assert versions == [number for number, _ in migrations()]


async def test_later_migrations_are_applied_once_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await filled(tmp_path / "state")
    shipped = migrations()
    newest = shipped[-1][0]
    good = (newest + 1, "ALTER TABLE devices ADD COLUMN seen_at TEXT;")
    broken = (newest + 2, "CREATE TABLE notes (text TEXT); INSERT INTO nowhere VALUES (1);")
    monkeypatch.setattr("mhsd.store.database.migrations", lambda: [*shipped, good, broken])
    assert "nowhere" in (await refusal(path)).message
    mended = (newest + 2, "CREATE TABLE notes (text TEXT);")
    monkeypatch.setattr("mhsd.store.database.migrations", lambda: [*shipped, good, mended])
    for _ in range(2):
        async with opened(path) as store:
            await put(store, intent(store.head()[0] + 1), final(store.head()[0] + 1))
            assert store.failure is None


async def test_an_interrupted_first_start_is_begun_again_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state"
    async with opened(path):
        pass
    assert "a new chain begins" not in caplog.text
    (path / "receipts.db").write_bytes(b"")
    async with opened(path) as store:
        await put(store, final(1))
        assert dict(store.latched) == {}
    assert "receipts.db holds no receipts although the directory was used before" in caplog.text
