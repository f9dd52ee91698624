"""Text for a person: aligned, coloured only where it may be, and harmless whatever an endpoint sends."""

import io
import json

import pytest

from mhsd.cli import terminal
from mhsd.cli.terminal import Paint, plain, table, value


class Stream(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize(
    ("is_terminal", "environment", "coloured"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(
    is_terminal: bool, environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    painted = Paint(Stream(is_terminal))("good", "STOPPED")
    assert painted == ("\x1b[32mSTOPPED\x1b[0m" if coloured else "STOPPED")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Förderband 5 µm", "Förderband 5 µm"),
        ("two\nlines\tand a tab", "two lines and a tab"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202eevil", "\\u202eevil"),
        ("\ud800", "\\ud800"),
        ("", ""),
    ],
)
def test_control_characters_never_reach_the_terminal(text: str, shown: str) -> None:
    assert plain(text) == shown
    assert value(text) == shown


def test_values_are_json_and_text_is_bare() -> None:
    assert [value(content) for content in (1.5, True, None, {"a": [1]}, "x")] == [
        "1.5",
        "true",
        "null",
        '{"a": [1]}',
        "x",
    ]


def test_columns_align_whatever_their_colour() -> None:
    rows = [["a", "\x1b[32mgood\x1b[0m", "x"], ["long name", "b", ""]]
    assert table(rows, ("N", "STATE", "X"), indent=" ") == [
        " N          STATE  X",
        " a          \x1b[32mgood\x1b[0m   x",
        " long name  b",
    ]
    assert table([]) == []


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_the_json_document_is_json_in_every_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding=encoding))
    document = {"unit": "µm", "half": "\ud800", "far": "→"}
    terminal.emit(document)
    assert json.loads(raw.getvalue().decode(encoding)) == document


def test_a_person_gets_the_text_although_the_encoding_is_poor(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    terminal.say("4 → 5")
    assert raw.getvalue() == b"4 \\u2192 5\n"
