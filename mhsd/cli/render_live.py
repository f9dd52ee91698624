"""Live values as a person sees them: a table that is drawn over itself on a terminal, else one line an event."""

import shutil
import time
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TextIO

from mhsd.cli.render import progress_text, units_of
from mhsd.cli.terminal import Paint, fitted, plain, put, table, value
from mhsd.client.naming import path_of

Units = Mapping[tuple[str, str], Mapping[str, str]]
"""(device, resource) → field → unit."""

VALUES = ("state", "telemetry")
"""The streams whose payload is the state of a resource."""

_REDRAW_S = 0.1
_REMARKS = 6
_UNKNOWN = "?"


def remark(event: Mapping[str, Any]) -> str:
    """What an event other than a value says, in one line."""
    payload = event.get("payload")
    payload = payload if isinstance(payload, dict) else {}
    stream = event.get("stream")
    if stream == "control":
        return _control(event, payload)
    if stream == "log":
        return f"{value(payload.get('level', ''))} {value(payload.get('message', ''))}"
    if stream == "progress":
        return f"{value(payload.get('status', ''))} {progress_text(payload)}"
    texts = [f"{plain(name)} {value(content)}" for name, content in payload.items() if name != "kind"]
    return "  ".join([value(payload.get("kind", "")), *texts]).strip()


def _control(event: Mapping[str, Any], payload: Mapping[str, Any]) -> str:
    if event.get("type") != "gap":
        texts = [f"{plain(name)} {value(content)}" for name, content in payload.items()]
        return "  ".join([value(event.get("type", "")), *texts])
    dropped = event.get("dropped")
    count = "an unknown number of" if dropped is None else value(dropped)
    return f"GAP: {count} events did not arrive; the values are read again"


class Lines:
    """One line an event, for a log, a pipe, or a terminal without cursor."""

    def __init__(self, units: Units, paint: Paint) -> None:
        self._units = units
        self._paint = paint

    def reading(self, device_id: str, resource_id: str, reading: Mapping[str, Any]) -> list[str]:
        """The values as they were read."""
        about = {"device_id": device_id, "resource_id": resource_id, "ts": reading.get("sampled_at")}
        return [self._line({**about, "stream": "read"}, self._values(about, reading.get("state")))]

    def event(self, event: Mapping[str, Any]) -> list[str]:
        """An event as it came."""
        if event.get("stream") in VALUES:
            return [self._line(event, self._values(event, event.get("payload")))]
        text = remark(event)
        is_gap = event.get("stream") == "control"
        return [self._line(event, self._paint("bad", text) if is_gap else text)]

    def note(self, text: str) -> list[str]:
        """Something that this program has to say."""
        return [self._paint("warn", text)]

    def forget(self) -> None:
        """Nothing is kept that could be out of date."""

    def _line(self, about: Mapping[str, Any], text: str) -> str:
        resource = value(about.get("resource_id") or "-")
        return f"{clock(about.get('ts'))}  {value(about.get('stream')):9}  {resource:10}  {text}".rstrip()

    def _values(self, about: Mapping[str, Any], state: Any) -> str:
        units = self._units.get((str(about.get("device_id")), str(about.get("resource_id"))), {})
        fields = state.items() if isinstance(state, dict) else []
        return "  ".join(
            f"{plain(name)} {value(content)} {units.get(name, '')}".rstrip() for name, content in fields
        )


class Screen:
    """A table of the newest values with the last remarks below it, drawn over itself at most ten times a second."""

    def __init__(self, units: Units, paint: Paint, stream: TextIO) -> None:
        self._units = units
        self._paint = paint
        self._stream = stream
        self._values: dict[tuple[str, str, str], tuple[str, str]] = {}
        self._remarks: deque[str] = deque(maxlen=_REMARKS)
        self._drawn = 0
        self._size = (0, 0)
        self._drawn_mono_s = 0.0
        self._is_stale = True

    def reading(self, device_id: str, resource_id: str, reading: Mapping[str, Any]) -> None:
        """The values as they were read."""
        self._take(device_id, resource_id, reading.get("state"), reading.get("sampled_at"))

    def event(self, event: Mapping[str, Any]) -> None:
        """An event as it came."""
        self._is_stale = True
        if event.get("stream") in VALUES:
            place = (str(event.get("device_id")), str(event.get("resource_id")))
            self._take(*place, event.get("payload"), event.get("ts"))
        else:
            self._remarks.append(f"{clock(event.get('ts'))}  {remark(event)}")

    def note(self, text: str) -> None:
        """Something that this program has to say."""
        self._is_stale = True
        self._remarks.append(text)

    def forget(self) -> None:
        """After a gap no value is known until it has come again [EVT-008]."""
        self._values = {place: (_UNKNOWN, when) for place, (_, when) in self._values.items()}

    def _take(self, device_id: str, resource_id: str, state: Any, ts: Any) -> None:
        self._is_stale = True
        for name, content in state.items() if isinstance(state, dict) else []:
            self._values[device_id, resource_id, name] = (value(content), clock(ts))

    def due_s(self) -> float | None:
        """How long until the next drawing is due; None while nothing has changed since the last."""
        return max(0.0, self._drawn_mono_s + _REDRAW_S - time.monotonic()) if self._is_stale else None

    def draw(self) -> None:
        """Draws what is there, over what was drawn before."""
        columns, rows = shutil.get_terminal_size()
        lines = self._lines()[: max(1, rows - 1)]
        cut = [fitted(line, columns - 1) for line in lines]
        shown = [self._paint("bold", cut[0]), *cut[1:]] if cut else []
        back = f"\x1b[{self._drawn}A" if self._drawn else ""
        if self._drawn and self._size != (columns, rows):
            back = "\x1b[H"  # Lines that were drawn for another size stand nobody knows where.
        self._size = (columns, rows)
        put(self._stream, f"{back}\r\x1b[J" + "".join(f"{line}\n" for line in shown))
        self._drawn = len(shown)
        self._drawn_mono_s = time.monotonic()
        self._is_stale = False

    def _lines(self) -> list[str]:
        rows = [
            [
                plain(path_of(device)),
                plain(resource),
                plain(name),
                text,
                self._units.get((device, resource), {}).get(name, ""),
                when,
            ]
            for (device, resource, name), (text, when) in self._values.items()
        ]
        header = ("DEVICE", "RESOURCE", "FIELD", "VALUE", "UNIT", "AT")
        lines = table(rows, header) if rows else ["waiting for the first event"]
        return [*lines, *([""] if self._remarks else []), *self._remarks]


def clock(ts: Any) -> str:
    """The time of day of an event, to the millisecond, as its endpoint wrote it."""
    try:
        return datetime.fromisoformat(str(ts)).strftime("%H:%M:%S.%f")[:-3]
    except ValueError:
        return "--:--:--.---"


def units_of_device(manifest: Mapping[str, Any]) -> Units:
    """The units of every field of every resource of a device."""
    return {
        (str(manifest["device_id"]), str(resource.get("resource_id"))): units_of(resource)
        for resource in manifest.get("resources") or []
    }
