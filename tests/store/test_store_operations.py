"""The operations of a session: those in flight from memory, those that ended from the disk [PROTO-031]."""

import attrs

from mhsd.store import Store
from tests.store.store_builders import (
    DEVICE,
    OTHER_DEVICE,
    body,
    final,
    intent,
    interim,
    opened,
    operation_id,
    put,
    rejected,
    run_commands,
)

OTHER = "mhs_s_01J8ZQ3V70"


async def ended(
    store: Store, session_id: str = "mhs_s_01J8ZQ3V6Y", *, most: int = 100, **asked: str
) -> list[str]:
    found = await store.read_outcomes(session_id, most=most, **asked)
    return [receipt.body["operation_id"] for receipt in found]


async def test_what_ended_is_found_newest_first_and_what_runs_is_not_among_it() -> None:
    """[PROTO-031]"""
    async with opened(None) as store:
        await run_commands(store, range(3))
        await put(store, intent(3), interim(3))
        assert await ended(store) == [operation_id(2), operation_id(1), operation_id(0)]
        assert [row.operation_id for row in store.operations()] == [operation_id(3)]


async def test_what_was_put_and_is_not_durable_yet_is_among_what_is_in_flight() -> None:
    """[PROTO-031]"""
    async with opened(None) as store:
        await put(store, intent(1))
        ticket = store.put(final(1))
        rows = store.operations()
        assert [(row.operation_id, row.state) for row in rows] == [(operation_id(1), "final")]
        await ticket.wait()
        assert store.operations() == []
        assert await ended(store) == [operation_id(1)]


async def test_sessions_devices_and_statuses_are_told_apart() -> None:
    """[PROTO-031]"""
    async with opened(None) as store:
        await run_commands(store, range(2))
        await put(store, final(2, body=body(2, session_id=OTHER)))
        await put(store, final(3, device_id=OTHER_DEVICE, body=body(3, device_id=OTHER_DEVICE)))
        await put(store, final(4, body=body(4, status="failed")))
        # What a driver says is no status.
        await put(store, final(5, body=body(5, output={"status": "failed"})))
        assert await ended(store, OTHER) == [operation_id(2)]
        assert await ended(store, device_id=OTHER_DEVICE) == [operation_id(3)]
        assert await ended(store, device_id=DEVICE, status="failed") == [operation_id(4)]
        assert await ended(store, status="failed") == [operation_id(4)]
        assert await ended(store, most=2) == [operation_id(5), operation_id(4)]
        assert await ended(store, "mhs_s_01J8ZQ3V6X") == []


async def test_receipts_that_belong_to_no_operation_are_left_out() -> None:
    """[PROTO-031]"""
    async with opened(None) as store:
        await put(store, rejected(1), attrs.evolve(final(2), operation_id=None))
        assert await ended(store) == []
        assert store.operations() == []
