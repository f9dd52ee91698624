"""How far something is, on one line of a terminal's stderr [MHSD-8-05]."""

import shutil
import sys
import time

from mhsd.cli.render import progress_text
from mhsd.cli.terminal import fitted, moves_cursor, plain, put
from mhsd.client.session import Receipt


class Progress:
    """One line on stderr that says how far an operation is, where stderr is a terminal."""

    EVERY_S = 0.5

    def __init__(self, name: str) -> None:
        self.enabled = moves_cursor(sys.stderr)
        self._name = plain(name)
        self._since_mono_s = time.monotonic()
        self._shown = False

    def show(self, receipt: Receipt) -> None:
        """Replaces the line by what `receipt` says."""
        progress = receipt.get("progress")
        self.tell(progress_text(progress if isinstance(progress, dict) else {}))

    def tell(self, text: str) -> None:
        """Replaces the line by this text."""
        if self.enabled:
            seconds = time.monotonic() - self._since_mono_s
            columns, _ = shutil.get_terminal_size()
            line = fitted(f"{self._name}  {seconds:.0f} s  {text}", columns - 1)
            put(sys.stderr, f"\r\x1b[2K{line}")
            self._shown = True

    def clear(self) -> None:
        """Takes the line away."""
        if self._shown:
            put(sys.stderr, "\r\x1b[2K")
            self._shown = False
