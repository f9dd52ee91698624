"""`ops` and `session list`: what runs for this caller, followed and stopped; which sessions were left open."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Daemon, ctl
from tests.cli.shapes import check, has_shape, shapes
from tests.cli.shell import Shell, receipt, shells
from tests.cli.tiny import refusal

CONVEY = ("call", "-c", "cap.motion.convey.v1", "-i", '{"distance_mm": 5000, "speed_mm_s": 50}')
SHORT = ("call", "-c", "cap.motion.convey.v1", "-i", '{"distance_mm": 30, "speed_mm_s": 100}')
AT_ONCE = ("--no-wait", "--deadline-ms", "100", "--json")


@pytest.fixture
def shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Shell]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    yield from shells(monkeypatch, capsys)


def test_what_runs_is_listed_shown_and_cancelled_to_the_safe_state(own: Daemon) -> None:
    """From another command than the one that started it [MHSD-8-11]."""
    assert own.ctl("ops", "--json").json == {"operations": []}
    assert own.ctl("ops").out == "nothing runs\n"
    started = own.ctl(*CONVEY, *AT_ONCE).json
    operation = started["operation_id"]
    listed = own.ctl("ops", "--json")
    has_shape(listed.json, shapes()["ops"])
    check(listed.json, "operation-list")
    assert [each["operation_id"] for each in listed.json["operations"]] == [operation]
    assert re.search(rf"^{operation} +running +cap\.motion\.convey\.v1 ", own.ctl("ops").out, re.MULTILINE)

    standing = own.ctl("ops", operation, "--json")
    assert (standing.code, standing.json["status"]) == (0, "running")
    stopped = own.ctl("ops", operation, "--cancel", "--json")
    assert (stopped.code, stopped.json["status"]) == (1, "cancelled")
    assert stopped.json["cancellation"]["safe_state_achieved"] is True
    assert stopped.json["receipt_id"] == started["receipt_id"]
    assert own.ctl("read", "belt", "--json").json["state"]["running"] is False
    assert own.ctl("ops", "--json").json == {"operations": []}
    ended = own.ctl("ops", "--session", started["session_id"], "--json").json["operations"]
    assert [each["state"] for each in ended] == ["cancelled"]


def test_an_operation_is_followed_to_its_receipt(own: Daemon) -> None:
    operation = own.ctl(*SHORT, *AT_ONCE).json["operation_id"]
    done = own.ctl("ops", operation, "--wait", "--json")
    assert (done.code, done.json["status"], done.json["operation_id"]) == (0, "completed", operation)


def test_ctrl_c_stops_following_and_leaves_the_operation_running(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only --cancel cancels: who looks on did not start it."""

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mhsd.client.session.time.sleep", interrupted)
    tiny = shell.endpoint(operations_get=lambda _: receipt("running", operation_id="op_1"))
    done = shell("ops", "op_1", "--wait", "--json")
    assert done.code == 130
    assert done.json["error"]["data"]["details"] == {"reason": "interrupted"}
    assert "mhsctl ops op_1 --wait" in done.err
    assert "mhs.operations.cancel" not in tiny.methods()
    assert tiny.methods()[-1] == "mhs.session.close"


def test_what_does_not_go_together_is_a_usage_error(shell: Shell) -> None:
    tiny = shell.endpoint()
    assert shell("ops", "--wait").code == 2
    assert shell("ops", "--cancel").code == 2
    assert shell("ops", "op_1", "--wait", "--cancel").code == 2
    assert tiny.requests == []


def test_an_unknown_operation_is_1_and_its_session_is_closed(shell: Shell) -> None:
    tiny = shell.endpoint(operations_get=lambda request: refusal(request, "MHS.OPERATION.UNKNOWN"))
    assert shell("ops", "op_1").code == 1
    assert tiny.methods()[-1] == "mhs.session.close"


# --- sessions ---------------------------------------------------------------------------------


def test_sessions_that_were_left_open_are_listed_until_they_are_over(own: Daemon, tmp_path: Path) -> None:
    """No endpoint lists sessions: they are noted where they are opened, and asked for."""
    state = {"XDG_STATE_HOME": str(tmp_path / "user")}
    assert own.ctl("session", "list", **state).out == "no session is open\n"
    first = own.ctl("session", "open", "--json", **state).json["session_id"]
    second = own.ctl(*CONVEY, *AT_ONCE, **state).json["session_id"]
    listed = own.ctl("session", "list", "--json", **state)
    has_shape(listed.json, shapes()["session list"])
    assert [each["session_id"] for each in listed.json["sessions"]] == [first, second]
    assert listed.json["sessions"][1]["operations"] == 1
    assert first in own.ctl("session", "list", **state).out

    assert own.ctl("session", "close", second, **state).code == 0
    own.ctl("session", "close", first, XDG_STATE_HOME=str(tmp_path / "another"))
    assert own.ctl("session", "list", "--json", **state).json == {"sessions": []}
    record = tmp_path / "user" / "mhsd" / "sessions.json"
    assert json.loads(record.read_text()) == {"sessions": []}
    assert record.stat().st_mode & 0o077 == 0


def test_listing_sessions_keeps_none_of_them_alive(shell: Shell) -> None:
    tiny = shell.endpoint(operations_list=lambda _: {"operations": []})
    shell("session", "open")
    assert len(shell("session", "list", "--json").json["sessions"]) == 1
    assert "mhs.session.heartbeat" not in tiny.methods()


def test_sessions_of_another_endpoint_are_not_asked_for_here(shell: Shell) -> None:
    first = shell.endpoint()
    shell("session", "open")
    url = first.url
    shell.endpoint()
    done = shell("session", "list")
    assert done.out == "no session is open\n"
    assert url in done.err
    first.close()


@pytest.mark.parametrize("content", ["", "[]", '{"sessions": [7]}', '{"sessions": 1}'])
def test_a_record_that_is_no_record_is_none(shell: Shell, tmp_path: Path, content: str) -> None:
    shell.endpoint()
    (tmp_path / "mhsd").mkdir()
    (tmp_path / "mhsd" / "sessions.json").write_text(content)
    assert shell("session", "list", "--json").json == {"sessions": []}
    assert shell("session", "open").code == 0


def test_a_home_that_cannot_be_written_to_harms_nothing(own: Daemon) -> None:
    assert own.ctl("session", "open", XDG_STATE_HOME="/dev/null/nowhere").code == 0
    assert ctl("session", "list", MHS_ENDPOINT=own.url, XDG_STATE_HOME="/dev/null/nowhere").code == 0
