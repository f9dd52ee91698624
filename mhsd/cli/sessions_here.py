"""The sessions that this user has left open: a local record, because no endpoint lists sessions [MHSD-8-11].

The record is a convenience: where it cannot be written, nothing else suffers.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

_MOST = 1000
_KEPT = timedelta(days=30)
"""A session may be kept alive for long, but nobody looks for one that is older."""

Record = dict[str, Any]
"""`{session_id, endpoint, endpoint_id, devices, opened_at}`."""


def _file() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    home = Path(state) if os.path.isabs(state) else Path(os.path.expanduser("~/.local/state"))
    return home / "mhsd" / "sessions.json"


def records(endpoint: str | None = None) -> list[Record]:
    """What is recorded, of one endpoint's address or of all, oldest first."""
    return [each for each in _read() if endpoint in (None, each["endpoint"])]


def remember(session_id: str, endpoint: str, endpoint_id: object, devices: list[str]) -> None:
    """Notes a session that goes on living after the command."""
    record = {
        "session_id": session_id,
        "endpoint": endpoint,
        "endpoint_id": endpoint_id,
        "devices": devices,
        "opened_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    _change(lambda every: [*every, record])


def forget(session_ids: set[str]) -> None:
    """Drops sessions that are over."""
    _change(lambda every: [each for each in every if each["session_id"] not in session_ids])


def _change(changed: Callable[[list[Record]], list[Record]]) -> None:
    """Writes the records back as `changed` makes them, for this user alone, one command at a time."""
    path = _file()
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(path.with_suffix(".lock"), "w", opener=_private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = changed(_read())[-_MOST:]
            partial = path.with_suffix(".partial")
            with open(partial, "w", opener=_private, encoding="utf-8") as file:
                json.dump({"sessions": kept}, file, ensure_ascii=False, indent=1)
            partial.replace(path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _read() -> list[Record]:
    try:
        content = json.loads(_file().read_text(encoding="utf-8"))
        oldest = (datetime.now(UTC) - _KEPT).strftime("%Y-%m-%dT%H:%M:%SZ")
        return [
            {name: each[name] for name in ("session_id", "endpoint", "endpoint_id", "devices", "opened_at")}
            for each in content["sessions"]
            if each["opened_at"] > oldest
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # Nothing yet, or something that this program has not written.
