"""A write that fails ends all writing; what is durable stays readable, and the latch is still written."""

import sqlite3
import threading
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio

import mhsd.store.store as store_module
from mhsd.base.errors import StartError
from mhsd.store import Store, StoreFailed
from mhsd.store.database import connect
from tests.store.store_builders import (
    AT,
    DEVICE,
    command_id,
    final,
    intent,
    opened,
    operation_id,
    put,
    rejected,
    run_commands,
)


class Faulty(sqlite3.Connection):
    """Fails, or hangs, where it is told to."""

    failing_sql: str | None = None
    recovers = False
    hang: threading.Event | None = None
    hanging = threading.Event()

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if self.failing_sql is not None and sql.startswith(self.failing_sql):
            self.failing_sql = None if self.recovers else self.failing_sql
            raise sqlite3.OperationalError("disk I/O error")
        if self.hang is not None and sql == "COMMIT":
            Faulty.hanging.set()
            self.hang.wait()
        return super().execute(sql, *parameters)


class Disk:
    """Opens the writing connection of a store and keeps hold of it."""

    def __init__(self) -> None:
        self.connection: Faulty | None = None

    def __call__(self, path: Path) -> sqlite3.Connection:
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Faulty)
        return self.connection

    def fail(self, sql: str, *, once: bool = False) -> None:
        assert self.connection is not None
        self.connection.failing_sql = sql
        self.connection.recovers = once

    def hang(self) -> threading.Event:
        assert self.connection is not None
        self.connection.hang = threading.Event()
        return self.connection.hang


async def assert_failed(store: Store, said: str) -> None:
    """Fail-stop: nothing is taken any more, everything that was durable is there."""
    assert store.failure is not None
    assert said in store.failure
    ticket = store.put(rejected(77))
    assert ticket.receipts == ()
    with pytest.raises(StoreFailed, match=said):
        await ticket.wait()
    row = store.find_command(DEVICE, command_id(1))
    assert row is not None
    assert row.state == "final"
    assert len(store.page(0).receipts) == store.head()[0] >= 1
    assert await store.write_latch({DEVICE: {"reason": "fire", "engaged_at": AT}})


@pytest.mark.parametrize("sql", ["BEGIN", "INSERT INTO receipts", "DELETE FROM intents", "COMMIT"])
async def test_an_error_anywhere_in_a_write_ends_all_writing(tmp_path: Path, sql: str) -> None:
    disk = Disk()
    async with opened(tmp_path / "state", connect=disk) as store:
        await put(store, intent(1), final(1), intent(2))
        disk.fail(sql)
        waiting = [store.put(final(2)), store.put(rejected(3))]
        for ticket in waiting:
            with pytest.raises(StoreFailed, match="disk I/O error"):
                await ticket.wait()
        await assert_failed(store, "disk I/O error")
    async with opened(tmp_path / "state") as store:
        assert store.latched[DEVICE].reason == "fire"
        assert store.open_intents == [intent(2)]
        assert store.head()[0] == 1
        await put(store, final(2))


async def test_a_disk_that_recovers_is_not_written_again(tmp_path: Path) -> None:
    disk = Disk()
    async with opened(tmp_path / "state", connect=disk) as store:
        await put(store, intent(1), final(1))
        disk.fail("COMMIT", once=True)
        # More than one commit takes: those that wait behind the failed one must not follow it.
        waiting = [store.put(rejected(number)) for number in range(2, 200)]
        for ticket in waiting:
            with pytest.raises(StoreFailed, match="disk I/O error"):
                await ticket.wait()
        await assert_failed(store, "disk I/O error")
    async with opened(tmp_path / "state") as store:
        assert store.head()[0] == 1


async def test_a_full_disk_ends_all_writing(tmp_path: Path) -> None:
    def small_disk(path: Path) -> sqlite3.Connection:
        db = connect(path)
        db.execute("PRAGMA max_page_count = 40").fetchall()
        return db

    async with opened(tmp_path / "state", connect=small_disk) as store:
        await put(store, intent(1), final(1))
        with pytest.raises(StoreFailed, match="full"):
            await put(store, *(rejected(number) for number in range(2, 400)))
        await assert_failed(store, "full")
        durable = store.head()
    async with opened(tmp_path / "state") as store:
        assert store.head() == durable


async def test_a_failed_checkpoint_ends_all_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mhsd.store.writer.CHECKPOINT_COMMITS", 3)
    disk = Disk()
    async with opened(tmp_path / "state", connect=disk) as store:
        await put(store, intent(1))
        disk.fail("PRAGMA wal_checkpoint")
        await put(store, final(1))
        await put(store, rejected(2))
        while store.failure is None:
            await trio.lowlevel.checkpoint()
        with pytest.raises(StoreFailed, match="a checkpoint failed"):
            await put(store, rejected(3))
        await assert_failed(store, "disk I/O error")


async def test_look_ups_after_a_failure_answer_what_is_durable(tmp_path: Path) -> None:
    disk = Disk()
    async with opened(tmp_path / "state", connect=disk) as store:
        await put(store, intent(1), final(1), intent(2, body={"a": 1}), intent(3))
        disk.fail("COMMIT")
        lost = store.put(final(2, revision=7), intent(4))
        with pytest.raises(StoreFailed):
            await lost.wait()
        row = store.find_command(DEVICE, command_id(2))
        assert row is not None
        assert (row.state, row.body) == ("open", {"a": 1})
        assert store.find_operation(operation_id(2)) == row
        assert store.find_command(DEVICE, command_id(4)) is None
        assert store.revision(DEVICE) == 0


async def test_a_database_that_cannot_be_read_answers_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        await run_commands(store, range(1, 3))
        store._reader.close()
        for look_up in (
            lambda: store.find_command(DEVICE, command_id(9)),
            lambda: store.find_operation(operation_id(9)),
            lambda: store.receipt("01J8ZQ3W1B7M2N4P6R8S0NONE0"),
        ):
            with pytest.raises(StoreFailed, match="cannot be read"):
                look_up()


async def test_a_caller_that_stops_waiting_does_not_stop_the_write(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        ticket = store.put(rejected(1))
        with trio.CancelScope() as scope:
            scope.cancel()
            await ticket.wait()
        assert scope.cancelled_caught
        await ticket.wait()
        assert store.head()[0] == 1


async def test_what_was_put_is_written_although_the_store_is_left_by_a_cancellation(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with opened(tmp_path / "state") as store:
            for number in range(1, 200):
                store.put(rejected(number))
            scope.cancel()
            await trio.sleep_forever()
    async with opened(tmp_path / "state") as store:
        assert store.head()[0] == 199


async def test_an_error_inside_the_store_comes_out_as_it_was(tmp_path: Path) -> None:
    async def fail_inside() -> None:
        async with opened(tmp_path / "state") as store:
            store.put(rejected(1))
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await fail_inside()
    async with opened(tmp_path / "state") as store:
        assert store.head()[0] == 1


async def test_a_closed_store_takes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        pass
    with pytest.raises(StoreFailed, match="closed"):
        await store.put(rejected(1)).wait()


async def test_leaving_does_not_wait_for_ever_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "FLUSH_S", 0.05)
    disk = Disk()
    Faulty.hanging.clear()
    with trio.fail_after(30):
        async with opened(tmp_path / "state", connect=disk) as store:
            await put(store, intent(1), final(1))
            release = disk.hang()
            stuck, behind = store.put(rejected(2)), store.put(rejected(3))
            await trio.to_thread.run_sync(Faulty.hanging.wait)
            # The stop path does not wait behind receipts.
            assert await store.write_latch({DEVICE: {"reason": "fire", "engaged_at": AT}})
        for ticket in (stuck, behind):
            with pytest.raises(StoreFailed, match="closed"):
                await ticket.wait()
        # The abandoned thread may still write, so the directory stays taken until the process ends.
        with pytest.raises(StartError, match="in use"):
            await enter(opened(tmp_path / "state"))
    release.set()


async def enter(context: AbstractAsyncContextManager[Store]) -> None:
    async with context:
        pass
