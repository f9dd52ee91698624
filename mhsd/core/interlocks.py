"""Interlocks fail closed: one that cannot be read counts as open."""

from collections.abc import Iterable, Mapping

from mhsd.base.errors import Fault


def interlock_states(ids: Iterable[str], reading: Mapping[str, str] | None) -> list[dict[str, str]]:
    """`[{id, state}]` for the given interlocks; a missing or strange reading is `open`."""
    known = reading or {}
    return [{"id": name, "state": "closed" if known.get(name) == "closed" else "open"} for name in ids]


def interlock_refusal(ids: Iterable[str], reading: Mapping[str, str] | None) -> Fault | None:
    """MHS.SAFETY.INTERLOCK_OPEN naming the open ones, or None when every one reads closed."""
    opened = [entry for entry in interlock_states(ids, reading) if entry["state"] == "open"]
    if not opened:
        return None
    known = reading or {}
    unread = [entry["id"] for entry in opened if known.get(entry["id"]) != "open"]
    names = ", ".join(entry["id"] for entry in opened)
    why = f"; not readable, which counts as open: {', '.join(unread)}" if unread else ""
    return Fault(
        "MHS.SAFETY.INTERLOCK_OPEN",
        f"interlock open: {names}{why}",
        # Only where no door can be closed to mend it is reading the interlock again the remedy.
        details={"reason": "unreadable"} if len(unread) == len(opened) else None,
        interlocks=opened,
    )
