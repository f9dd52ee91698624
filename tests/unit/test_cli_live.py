"""Live values as text: what an event says, and a table that is never out of date and never wider than its terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest

from mhsd.cli.render_live import Screen, clock, remark
from mhsd.cli.terminal import Paint

DEVICE = "mhs://localhost:7400/lab/one"


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True

    def last(self) -> list[str]:
        """The lines of the last drawing."""
        return self.getvalue().split("\x1b[J")[-1].splitlines()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "24")
    return Terminal()


@pytest.fixture
def screen(terminal: Terminal) -> Screen:
    return Screen({(DEVICE, "belt"): {"speed": "mm/s"}}, Paint(terminal), terminal)


def value(speed: Any, stream: str = "state") -> dict[str, Any]:
    about = {"device_id": DEVICE, "resource_id": "belt", "ts": "2026-10-20T07:46:59.221Z"}
    return {**about, "stream": stream, "payload": {"speed": speed}}


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"stream": "log", "payload": {"level": "warning", "message": "hot"}}, "warning hot"),
        ({"stream": "progress", "payload": {"status": "running", "percent": 42}}, "running 42 %"),
        (
            {
                "stream": "events",
                "payload": {"kind": "interlock.opened", "interlock_id": "door", "hard": True},
            },
            "interlock.opened  interlock_id door  hard true",
        ),
        (
            {"stream": "control", "type": "gap", "dropped": 3, "payload": {}},
            "GAP: 3 events did not arrive; the values are read again",
        ),
        (
            {"stream": "control", "type": "gap", "dropped": None, "payload": {}},
            "GAP: an unknown number of events did not arrive; the values are read again",
        ),
        (
            {"stream": "control", "type": "safety", "payload": {"kind": "estop.engaged", "estop": "engaged"}},
            "safety  kind estop.engaged  estop engaged",
        ),
        ({"stream": "events", "payload": "no object"}, ""),
        ({"stream": "log", "payload": {"level": "info", "message": "a\x1b[2Jb"}}, "info a\\x1b[2Jb"),
    ],
)
def test_an_event_says_in_one_line_what_happened(event: dict[str, Any], text: str) -> None:
    assert remark(event) == text


@pytest.mark.parametrize(
    ("ts", "text"),
    [("2026-10-20T07:46:59.221Z", "07:46:59.221"), (None, "--:--:--.---"), ("soon", "--:--:--.---")],
)
def test_the_time_is_the_endpoints(ts: Any, text: str) -> None:
    assert clock(ts) == text


def test_the_newest_value_stands_with_its_unit_and_its_time(screen: Screen, terminal: Terminal) -> None:
    screen.event(value(1))
    screen.event(value(2, "telemetry"))
    screen.draw()
    assert terminal.last()[1].split() == ["/lab/one", "belt", "speed", "2", "mm/s", "07:46:59.221"]
    assert screen.due_s() is None


def test_after_a_gap_no_value_is_known_until_it_has_come_again(screen: Screen, terminal: Terminal) -> None:
    """[EVT-008]"""
    screen.event(value(1))
    screen.forget()
    screen.draw()
    assert terminal.last()[1].split()[3] == "?"
    screen.reading(DEVICE, "belt", {"state": {"speed": 5}, "sampled_at": "2026-10-20T07:47:00.000Z"})
    assert screen.due_s() is not None
    screen.draw()
    assert terminal.last()[1].split()[3] == "5"


def test_the_table_is_drawn_over_itself_and_the_last_remarks_stay_below(
    screen: Screen, terminal: Terminal
) -> None:
    screen.event(value(1))
    screen.draw()
    for number in range(9):
        screen.note(f"remark {number}")
    screen.draw()
    assert "\x1b[2A\r\x1b[J" in terminal.getvalue()
    assert terminal.last()[3:] == [f"remark {number}" for number in range(3, 9)]


def test_nothing_is_wider_or_higher_than_the_terminal(
    screen: Screen, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that wraps would make the cursor miss its way back."""
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("LINES", "4")
    for number in range(9):
        event = value("x" * 50)
        screen.event({**event, "payload": {f"field{number}": "x" * 50}})
    screen.draw()
    assert len(terminal.last()) == 3
    assert max(map(len, terminal.last())) == 19


def test_after_a_change_of_size_the_table_is_drawn_from_the_top(
    screen: Screen, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the lines of before stand now, only the terminal knows."""
    screen.event(value(1))
    screen.draw()
    monkeypatch.setenv("COLUMNS", "30")
    screen.draw()
    assert terminal.getvalue().count("\x1b[H\r\x1b[J") == 1
    screen.draw()
    assert terminal.getvalue().endswith("\x1b[2A\r\x1b[J" + "".join(f"{line}\n" for line in terminal.last()))
    assert terminal.getvalue().count("\x1b[H") == 1
