"""Finds the emergency stops of a message that is too large to be parsed [CORE-076; MHSD-9a].

A linear tokenizer that builds no tree: it follows the brackets and strings of JSON text, in chunks of any size,
and keeps nothing but the few members that a stop is made of. On well-formed text it finds exactly the stops that
the lenient parser and `protocol.stops` would find; text that is no JSON may only make it find more.
"""

import json
import re
from enum import IntEnum, auto
from typing import Any

from mhsd.wire.framing import STOP_CLASS, STOP_METHOD

LONGEST_TEXT_BYTES = 12288
"""So much of a key or a value is kept, as it is written; what follows is passed over."""


class _Place(IntEnum):
    """Where in a message the scanner stands; everything else is skipped."""

    TOP = auto()
    BATCH = auto()
    CALL = auto()
    PARAMS = auto()
    INPUT = auto()
    END = auto()


_OUTWARD = {
    _Place.INPUT: _Place.PARAMS,
    _Place.PARAMS: _Place.CALL,
    _Place.BATCH: _Place.END,
}
_INWARD = {(_Place.CALL, "params"): _Place.PARAMS, (_Place.PARAMS, "input"): _Place.INPUT}
_KEPT = {
    _Place.CALL: frozenset({"method"}),
    _Place.PARAMS: frozenset({"device_id", "session_id", "command_id", "reason", "capability_id"}),
    _Place.INPUT: frozenset({"reason"}),
}
"""The members whose text is kept, where it is a string; any other value of them counts as none."""
_OF_COMMAND: tuple[str, ...] = ("device_id", "session_id", "command_id")

# Possessive, so that no text can make the matcher try twice.
_STRING_REST = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_SKIPPED = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[{]++|[\]}]++|"', re.DOTALL)
_NOT_BLANK = re.compile(rb"[^ \t\r\n\xef\xbb\xbf]")
_IN_ARRAY = re.compile(rb'[\[\]{}"]')
_IN_OBJECT = re.compile(rb'[\[\]{}",:]')
_WHOLE_CHARACTERS = re.compile(r"(?:[^\\]|\\u[0-9A-Fa-f]{4}|\\[^u])*+", re.DOTALL)


class StopScanner:
    """One message, chunk by chunk: `feed` returns the parameters of each stop that the chunk completes.

    Duplicate members count as for the parser: the last one wins, so a call is judged where it ends.
    """

    def __init__(self) -> None:
        self._place = _Place.TOP
        self._is_batch = False
        self._skipped_levels = 0
        self._in_string = False
        self._escaping = False
        self._text: bytearray | None = None
        self._wants_value = False
        self._key = ""
        self._method: str | None = None
        self._params: dict[str, str] | None = None
        self._input_reason: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the message's one value is complete; what follows it means nothing."""
        return self._place is _Place.END

    def feed(self, chunk: bytes) -> list[dict[str, str]]:
        """The stops whose call ends in this chunk, in order, as parameters of `mhs.safety.estop`."""
        found: list[dict[str, str]] = []
        position = 0
        while position < len(chunk) and self._place is not _Place.END:
            if self._in_string:
                position = self._read_string(chunk, position)
            elif self._skipped_levels:
                position = self._skip(chunk, position)
            else:
                position = self._step(chunk, position, found)
        return found

    def finish(self) -> list[dict[str, str]]:
        """No more of the message will be read: a call that is a stop as far as it was seen is one."""
        found: list[dict[str, str]] = []
        if self._place in (_Place.CALL, _Place.PARAMS, _Place.INPUT):
            self._end_call(found)
        self._place = _Place.END
        return found

    # Tokens

    def _read_string(self, chunk: bytes, position: int) -> int:
        if self._escaping:
            self._escaping = False
            self._keep(chunk[position : position + 1])
            return position + 1
        match = _STRING_REST.match(chunk, position)
        assert match is not None  # The expression matches the empty text too.
        self._keep(match[0])
        end = match.end()
        if end == len(chunk):
            return end
        if chunk[end : end + 1] == b'"':
            self._end_string()
        else:  # A backslash that the chunk ends with.
            self._escaping = True
            self._keep(b"\\")
        return end + 1

    def _keep(self, part: bytes) -> None:
        if self._text is not None:
            self._text += part[: LONGEST_TEXT_BYTES - len(self._text)]

    def _skip(self, chunk: bytes, position: int) -> int:
        """Pass over what is inside brackets that hold nothing of interest."""
        for match in _SKIPPED.finditer(chunk, position):
            token = match[0]
            if token[0] in b"[{":
                self._skipped_levels += len(token)
            elif token[0] in b"]}":
                if len(token) >= self._skipped_levels:
                    end = match.start() + self._skipped_levels
                    self._skipped_levels = 0
                    return end
                self._skipped_levels -= len(token)
            elif len(token) == 1:
                self._begin_string(keep=False)
                return match.end()
        return len(chunk)

    def _step(self, chunk: bytes, position: int, found: list[dict[str, str]]) -> int:
        pattern = _IN_OBJECT if self._place in _KEPT else _IN_ARRAY
        match = (_NOT_BLANK if self._place is _Place.TOP else pattern).search(chunk, position)
        if match is None:
            return len(chunk)
        token = match[0]
        if token in (b"{", b"["):
            self._open(token)
        elif self._place is _Place.TOP:
            self._place = _Place.END  # A message that is no container is no call.
        elif token in (b"}", b"]"):
            self._close(found)
        elif token == b'"':
            wanted = not self._wants_value or self._key in _KEPT.get(self._place, ())
            self._begin_string(keep=self._place in _KEPT and wanted)
        else:
            self._wants_value = token == b":"
        return match.end()

    # What the tokens mean

    def _begin_string(self, *, keep: bool) -> None:
        self._in_string = True
        self._text = bytearray() if keep else None

    def _end_string(self) -> None:
        self._in_string = False
        if self._text is None:
            return
        text = _decoded(bytes(self._text))
        self._text = None
        if self._wants_value:
            self._assign(text)
        else:
            self._key = text
            self._assign(None)

    def _assign(self, text: str | None) -> None:
        """A member that is kept has this text; None at its key, for whatever value that is no string."""
        if self._place is _Place.INPUT:
            if self._key == "reason":
                self._input_reason = text
        elif self._place is _Place.CALL:
            if self._key == "method":
                self._method = text
            elif self._key == "params":
                self._params, self._input_reason = None, None
        elif self._key == "input":
            self._input_reason = None
        elif self._params is not None and self._key in _KEPT[_Place.PARAMS]:
            self._params.pop(self._key, None)
            if text is not None:
                self._params[self._key] = text

    def _open(self, bracket: bytes) -> None:
        if self._place in (_Place.TOP, _Place.BATCH):
            if bracket == b"{":
                self._place = _Place.CALL
                self._method, self._params, self._input_reason = None, None, None
            elif self._place is _Place.TOP:
                self._place, self._is_batch = _Place.BATCH, True
            else:
                self._skipped_levels = 1
        else:
            inward = _INWARD.get((self._place, self._key)) if self._wants_value and bracket == b"{" else None
            if inward is None:
                self._skipped_levels = 1
                return
            self._place = inward
            if inward is _Place.PARAMS:
                self._params = {}
        self._wants_value, self._key = False, ""

    def _close(self, found: list[dict[str, str]]) -> None:
        if self._place is _Place.CALL:
            self._end_call(found)
            self._place = _Place.BATCH if self._is_batch else _Place.END
        else:
            self._place = _OUTWARD[self._place]
        self._wants_value, self._key = False, ""

    def _end_call(self, found: list[dict[str, str]]) -> None:
        params: dict[str, str] = self._params or {}
        if self._method == STOP_METHOD:
            found.append({name: text for name, text in params.items() if name != "capability_id"})
        elif self._method == "mhs.command" and params.get("capability_id") == STOP_CLASS:
            stop = {name: params[name] for name in _OF_COMMAND if name in params}
            if self._input_reason is not None:
                stop["reason"] = self._input_reason
            found.append(stop)


def _decoded(raw: bytes) -> str:
    """The text of a string without its quotation marks; one that was cut ends with its last whole character."""
    text = raw.decode(errors="replace")
    if "\\" not in text:
        return text
    if len(raw) == LONGEST_TEXT_BYTES and (whole := _WHOLE_CHARACTERS.match(text)) is not None:
        text = whole[0]
    try:
        decoded: Any = _LENIENT.decode(f'"{text}"')
    except ValueError:
        return text  # An escape that JSON does not know.
    # Half a surrogate pair is no text, and the reply repeats the reason of a stop.
    return str(decoded).encode(errors="replace").decode()


_LENIENT = json.JSONDecoder(strict=False)
