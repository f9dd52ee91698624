"""Lists in pages: as many items as a message should hold, and a cursor for the rest."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

PAGE_ITEMS = 100
PAGE_BYTES = 1 << 20
FRAME_BYTES = 3 << 20
"""The most that a page may have, so that the message around it stays within a frame [TPT-047]."""
_MARK = "mhsd:"


class BadCursor(ValueError):
    """A cursor that no page of this list has given out."""


def page(
    items: Sequence[Any],
    cursor: object = None,
    *,
    most_items: int = PAGE_ITEMS,
    most_bytes: int = PAGE_BYTES,
) -> tuple[list[Any], str | None]:
    """The items from `cursor` on (None: the first), and the cursor of what follows; None at the end."""
    start = 0 if cursor is None else _offset(cursor, len(items))
    taken: list[Any] = []
    bytes_left = most_bytes
    for item in items[start : start + most_items]:
        bytes_left -= len(json.dumps(item))
        if taken and bytes_left < 0:
            break
        taken.append(item)
    end = start + len(taken)
    return taken, _cursor(end) if end < len(items) else None


def _cursor(offset: int) -> str:
    return base64.urlsafe_b64encode(f"{_MARK}{offset}".encode()).decode()


def _offset(cursor: object, count: int) -> int:
    try:
        text = base64.urlsafe_b64decode(cursor.encode()).decode() if isinstance(cursor, str) else ""
    except (binascii.Error, ValueError):
        text = ""
    digits = text.removeprefix(_MARK)
    # Looked at as text first: thousands of digits are no number that anybody has given out.
    offset = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0
    if 0 < offset < count and cursor == _cursor(offset):
        return offset
    raise BadCursor("the cursor is none that this list has given out")
