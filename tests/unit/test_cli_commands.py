"""Commands against an endpoint that answers as the test says: exit codes, `--json`, sessions left open or closed."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mhsd.base.resources import drivers_dir
from mhsd.cli.cmd_session import _beat
from mhsd.cli.mutation import _Job
from mhsd.client.backoff import Backoff
from mhsd.client.errors import MHSError, error
from mhsd.wire.canonical import digest
from tests.cli.shell import MANIFEST, ONE, TWO, Shell, receipt, shells
from tests.cli.tiny import HELLO, Endpoint, Request, Tiny, http, refusal


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    yield from shells(monkeypatch, capsys)


CLIENT_COMMANDS = [
    ("hello",),
    ("devices",),
    ("describe",),
    ("inspect",),
    ("read", "belt"),
    ("write", "belt", "--patch", "{}"),
    ("call", "-c", "cap.x.v1"),
    ("session", "open"),
    ("session", "close", "mhs_s_1"),
    ("session", "keep", "mhs_s_1"),
    ("estop",),
    ("status",),
    ("permit", "-c", "cap.x.v1", "--session", "mhs_s_1"),
    ("evidence",),
]


@pytest.mark.parametrize("words", CLIENT_COMMANDS, ids=" ".join)
def test_every_command_takes_the_connection_options_and_exits_3_when_nothing_listens(
    shell: Shell, words: tuple[str, ...], tmp_path: Path
) -> None:
    tiny = Tiny(Endpoint())
    tiny.close()
    token = tmp_path / "token"
    token.write_text("s3cret")
    token.chmod(0o600)
    done = shell(*words, "-e", tiny.url, "--token-file", str(token), "--timeout", "2", "--json")
    assert done.code == 3
    assert set(done.json) == {"error"}
    assert set(done.json["error"]) == {"mhs_code", "message", "retryable", "data", "remediation"}
    assert done.json["error"]["mhs_code"] == "MHS.TRANSPORT.UNAVAILABLE"
    assert done.json["error"]["retryable"] is True
    assert done.err == ""


@pytest.mark.parametrize("words", CLIENT_COMMANDS, ids=" ".join)
def test_every_command_exits_4_where_the_token_is_refused(shell: Shell, words: tuple[str, ...]) -> None:
    shell.serve(lambda _: refusal(None, "MHS.AUTH.UNAUTHENTICATED", 401))
    done = shell(*words)
    assert done.code == 4
    assert done.out == ""
    assert "MHS.AUTH.UNAUTHENTICATED (HTTP 401)" in done.err


@pytest.mark.parametrize("words", CLIENT_COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    "wrong",
    [
        ("--timeout", "soon"),
        ("--timeout", "0"),
        ("--timeout", "nan"),
        ("--timeout", "inf"),
        ("--frobnicate",),
        ("-e", "ftp://bench"),
        ("-e", "stdio:"),
        ("--token-file", "/nonexistent"),
    ],
    ids=" ".join,
)
def test_every_command_exits_2_for_a_wrong_command_line_and_sends_nothing(
    shell: Shell, words: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    tiny = shell.endpoint()
    done = shell(*words, *wrong, "--json")
    assert done.code == 2
    assert done.json["error"]["data"]["details"] == {"reason": "usage"}
    assert tiny.requests == []


@pytest.mark.parametrize(
    "words",
    [
        ("frobnicate",),
        ("read",),
        ("call",),
        ("call", "-c", "cap.x.v1", "-i", "[1]"),
        ("call", "-c", "cap.x.v1", "-i", "{'a': 1}"),
        ("call", "-c", "cap.x.v1", "-i", "@/nonexistent"),
        ("call", "-c", "cap.x.v1", "--command-id", "not-a-ulid"),
        ("call", "-c", "cap.x.v1", "--expect-revision", "x"),
        ("call", "-c", "cap.x.v1", "--no-wait", "-e", "stdio:true"),
        ("write", "belt"),
        ("write", "belt", "--patch", "3"),
        ("session", "open", "-e", "stdio:mhsd --stdio"),
        ("evidence", "--file", "/nonexistent"),
        ("validate", "/nonexistent"),
        ("permit", "-c", "cap.x.v1"),
    ],
    ids=" ".join,
)
def test_usage_errors_exit_2_with_a_line_for_a_person(shell: Shell, words: tuple[str, ...]) -> None:
    tiny = shell.endpoint()
    done = shell(*words)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("mhsctl: ")
    assert "--help" in done.err
    assert "Traceback" not in done.err
    assert "mhs.command" not in tiny.methods()


def test_a_call_is_a_session_one_command_and_a_close(shell: Shell) -> None:
    tiny = shell.endpoint(command=lambda _: receipt("completed", output={"n": 1}))
    done = shell(
        "call", "-c", "cap.x.v1", "-i", '{"a": 1}', "--json", "--expect-revision", "7", "--permit", "P"
    )
    assert done.code == 0
    assert done.json == receipt("completed", output={"n": 1})
    assert tiny.methods() == [
        "mhs.hello",
        "mhs.devices.list",
        "mhs.session.open",
        "mhs.command",
        "mhs.session.close",
    ]
    opened, sent = tiny.requests[2].params, tiny.requests[3].params
    assert (opened["capabilities"], opened["device_ids"], opened["mode"]) == (
        ["cap.x.v1"],
        [ONE],
        "simulated",
    )
    assert sent["input"] == {"a": 1}
    assert (sent["expected_revision"], sent["permit_id"]) == (7, "P")
    assert "resource" not in sent
    assert len(sent["command_id"]) == 26


def test_a_capability_that_nothing_binds_is_left_to_the_endpoint_to_refuse(shell: Shell) -> None:
    tiny = shell.endpoint(command=lambda _: receipt("rejected", error={"mhs_code": "MHS.CAPABILITY.UNKNOWN"}))
    done = shell("call", "-c", "cap.nothing.v1", "--json")
    assert done.code == 1
    assert done.json["status"] == "rejected"
    assert tiny.requests[2].params["capabilities"] == []


def test_a_write_sends_its_patch_in_a_session_for_the_configure_class(shell: Shell) -> None:
    tiny = shell.endpoint(resource_write=lambda _: receipt("completed"))
    assert shell("write", "belt", "--patch", '{"speed": 3}').code == 0
    assert tiny.requests[2].params["capabilities"] == ["cap.device.configure.v1"]
    sent = tiny.requests[3].params
    assert (sent["resource_id"], sent["patch"]) == ("belt", {"speed": 3})


@pytest.mark.parametrize(
    ("status", "mhs_code", "code"),
    [
        ("rejected", "MHS.SAFETY.INTERLOCK_OPEN", 1),
        ("failed", "MHS.DEVICE.FAULT", 1),
        ("cancelled", None, 1),
        ("unknown", "MHS.OUTCOME.UNKNOWN", 1),
        ("rejected", "MHS.AUTH.HARDWARE_DISABLED", 4),
    ],
)
def test_a_final_receipt_closes_the_session_whatever_it_says(
    shell: Shell, status: str, mhs_code: str | None, code: int
) -> None:
    error = {"error": {"mhs_code": mhs_code, "message": "so it is"}} if mhs_code else {}
    tiny = shell.endpoint(command=lambda _: receipt(status, **error))
    done = shell("call", "-c", "cap.x.v1")
    assert done.code == code
    assert done.out.startswith(status.upper())
    assert tiny.methods()[-1] == "mhs.session.close"


@pytest.mark.parametrize(
    ("words", "outcome", "told"),
    [
        ((), "completed", True),
        ((), "rejected", False),
        (("--json",), "completed", False),
        (("--session", "mhs_s_1"), "completed", False),
    ],
)
def test_a_person_is_told_that_the_device_does_not_stay_as_the_command_left_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], outcome: str, told: bool
) -> None:
    """[SESS-006] The end of a command's own session brings the device to its safe state."""
    safe = {"safety": {"safe_state": {"description": "Output off.", "achieved_by": ["driver.stop"]}}}
    effects = [{"kind": "x.set"}] if outcome == "completed" else []
    shell.endpoint(
        devices_list=lambda _: {"devices": [{**MANIFEST, **safe}]},
        command=lambda _: receipt(outcome, effects=effects),
    )
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    done = shell("call", "-c", "cap.x.v1", *words)
    assert ("safe state (Output off.)" in done.err) is told


def test_a_session_that_was_given_is_used_and_left_open(shell: Shell) -> None:
    tiny = shell.endpoint(command=lambda _: receipt("completed"))
    assert shell("call", "-c", "cap.x.v1", "--session", "mhs_s_9").code == 0
    assert "mhs.session.open" not in tiny.methods()
    assert "mhs.session.close" not in tiny.methods()
    assert [r.params["session_id"] for r in tiny.requests if r.method == "mhs.command"] == ["mhs_s_9"]


def test_a_long_operation_is_followed_to_its_end(shell: Shell) -> None:
    answers = iter([receipt("running", operation_id="op_1"), receipt("completed", operation_id="op_1")])
    tiny = shell.endpoint(
        command=lambda _: receipt("running", operation_id="op_1"), operations_get=lambda _: next(answers)
    )
    done = shell("call", "-c", "cap.x.v1", "--json")
    assert (done.code, done.json["status"], done.err) == (0, "completed", "")
    assert tiny.methods()[-1] == "mhs.session.close"


def test_no_wait_leaves_the_session_open_and_says_how_to_follow(shell: Shell) -> None:
    running = receipt("running", operation_id="op_1")
    tiny = shell.endpoint(command=lambda _: running, operations_get=lambda _: running)
    done = shell("call", "-c", "cap.x.v1", "-i", '{"a": 1}', "--no-wait", "--json")
    assert (done.code, done.json) == (0, running)
    assert "mhs.session.close" not in tiny.methods()
    command_id = next(r.params["command_id"] for r in tiny.requests if r.method == "mhs.command")
    assert "operation  op_1" in done.err
    assert (
        f"mhsctl call -c cap.x.v1 -i '{{\"a\":1}}' --session mhs_s_1 --command-id {command_id}\n" in done.err
    )
    assert "mhsctl session close mhs_s_1" in done.err


def test_no_wait_takes_the_receipt_of_what_runs_before_its_answer_comes(shell: Shell) -> None:
    """[MHSD-9a-76] An endpoint answers what takes long at its end, or at a deadline that may be far away."""
    over = threading.Event()
    running = receipt("running", operation_id="op_1")
    known: list[Any] = []

    def look(request: Request) -> Any:
        if known:
            return running
        known.append(request)
        return refusal(request, "MHS.OPERATION.UNKNOWN")

    def command(_: Request) -> Any:
        over.wait(10)
        return receipt("completed")

    shell.endpoint(command=command, operations_get=look)
    done = shell("call", "-c", "cap.x.v1", "--no-wait", "--json")
    over.set()
    assert (done.code, done.json) == (0, running)
    assert "operation  op_1" in done.err


def test_no_word_of_the_endpoint_takes_over_the_terminal_that_it_is_told_on(shell: Shell) -> None:
    """Neither in the commands that follow what runs, nor as the name of a number."""
    evil = "\x1b[2J\x9b"
    running = receipt("running", operation_id=evil)
    shell.endpoint(
        session_open=lambda _: {"session_id": f"mhs_s_{evil}", "granted": [], "mode": "simulated"},
        session_close=lambda _: {"closed_at": evil, "summary": {evil: evil}},
        command=lambda _: running,
        operations_get=lambda _: running,
    )
    for words in (("call", "-c", "cap.x.v1", "--no-wait"), ("session", "close", "mhs_s_1")):
        done = shell(*words)
        assert done.code == 0
        assert all(line.isprintable() for line in (done.out + done.err).splitlines())


def test_an_interim_unknown_leaves_the_session_open(shell: Shell) -> None:
    interim = receipt("unknown", operation_id="op_1", error={"mhs_code": "MHS.OUTCOME.TIMEOUT"})
    tiny = shell.endpoint(
        command=lambda _: interim, operations_get=lambda _: receipt("running", operation_id="op_1")
    )
    done = shell("call", "-c", "cap.x.v1", "--deadline-ms", "50")
    assert done.code == 1
    assert "op_1" in done.err
    assert "mhs.session.close" not in tiny.methods()
    assert [r.params["deadline_ms"] for r in tiny.requests if r.method == "mhs.command"] == [50]


def test_a_lost_answer_that_nobody_can_explain_exits_3_and_leaves_the_session_open(shell: Shell) -> None:
    tiny = shell.endpoint(
        command=lambda _: None, operations_get=lambda r: refusal(r, "MHS.OPERATION.UNKNOWN")
    )
    done = shell("call", "-c", "cap.x.v1", "--json")
    assert done.code == 3
    assert done.json["error"]["mhs_code"] == "MHS.OUTCOME.UNKNOWN"
    assert done.json["error"]["retryable"] is False
    assert tiny.methods().count("mhs.command") == 1
    assert "mhs.session.close" not in tiny.methods()
    assert "mhs_s_1" in done.err


def test_a_lost_answer_that_the_endpoint_can_explain_is_the_receipt(shell: Shell) -> None:
    tiny = shell.endpoint(command=lambda _: None, operations_get=lambda _: receipt("completed"))
    done = shell("call", "-c", "cap.x.v1", "--json")
    assert (done.code, done.json) == (0, receipt("completed"))
    assert tiny.methods().count("mhs.command") == 1


def test_an_error_of_the_command_closes_the_session(shell: Shell) -> None:
    tiny = shell.endpoint(command=lambda r: refusal(r, "MHS.PROTOCOL.INVALID_PARAMS"))
    assert shell("call", "-c", "cap.twice.v1").code == 1
    assert tiny.methods()[-1] == "mhs.session.close"


def test_a_session_that_cannot_be_closed_is_a_warning(shell: Shell) -> None:
    shell.endpoint(
        command=lambda _: receipt("completed"), session_close=lambda r: refusal(r, "MHS.SESSION.EXPIRED")
    )
    done = shell("call", "-c", "cap.x.v1")
    assert done.code == 0
    assert "MHS.SESSION.EXPIRED" in done.err


def interrupt(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The person presses Ctrl-C while the command waits for its answer, and again while it is stopped."""
    left = [times]
    real = _Job.done

    def done(job: _Job, timeout_s: float | None) -> bool:
        if left[0]:
            left[0] -= 1
            raise KeyboardInterrupt
        return real(job, timeout_s)

    monkeypatch.setattr(_Job, "done", done)


def test_ctrl_c_cancels_the_operation_and_waits_for_its_receipt(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, 1)
    over = threading.Event()
    cancelled = receipt("cancelled", operation_id="op_1")

    def command(_: Request) -> dict[str, Any]:
        over.wait(10)
        return cancelled

    tiny = shell.endpoint(
        command=command,
        operations_get=lambda _: cancelled if over.is_set() else receipt("running", operation_id="op_1"),
        operations_cancel=lambda _: over.set() or receipt("running", operation_id="op_1"),
    )
    done = shell("call", "-c", "cap.x.v1", "--json")
    assert (done.code, done.json) == (130, cancelled)
    assert [r.params["operation_id"] for r in tiny.requests if r.method == "mhs.operations.cancel"] == [
        "op_1"
    ]
    assert tiny.methods()[-1] == "mhs.session.close"


def test_ctrl_c_on_what_still_waits_for_the_device_closes_the_session(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command in the queue has no operation that could be cancelled; it must not run later either."""
    interrupt(monkeypatch, 1)
    monkeypatch.setattr("mhsd.cli.mutation._QUEUED_PATIENCE_S", 0.0)
    closed = threading.Event()

    def command(_: Request) -> dict[str, Any]:
        closed.wait(10)
        return receipt("rejected", error={"mhs_code": "MHS.SESSION.CLOSED"})

    tiny = shell.endpoint(
        command=command,
        operations_get=lambda r: refusal(r, "MHS.OPERATION.UNKNOWN"),
        session_close=lambda _: closed.set() or {"closed_at": "now", "summary": {}},
    )
    done = shell("call", "-c", "cap.x.v1", "--json")
    assert (done.code, done.json["status"]) == (130, "rejected")
    assert tiny.methods().count("mhs.session.close") == 1


def test_a_second_ctrl_c_leaves_it_to_the_endpoint_and_says_what_may_still_run(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However quick it is: the endpoint has been asked to stop the operation."""
    interrupt(monkeypatch, 2)
    over = threading.Event()
    tiny = shell.endpoint(
        command=lambda _: over.wait(10) and None,
        operations_get=lambda _: receipt("running", operation_id="op_1"),
    )
    done = shell("call", "-c", "cap.x.v1")
    over.set()
    assert done.code == 130
    assert "op_1" in done.err
    assert [r.params["operation_id"] for r in tiny.requests if r.method == "mhs.operations.cancel"] == [
        "op_1"
    ]
    assert "mhs.session.close" not in tiny.methods()


@pytest.mark.parametrize(("words", "closes"), [((), 1), (("--session", "mhs_s_1"), 0)])
def test_a_first_ctrl_c_before_the_wait_ends_the_own_session(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], closes: int
) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mhsd.cli.mutation.Progress", interrupted)
    tiny = shell.endpoint(
        command=lambda _: receipt("running", operation_id="op_1"),
        operations_get=lambda _: receipt("running", operation_id="op_1"),
    )
    assert shell("call", "-c", "cap.x.v1", *words).code == 130
    assert tiny.methods().count("mhs.session.close") == closes


def test_an_endpoint_that_is_lost_while_it_is_stopped_still_exits_130(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, 1)
    shell.endpoint(command=lambda _: None, operations_get=lambda _: None)
    done = shell("call", "-c", "cap.x.v1", "--json")
    assert (done.code, done.json["error"]["mhs_code"]) == (130, "MHS.OUTCOME.UNKNOWN")


def test_a_reading_is_shown_with_units_and_is_bare_in_json(shell: Shell) -> None:
    reading = {"revision": 3, "state": {"speed": 5}, "state_hash": "sha256:0", "sampled_at": "now"}
    tiny = shell.endpoint(resource_read=lambda _: reading)
    assert "speed       5 mm/s" in shell("read", "belt").out
    done = shell("read", "belt", "--field", "speed", "--json")
    assert (done.code, done.json) == (0, reading)
    sent = next(r.params for r in reversed(tiny.requests) if r.method == "mhs.resource.read")
    assert sent["fields"] == ["speed"]
    assert next(r.params["capabilities"] for r in tiny.requests if r.method == "mhs.session.open") == []


def stop(device: str, status: str, mhs_code: str | None = None) -> dict[str, Any]:
    return {"device_id": device, "status": status} | ({"error": {"mhs_code": mhs_code}} if mhs_code else {})


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (stop(ONE, "completed"), stop(TWO, "completed"), 0),
        (stop(ONE, "completed"), stop(TWO, "failed", "MHS.SAFETY.SAFE_STATE_UNREACHED"), 1),
        (stop(ONE, "rejected", "MHS.AUTH.FORBIDDEN"), stop(TWO, "rejected", "MHS.AUTH.FORBIDDEN"), 4),
        (stop(ONE, "rejected", "MHS.AUTH.FORBIDDEN"), stop(TWO, "failed", "MHS.SAFETY.X"), 1),
    ],
)
def test_a_stop_of_several_devices_exits_0_only_when_all_confirmed(
    shell: Shell, first: dict[str, Any], second: dict[str, Any], code: int
) -> None:
    chosen = next((each for each in (first, second) if each["status"] != "completed"), first)
    answer = {**chosen, "x-vendor": {"estop": {"devices": [first, second]}}}
    tiny = shell.endpoint(safety_estop=lambda _: answer)
    done = shell("estop", "smoke", "in", "the", "hood", "--json")
    assert (done.code, done.json) == (code, answer)
    assert tiny.methods() == ["mhs.safety.estop"]
    assert tiny.requests[0].params == {"reason": "smoke in the hood"}


def test_a_stop_of_one_device_by_its_id_asks_nothing_first(shell: Shell) -> None:
    tiny = shell.endpoint(safety_estop=lambda _: stop(TWO, "completed"))
    assert shell("estop", "--device", TWO).code == 0
    assert [(r.method, r.params) for r in tiny.requests] == [
        ("mhs.safety.estop", {"reason": "operator's stop", "device_id": TWO})
    ]


def test_a_stop_of_one_device_by_its_name_looks_it_up(shell: Shell) -> None:
    tiny = shell.endpoint(safety_estop=lambda _: stop(ONE, "completed"))
    assert shell("estop", "--device", "one").code == 0
    assert tiny.requests[-1].params["device_id"] == ONE


@pytest.mark.parametrize(
    ("answer", "code", "more"),
    [
        (None, 3, ""),
        (refusal(None, "MHS.AUTH.UNAUTHENTICATED", 401), 4, "Do something else."),
        (refusal(None, "MHS.DEVICE.UNKNOWN"), 1, "Do something else."),
    ],
)
def test_a_stop_that_was_not_carried_out_tells_to_use_the_instruments_own(
    shell: Shell, answer: bytes | None, code: int, more: str
) -> None:
    tiny = shell.serve(lambda _: answer)
    done = shell("estop", "--json")
    problem = done.json["error"]
    assert done.code == code
    assert "own emergency stop" in problem["remediation"]
    assert problem["remediation"] == problem["data"]["remediation"]
    assert problem["remediation"].endswith(more)
    assert tiny.methods() == ["mhs.safety.estop"]


def test_status_shows_the_devices_that_answer_beside_the_one_that_does_not(shell: Shell) -> None:
    two = {**HELLO["devices"][0], "device_id": TWO}  # type: ignore[index]
    ok = {"risk_class": "R1", "estop": {"engaged": False}, "interlocks": [], "permits": []}

    def status(request: Request) -> Any:
        return ok if request.params["device_id"] == ONE else refusal(request, "MHS.OUTCOME.TIMEOUT")

    shell.endpoint(
        hello=lambda _: {**HELLO, "devices": [HELLO["devices"][0], two]},  # type: ignore[index]
        safety_status=status,
    )
    done = shell("status", "--json")
    assert done.code == 3
    assert done.json["endpoint_id"] == "mhs://localhost:7400"
    first, second = done.json["devices"]
    assert first == {"device_id": ONE, "display_name": "One", "mode": "simulated", **ok}
    assert second["error"]["mhs_code"] == "MHS.OUTCOME.TIMEOUT"


def test_the_old_spelling_of_status_still_works(shell: Shell) -> None:
    ok = {"risk_class": "R1", "estop": {"engaged": True}, "interlocks": []}
    shell.endpoint(safety_status=lambda _: ok)
    done = shell("safety", "status")
    assert done.code == 0
    assert "ENGAGED" in done.out
    assert "old spelling" in done.err


def test_an_error_for_a_person_has_its_details_and_none_takes_over_the_terminal(shell: Shell) -> None:
    details = {"declared": ["state"], "\x1b[2J": "\x9b"}
    shell.endpoint(resource_read=lambda r: refusal(r, "MHS.PROTOCOL.INVALID_PARAMS", details=details))
    done = shell("read", "belt")
    assert done.code == 1
    assert '  declared: ["state"]\n' in done.err
    assert all(line.isprintable() for line in done.err.splitlines())


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("token", "list", "--file", "/nonexistent"), "token list"),
        (("session", "open", "-e", "ftp://bench"), "session open"),
        (("session", "frobnicate"), "session"),
        (("registry", "--file", "/nonexistent"), "registry list"),
        (("read", "belt", "-e", "ftp://bench"), "read"),
    ],
)
def test_a_wrong_command_line_is_told_where_the_help_of_its_command_is(
    shell: Shell, words: tuple[str, ...], hint: str
) -> None:
    done = shell(*words)
    assert (done.code, done.err.splitlines()[-1]) == (2, f"See `mhsctl {hint} --help`.")


@pytest.mark.parametrize(
    ("typed", "code"), [("One", 0), ("one", 0), ("/lab/one", 0), (ONE, 0), ("", 4), ("yes", 4), ("two", 4)]
)
def test_a_reset_takes_any_name_of_the_device_and_nothing_else(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, typed: str, code: int
) -> None:
    """[CORE-083]"""
    stdin = io.StringIO(f"{typed}\n")
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", stdin)
    tiny = shell.endpoint(
        safety_status=lambda _: {"estop": {"engaged": True}}, safety_reset=lambda _: receipt("completed")
    )
    done = shell("reset", "--json")
    assert (done.code, "mhs.safety.reset" in tiny.methods()) == (code, code == 0)


def test_a_reset_without_a_terminal_sends_nothing_and_exits_4(shell: Shell) -> None:
    tiny = shell.endpoint()
    done = shell("reset", "--json")
    assert done.code == 4
    assert done.json["error"]["mhs_code"] == "MHS.AUTH.FORBIDDEN"
    assert tiny.requests == []


def test_a_permit_binds_the_digest_of_the_input_with_its_resource(shell: Shell) -> None:
    tiny = shell.endpoint(safety_permit=lambda _: {"permit_id": "permit_1", "expires_at": "soon"})
    done = shell("permit", "-c", "cap.x.v1", "-i", '{"b": 1.0, "a": "ü"}', "--session", "mhs_s_9", "--json")
    assert (done.code, done.json["permit_id"]) == (0, "permit_1")
    sent = tiny.requests[-1].params
    assert sent["input_digest"] == digest(
        {"capability_id": "cap.x.v1", "resource": "belt", "input": {"a": "ü", "b": 1}}
    )
    assert (sent["session_id"], sent["resource"], sent["device_id"]) == ("mhs_s_9", "belt", ONE)
    assert (sent["ttl_s"], sent["approvals"]) == (300, [])


def test_a_permit_for_one_of_several_resources_must_name_it(shell: Shell) -> None:
    tiny = shell.endpoint(safety_permit=lambda _: {"permit_id": "permit_1"})
    assert shell("permit", "-c", "cap.twice.v1", "--session", "mhs_s_9").code == 2
    assert shell("permit", "-c", "cap.twice.v1", "--resource", "b", "--session", "mhs_s_9").code == 0
    assert tiny.requests[-1].params["resource"] == "b"


@pytest.mark.parametrize("content", [b"", b'{"receipts": [', b"[]", b'{"a": "\xff"}', b'{"receipts": 3}'])
def test_what_is_no_document_of_its_kind_is_not_valid(shell: Shell, tmp_path: Path, content: bytes) -> None:
    """[TPT-052] A cut or damaged file is an invalid document, not a wrong command line; a missing one is the latter."""
    file = tmp_path / "bundle.json"
    file.write_bytes(content)
    report = shell("evidence", "--file", str(file), "--json")
    assert (report.code, report.json["valid"]) == (1, False)
    assert report.json["errors"][0]["mhs_code"] == "MHS.EVIDENCE.RECEIPT_INVALID"
    whole = tmp_path / "whole.json"
    whole.write_text('{"receipts": []}')
    report = shell("evidence", "--file", str(whole), "--ledger", str(file), "--json")
    assert (report.code, report.json["ledger"]["valid"]) == (1, False)
    assert report.json["ledger"]["errors"]
    assert shell("validate", str(file), "--schema", "evidence-bundle", "--json").json["valid"] is False
    assert shell("evidence", "--file", f"{file}.missing").code == 2


def test_evidence_is_paged_into_one_bundle(shell: Shell, tmp_path: Path) -> None:
    pages = {
        None: {
            "bundle_version": "1.0.0",
            "created_at": "t1",
            "receipts": [{"receipt_id": "A"}],
            "head_digest": "d1",
            "truncation": {"reason": "page_limit", "next_since_receipt": "A", "remaining": 1},
        },
        "A": {
            "bundle_version": "1.0.0",
            "created_at": "t2",
            "receipts": [{"receipt_id": "B"}],
            "head_digest": "d2",
            "truncation": None,
        },
    }
    shell.endpoint(evidence_export=lambda r: pages[r.params.get("since_receipt")])
    bundle = {
        "bundle_version": "1.0.0",
        "created_at": "t2",
        "receipts": [{"receipt_id": "A"}, {"receipt_id": "B"}],
        "head_digest": "d2",
        "truncation": None,
    }
    assert shell("evidence", "--json").json == bundle
    file = tmp_path / "bundle.json"
    done = shell("evidence", "-o", str(file), "--json")
    assert done.json == {"file": str(file), "receipts": 2, "head_digest": "d2", "report": None}
    assert json.loads(file.read_text()) == bundle
    assert list(tmp_path.iterdir()) == [file]


def test_a_long_export_shows_on_a_terminal_how_far_it_is(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[MHSD-8-05] And nothing of it on stdout."""
    cut = {"receipts": [{"receipt_id": "A"}], "truncation": {"next_since_receipt": "A"}}
    shell.endpoint(
        evidence_export=lambda r: {**cut, **({"truncation": None} if "since_receipt" in r.params else {})}
    )
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    done = shell("evidence", "--json")
    assert len(done.json["receipts"]) == 2
    assert done.err.startswith("\r\x1b[2Kevidence  0 s  1 receipts")
    assert done.err.endswith("\r\x1b[2K")


def test_a_recorded_revision_is_asked_for_by_its_number(shell: Shell) -> None:
    tiny = shell.endpoint(resource_read=lambda _: {"revision": 3, "state": {"speed": 7}})
    assert shell("read", "belt", "--revision", "3", "--field", "speed").code == 0
    request = next(each for each in tiny.requests if each.method == "mhs.resource.read")
    assert (request.params["filter"], request.params["fields"]) == ({"revision": 3}, ["speed"])


@pytest.mark.parametrize("output", ["", "fifo"])
def test_a_bundle_takes_the_place_of_no_device(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    shell.endpoint(evidence_export=lambda _: {"receipts": [], "truncation": None})
    done = shell("evidence", "-o", output)
    assert done.code == 2
    assert "is no regular file" in done.err
    assert Path("fifo").is_fifo()


def test_a_bundle_goes_where_a_link_points(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("bundle.json")
    shell.endpoint(evidence_export=lambda _: {"receipts": [], "truncation": None})
    assert shell("evidence", "-o", str(tmp_path / "link")).code == 0
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "bundle.json").read_text()) == {"receipts": [], "truncation": None}


def test_text_that_is_not_unicode_is_named_before_anything_is_sent(shell: Shell) -> None:
    tiny = shell.endpoint()
    done = shell("call", "-c", "cap.x.v1", "-i", '{"a": "\\ud800"}')
    assert done.code == 1
    assert "not Unicode; nothing was sent" in done.err
    assert "mhs.command" not in [request.method for request in tiny.requests]


def test_an_endpoint_that_pages_without_end_is_refused(shell: Shell) -> None:
    page = {"receipts": [], "truncation": {"next_since_receipt": "A"}}
    shell.endpoint(evidence_export=lambda _: page)
    assert shell("evidence").code == 1


def test_devices_and_hello_are_the_endpoints_own_documents(shell: Shell) -> None:
    shell.endpoint()
    assert shell("hello", "--json").json == HELLO
    assert shell("devices", "--json").json == {"devices": [MANIFEST]}
    described = shell("describe", "--json").json["devices"]
    assert [entry["manifest"] for entry in described] == [MANIFEST]
    assert described[0]["trust"] == {
        "certified": False,
        "conformance": [],
        "notice": "MHS.SAFETY.NOT_CERTIFIED",
    }
    assert shell("describe", "oven").code == 1


def test_an_answer_that_is_not_mhs_is_one_line_and_no_traceback(shell: Shell) -> None:
    shell.serve(lambda _: http(200, b"<html>It works!</html>"))
    done = shell("devices")
    assert done.code == 3
    assert done.out == ""
    assert "Traceback" not in done.err


def test_a_session_is_opened_for_everything_unless_told_less(shell: Shell) -> None:
    tiny = shell.endpoint()
    done = shell("session", "open", "--ttl", "60", "--json")
    assert done.json["session_id"] == "mhs_s_1"
    shell("session", "open", "--read-only")
    shell("session", "open", "--device", "one", "-c", "cap.x.v1", "-c", "cap.world.*", "--approved-by", "ada")
    opened = [r.params for r in tiny.requests if r.method == "mhs.session.open"]
    assert [params["capabilities"] for params in opened] == [["*"], [], ["cap.x.v1", "cap.world.*"]]
    assert opened[0]["ttl_s"] == 60
    assert opened[2]["approvals"] == [{"principal": {"id": "ada", "kind": "human"}}]
    assert "mhs.session.close" not in tiny.methods()


def test_keeping_a_session_beats_until_its_time_is_over(shell: Shell) -> None:
    tiny = shell.endpoint()
    done = shell("session", "keep", "mhs_s_9", "--for", "0", "--json")
    assert (done.code, done.json["expires_at"]) == (0, "2026-10-20T07:55:00.000Z")
    assert tiny.methods()[0] == "mhs.session.heartbeat"


def test_keeping_a_session_outlives_a_connection_that_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """[TPT-061] Where nobody kept the session its devices would go to their safe state; a first beat tells at once."""

    class Kept:
        def __init__(self, *answers: dict[str, Any] | MHSError) -> None:
            self.answers = list(answers)

        def heartbeat(self) -> dict[str, Any]:
            answer = self.answers.pop(0)
            if isinstance(answer, MHSError):
                raise answer
            return answer

    monkeypatch.setattr("mhsd.cli.cmd_session.Backoff", lambda: Backoff(first_s=0.001, attempts=2))
    down, lost = error("MHS.TRANSPORT.UNAVAILABLE", "down"), error("MHS.OUTCOME.TIMEOUT", "lost")
    over = MHSError("MHS.SESSION.EXPIRED", "over", retryable=True)
    assert _beat(Kept(down, lost, {"expires_at": "then"}), again=True) == {"expires_at": "then"}  # type: ignore[arg-type]  # only its heartbeat is used
    for answers, again in (((down,), False), ((down, down, down), True), ((over,), True)):
        with pytest.raises(MHSError) as caught:
            _beat(Kept(*answers), again=again)  # type: ignore[arg-type]  # only its heartbeat is used
        assert caught.value is answers[-1]


def test_versions_are_those_of_the_package(shell: Shell) -> None:
    versions = shell("version", "--json").json
    assert (versions["spec_version"], versions["mhs_version"]) == ("0.9", "1.0")
    assert versions["mhsd"] in shell("--version").out


def test_the_reference_drivers_are_valid(shell: Shell) -> None:
    done = shell("validate", str(drivers_dir() / "conveyor_workcell"), "--json")
    assert (done.code, done.json["kind"], done.json["errors"]) == (0, "driver", [])


@pytest.mark.parametrize(
    ("name", "content", "kind", "valid"),
    [
        ("receipt.json", {"receipt_id": "R", "input_digest": "x"}, "receipt", False),
        ("file.json", {"endpoints": [{"url": "http://127.0.0.1:7400"}]}, "endpoints", True),
        (
            "schema.json",
            {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"},
            "schema",
            True,
        ),
        (
            "schema.json",
            {"$schema": "http://json-schema.org/draft-07/schema#", "type": "thing"},
            "schema",
            False,
        ),
        ("text.json", "{", "text", False),
    ],
)
def test_a_document_is_checked_against_the_schema_that_it_shows(
    shell: Shell, tmp_path: Path, name: str, content: Any, kind: str, valid: bool
) -> None:
    file = tmp_path / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    done = shell("validate", str(file), "--json")
    assert (done.code, done.json["valid"], done.json["kind"]) == (0 if valid else 1, valid, kind)
    assert bool(done.json["errors"]) is not valid


def test_a_document_that_shows_nothing_needs_the_name_of_its_schema(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "thing.json"
    file.write_text("{}")
    assert shell("validate", str(file)).code == 2
    assert shell("validate", str(file), "--schema", "nothing").code == 2
    assert shell("validate", str(file), "--schema", "receipt").code == 1


def test_a_broken_driver_directory_is_named_and_not_run(shell: Shell, tmp_path: Path) -> None:
    assert shell("validate", str(tmp_path)).code == 2
    (tmp_path / "manifest.toml").write_text('path = "/lab/x"\n')
    (tmp_path / "driver.py").write_text("raise SystemExit(99)\n")
    done = shell("validate", str(tmp_path), "--json")
    assert done.code == 1
    assert {error["path"] for error in done.json["errors"]} == {"manifest.toml", "driver.py"}
    (tmp_path / "driver.py").write_text("def (:\n")
    (tmp_path / "manifest.toml").write_text("path = \n")
    assert shell("validate", str(tmp_path), "--json").json["valid"] is False
