"""Retention: what is older than promised goes, in small steps, and the rest can still be checked [OP-002, OP-006]."""

import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mhsd.base.errors import Fault
from mhsd.base.resources import schema_document
from mhsd.config import Limits
from mhsd.core.chain import CHAIN_BROKEN, verify_bundle
from mhsd.services import evidence
from mhsd.store import Store
from mhsd.store.retention import DAY_S, ROWS_A_STEP
from mhsd.wire.params import EvidenceExportParams
from mhsd.wire.schema import compile_schema
from tests.store.store_builders import (
    AT,
    DEVICE,
    command_id,
    final,
    intent,
    opened,
    put,
    receipt_id,
    run_commands,
)
from tests.store.test_signing import SERVER, script


class Calendar:
    """Wall time that a test moves on."""

    def __init__(self) -> None:
        self.now_s = 1_790_000_000.0

    def __call__(self) -> float:
        return self.now_s

    def pass_days(self, days: float) -> None:
        self.now_s += days * DAY_S


@pytest.fixture
def calendar(monkeypatch: pytest.MonkeyPatch) -> Calendar:
    monkeypatch.setattr("mhsd.store.writer.FIRST_LOOK_S", 0.0)
    return Calendar()


@asynccontextmanager
async def kept(state: Path, calendar: Calendar, **options: Any) -> AsyncIterator[Store]:
    async with opened(state, retention_days=30, now=calendar, **options) as store:
        yield store


def stored_seqs(state: Path) -> list[int]:
    with sqlite3.connect(state / "receipts.db") as db:
        seqs = [row[0] for row in db.execute("SELECT seq FROM receipts ORDER BY seq")]
    db.close()
    return seqs


async def settled(state: Path, seqs: Sequence[int]) -> None:
    with trio.fail_after(60):
        while stored_seqs(state) != list(seqs):
            await trio.lowlevel.checkpoint()


async def export(store: Store, **params: Any) -> Any:
    wanted = EvidenceExportParams(**params)
    bundle = json.loads(
        (await evidence.export(store, wanted, server=SERVER, created_at=AT, limits=Limits())).data
    )
    assert compile_schema(schema_document("evidence-bundle"), resolve=schema_document).errors(bundle) == []
    return bundle


async def old_and_new(state: Path, calendar: Calendar, old: int = 200) -> None:
    """A store with `old` commands of 31 days ago and five of now."""
    async with kept(state, calendar) as store:
        await run_commands(store, range(1, old + 1))
    calendar.pass_days(31)
    async with kept(state, calendar) as store:
        await run_commands(store, range(old + 1, old + 6))


async def test_old_receipts_go_and_the_rest_is_checkable_from_a_signed_checkpoint(
    tmp_path: Path, calendar: Calendar
) -> None:
    """[EVID-001, EVID-003]"""
    state = tmp_path / "state"
    await old_and_new(state, calendar)
    async with kept(state, calendar) as store:
        await settled(state, range(201, 206))
        bundle = await export(store)
        assert [receipt["evidence"]["seq"] for receipt in bundle["receipts"]] == [201, 202, 203, 204, 205]
        checkpoint = bundle["endpoint_info"]["checkpoint"]
        assert (checkpoint["seq"], checkpoint["digest"]) == (
            200,
            bundle["receipts"][0]["evidence"]["prev_digest"],
        )
        report = verify_bundle(bundle, public_key=store.public_key)
        assert (report["valid"], report["from_seq"], report["contiguous"]) == (True, 201, True)
        assert report["signature"]["checkpoint"] == "valid"
        assert list(script().problems(bundle)) == []
        # The commands are forgotten with their receipts, and no earlier.
        assert store.find_command(DEVICE, command_id(200)) is None
        assert store.find_command(DEVICE, command_id(201)) is not None
        assert store.revision(DEVICE) == 0


async def test_a_bundle_that_does_not_follow_its_checkpoint_is_broken(
    tmp_path: Path, calendar: Calendar
) -> None:
    """[EVID-003]"""
    state = tmp_path / "state"
    await old_and_new(state, calendar)
    async with kept(state, calendar) as store:
        await settled(state, range(201, 206))
        bundle = await export(store)
        bundle["endpoint_info"]["checkpoint"]["digest"] = "sha256:" + "0" * 64
        report = verify_bundle(bundle)
        assert [(error["seq"], error["mhs_code"]) for error in report["errors"]] == [
            (201, "MHS.EVIDENCE.SIGNATURE_INVALID")
        ]
        assert list(script().problems(bundle)) != []
        missing = await export(store)
        del missing["receipts"][1]
        assert CHAIN_BROKEN in [error["mhs_code"] for error in verify_bundle(missing)["errors"]]


async def test_what_is_younger_than_the_retention_stays(tmp_path: Path, calendar: Calendar) -> None:
    """[OP-002, OP-006]"""
    state = tmp_path / "state"
    async with kept(state, calendar) as store:
        await run_commands(store, range(1, 11))
    calendar.pass_days(29.9)
    async with kept(state, calendar) as store:
        await run_commands(store, range(11, 13))
        await store.sign_head()
    async with kept(state, calendar) as store:
        with trio.move_on_after(0.5):
            await settled(state, range(11, 13))
        assert stored_seqs(state) == list(range(1, 13))
        assert store.find_command(DEVICE, command_id(1)) is not None


async def test_the_newest_receipt_and_commands_in_flight_stay_however_old(
    tmp_path: Path, calendar: Calendar
) -> None:
    """The chain goes on from the one, the others are still to be accounted for. [OP-006]"""
    state = tmp_path / "state"
    async with kept(state, calendar) as store:
        await put(store, intent(900))
        await run_commands(store, range(1, 101))
        await store.sign_head()
        await put(store, final(101))
    calendar.pass_days(400)
    async with kept(state, calendar) as store:
        await settled(state, [101])
        assert [entry.command_id for entry in store.open_intents] == [command_id(900)]
        head = store.head()
    async with kept(state, calendar) as store:
        assert store.head() == head
        (receipt,) = await store.put(final(102)).wait()
        assert (receipt.seq, receipt.prev_digest) == (102, head[1])
        assert (await export(store))["endpoint_info"]["checkpoint"]["seq"] == 100


async def test_a_receipt_that_was_removed_is_no_place_to_go_on_from(
    tmp_path: Path, calendar: Calendar
) -> None:
    """[PROTO-042]"""
    state = tmp_path / "state"
    await old_and_new(state, calendar)
    async with kept(state, calendar) as store:
        await settled(state, range(201, 206))
        with pytest.raises(Fault) as caught:
            await export(store, since_receipt=receipt_id(150))
        assert caught.value.details == {"field": "since_receipt", "reason": "unknown_receipt"}
        later = await export(store, since_receipt=receipt_id(202))
        assert verify_bundle(later)["valid"]


async def test_removing_takes_small_steps_between_which_receipts_are_written(
    tmp_path: Path, calendar: Calendar, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    await old_and_new(state, calendar, old=5 * ROWS_A_STEP)
    removed: list[int] = []

    class Counting(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            cursor = super().execute(sql, *parameters)
            if sql.strip().startswith("DELETE FROM receipts"):
                removed.append(cursor.rowcount)
            return cursor

    def connect(path: Path) -> sqlite3.Connection:
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Counting)

    async with kept(state, calendar, connect=connect) as store:
        number = 5 * ROWS_A_STEP + 6
        while sum(removed) < 5 * ROWS_A_STEP:
            await put(store, final(number))
            number += 1
            # Readers see the whole old part gone, or none of it.
            first = store.page(0, max_receipts=1).receipts[0].seq
            assert first in (1, 5 * ROWS_A_STEP + 1)
        assert max(removed) == ROWS_A_STEP
        report = verify_bundle(await export(store))
        assert (report["valid"], report["from_seq"]) == (True, 5 * ROWS_A_STEP + 1)


async def test_a_crash_in_the_middle_of_removing_leaves_nothing_half_there(
    tmp_path: Path, calendar: Calendar
) -> None:
    state = tmp_path / "state"
    await old_and_new(state, calendar)
    # What a process leaves that died after it had decided, and after some of the rows were gone.
    with sqlite3.connect(state / "receipts.db") as db:
        db.execute("INSERT INTO meta VALUES ('pruned_through', '200')")
        db.execute("DELETE FROM receipts WHERE seq < 77")
    db.close()
    async with kept(state, calendar) as store:
        bundle = await export(store)
        assert bundle["receipts"][0]["evidence"]["seq"] == 201
        assert verify_bundle(bundle)["valid"]
        await settled(state, range(201, 206))


async def test_a_removal_that_fails_ends_all_writing(tmp_path: Path, calendar: Calendar) -> None:
    state = tmp_path / "state"
    await old_and_new(state, calendar)

    class Faulty(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if sql.strip().startswith("DELETE FROM receipts"):
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(sql, *parameters)

    def connect(path: Path) -> sqlite3.Connection:
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Faulty)

    async with kept(state, calendar, connect=connect) as store:
        with trio.fail_after(60):
            while store.failure is None:
                await trio.lowlevel.checkpoint()
        assert "old receipts could not be removed: disk I/O error" in store.failure
        assert len(store.page(0).receipts) == 5
