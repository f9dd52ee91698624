"""What a restart finds: everything that was acknowledged, however the last process ended [OP-006, CORE-172]."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from mhsd.core.chain import verify_bundle
from mhsd.store import Store
from tests.store.store_builders import (
    DEVICE,
    ENDPOINT,
    command_id,
    final,
    intent,
    interim,
    opened,
    operation_id,
    put,
    rejected,
    run_commands,
    void,
)

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = int(os.environ.get("MHSD_SOAK_ROUNDS", "4"))
ACKNOWLEDGED_A_ROUND = 150


async def test_the_chain_and_the_revision_go_on(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        await put(store, final(1, revision=1), final(2, revision=2))
        head = store.head()
        genesis = store.genesis
    async with opened(tmp_path / "state", created_at="2027-01-01T00:00:00.000Z") as store:
        assert store.head() == head
        assert store.genesis == genesis
        assert store.revision(DEVICE) == 2
        (receipt,) = await store.put(rejected(3)).wait()
        assert (receipt.seq, receipt.prev_digest) == (3, head[1])


async def test_a_finished_command_answers_the_same_bytes(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        await put(store, intent(1))
        (receipt,) = await store.put(final(1)).wait()
    async with opened(tmp_path / "state") as store:
        for row in (
            store.find_command(DEVICE, command_id(1)),
            store.find_operation(operation_id(1)),
        ):
            assert row is not None
            assert row.final is not None
            assert row.final.wire().data == receipt.wire().data
            assert row.final.wire(replayed=True).data == receipt.wire(replayed=True).data
        assert store.open_intents == []


async def test_commands_in_flight_are_found_open_with_what_was_told_of_them(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        await put(store, *(intent(number) for number in range(1, 6)))
        await put(store, final(2), void(3), interim(4), rejected(5))
    async with opened(tmp_path / "state") as store:
        assert store.open_intents == [intent(1), intent(4), intent(5)]
        row = store.find_command(DEVICE, command_id(4))
        assert row is not None
        assert (row.state, row.body) == ("open", intent(4).body)
        assert row.interim is not None
        assert row.interim.body == interim(4).body
        assert store.find_operation(operation_id(4)) == row
        await put(store, final(1), final(4), final(5), intent(6))
    async with opened(tmp_path / "state") as store:
        assert store.open_intents == [intent(6)]


async def test_new_reservations_after_a_restart_leave_the_old_ones_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        await put(store, *(intent(number) for number in range(1, 7)))
        await put(store, final(1), final(4), final(5))
    async with opened(tmp_path / "state") as store:
        await put(store, *(intent(number) for number in range(11, 18)))
        await put(store, final(12))
    async with opened(tmp_path / "state") as store:
        open_ids = {entry.command_id for entry in store.open_intents}
        assert open_ids == {command_id(number) for number in (2, 3, 6, 11, 13, 14, 15, 16, 17)}


async def test_a_clean_end_leaves_one_database_file_and_no_log(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        await run_commands(store, range(1, 10))
    names = sorted(path.name for path in (tmp_path / "state").iterdir())
    assert names == ["latch", "lock", "receipts.db", "signing-key.json"]


async def test_nothing_of_the_state_is_readable_for_other_users(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        await run_commands(store, range(1, 3))
        assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
        for path in (tmp_path / "state").iterdir():
            assert path.stat().st_mode & 0o077 == 0, path


async def test_nothing_acknowledged_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    intents: set[int] = set()
    receipts: set[int] = set()
    for attempt in range(ROUNDS):
        for kind, number in kill_while_putting(tmp_path / "state", 1 + 10_000 * attempt):
            (intents if kind == "intent" else receipts).add(number)
        async with opened(tmp_path / "state") as store:
            check_all_found(store, intents, receipts)
            await put(store, *(final(_number(entry.command_id)) for entry in store.open_intents))
            receipts |= intents
    assert len(receipts) >= ROUNDS * ACKNOWLEDGED_A_ROUND


def kill_while_putting(state_dir: Path, first: int) -> list[tuple[str, int]]:
    """What a child process acknowledged before it was killed in the middle of its work."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.store.keep_putting", str(state_dir), str(first)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    acknowledged: list[tuple[str, int]] = []
    for line in child.stdout:
        # A line that was cut by the kill has no end and acknowledges nothing.
        if line.endswith("\n"):
            kind, number = line.split()
            acknowledged.append((kind, int(number)))
        if sum(kind == "receipt" for kind, _ in acknowledged) == ACKNOWLEDGED_A_ROUND:
            os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    return acknowledged


def check_all_found(store: Store, intents: set[int], receipts: set[int]) -> None:
    for number in receipts:
        row = store.find_command(DEVICE, command_id(number))
        assert row is not None
        assert row.state == "final", number
    in_flight = {_number(entry.command_id) for entry in store.open_intents}
    for number in intents - receipts:
        row = store.find_command(DEVICE, command_id(number))
        assert row is not None
        assert number in in_flight or row.state == "final"
    receipts_in_chain = []
    since = 0
    while True:
        page = store.page(since)
        receipts_in_chain += [receipt.as_dict() for receipt in page.receipts]
        since = page.next_seq
        if not page.remaining:
            break
    report = verify_bundle(
        {
            "bundle_version": "1.0.0",
            "endpoint_info": {
                "endpoint_id": ENDPOINT,
                "genesis": dict(store.genesis),
                "genesis_digest": store.genesis_digest,
            },
            "receipts": receipts_in_chain,
            "head_digest": store.head()[1],
        }
    )
    assert report["valid"], report["errors"][:3]
    assert len(receipts_in_chain) == store.head()[0]


def _number(command: str) -> int:
    return int(command[-7:])


async def test_receipts_are_flushed_to_the_disk_before_they_are_acknowledged(tmp_path: Path) -> None:
    """The setting itself: what a flush does to a disk cannot be seen from here."""
    settings: list[int] = []

    class Asked(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if sql == "COMMIT":
                settings.append(super().execute("PRAGMA synchronous").fetchall()[0][0])
            return super().execute(sql, *parameters)

    def connect(path: Path) -> sqlite3.Connection:
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Asked)

    async with opened(tmp_path / "state", connect=connect) as store:
        await put(store, intent(1), final(1))
    assert settings
    assert set(settings) == {2}  # FULL
    settings.clear()
    async with opened(None, connect=connect) as store:
        await put(store, intent(1), final(1))
    assert set(settings) == {0}  # OFF


async def test_the_stored_bytes_are_readable_by_any_sqlite_program(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        await put(store, final(1))
    with sqlite3.connect(tmp_path / "state" / "receipts.db") as db:
        (stored,) = db.execute("SELECT body FROM receipts").fetchall()
    db.close()
    assert json.loads(stored[0]) == final(1).body
