"""Pages: each limit ends one, and what follows is counted and found."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mhsd.store import Page, Store
from mhsd.wire.json_text import count_items
from tests.store.store_builders import DEVICE, OTHER_DEVICE, SESSION, body, final, opened

OTHER_SESSION = "mhs_s_01J8ZQ3V6Z"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """Twelve receipts: every second of another session, every third of another device."""
    async with opened(tmp_path / "state") as store:
        for number in range(1, 13):
            device_id = OTHER_DEVICE if number % 3 == 0 else DEVICE
            session_id = OTHER_SESSION if number % 2 == 0 else SESSION
            members = body(number, session_id=session_id, device_id=device_id)
            await store.put(final(number, body=members, device_id=device_id)).wait()
        yield store


def seqs(page: Page) -> list[int]:
    return [receipt.seq for receipt in page.receipts]


def pages(store: Store, **options: Any) -> list[Page]:
    found = [store.page(0, **options)]
    while found[-1].remaining:
        found.append(store.page(found[-1].next_seq, **options))
    return found


async def test_a_page_without_limits_is_the_whole_chain(store: Store) -> None:
    page = store.page()
    assert seqs(page) == list(range(1, 13))
    assert (page.next_seq, page.remaining) == (12, 0)


async def test_pages_of_a_number_of_receipts_join_without_holes(store: Store) -> None:
    found = pages(store, max_receipts=5)
    assert [seqs(page) for page in found] == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12]]
    assert [page.remaining for page in found] == [7, 2, 0]


async def test_a_page_keeps_within_its_bytes(store: Store) -> None:
    size = len(store.page().receipts[0].wire().data)
    found = pages(store, max_bytes=3 * size + 10)
    assert [seq for page in found for seq in seqs(page)] == list(range(1, 13))
    assert len(found) > 3
    for page in found:
        assert len(b",".join(receipt.wire().data for receipt in page.receipts)) <= 3 * size + 10


async def test_a_page_keeps_within_its_items(store: Store) -> None:
    found = pages(store, max_items=100)
    assert [seq for page in found for seq in seqs(page)] == list(range(1, 13))
    assert len(found) > 2
    for page in found:
        assert count_items(b"[%b]" % b",".join(receipt.wire().data for receipt in page.receipts)) <= 101


async def test_a_receipt_that_exceeds_every_limit_is_a_page_of_its_own(store: Store) -> None:
    assert [seqs(page) for page in pages(store, max_bytes=1, max_items=1)] == [[n] for n in range(1, 13)]


async def test_pages_of_a_session_or_a_device_or_both(store: Store) -> None:
    assert seqs(store.page(session_id=OTHER_SESSION)) == [2, 4, 6, 8, 10, 12]
    assert seqs(store.page(device_id=OTHER_DEVICE)) == [3, 6, 9, 12]
    assert seqs(store.page(device_id=OTHER_DEVICE, session_id=OTHER_SESSION)) == [6, 12]
    assert seqs(store.page(device_id="mhs://localhost:7400/none")) == []


async def test_what_remains_of_a_selection_is_counted_within_it(store: Store) -> None:
    found = pages(store, session_id=OTHER_SESSION, max_receipts=4)
    assert [(seqs(page), page.remaining) for page in found] == [([2, 4, 6, 8], 2), ([10, 12], 0)]
    found = pages(store, device_id=DEVICE, max_receipts=3)
    assert [(seqs(page), page.remaining) for page in found] == [([1, 2, 4], 5), ([5, 7, 8], 2), ([10, 11], 0)]


async def test_a_page_after_the_head_is_empty(store: Store) -> None:
    page = store.page(12)
    assert (page.receipts, page.next_seq, page.remaining) == ((), 12, 0)


async def test_selections_use_an_index_and_never_sort(store: Store) -> None:
    """Otherwise a page of a long chain would read all of it."""
    for selection in ("device_id = ?", "session_id = ?"):
        sql = f"SELECT seq, body FROM receipts WHERE seq > ? AND {selection} ORDER BY seq LIMIT ?"
        plan = store._pages._db.execute(f"EXPLAIN QUERY PLAN {sql}", (0, "x", 5)).fetchall()
        assert [row[3] for row in plan if "USING INDEX" in row[3] or "TEMP" in row[3]] == [plan[0][3]]


async def test_a_thread_gets_the_same_page(store: Store) -> None:
    assert await store.read_page(3, max_receipts=2) == store.page(3, max_receipts=2)
