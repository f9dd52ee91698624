"""Lists in pages, and cursors that nobody else makes up."""

import base64
from typing import Any

import pytest

from mhsd.mcp.pages import PAGE_BYTES, PAGE_ITEMS, BadCursor, page


def _all(items: list[Any]) -> list[list[Any]]:
    pages = []
    taken, cursor = page(items)
    pages.append(taken)
    while cursor is not None:
        taken, cursor = page(items, cursor)
        pages.append(taken)
    return pages


@pytest.mark.parametrize("count", [0, 1, PAGE_ITEMS, PAGE_ITEMS + 1, 5 * PAGE_ITEMS])
def test_every_item_stands_on_one_page(count: int) -> None:
    """TPT-043."""
    pages = _all(list(range(count)))
    assert [item for each in pages for item in each] == list(range(count))
    assert all(0 < len(each) <= PAGE_ITEMS for each in pages) or count == 0


def test_a_page_ends_before_it_is_too_long_and_one_item_always_fits() -> None:
    """TPT-047."""
    items = ["x" * (PAGE_BYTES // 2), "y" * (PAGE_BYTES // 2), "z" * (2 * PAGE_BYTES), "w"]
    assert _all(items) == [[items[0]], [items[1]], [items[2]], [items[3]]]


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        7,
        [],
        True,
        "ü",
        base64.urlsafe_b64encode(b"mhsd:0").decode(),
        base64.urlsafe_b64encode(b"mhsd:200").decode(),
        base64.urlsafe_b64encode(b"mhsd:-1").decode(),
        base64.urlsafe_b64encode(b"mhsd:0100").decode(),
        base64.urlsafe_b64encode(b"mhsd:" + b"9" * 6000).decode(),
        base64.urlsafe_b64encode("mhsd:\u0661\u0660\u0660".encode()).decode(),
        base64.urlsafe_b64encode(b"100").decode(),
        base64.urlsafe_b64encode(b"mhsd:100").decode() + "x",
    ],
)
def test_a_cursor_that_was_not_given_out_is_refused(cursor: Any) -> None:
    """TPT-043."""
    items = list(range(200))
    assert page(items)[1] == base64.urlsafe_b64encode(b"mhsd:100").decode()
    with pytest.raises(BadCursor):
        page(items, cursor)
