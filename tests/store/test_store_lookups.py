"""What is known of a command, before and after it is durable [OP-001 to OP-006]."""

import gc
from pathlib import Path

import pytest

from mhsd.store import Store
from tests.store.store_builders import (
    DEVICE,
    DIGEST,
    OTHER_DEVICE,
    PRINCIPAL,
    SESSION,
    body,
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


def state_of(store: Store, number: int) -> str | None:
    row = store.find_command(DEVICE, command_id(number))
    by_operation = store.find_operation(operation_id(number))
    assert row == by_operation
    return None if row is None else row.state


async def test_a_command_is_seen_from_the_moment_it_is_put(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        assert state_of(store, 1) is None
        ticket = store.put(intent(1))
        assert state_of(store, 1) == "open"
        await ticket.wait()
        assert state_of(store, 1) == "open"
        ticket = store.put(final(1))
        assert state_of(store, 1) == "final"
        await ticket.wait()
        assert state_of(store, 1) == "final"


async def test_a_row_tells_what_admission_asks_for(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        await put(store, intent(1))
        row = store.find_command(DEVICE, command_id(1))
        assert row is not None
        assert (row.device_id, row.command_id, row.session_id) == (DEVICE, command_id(1), SESSION)
        assert (row.input_digest, row.principal_id) == (DIGEST, PRINCIPAL)
        assert row.operation_id == operation_id(1)
        assert row.body == intent(1).body
        before = store.put(final(1))
        landing = store.find_command(DEVICE, command_id(1))
        await before.wait()
        stored = store.find_command(DEVICE, command_id(1))
        assert landing == stored
        assert stored is not None
        assert (stored.input_digest, stored.principal_id, stored.session_id) == (DIGEST, PRINCIPAL, SESSION)
        assert stored.operation_id == operation_id(1)
        assert stored.final is not None
        assert stored.final.body == body(1)


async def test_a_voided_command_is_free_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        await put(store, intent(1))
        ticket = store.put(void(1), rejected(1))
        assert state_of(store, 1) is None
        await ticket.wait()
        assert state_of(store, 1) is None
        await put(store, intent(1))
        assert state_of(store, 1) == "open"


async def test_a_refusal_reserves_nothing_and_is_kept(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        await put(store, rejected(1, nth=1), rejected(1, nth=2))
        assert state_of(store, 1) is None
        refusal = store.find_rejected(DEVICE, command_id(1))
        assert refusal is not None
        assert refusal.body == rejected(1, nth=2).body
        assert store.find_rejected(OTHER_DEVICE, command_id(1)) is None


async def test_the_refusal_of_a_dispatched_command_is_its_operations_outcome(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        await put(store, intent(1))
        ticket = store.put(void(1), rejected(1, operation=operation_id(1)))
        landing = store.find_operation(operation_id(1))
        await ticket.wait()
        stored = store.find_operation(operation_id(1))
        assert landing == stored
        assert stored is not None
        assert stored.final is not None
        assert stored.final.body["status"] == "rejected"
        assert store.find_command(DEVICE, command_id(1)) is None


async def test_a_reservation_is_of_one_device(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        await put(store, intent(1))
        assert store.find_command(OTHER_DEVICE, command_id(1)) is None


async def test_an_interim_receipt_leaves_the_command_open_and_is_shown(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        await put(store, intent(1))
        ticket = store.put(interim(1))
        row = store.find_command(DEVICE, command_id(1))
        assert row is not None
        assert (row.state, row.interim) == ("open", ticket.receipts[0])
        await put(store, final(1))
        row = store.find_command(DEVICE, command_id(1))
        assert row is not None
        assert (row.state, row.interim) == ("final", None)


async def test_the_first_outcome_of_a_command_stays_its_outcome(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        again = body(1, receipt_id=body(2)["receipt_id"], output={"tick": 99})
        await put(store, intent(1), final(1))
        (second,) = await store.put(final(1, body=again)).wait()
        assert second.seq == 2
        row = store.find_command(DEVICE, command_id(1))
        assert row is not None
        assert row.final is not None
        assert row.final.body == body(1)


async def test_a_stop_needs_no_intent_and_no_session(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        await put(store, final(1, body=body(1, session_id=None), operation_id=None))
        row = store.find_command(DEVICE, command_id(1))
        assert row is not None
        assert (row.state, row.session_id, row.operation_id) == ("final", None, "")


async def test_a_command_cannot_be_reserved_twice_or_voided_when_it_is_not(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        await put(store, intent(1))
        with pytest.raises(ValueError, match="in flight already"):
            store.put(intent(1))
        with pytest.raises(ValueError, match="not in flight"):
            store.put(void(2))
        with pytest.raises(ValueError, match="in flight already"):
            store.put(intent(2), intent(2))
        assert state_of(store, 2) is None


async def test_the_revision_is_the_last_that_was_put(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        assert store.revision(DEVICE) == 0
        ticket = store.put(final(1, revision=1), final(2, revision=2))
        assert store.revision(DEVICE) == 2
        await ticket.wait()
        await put(store, rejected(3))
        assert (store.revision(DEVICE), store.revision(OTHER_DEVICE)) == (2, 0)


COUNTED = ("builtins", "mhsd.store.entries", "mhsd.store.ledger")


def objects_below(value: object) -> int:
    """How many containers and rows hang on `value`, as the garbage collector sees it; numbers do not count."""
    seen: set[int] = set()
    todo = [value]
    while todo:
        for child in gc.get_referents(todo.pop()):
            kind = type(child)
            if id(child) not in seen and kind.__module__ in COUNTED and kind not in (type, int):
                seen.add(id(child))
                todo.append(child)
    return len(seen)


async def test_memory_does_not_grow_with_the_number_of_receipts(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        await run_commands(store, range(1, 100))
        before = objects_below(store._ledger)
        await run_commands(store, range(100, 1100))
        assert objects_below(store._ledger) <= before
