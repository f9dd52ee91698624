"""How many connections there may be, and how much one of them may cost [TPT-020]."""

from __future__ import annotations

from typing import Literal

import attrs

STOP_LANE = 16
"""Connections beyond the limit that are accepted for an e-stop only."""

STOP_BODY_BYTES = 65536
"""An e-stop is small, so the lane that is kept for it takes no larger message."""

HEAD_BYTES = 16384
"""Request line and headers together."""

STOP_LANE_TIMEOUT_S = 5.0
"""A stop comes at once; nobody may sit in the lane that is kept for it."""

SEARCH_BYTES = 4 << 20
SEARCH_S = 5.0
SEARCH_PAUSE_S = 1.0
"""A body that is too long is searched for an e-stop in this much of what exceeds the limit, for so long and while
no pause is longer than this. What stands later in it is not found."""

LINGER_S = 2.0
LINGER_BYTES = 4 << 20
"""A refused client may go on sending this long and this much before its connection is cut."""

Lane = Literal["normal", "stop"]


@attrs.define
class ConnectionSlots:
    """Counts connections: `limit` ordinary ones, then `STOP_LANE` more for an e-stop, then none."""

    limit: int
    open: int = attrs.field(default=0, init=False)

    def enter(self) -> Lane | None:
        """Take a place; None where there is none. Each place that is taken is given back by `leave`."""
        if self.open >= self.limit + STOP_LANE:
            return None
        self.open += 1
        return "normal" if self.open <= self.limit else "stop"

    def enter_in_place(self) -> Lane:
        """Take the place of a connection in the stop lane that has been told to leave, before it has."""
        self.open += 1
        return "stop"

    def leave(self) -> None:
        """Give a place back."""
        self.open -= 1


def most_chunks(max_request_bytes: int) -> int:
    """How many chunks a body may have: each costs the parser a step, even one of a single byte."""
    return 2048 + max_request_bytes // 1024
