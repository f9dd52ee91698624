"""What every command does in bad circumstances: Ctrl-C, a full disk behind stdout, empty words, unusable files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mhsd.cli import boundary, main, terminal
from tests.cli.conftest import BIN, environment
from tests.cli.shell import Shell, receipt, shells
from tests.cli.tiny import Endpoint, Tiny


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    yield from shells(monkeypatch, capsys)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("words", [("devices",), ("call", "-c", "cap.x.v1"), ("evidence",)], ids=" ".join)
def test_ctrl_c_before_there_is_an_answer_is_one_document_and_130(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """With --json stdout holds one document, an interruption included [TPT-052, CORE-137, MHSD-8-12]."""
    shell.endpoint()
    monkeypatch.setattr("mhsd.client.http.HttpTransport.exchange", interrupted)
    done = shell(*words, "--json")
    assert done.code == 130
    assert done.json["error"]["data"]["details"] == {"reason": "interrupted"}
    assert done.json["error"]["retryable"] is False


def test_ctrl_c_behind_the_answer_adds_no_second_document(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.endpoint(command=lambda _: receipt("completed"), session_close=lambda _: {})
    monkeypatch.setattr("mhsd.cli.mutation.close_quietly", interrupted)
    done = shell("call", "-c", "cap.x.v1", "--json")
    assert (done.code, done.json["status"]) == (130, "completed")


def test_ctrl_c_while_the_program_is_loaded_is_a_document_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["mhsctl", "devices", "--json"])
    monkeypatch.setattr(main, "_mhsctl", interrupted)
    terminal.begin()
    assert main.mhsctl() == 130
    assert json.loads(capsys.readouterr().out)["error"]["mhs_code"] == "MHS.OUTCOME.UNKNOWN"


def test_ctrl_c_ends_keeping_a_session_with_its_last_heartbeat(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.endpoint()
    monkeypatch.setattr("time.sleep", interrupted)
    done = shell("session", "keep", "mhs_s_1", "--json")
    assert (done.code, set(done.json)) == (130, {"expires_at"})


@pytest.mark.parametrize(
    ("words", "code"), [(("estop",), 0), (("devices",), 1), (("devices", "--json"), 1)], ids=str
)
def test_a_full_disk_behind_stdout_is_said_and_a_stop_stays_a_stop(words: tuple[str, ...], code: int) -> None:
    """A receipt's exit code is its status; a list that nobody has got is a failure."""
    one = "mhs://localhost:7400/lab/one"
    tiny = Tiny(
        Endpoint(
            safety_estop=lambda _: {"status": "completed", "device_id": one},
            devices_list=lambda _: {"devices": []},
        )
    )
    try:
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [BIN / "mhsctl", *words],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(MHS_ENDPOINT=tiny.url),
                timeout=60,
                check=False,
            )
    finally:
        tiny.close()
    assert done.returncode == code
    assert done.stderr == (
        "mhsctl: the output could not be written to stdout: No space left on device; what was done stands\n"
    )


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("read", "belt", "--session", ""), "--session"),
        (("call", "-c", ""), "--capability"),
        (("call", "-c", "cap.x.v1", "--device", ""), "--device"),
        (("devices", "-e", ""), "--endpoint"),
        (("devices", "--token-file", ""), "--token-file"),
        (("session", "close", ""), "ID"),
        (("session", "open", "--device", ""), "--device"),
        (("evidence", "--session", ""), "--session"),
    ],
    ids=" ".join,
)
def test_an_empty_word_is_a_usage_error_and_means_nothing_else(
    shell: Shell, words: tuple[str, ...], named: str
) -> None:
    tiny = shell.endpoint()
    done = shell(*words)
    assert (done.code, done.out) == (2, "")
    assert f"{named} is empty" in done.err
    assert tiny.requests == []


def test_a_bundle_that_is_a_list_is_named_as_what_it_is(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "bundle.json"
    file.write_text("[]")
    done = shell("evidence", "--file", str(file))
    assert done.code == 1
    assert f"{file} holds a list, no JSON object" in done.out
    assert "ticks" not in done.out


@pytest.mark.parametrize("variable", ["MHS_CA_FILE", "MHS_CERT_FILE"])
@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_certificate_file_that_cannot_be_used_is_named(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, content: str | None
) -> None:
    file = tmp_path / "bench.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv(variable, str(file))
    done = shell("devices", "-e", "https://127.0.0.1:1")
    assert done.code == 2
    assert variable in done.err
    assert str(file) in done.err


def test_the_program_has_no_traceback_for_a_signal_at_any_time() -> None:
    """A SIGTERM that comes while the programs are imported ends as Ctrl-C does."""
    program = (
        "import os, signal, sys; sys.argv = ['mhsctl', 'version']\n"
        "from mhsd.cli import main\n"
        "main._end_as_by_ctrl_c()\n"
        "main._mhsctl = lambda: os.kill(os.getpid(), signal.SIGTERM) or signal.pause()\n"
        "sys.exit(main.mhsctl())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "mhsctl: interrupted\n")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("devices --json", True),
        ("devices -e --json", True),
        ("estop -- --json", False),
        ("run --json sweep.py", True),
        ("run -e http://h:1 --json --ledger a.json sweep.py", True),
        ("run sweep.py --json", False),
        ("run -e http://h:1 sweep.py --json", False),
        ("run", False),
    ],
)
def test_what_belongs_to_a_code_file_or_a_reason_asks_for_no_document(words: str, wanted: bool) -> None:
    assert boundary.wants_json(words.split()) is wanted
