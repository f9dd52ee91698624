"""`watch`: live values for a program, for a pipe and on a terminal; what is missing is said [TPT-063, EVT-008]."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import BIN, PATIENCE_S, Daemon, environment
from tests.cli.shapes import check, has_shape, shapes
from tests.cli.shell import ONE, Shell, shells
from tests.cli.tiny import Endpoint, Request, refusal

MANIFEST: dict[str, Any] = {
    "device_id": ONE,
    "mode": "simulated",
    "resources": [
        {"resource_id": "belt", "state_schema": {"properties": {"speed": {"x-mhs-unit": "mm/s"}}}},
    ],
    "streams": [{"stream": "state", "resource_id": "belt"}, {"stream": "log"}],
}


@pytest.fixture(scope="module")
def chamber(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A device whose values come by themselves, ten times a second."""
    daemon = Daemon("thermal-chamber", cwd=tmp_path_factory.mktemp("chamber"))
    yield daemon
    daemon.stop()


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    monkeypatch.setattr("mhsd.client.sse_source.Backoff.pause_s", lambda *_: 0.01)
    yield from shells(monkeypatch, capsys)


# --- a real daemon ----------------------------------------------------------------------------


def test_a_program_gets_each_event_as_it_came_on_a_line_of_its_own(chamber: Daemon) -> None:
    """[MHSD-8-09] --count ends it with 0."""
    done = chamber.ctl("watch", "chamber", "--stream", "telemetry", "--count", "3", "--json")
    assert (done.code, done.err) == (0, "")
    events = [json.loads(line) for line in done.out.splitlines()]
    for event in events:
        has_shape(event, shapes()["watch"])
        check(event, "event")
    assert [event["seq"] for event in events] == [1, 2, 3]
    assert {event["stream"] for event in events} == {"telemetry"}


def test_a_person_with_a_pipe_gets_lines_with_units_that_begin_with_what_is_now(chamber: Daemon) -> None:
    done = chamber.ctl("watch", "chamber", "--count", "2")
    assert done.code == 0
    first, *rest = done.out.splitlines()
    assert re.match(r"\d\d:\d\d:\d\d\.\d{3}  read       chamber     temperature_cel \S+ °C ", first)
    assert len(rest) == 2


def test_what_happens_is_told_too(own: Daemon) -> None:
    watching = own.start_ctl("watch", "--stream", "events", "--stream", "progress", "--count", "3")
    assert watching.stdout is not None
    # It is subscribed as soon as its own session is there; what it misses of the first operation comes with the next.
    while not select.select([watching.stdout], [], [], 0)[0]:
        own.ctl("write", "belt", "--patch", '{"speed_mm_s": 10}')
    out, _ = watching.communicate(timeout=PATIENCE_S)
    assert watching.returncode == 0
    assert "operation.dispatched" in out or "operation.ended" in out
    assert len(out.splitlines()) == 3


def test_a_time_ends_it_with_0_and_ctrl_c_with_130_and_without_another_document(chamber: Daemon) -> None:
    """What came stays: stdout has events alone."""
    assert chamber.ctl("watch", "--stream", "log", "--for", "0.2", "--json").code == 0
    watching = chamber.start_ctl("watch", "--json")
    assert watching.stdout is not None
    first = watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    out, err = watching.communicate(timeout=PATIENCE_S)
    assert (watching.returncode, err) == (130, "mhsctl: interrupted\n")
    assert all(json.loads(line)["stream"] for line in [first, *out.splitlines()])


def test_a_reader_that_has_seen_enough_ends_it(chamber: Daemon) -> None:
    watching = chamber.start_ctl("watch", "--json")
    assert watching.stdout is not None
    assert watching.stdout.readline()
    watching.stdout.close()
    assert watching.wait(PATIENCE_S) == 0
    assert watching.stderr is not None
    assert watching.stderr.read() == ""
    watching.stderr.close()


def test_on_a_terminal_the_values_are_a_table_that_is_drawn_over_itself(chamber: Daemon) -> None:
    master, slave = pty.openpty()
    try:
        done = subprocess.run(
            [BIN / "mhsctl", "watch", "chamber", "--count", "5"],
            stdin=subprocess.DEVNULL,
            stdout=slave,
            stderr=subprocess.PIPE,
            env=environment(MHS_ENDPOINT=chamber.url, TERM="xterm", COLUMNS="100", LINES="30"),
            timeout=PATIENCE_S,
            check=False,
        )
        shown = os.read(master, 65536).decode()
    finally:
        os.close(master)
        os.close(slave)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "\x1b[6A\r\x1b[J" in shown
    last = shown.split("\x1b[J")[-1].splitlines()
    assert last[0].split() == ["DEVICE", "RESOURCE", "FIELD", "VALUE", "UNIT", "AT"]
    assert last[1].split()[1:3] == ["chamber", "temperature_cel"]
    assert "°C" in last[1]


def test_a_restart_of_the_endpoint_is_told_and_followed_by_a_new_session(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    first = Daemon("thermal-chamber", "--state-dir", "state", cwd=tmp_path, port=port)
    watching = first.start_ctl("watch", "--json")
    assert watching.stdout is not None
    assert json.loads(watching.stdout.readline())["seq"] == 1
    first.stop()
    second = Daemon("thermal-chamber", "--state-dir", "state", cwd=tmp_path, port=port)
    try:
        found = next(event for event in map(json.loads, watching.stdout) if event["stream"] == "control")
        after = json.loads(watching.stdout.readline())
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=PATIENCE_S)
    finally:
        second.stop()
    assert found["payload"] == {"client": True, "reason": "new_subscription"}
    assert found["dropped"] is None
    assert after["subscription_id"] == found["subscription_id"]
    assert "connecting again" in err
    assert "a new one is opened" in err


# --- an endpoint that answers as the test says ------------------------------------------------


def event(seq: int, subscription_id: str = "sub_1", **more: Any) -> bytes:
    about = {
        "subscription_id": subscription_id,
        "seq": seq,
        "ts": "2026-10-20T07:46:59.221Z",
        "payload": {},
        **more,
    }
    message = {"jsonrpc": "2.0", "method": "mhs.event", "params": {"device_id": ONE, **about}}
    return f"id: {subscription_id}:{seq}\nevent: mhs.event\ndata: {json.dumps(message)}\n\n".encode()


def state(seq: int, speed: int, subscription_id: str = "sub_1") -> bytes:
    return event(
        seq, subscription_id, stream="state", resource_id="belt", revision=seq, payload={"speed": speed}
    )


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


class Site:
    """An endpoint whose event streams are prepared; it keeps the Last-Event-ID of each."""

    def __init__(self, shell: Shell, *streams: bytes) -> None:
        self.resumed: list[str | None] = []
        self._streams = deque(streams)
        self._opened = 0
        self.quiet = threading.Event()
        self._rest = Endpoint(
            devices_list=lambda _: {"devices": [MANIFEST]},
            session_open=self._open,
            session_close=lambda _: {"closed_at": "now", "summary": {}},
            session_heartbeat=lambda _: {"expires_at": "2026-10-20T07:55:00.000Z"},
            resource_read=lambda _: {"state": {"speed": 7}, "sampled_at": "2026-10-20T07:46:59.000Z"},
            subscribe=lambda _: {"subscription_id": f"sub_{self._opened}", "seq_start": 1, "streams": []},
        )
        self.tiny = shell.serve(self._answer)

    def _open(self, _: Request) -> dict[str, Any]:
        self._opened += 1
        return {"session_id": f"mhs_s_{self._opened}", "granted": [], "mode": "simulated"}

    def _answer(self, request: Request) -> bytes | Iterator[bytes] | None:
        if not request.head.startswith("GET"):
            return self._rest(request)
        self.resumed.append(request.header("Last-Event-ID"))
        content = self._streams.popleft() if self._streams else None
        return content if content is not None and content.startswith(b"HTTP/1.1 4") else self._stream(content)

    def _stream(self, content: bytes | None) -> Iterator[bytes]:
        yield HEAD + (content or b": keepalive\n\n")
        if not self._streams:
            self.quiet.wait(PATIENCE_S)
        # Another one is prepared: the peer sees this one break.
        raise ConnectionAbortedError


def test_a_gap_is_shown_where_it_is_and_the_values_are_read_again(shell: Shell) -> None:
    gap = event(9, stream="control", type="gap", **{"from": 2, "to": 9, "dropped": 8})
    site = Site(shell, state(1, 1) + gap + state(10, 2))
    done = shell("watch", "belt", "--count", "3")
    assert done.code == 0
    kinds = [line.split()[1] for line in done.out.splitlines()]
    assert kinds[:5] == ["read", "state", "control", "read", "state"]
    assert "GAP: 8 events did not arrive" in done.out
    assert site.tiny.methods().count("mhs.resource.read") == 2


def test_numbers_that_are_missing_are_a_gap_although_the_endpoint_is_silent_about_them(shell: Shell) -> None:
    Site(shell, state(1, 1) + state(4, 2))
    done = shell("watch", "belt", "--count", "3", "--json")
    events = [json.loads(line) for line in done.out.splitlines()]
    assert [each["seq"] for each in events] == [1, 3, 4]
    assert events[1]["payload"] == {"client": True}
    assert (events[1]["from"], events[1]["to"]) == (2, 3)


def test_a_broken_connection_is_told_and_taken_up_where_it_broke(shell: Shell) -> None:
    site = Site(shell, state(1, 1), state(2, 2))
    done = shell("watch", "belt", "--count", "2", "--json")
    assert done.code == 0
    assert [json.loads(line)["seq"] for line in done.out.splitlines()] == [1, 2]
    assert site.resumed[:2] == [None, "sub_1:1"]
    assert "connecting again" in done.err


def test_after_a_broken_connection_the_values_are_read_again(shell: Shell) -> None:
    """What happened meanwhile may not have been an event of this subscription [EVT-007]."""
    site = Site(shell, state(1, 1), state(2, 2) + state(3, 3))
    done = shell("watch", "belt", "--count", "3")
    assert done.code == 0
    assert "connecting again" in done.out
    assert site.tiny.methods().count("mhs.resource.read") == 2


def test_a_session_that_ended_is_followed_by_a_new_one_and_by_the_word_that_something_may_be_missing(
    shell: Shell,
) -> None:
    gone = refusal(None, "MHS.SESSION.EXPIRED", 403)
    site = Site(shell, state(1, 1), gone, state(1, 5, "sub_2"))
    done = shell("watch", "belt", "--count", "2", "--json")
    assert done.code == 0
    first, lost, second = [json.loads(line) for line in done.out.splitlines()]
    assert (first["subscription_id"], second["subscription_id"]) == ("sub_1", "sub_2")
    assert (lost["type"], lost["from"], lost["payload"]["reason"]) == ("gap", None, "new_subscription")
    assert "MHS.SESSION.EXPIRED" in done.err
    assert site.tiny.methods()[-1] == "mhs.session.close"


def test_a_session_that_never_holds_is_an_error_and_no_loop(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mhsd.cli.cmd_watch._SHORTEST_SESSION_S", 3600.0)
    Site(shell, refusal(None, "MHS.SESSION.EXPIRED", 403))
    done = shell("watch", "belt", "--json")
    assert done.code == 1
    assert json.loads(done.out)["error"]["mhs_code"] == "MHS.SESSION.EXPIRED"


def test_what_may_not_be_watched_exits_4(shell: Shell) -> None:
    Site(shell, refusal(None, "MHS.AUTH.FORBIDDEN", 403))
    assert shell("watch", "belt").code == 4


@pytest.mark.parametrize(
    ("words", "streams"),
    [
        ((), [("state", "belt")]),
        (("belt",), [("state", "belt")]),
        (("belt", "lamp"), [("state", "belt"), ("state", "lamp")]),
        (("--stream", "log"), [("log", None)]),
        (("--stream", "state", "--stream", "log"), [("state", "belt"), ("log", None)]),
        (("--stream", "telemetry"), [("telemetry", None)]),
        (("belt", "--stream", "progress", "--stream", "events"), [("progress", "belt"), ("events", "belt")]),
    ],
)
def test_what_is_asked_for_is_what_is_subscribed_to(
    shell: Shell, words: tuple[str, ...], streams: list[tuple[str, str | None]]
) -> None:
    """What the device does not have is asked for too, so that the endpoint says so."""
    site = Site(shell, state(1, 1))
    assert shell("watch", *words, "--rate", "5", "--count", "1").code == 0
    request = next(each for each in site.tiny.requests if b"mhs.subscribe" in each.body)
    asked = [(each["stream"], each.get("resource_id")) for each in request.params["streams"]]
    assert (asked, request.params["rate_hz"]) == (streams, 5.0)
    opened = next(each for each in site.tiny.requests if b"mhs.session.open" in each.body)
    assert opened.params["capabilities"] == []


@pytest.mark.parametrize(
    "words", [("--rate", "0"), ("--rate", "inf"), ("--count", "0"), ("--for", "-1"), ("--stream", "video")]
)
def test_what_cannot_be_is_a_usage_error(shell: Shell, words: tuple[str, ...]) -> None:
    assert shell("watch", *words).code == 2
