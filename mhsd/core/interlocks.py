"""Interlocks fail closed: one that cannot be read counts as open."""

from collections.abc import Iterable, Mapping

from mhsd.base.errors import Fault


def interlock_states(ids: Iterable[str], reading: Mapping[str, str] | None) -> list[dict[str, str]]:
    """`[{id, state}]` for the given interlocks; a missing or strange reading is `open`."""
    known = reading or {}
    return [{"id": name, "state": "closed" if known.get(name) == "closed" else "open"} for name in ids]


def interlock_refusal(ids: Iterable[str], reading: Mapping[str, str] | None) -> Fault | None:
    """MHS.SAFETY.INTERLOCK_OPEN naming the open ones, or None when every one reads closed."""
    wanted = tuple(ids)
    opened = [entry for entry in interlock_states(wanted, reading) if entry["state"] == "open"]
    if not opened:
        return None
    names = ", ".join(entry["id"] for entry in opened)
    unreadable = "" if reading is not None else " (it could not be read, which counts as open)"
    return Fault("MHS.SAFETY.INTERLOCK_OPEN", f"interlock open: {names}{unreadable}", interlocks=opened)
