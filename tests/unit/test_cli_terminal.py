"""Text for a person: aligned, coloured only where it may be, and harmless whatever an endpoint sends."""

import io
import json

import pytest

from mhsd.cli import terminal
from mhsd.cli.progress import Progress
from mhsd.cli.terminal import Paint, fitted, plain, table, value


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


def test_columns_align_where_characters_are_wide_or_combine() -> None:
    rows = [["電源", "x"], ["u\u0308ber", "y"]]
    assert table(rows) == ["電源  x", "u\u0308ber  y"]


@pytest.mark.parametrize(
    ("text", "columns", "shown"), [("abc", 3, "abc"), ("abcd", 3, "abc"), ("電源", 3, "電"), ("", 0, "")]
)
def test_a_line_is_cut_to_what_the_terminal_shows_in_one_row(text: str, columns: int, shown: str) -> None:
    assert fitted(text, columns) == shown


@pytest.mark.parametrize(("kind", "shown"), [("xterm", True), ("dumb", False)])
def test_progress_is_one_line_that_never_wraps(
    kind: str, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(is_terminal=True)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setenv("COLUMNS", "40")
    progress = Progress("cap.motion.convey.v1")
    progress.tell("4 %, " + "far " * 20)
    drawn = stream.getvalue().removeprefix("\r\x1b[2K")
    assert len(drawn) == (39 if shown else 0)
    progress.clear()
    assert stream.getvalue().endswith("\r\x1b[2K") is shown


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_the_json_document_is_json_in_every_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding=encoding))
    document = {"unit": "µm", "half": "\ud800", "far": "→"}
    terminal.emit(document)
    assert json.loads(raw.getvalue().decode(encoding)) == document


def test_the_json_document_cannot_take_over_the_terminal_either(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="utf-8"))
    document = {"\x9b31m": "\u202e\x1b[2J\x7f\n", "far": "→ µm"}
    terminal.emit(document)
    text = raw.getvalue().decode()
    assert json.loads(text) == document
    assert all(line.isprintable() for line in text.splitlines())
    assert "→ µm" in text


def test_a_person_gets_the_text_although_the_encoding_is_poor(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    terminal.say("4 → 5")
    assert raw.getvalue() == b"4 \\u2192 5\n"
