"""The log on stderr: text or JSON lines, written by a thread of its own [TPT-005].

A host that starts the daemon and does not read its stderr would otherwise stop it, e-stop included, as soon as the
pipe is full. What does not fit the queue is dropped and counted.
"""

from __future__ import annotations

import json
import logging
import queue
import sys
import threading
from typing import Any

from mhsd.base.clock import rfc3339

_MOST_LINES = 4096
_FLUSH_S = 1.0


class Log:
    """Everything that `logging` is given from this level on, until the block is left."""

    def __init__(self, form: str, level: str) -> None:
        self._handler = _QueuedHandler()
        self._handler.setFormatter(_JsonLine() if form == "json" else _TextLine())
        self._level = level.upper()

    def __enter__(self) -> None:
        root = logging.getLogger()
        root.addHandler(self._handler)
        root.setLevel(logging.WARNING)
        logging.getLogger("mhsd").setLevel(self._level)

    def __exit__(self, *exc_info: object) -> None:
        logging.getLogger().removeHandler(self._handler)
        self._handler.flush_for(_FLUSH_S)


class _TextLine(logging.Formatter):
    """`time LEVEL logger: message`, and a traceback on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{rfc3339(record.created)} {record.levelname:7} {record.name}: {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _JsonLine(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "ts": rfc3339(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class _QueuedHandler(logging.Handler):
    """Hands lines to the writing thread, and never waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.Queue[str | None] = queue.Queue(_MOST_LINES)
        self._dropped = 0
        self._stream = sys.stderr
        self._thread = threading.Thread(target=self._write, name="mhsd-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            if self._dropped:
                self._lines.put_nowait(f"({self._dropped} lines of the log were dropped: stderr is not read)")
                self._dropped = 0
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1
        except Exception:
            # logging's own rule: a line that cannot be formatted must not end who wrote it.
            self.handleError(record)

    def flush_for(self, patience_s: float) -> None:
        """Write what is queued, for so long at most."""
        try:
            self._lines.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(patience_s)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # Nobody reads the log any more; serving goes on.
                return
