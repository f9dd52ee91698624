"""How text reaches a person: colours, tables, and values that cannot take over the terminal.

Everything that came from an endpoint passes through `plain`, because a device's name may hold anything.
"""

import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, TextIO

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_UNSEEN = re.compile(r"[^\n -~]")
"""What stands in a JSON text and may be no printable character: JSON itself escapes only what is below a space."""
_COLOURS = {"good": "32", "bad": "1;31", "warn": "33", "dim": "2", "bold": "1"}


class _Stdout:
    """What this program has written: whether the document of `--json` is out, and why something is not."""

    emitted = False
    lines = False
    gone = False
    failed: str | None = None


def begin() -> None:
    """A command begins, which has written nothing."""
    _Stdout.emitted = _Stdout.lines = _Stdout.gone = False
    _Stdout.failed = None


def begin_lines() -> None:
    """With `--json` this command writes documents one a line, as many as there are, an error among them."""
    _Stdout.emitted = _Stdout.lines = True


def is_unread() -> bool:
    """Whether nobody reads stdout any more, or nothing can be written to it."""
    return _Stdout.gone


def has_emitted() -> bool:
    """Whether stdout has its JSON document."""
    return _Stdout.emitted


def failed_write() -> str | None:
    """Why something that was to be on stdout is not there; None where everything was written."""
    return _Stdout.failed


def plain(text: str) -> str:
    """`text` without control characters: white space becomes a space, the rest is shown as `\\xNN`."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else " " if character.isspace() else ascii(character)[1:-1]
        for character in text
    )


def value(content: Any) -> str:
    """A JSON value in one line: text as it is, anything else as JSON."""
    if isinstance(content, str):
        return plain(content)
    return plain(json.dumps(content, ensure_ascii=False))


class Paint:
    """Colours for one stream: only on a terminal, never with NO_COLOR or a dumb terminal."""

    def __init__(self, stream: TextIO) -> None:
        self.enabled = moves_cursor(stream) and not os.environ.get("NO_COLOR")

    def __call__(self, role: str, text: str) -> str:
        """`text` in the colour of `role`: good, bad, warn, dim or bold."""
        return f"\x1b[{_COLOURS[role]}m{text}\x1b[0m" if self.enabled else text


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = (), indent: str = "") -> list[str]:
    """Lines with aligned columns, two spaces between them; the last column is not padded."""
    every = [list(header), *map(list, rows)] if header else [list(row) for row in rows]
    if not every:
        return []
    widths = [max(_width(row[column]) for row in every) for column in range(len(every[0]))]
    return [
        indent
        + "  ".join(
            cell if last else cell + " " * (width - _width(cell))
            for cell, width, last in zip(row, widths, _lasts(len(row)), strict=True)
        ).rstrip()
        for row in every
    ]


def _lasts(count: int) -> list[bool]:
    return [False] * (count - 1) + [True]


def _width(cell: str) -> int:
    """The columns that a terminal takes for it: two for each wide character, none for a combining one."""
    text = _ESCAPES.sub("", cell)
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    return 2 if unicodedata.east_asian_width(character) in "WF" else not unicodedata.combining(character)


def fitted(text: str, columns: int) -> str:
    """As much of a text without colours as fits into so many columns; a line that wraps misplaces the cursor."""
    if _width(text) <= columns:
        return text
    ends = accumulate(map(_columns, text))
    return text[: sum(end <= columns for end in ends)]


def moves_cursor(stream: TextIO) -> bool:
    """Whether a line on this stream can be written over."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def say(lines: str | Iterable[str]) -> None:
    """Writes lines for a person to stdout."""
    _write(sys.stdout, [lines] if isinstance(lines, str) else lines)


def note(lines: str | Iterable[str]) -> None:
    """Writes lines to stderr: warnings, hints and errors for a person."""
    _write(sys.stderr, [lines] if isinstance(lines, str) else lines)


def emit(document: Any) -> None:
    """Writes the one JSON document of `--json` to stdout, or one of many on a line of its own [TPT-051]."""
    indent = None if _Stdout.lines else 2
    text = _UNSEEN.sub(_escaped, json.dumps(document, ensure_ascii=False, indent=indent))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(document, indent=indent)
    _Stdout.emitted = True
    say(text)


def _escaped(found: re.Match[str]) -> str:
    """The same text inside a JSON string, without what a terminal would act on."""
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


def _write(stream: TextIO, lines: Iterable[str]) -> None:
    put(stream, "".join(f"{line}\n" for line in lines))


def put(stream: TextIO, text: str) -> None:
    """Writes `text` at once, whatever the stream can show and whether or not anybody reads it any more."""
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            # A terminal of few characters, or half of a surrogate pair from an endpoint.
            stream.write(text.encode("ascii", "backslashreplace").decode())
        stream.flush()
    except OSError as problem:
        # What was done stands. Later writes and the interpreter's own flush go nowhere; a reader that has seen
        # enough is no failure, a full disk is one.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if stream is sys.stdout:
            _Stdout.gone = True
            if not isinstance(problem, BrokenPipeError):
                _Stdout.failed = problem.strerror or str(problem)
