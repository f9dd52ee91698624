"""The local socket: what is served there, to whom, and from start to stop of every daemon [MHSD-9a]."""

import grp
import json
import os
import pwd
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import PRESS_TARGET, Start
from tests.behaviour.safety import (
    CONVEY,
    FAR,
    HOLD,
    PRESS,
    STOP,
    latched,
    receipt_in,
    reset,
    text,
    token_file,
)
from tests.lab import CONVEYOR, PATIENCE_S, HttpWire, Lab, ask_until, request, running, stop

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process as another user")
GROUP = "daemon"


class LocalConnection(HTTPConnection):
    """HTTP over a local socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(str(self._path))


class LocalWire(HttpWire):
    """One request a connection, over the local socket."""

    name = "local"

    def __init__(self, path: Path, token: str | None = None) -> None:
        self.path = path
        self.token = token

    def post(self, body: bytes, **headers: str) -> tuple[int, bytes]:
        return self._exchange("POST", "/mhs/v1/rpc", body, {"Content-Type": "application/json", **headers})[
            ::2
        ]

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        return self._exchange("GET", path, None, headers)

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        connection = LocalConnection(self.path)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()


def socket_of(lab: Lab, directory: Path) -> Path:
    """The one socket of a daemon that a test has started in its directory."""
    (path,) = ask_until(lambda: list((directory / "run").glob("*.sock")), bool)
    found: Path = path
    return found


def beside(lab: Lab, directory: Path, token: str | None = None) -> Lab:
    """The same daemon by its local socket."""
    return Lab(LocalWire(socket_of(lab, directory), token), lab.process, lab.ready, lab.stderr_file)


def test_every_daemon_has_a_socket_for_its_user_alone(fresh: Start, binding: str, tmp_path: Path) -> None:
    """[MHSD-9a]"""
    lab = fresh()
    path = socket_of(lab, tmp_path)
    status = path.stat()
    assert stat.S_ISSOCK(status.st_mode)
    assert (stat.S_IMODE(status.st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    assert path.name.startswith(f"stdio-{lab.process.pid}-" if binding == "stdio" else "http-")
    assert stop(lab.process) == 0
    assert not path.exists()


def test_it_serves_what_the_daemon_serves(fresh: Start, tmp_path: Path) -> None:
    """[MHSD-9a]"""
    lab = fresh()
    local = beside(lab, tmp_path)
    assert local.hello()["endpoint_id"] == lab.hello()["endpoint_id"]
    session = local.open()
    receipt = session.completed("cap.world.step.v1", {"ticks": 3})
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert receipt["principal"] == {"id": f"local:{user}", "kind": "human"}
    wire = local.wire
    assert isinstance(wire, LocalWire)
    assert wire.get("/mhs/v1/schema/receipt.schema.json")[0] == 200
    _, _, descriptor = wire.get("/.well-known/mhs.json")
    url = lab.ready.get("url")
    transports = json.loads(descriptor)["transports"]
    assert transports == {"stdio": {}} if url is None else transports["http"]["url"] == url


def test_a_stop_by_it_ends_what_an_agent_has_started(fresh: Start, tmp_path: Path) -> None:
    """[SAFE-002]"""
    lab = fresh()
    session = lab.open()
    pending, _ = session.started(CONVEY, FAR)
    local = beside(lab, tmp_path)
    receipt = receipt_in(local.wire.exchange(request(STOP, reason="by hand")))
    assert (receipt["status"], receipt["output"]["latched"]) == ("completed", True)
    assert pending.result()["status"] == "cancelled"
    assert latched(lab)
    released = local.open()
    assert reset(released)["status"] == "completed"


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}], ids=str)
def test_the_rules_of_http_hold_there_too(fresh: Start, tmp_path: Path, headers: dict[str, str]) -> None:
    """[TPT-010]"""
    local = beside(fresh(), tmp_path)
    assert isinstance(local.wire, LocalWire)
    assert local.wire.post(text("mhs.hello"), **headers)[0] == 403


def test_no_token_is_needed_there_and_one_that_is_shown_must_be_right(tmp_path: Path) -> None:
    """[TPT-014, MHSD-9a]"""
    tokens = token_file(tmp_path / "tokens.toml", ("see", "human:visitor", "reader"))
    operators = token_file(tmp_path / "operators.toml", ("run", "human:operator", "operator"))
    options = ("--token-file", str(tokens), "--operator-token-file", str(operators))
    with running("http", tmp_path, *options) as lab:
        local = beside(lab, tmp_path)
        session = local.open()
        assert stop_of(local)["status"] == "completed"
        refused = reset(session)
        assert refused["error"]["mhs_code"] == "MHS.AUTH.FORBIDDEN", "an operator's credential is needed"
        operator = beside(lab, tmp_path, token="run")
        assert reset(operator.open())["principal"]["id"] == "human:operator"
        assert isinstance(operator.wire, LocalWire)
        operator.wire.token = "wrong"
        assert operator.wire.post(text("mhs.hello"))[0] == 401


def stop_of(lab: Lab) -> Any:
    return receipt_in(lab.wire.exchange(request(STOP)))


def test_a_socket_that_a_killed_daemon_left_is_replaced(tmp_path: Path) -> None:
    """[MHSD-9a]"""
    with running("stdio", tmp_path) as killed:
        old = socket_of(killed, tmp_path)
        killed.kill()
    assert old.exists()
    with running("stdio", tmp_path) as lab:
        assert socket_of(lab, tmp_path) != old
        assert latched(beside(lab, tmp_path)) is False
    assert not old.exists()


def test_a_start_without_a_place_for_it_is_refused_in_one_line(tmp_path: Path) -> None:
    """[MHSD-9a] A daemon that cannot be stopped from outside does not start."""
    (tmp_path / "run").write_text("a file")
    mhsd = Path(sys.executable).parent / "mhsd"
    done = subprocess.run(
        [mhsd, "--stdio"],
        env={**os.environ, "MHSD_RUNTIME_DIR": str(tmp_path / "run")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "cannot hold the local socket" in line
    assert "MHSD_RUNTIME_DIR" in line


def test_it_is_open_for_a_stop_until_the_devices_are_safe(tmp_path: Path) -> None:
    """[TPT-008, MHSD-9a] What does not end by itself in a shutdown can still be stopped by hand."""
    with running("stdio", tmp_path, "--stop-grace-s", "60", targets=(PRESS_TARGET,)) as lab:
        session = lab.open(device_id=PRESS)
        session.started(HOLD, {"stubborn": True})
        assert lab.process.stdin is not None
        lab.process.stdin.close()
        ask_until(lambda: "stopping: the input has ended" in lab.stderr(), bool)
        local = beside(lab, tmp_path)
        receipt = receipt_in(local.wire.exchange(request(STOP)))
        assert receipt["output"]["latched"] is True
        lab.kill()


# The group


@pytest.fixture
def grouped(tmp_path: Path) -> Iterator[Lab]:
    # Other users must be able to pass through the directories above.
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == os.geteuid() and directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o011)
    with running("http", tmp_path, "--socket-group", GROUP) as lab:
        yield lab


def as_member(path: Path, *messages: dict[str, Any], groups: list[int]) -> list[Any]:
    """What the socket answers to another user, who is in these groups; a text where it cannot be reached."""
    program = """
import json, os, socket, sys
path, groups, *messages = sys.argv[1:]
os.setgroups(json.loads(groups)); os.setgid(12345); os.setuid(12345)
answers = []
for message in messages:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(path)
    except PermissionError:
        answers.append("not reached")
        continue
    head = f"POST /mhs/v1/rpc HTTP/1.0\\r\\nHost: localhost\\r\\nContent-Type: application/json\\r\\n"
    sock.sendall(f"{head}Content-Length: {len(message)}\\r\\n\\r\\n{message}".encode())
    answers.append(json.loads(sock.makefile("rb").read().partition(b"\\r\\n\\r\\n")[2]))
print(json.dumps(answers))
"""
    argv = [sys.executable, "-I", "-c", program, str(path), json.dumps(groups), *map(json.dumps, messages)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=True, cwd="/")
    answers: list[Any] = json.loads(done.stdout)
    return answers


@AS_ROOT
def test_a_member_of_the_group_may_stop_and_read_the_status_and_nothing_else(
    grouped: Lab, tmp_path: Path
) -> None:
    """[MHSD-9a]"""
    path = socket_of(grouped, tmp_path)
    assert (stat.S_IMODE(path.stat().st_mode), path.group()) == (0o660, GROUP)
    step = {"session_id": "s", "command_id": "01J8ZQ3V6Y7M2N4P6R8S0T2V4X", "deadline_ms": 5000}
    hello, status, session, read, stopped = as_member(
        path,
        request("mhs.hello", client={"name": "t", "version": "1"}, protocol_versions=["1.0"]),
        request("mhs.safety.status", device_id=CONVEYOR, deadline_ms=5000),
        request("mhs.session.open", device_ids=[CONVEYOR]),
        request("mhs.command", capability_id="cap.world.step.v1", input={"ticks": 1}, **step),
        request(STOP, reason="from the group"),
        groups=[grp.getgrnam(GROUP).gr_gid],
    )
    assert hello["result"]["mhs_version"] == "1.0"
    assert status["result"]["estop"]["engaged"] is False
    for refused in (session, read):
        assert refused["error"]["data"]["mhs_code"] == "MHS.AUTH.FORBIDDEN"
        assert refused["error"]["data"]["details"] == {"reason": "stop_only"}
    receipt = receipt_in(stopped)
    assert receipt["principal"] == {"id": "local:12345", "kind": "human"}
    assert latched(grouped)


@AS_ROOT
def test_who_is_no_member_does_not_reach_it(grouped: Lab, tmp_path: Path) -> None:
    """[MHSD-9a]"""
    path = socket_of(grouped, tmp_path)
    assert as_member(path, request(STOP), groups=[]) == ["not reached"]
    assert not latched(grouped)
