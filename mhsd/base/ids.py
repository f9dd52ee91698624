"""The ids that an endpoint mints, and what a ULID looks like.

Decides how the ids are made; what they name, and whether a given one is known, is for their owners. Clients
treat every id as opaque [MHS-002 section 1.5].
"""

import os
import re
import time
from collections.abc import Callable

from ulid import ULID

ULID_PATTERN = "^[0-7][0-9A-HJKMNP-TV-Z]{25}$"
"""A ULID in its canonical spelling: 26 characters of Crockford's base32 in upper case, at most 128 bits."""

_ULID = re.compile(ULID_PATTERN.removeprefix("^").removesuffix("$"))
_RANDOM_BITS = 80


def is_ulid(text: str) -> bool:
    """Whether `text` is a ULID in its canonical spelling; lower case is not."""
    return _ULID.fullmatch(text) is not None


def ulid_of(data: bytes) -> str:
    """16 bytes as the 26 characters of a ULID: a number that names something, for whoever does not mint."""
    return str(ULID(data))


def _base32(value: int) -> str:
    """128 bits as the 26 characters of a ULID."""
    return ulid_of(value.to_bytes(16, "big"))


class Ids:
    """Mints ids that sort in the order in which they were made, which the ulid package alone does not promise.

    They stay strictly increasing within a millisecond and when the wall clock steps back. One instance
    serves one endpoint from one thread.
    """

    def __init__(
        self, now_s: Callable[[], float] = time.time, entropy: Callable[[int], bytes] = os.urandom
    ) -> None:
        """`now_s` gives wall seconds since 1970; `entropy(n)` gives n bytes nobody can guess."""
        self._now_s = now_s
        self._entropy = entropy
        self._last = 0

    def ulid(self) -> str:
        """A ULID greater than every one before it (command and receipt ids)."""
        now_ms = int(self._now_s() * 1000)
        if now_ms > self._last >> _RANDOM_BITS:
            self._last = now_ms << _RANDOM_BITS | int.from_bytes(self._entropy(10), "big")
        else:
            # The same millisecond, or the clock went back: the next number keeps the order, and a carry
            # out of the random part merely borrows from the next millisecond.
            self._last += 1
        return _base32(self._last)

    def session_id(self) -> str:
        """`mhs_s_`, a ULID and 128 random bits: one session's id does not tell another's."""
        return f"mhs_s_{self.ulid()}{_base32(int.from_bytes(self._entropy(16), 'big'))}"

    def operation_id(self) -> str:
        """`op_` and a full ULID."""
        return f"op_{self.ulid()}"

    def permit_id(self) -> str:
        """`permit_` and a full ULID."""
        return f"permit_{self.ulid()}"

    def subscription_id(self) -> str:
        """`sub_` and a full ULID."""
        return f"sub_{self.ulid()}"

    def instance_id(self) -> str:
        """A ULID for one start of one device."""
        return self.ulid()
