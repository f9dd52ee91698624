"""Reads a stream of server-sent events: bytes in, messages out. Pure [TPT-016]."""

import json
import re
from typing import Any, NamedTuple

MAX_MESSAGE_BYTES = 2 * 1024 * 1024
"""A longer message is a broken stream: no event of the protocol comes near it."""

_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
"""A carriage return at the very end may be half of a line end, so it waits for what follows."""


class SseMessage(NamedTuple):
    """One message; `id` is that of the stream so far, as the standard has it."""

    event: str
    data: str
    id: str


class SseTooLong(ValueError):
    """The stream has a message beyond MAX_MESSAGE_BYTES."""


class SseParser:
    """One connection's stream. Comments are ignored; `retry_s` is what the endpoint asked for, if it did."""

    def __init__(self) -> None:
        self.retry_s: float | None = None
        self._rest = b""
        self._event = ""
        self._data: list[str] = []
        self._size = 0
        self._id = ""

    def feed(self, piece: bytes) -> list[SseMessage]:
        """The messages that are complete with this piece."""
        *lines, self._rest = _LINE_END.split(self._rest + piece)
        found = [message for line in lines if (message := self._take(line)) is not None]
        if self._size + len(self._rest) > MAX_MESSAGE_BYTES:
            raise SseTooLong(f"a message of more than {MAX_MESSAGE_BYTES} bytes")
        return found

    def _take(self, line: bytes) -> SseMessage | None:
        if not line:
            return self._end()
        name, _, content = line.decode("utf-8", "replace").partition(":")
        content = content.removeprefix(" ")
        if name == "data":
            self._data.append(content)
            self._size += len(line)
        elif name == "event":
            self._event = content
        elif name == "id" and "\0" not in content:
            self._id = content
        elif name == "retry" and content.isascii() and content.isdecimal():
            self.retry_s = int(content) / 1000
        return None

    def _end(self) -> SseMessage | None:
        data, event = self._data, self._event
        self._data, self._event, self._size = [], "", 0
        return SseMessage(event or "message", "\n".join(data), self._id) if data else None


def event_of(message: SseMessage) -> dict[str, Any] | None:
    """The params of the `mhs.event` in a message; None for anything else, whose number is then missing."""
    if message.event != "mhs.event":
        return None
    try:
        notification = json.loads(message.data)
    except (ValueError, RecursionError):
        return None
    params = notification.get("params") if isinstance(notification, dict) else None
    return params if isinstance(params, dict) else None
