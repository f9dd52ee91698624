"""The client over stdio against children that behave in every way [TPT-004 to TPT-009]."""

from __future__ import annotations

import shlex
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from mhsd.client.client import Client, connect
from mhsd.client.errors import AnswerLost, MHSError, TransportError
from mhsd.client.stdio import ChildFailed

PRELUDE = """
import json, sys
def read():
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(0)
    return json.loads(line)
def write(text):
    sys.stdout.write(text + "\\n")
    sys.stdout.flush()
def answer(request, result):
    write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}))
def hello():
    request = read()
    assert request["method"] == "mhs.hello", request
    answer(request, {"mhs_version": "1.0", "limits": {}})
"""


class Children:
    """Starts clients of Python programs that begin with PRELUDE."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.clients: list[Client] = []

    def __call__(self, program: str, timeout_s: float = 10.0) -> Client:
        file = self._directory / "child.py"
        file.write_text(PRELUDE + textwrap.dedent(program))
        command = shlex.join([sys.executable, "-S", "-E", str(file)])
        self.clients.append(connect(f"stdio:{command}", timeout_s=timeout_s))
        return self.clients[-1]


@pytest.fixture
def child(tmp_path: Path) -> Children:
    return Children(tmp_path)


def test_hello_comes_first_and_by_itself(child: Children) -> None:
    with child("""
        hello()
        while True:
            request = read()
            answer(request, {"method": request["method"]})
    """) as client:
        assert client.call("mhs.devices.list") == {"method": "mhs.devices.list"}
        assert client.call("mhs.command", {}) == {"method": "mhs.command"}


def test_a_stop_needs_no_hello(child: Children) -> None:
    with child("""
        while True:
            request = read()
            answer(request, {"method": request["method"]})
    """) as client:
        assert client.call("mhs.safety.estop", {"reason": "now"}) == {"method": "mhs.safety.estop"}


def test_answers_in_any_order_reach_their_calls(child: Children) -> None:
    client = child("""
        hello()
        requests = [read() for _ in range(8)]
        for request in reversed(requests):
            answer(request, {"n": request["params"]["n"]})
        read()
    """)
    answers: dict[int, object] = {}

    def ask(n: int) -> None:
        answers[n] = client.call("mhs.devices.get", {"n": n})

    with client:
        client.hello()
        threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert answers == {n: {"n": n} for n in range(8)}


def test_noise_on_stdout_does_not_disturb_the_next_answer(child: Children) -> None:
    with child("""
        hello()
        request = read()
        write("starting up, please wait")
        write("")
        write('{"jsonrpc": "2.0", "method": "mhs.event", "params": {}}')
        write('{"jsonrpc": "2.0", "id": "somebody else", "result": {}}')
        write('{"jsonrpc": "2.0", "id": [], "result": {}}')
        answer(request, {"ok": True})
        read()
    """) as client:
        assert client.call("mhs.devices.list") == {"ok": True}


def test_an_error_that_could_not_name_its_request_answers_the_open_one(child: Children) -> None:
    with (
        child("""
        hello()
        read()
        data = {"mhs_code": "MHS.PROTOCOL.PARSE_ERROR", "retryable": False, "remediation": ""}
        write(json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "no", "data": data}}))
        read()
    """) as client,
        pytest.raises(MHSError) as refused,
    ):
        client.call("mhs.devices.list")
    assert refused.value.mhs_code == "MHS.PROTOCOL.PARSE_ERROR"


def test_a_child_that_ends_in_the_middle_leaves_a_command_unknown(child: Children) -> None:
    client = child("""
        hello()
        read()
        raise SystemExit(0)
    """)
    with client, pytest.raises(AnswerLost) as lost:
        client.call("mhs.command", {})
    assert lost.value.mhs_code == "MHS.OUTCOME.UNKNOWN"
    with pytest.raises(TransportError):
        client.call("mhs.command", {})


def test_a_child_that_does_not_start_says_why(child: Children) -> None:
    client = child("""
        sys.stderr.write("mhsd: no such driver; a TARGET is a driver directory\\n")
        raise SystemExit(2)
    """)
    with pytest.raises(MHSError, match="no such driver"):
        client.hello()
    with pytest.raises(ChildFailed, match="status 2"):
        client.close()


def test_a_command_that_serves_http_is_recognised(child: Children) -> None:
    with (
        child("""
        write('{"mhs_ready": true, "url": "http://127.0.0.1:7400"}')
        while True:
            read()
    """) as client,
        pytest.raises(MHSError, match="--stdio"),
    ):
        client.hello()


def test_a_program_that_does_not_exist_is_a_transport_error() -> None:
    with pytest.raises(TransportError, match="cannot start"):
        connect("stdio:/nonexistent/mhsd --stdio")


def test_silence_is_a_timeout(child: Children) -> None:
    with child("""
        hello()
        while True:
            read()
    """) as client:
        client.hello()
        with pytest.raises(AnswerLost) as lost:
            client.call("mhs.devices.list", deadline_s=0.1)
    assert lost.value.mhs_code == "MHS.OUTCOME.TIMEOUT"


def test_a_child_that_does_not_read_cannot_block_the_caller(
    child: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe holds 64 KiB; after half a line nothing more is written, since it would be read as its end."""
    monkeypatch.setattr("mhsd.client.calls.ANSWER_GRACE_S", 0.0)
    go = tmp_path / "go"
    client = child(f"""
        hello()
        import os, time
        while not os.path.exists({str(go)!r}):
            time.sleep(0.01)
        while True:
            read()
    """)
    client.hello()
    with pytest.raises(AnswerLost) as lost:
        client.call("mhs.command", {"input": "x" * 500_000}, deadline_s=0.2)
    assert lost.value.mhs_code == "MHS.OUTCOME.TIMEOUT"
    with pytest.raises(TransportError, match="in part"):
        client.call("mhs.devices.list")
    go.touch()
    with pytest.raises(ChildFailed):
        client.close()


def test_closing_ends_stdin_and_waits_for_status_0(child: Children, tmp_path: Path) -> None:
    client = child(f"""
        hello()
        try:
            read()
        finally:
            open({str(tmp_path / "ended")!r}, "w").close()
    """)
    client.hello()
    client.close()
    assert (tmp_path / "ended").exists()


def test_a_child_that_ends_badly_is_reported_with_its_last_words(child: Children) -> None:
    client = child("""
        hello()
        try:
            read()
        finally:
            sys.stderr.write("the belt did not stop\\n")
            sys.stderr.flush()
            import os
            os._exit(1)
    """)
    client.hello()
    with pytest.raises(ChildFailed, match="the belt did not stop"):
        client.close()


def test_a_child_that_does_not_end_is_killed_with_its_group(
    child: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mhsd.client.stdio.STOP_GRACE_S", 0.3)
    client = child("""
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        hello()
        import threading
        threading.Event().wait()
    """)
    client.hello()
    with pytest.raises(ChildFailed, match="status -9"):
        client.close()


def test_a_child_that_never_answers_has_failed_to_start_and_is_told_at_once(
    child: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[TPT-007]"""
    monkeypatch.setattr("mhsd.client.stdio.STOP_GRACE_S", 3600.0)
    client = child("""
        import threading
        threading.Event().wait()
    """)
    with pytest.raises(AnswerLost):
        client.call("mhs.safety.estop", deadline_s=0.01)
    ends: list[ChildFailed] = []

    def close() -> None:
        try:
            client.close()
        except ChildFailed as failed:
            ends.append(failed)

    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(60.0)
    assert "status -15" in str(ends[0])
