"""`estop` and `status` without an endpoint: everything on this machine that can be reached, and honest about the rest.

The programs of these tests look into directories of the test's own and at a port of its own: a real `mhsctl estop`
would stop whatever the machine is running.
"""

from __future__ import annotations

import json
import os
import queue
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import BIN, PATIENCE_S, Done, environment
from tests.cli.shapes import has_shape, shapes
from tests.cli.test_fast_path import FORBIDDEN
from tests.cli.tiny import HELLO, Endpoint, Tiny, refusal

PROGRAM = f"""
import sys
from pathlib import Path
place, port = Path(sys.argv[1]), int(sys.argv[2])
del sys.argv[1:3]
from mhsd.client import local
local.SYSTEM_DIRECTORY = place / "run"
local.USERS_DIRECTORIES = place / "users"
local.SHARED_DIRECTORIES = (place / "tmp",)
from mhsd.cli import everywhere, main
everywhere.DEFAULT_PORT, everywhere.DEFAULT_ENDPOINT = port, f"http://127.0.0.1:{{port}}"
code = main.mhsctl()
print(*sorted(set({FORBIDDEN!r}) & set(sys.modules)), end="", file=sys.stderr)
sys.exit(code)
"""


def free_port() -> int:
    """A port that nobody serves."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


class Machine:
    """Directories and a port that stand for a machine's, the daemons on it, and `mhsctl` for it."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self.port = free_port()
        self._stack = stack
        for name in ("run", "users", "tmp"):
            (directory / name).mkdir()

    @property
    def run(self) -> Path:
        return self.directory / "run"

    def __call__(self, *words: str, **more: str) -> Done:
        done = self.start(*words, **more)
        out, err = done.communicate(timeout=PATIENCE_S)
        return Done(done.returncode, out.decode(), err.decode())

    def start(self, *words: str, **more: str) -> subprocess.Popen[bytes]:
        variables = environment(TMPDIR=str(self.directory / "tmp"), **more)
        for name in ("MHSD_RUNTIME_DIR", "XDG_RUNTIME_DIR"):
            if name not in more:
                variables.pop(name, None)
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(self.directory), str(self.port), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=variables,
            cwd=self.directory,
        )

    def serve(self, *words: str, directory: Path | None = None) -> subprocess.Popen[bytes]:
        """A daemon with its socket in `directory`, ready to be stopped."""
        log = (self.directory / f"log-{len(list(self.directory.iterdir()))}").open("wb")
        self._stack.callback(log.close)
        process = subprocess.Popen(
            [BIN / "mhsd", "conveyor-workcell", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if "--stdio" in words else log,
            bufsize=0,
            env=environment(MHSD_RUNTIME_DIR=str(directory or self.run)),
            cwd=self.directory,
        )
        self._stack.callback(_end, process)
        stream = process.stderr if "--stdio" in words else process.stdout
        assert stream is not None
        while b"mhs_ready" not in (line := _line(stream)):
            assert line, "the daemon did not start"
        return process

    def listen(self, name: str, directory: Path | None = None) -> socket.socket:
        """A socket of a program that answers nothing."""
        sock = socket.socket(socket.AF_UNIX)
        self._stack.callback(sock.close)
        sock.bind(str((directory or self.run) / name))
        sock.listen()
        return sock


def _line(stream: Any) -> bytes:
    """The next line of an unbuffered stream; empty where none comes."""
    readable, _, _ = select.select([stream], [], [], PATIENCE_S)
    line: bytes = stream.readline() if readable else b""
    return line


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    process.wait(PATIENCE_S)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with ExitStack() as stack:
        yield Machine(tmp_path, stack)


def endpoints(done: Done) -> list[dict[str, Any]]:
    document = done.json
    assert list(document) == ["endpoints"]
    found: list[dict[str, Any]] = document["endpoints"]
    return found


# Who is reached


def test_a_daemon_that_an_agents_host_started_on_stdio_is_stopped(machine: Machine) -> None:
    """[SAFE-002, MHSD-9a]"""
    machine.serve("--stdio")
    done = machine("estop", "smoke", "from", "the", "hood")
    assert (done.code, done.err) == (0, "")
    assert "STOPPED  /lab/conveyor-workcell" in done.out
    assert "mhs://localhost:7400 at unix:" in done.out
    status = machine("status", "--json")
    (entry,) = endpoints(status)
    assert entry["devices"][0]["estop"]["reason"] == "smoke from the hood"
    assert "ENGAGED" in machine("status").out


def test_every_socket_in_every_place_and_the_port_are_reached(machine: Machine, tmp_path: Path) -> None:
    """[MHSD-9a]"""
    uid = os.geteuid()
    places = {
        "named": tmp_path / "named",
        "session": tmp_path / "session" / "mhsd",
        "system": machine.run,
        "users": tmp_path / "users" / str(uid) / "mhsd",
        "tmp": tmp_path / "tmp" / f"mhsd-{uid}",
    }
    for name, directory in places.items():
        machine.serve("--stdio", "--endpoint-id", f"mhs://{name}", directory=directory)
    machine.serve("--port", str(machine.port), "--endpoint-id", "mhs://port", directory=tmp_path / "hidden")
    found = machine(
        "estop",
        "--json",
        MHSD_RUNTIME_DIR=str(places["named"]),
        XDG_RUNTIME_DIR=str(tmp_path / "session"),
    )
    assert found.code == 0, found.err
    stopped = {entry["endpoint_id"]: entry["receipts"][0]["status"] for entry in endpoints(found)}
    assert stopped == dict.fromkeys([f"mhs://{name}" for name in (*places, "port")], "completed")


def test_an_endpoint_with_a_socket_and_the_port_is_shown_once(machine: Machine) -> None:
    """[MHSD-9a]"""
    machine.serve("--port", str(machine.port))
    for words in (("estop",), ("status",)):
        done = machine(*words, "--json")
        (entry,) = endpoints(done)
        assert done.code == 0
        assert entry["endpoint"].startswith("unix:")
        assert machine(*words).out.count("mhs://localhost:7400 at ") == 1


def test_a_port_that_wants_a_token_does_not_spoil_a_stop_by_its_socket(
    machine: Machine, tmp_path: Path
) -> None:
    """[TPT-052]"""
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length\n")
    token.chmod(0o600)
    machine.serve("--port", str(machine.port), "--token-file", str(token))
    for words in (("estop",), ("estop", "--token-file", str(token)), ("status",)):
        done = machine(*words, "--json")
        (entry,) = endpoints(done)
        assert (done.code, done.err) == (0, "")
        assert entry["endpoint"].startswith("unix:")


def test_an_endpoint_that_is_named_is_the_only_one(machine: Machine) -> None:
    """[TPT-050]"""
    machine.serve("--stdio", "--endpoint-id", "mhs://left-alone")
    machine.serve("--stdio", "--endpoint-id", "mhs://stopped", directory=machine.directory / "other")
    (path,) = (machine.directory / "other").glob("*.sock")
    done = machine("estop", "-e", f"unix:{path}", "--json")
    assert (done.code, done.json["endpoint_id"]) == (0, "mhs://stopped")
    assert machine("estop", MHS_ENDPOINT=f"unix:{path}").code == 0
    (entry,) = endpoints(machine("status", "--json"))
    assert entry["devices"][0]["estop"]["engaged"] is False


def test_only_a_device_that_is_named_is_stopped(machine: Machine) -> None:
    """[TPT-050]"""
    machine.serve("scpi-psu", "--stdio", "--endpoint-id", "mhs://both")
    machine.serve(
        "--stdio", "--endpoint-id", "mhs://one", directory=machine.directory / "tmp" / f"mhsd-{os.geteuid()}"
    )
    done = machine("estop", "--device", "psu", "--json")
    (entry,) = endpoints(done)
    assert (done.code, entry["endpoint_id"]) == (0, "mhs://both")
    assert [receipt["device_id"] for receipt in entry["receipts"]] == ["mhs://both/bench/psu"]
    everywhere = machine("estop", "--device", "conveyor-workcell", "--json")
    assert {entry["endpoint_id"] for entry in endpoints(everywhere)} == {"mhs://both", "mhs://one"}
    by_id = machine("estop", "--device", "mhs://one/lab/conveyor-workcell", "--json")
    assert [entry["endpoint_id"] for entry in endpoints(by_id)] == ["mhs://one"]
    (status,) = endpoints(machine("status", "--device", "psu", "--json"))
    assert status["devices"][0]["estop"]["engaged"] is True
    unknown = machine("estop", "--device", "no-such")
    assert unknown.code == 1
    assert "no endpoint of this machine has a device no-such; they have: " in unknown.err


# Who does not answer


def test_a_socket_that_answers_nothing_holds_up_no_other(machine: Machine) -> None:
    """[SAFE-002, TPT-052]"""
    machine.listen("stdio-1-aaaa.sock")
    machine.serve("--stdio")
    running = machine.start("estop", "--timeout", "3600")
    assert running.stdout is not None
    shown = ""
    while "STOPPED" not in shown:
        line = _line(running.stdout)
        assert line, "the stop of the other is shown before the silent one has had its time"
        shown += str(line)
    running.terminate()
    running.communicate(timeout=PATIENCE_S)
    done = machine("estop", "--timeout", "1", "--json")
    assert done.code == 3
    silent = next(entry for entry in endpoints(done) if "error" in entry)
    assert silent["endpoint"].endswith("stdio-1-aaaa.sock")
    assert silent["error"]["mhs_code"] == "MHS.OUTCOME.TIMEOUT"
    assert "the instrument's own emergency stop" in silent["error"]["remediation"]
    (answered,) = [entry for entry in endpoints(done) if "receipts" in entry]
    assert answered["receipts"][0]["status"] == "completed"


def test_the_port_is_told_although_a_socket_is_silent(machine: Machine) -> None:
    """[SAFE-002]"""
    machine.listen("stdio-1-aaaa.sock")
    tiny = Tiny(Endpoint(safety_estop=lambda _: {"status": "completed", "device_id": "mhs://t/lab/one"}))
    machine.port = tiny.port
    running = machine.start("estop", "--timeout", "3600")
    assert running.stdout is not None
    assert any("STOPPED" in str(_line(running.stdout)) for _ in range(2))
    running.terminate()
    running.communicate(timeout=PATIENCE_S)
    tiny.close()


def test_what_is_left_over_is_named_and_does_not_count(machine: Machine) -> None:
    """[MHSD-9a]"""
    machine.listen("stdio-1-aaaa.sock").close()
    machine.serve("--stdio", directory=machine.directory / "users" / "1" / "mhsd")
    done = machine("status")
    assert done.code == 0
    assert "stdio-1-aaaa.sock is left over" in done.err


def test_nobody_at_all_is_a_transport_error_with_what_to_do(machine: Machine) -> None:
    """[TPT-052]"""
    done = machine("estop")
    assert done.code == 3
    assert "no endpoint of this machine was found" in done.err
    assert "the instrument's own emergency stop" in done.err
    document = machine("status", "--json").json
    assert document["error"]["mhs_code"] == "MHS.TRANSPORT.UNAVAILABLE"


def test_a_stop_that_is_not_confirmed_is_1_and_failures_that_differ_are_1(machine: Machine) -> None:
    """[TPT-052]"""
    failed = {
        "status": "failed",
        "device_id": "mhs://t/lab/one",
        "error": {"mhs_code": "MHS.SAFETY.SAFE_STATE_UNREACHED"},
    }
    tiny = Tiny(Endpoint(safety_estop=lambda _: failed))
    machine.port = tiny.port
    assert machine("estop").code == 1
    machine.listen("stdio-1-aaaa.sock")
    done = machine("estop", "--timeout", "1")
    assert done.code == 1
    assert done.out.count("NOT CONFIRMED") == 2
    tiny.close()


def test_an_endpoint_that_allows_nobody_is_4(machine: Machine) -> None:
    """[TPT-052]"""
    tiny = Tiny(lambda request: refusal(None, "MHS.AUTH.UNAUTHENTICATED", 401))
    machine.port = tiny.port
    assert machine("estop").code == 4
    assert machine("status").code == 4
    tiny.close()


@pytest.mark.parametrize("words", [("estop",), ("status",)], ids=" ".join)
def test_nonsense_from_one_is_told_as_its_own(machine: Machine, words: tuple[str, ...]) -> None:
    """[TPT-052]"""
    machine.serve("--stdio")
    sock = machine.listen("stdio-1-aaaa.sock")

    def answer() -> None:
        while True:
            try:
                connection, _ = sock.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.recv(65536)
                connection.sendall(b"\x1b[2Jnonsense\r\n\r\n")

    threading.Thread(target=answer, daemon=True).start()
    done = machine(*words)
    assert done.code != 0
    assert "/lab/conveyor-workcell" in done.out
    assert "\x1b" not in done.out + done.err
    sock.shutdown(socket.SHUT_RDWR)


def test_a_token_goes_to_the_port_and_to_nobody_else(machine: Machine, tmp_path: Path) -> None:
    """[TPT-059]"""
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length\n")
    token.chmod(0o600)
    heard: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    sock = machine.listen("stdio-1-aaaa.sock")

    def hear() -> None:
        while True:
            try:
                connection, _ = sock.accept()
            except OSError:
                return
            with connection:
                data = connection.recv(65536)
                while b"mhs.safety.estop" not in data and (more := connection.recv(65536)):
                    data += more
                heard.put(data)

    threading.Thread(target=hear, daemon=True).start()
    tiny = Tiny(Endpoint(safety_estop=lambda _: {"status": "completed", "device_id": "mhs://t/lab/one"}))
    machine.port = tiny.port
    machine("estop", "--token-file", str(token))
    assert tiny.requests[0].header("Authorization") == "Bearer a-token-of-some-length"
    received = heard.get(timeout=PATIENCE_S)
    while b"mhs.safety.estop" not in received:  # The first connection only looks whether somebody serves.
        received += heard.get(timeout=PATIENCE_S)
    assert b"a-token" not in received
    tiny.close()
    sock.shutdown(socket.SHUT_RDWR)


def test_the_stop_is_asked_for_before_who_it_is(machine: Machine) -> None:
    """[CORE-076]"""
    tiny = Tiny(
        Endpoint(
            hello=lambda _: {**HELLO, "devices": []},
            safety_estop=lambda _: {"status": "completed", "device_id": "mhs://t/lab/one"},
        )
    )
    machine.port = tiny.port
    assert machine("estop").code == 0
    assert tiny.methods() == ["mhs.safety.estop", "mhs.hello"]
    tiny.close()


Make = Callable[[Path], Path]


def of_another_user(directory: Path) -> Path:
    path = directory / "tmp" / "mhsd-12345"
    path.mkdir()
    return path


def a_link(directory: Path) -> Path:
    (directory / "elsewhere").mkdir()
    path = directory / "tmp" / f"mhsd-{os.geteuid()}"
    path.symlink_to(directory / "elsewhere")
    return path


@pytest.mark.parametrize("make", [of_another_user, a_link])
def test_a_directory_that_is_not_whose_its_name_says_is_passed_over(machine: Machine, make: Make) -> None:
    """[MHSD-9a] Nobody can put a daemon of his own in the place of another user's."""
    machine.serve("--stdio", directory=make(machine.directory))
    assert machine("status").code == 3


def test_json_on_stdout_is_one_document(machine: Machine) -> None:
    """[TPT-051]"""
    machine.listen("stdio-1-aaaa.sock").close()
    machine.serve("--stdio")
    done = machine("estop", "--json")
    assert json.loads(done.out)["endpoints"][0]["user"]
    has_shape(json.loads(done.out), shapes()["estop"])
