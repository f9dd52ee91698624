"""The operations of a session that still run, whether or not anybody waits for them: each is a reason to live."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from mhsd.client.receipts import is_final


class Unwatched:
    """Operations by their ids, for any number of threads. `hold` is called when one begins, `release` when it ends."""

    def __init__(self, hold: Callable[[], None], release: Callable[[], None]) -> None:
        self._hold = hold
        self._release = release
        self._open: set[str] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    def note(self, operation_id: str, receipt: Mapping[str, Any]) -> None:
        """What a receipt says of an operation."""
        is_open = not is_final(receipt)
        with self._lock:
            if is_open == (operation_id in self._open):
                return
            (self._open.add if is_open else self._open.remove)(operation_id)
        (self._hold if is_open else self._release)()

    def look(self, ask: Callable[[str], Mapping[str, Any]]) -> None:
        """Finds out which of them have ended; `ask` gets the receipt of one."""
        with self._lock:
            known = list(self._open)
        for operation_id in known:
            self.note(operation_id, ask(operation_id))
