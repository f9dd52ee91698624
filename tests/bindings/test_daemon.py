"""The daemon as a process: how it says that it is ready, how it stops, and how it refuses to start."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mhsd.base.resources import schema_document

MHSD = Path(sys.executable).parent / "mhsd"
PATIENCE_S = 60
SECRET = "s3cret-of-the-bench"

Process = subprocess.Popen[bytes]
Start = Callable[..., Process]


def hello(request_id: int = 1) -> bytes:
    params = {"client": {"name": "t", "version": "1"}, "protocol_versions": ["1.0"], "features": []}
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": "mhs.hello", "params": params}).encode()


def environment(tmp_path: Path, **changes: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MHSD_", "MHS_"))}
    return {**clean, "MHSD_RUNTIME_DIR": str(tmp_path / "run"), **changes}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a daemon with pipes on all three descriptors; what still runs at the end is killed by its pid."""
    processes: list[Process] = []

    def started(*options: str | Path, **environ: str) -> Process:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        env = environment(tmp_path, **environ)
        processes.append(
            # Unbuffered, so that a line that has come can be waited for.
            subprocess.Popen([MHSD, *map(str, options)], bufsize=0, cwd=tmp_path, env=env, **pipes)  # type: ignore[call-overload]
        )
        return processes[-1]

    yield started
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def line_of(stream: Any) -> bytes:
    """The next line of a pipe, or nothing where none comes."""
    assert select.select([stream], [], [], PATIENCE_S)[0]
    line: bytes = stream.readline()
    return line


def ready(process: Process) -> dict[str, Any]:
    line = line_of(process.stdout)
    assert line, process.communicate()[1].decode()
    document: dict[str, Any] = json.loads(line)
    return document


def request(url: str, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    host, port = url.removeprefix("http://").split(":")
    connection = HTTPConnection(host, int(port), timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def end(process: Process, signum: int = signal.SIGTERM) -> tuple[int, bytes, bytes]:
    process.send_signal(signum)
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


# Ready


def test_over_http_the_ready_line_is_the_one_line_on_stdout_and_says_where_it_serves(start: Start) -> None:
    process = start("--port", "0")
    line = ready(process)
    assert line == {
        "mhs_ready": True,
        "url": line["url"],
        "ws_url": f"ws{line['url'].removeprefix('http')}/mhs/v1/ws",
        "endpoint_id": "mhs://localhost:7400",
        "devices": 1,
    }
    status, body = request(line["url"], "POST", "/mhs/v1/rpc", hello())
    assert status == 200
    assert json.loads(body)["result"]["features"] == [
        "MHS.SAFETY.NOT_CERTIFIED",
        "http",
        "sse",
        "ws",
        "batch",
    ]
    code, out, _ = end(process)
    assert (code, out) == (0, b"")


def test_the_descriptor_is_what_its_schema_says_and_names_what_is_served(start: Start) -> None:
    process = start("--port", "0")
    url = ready(process)["url"]
    status, body = request(url, "GET", "/.well-known/mhs.json")
    descriptor = json.loads(body)
    assert status == 200
    validator(descriptor)
    assert list(descriptor["transports"]) == ["http", "sse", "ws"]
    assert descriptor["transports"]["http"]["rpc"] == url + "/mhs/v1/rpc"
    assert descriptor["auth"] == ["local"]
    assert len(descriptor["devices"]) == 1
    assert descriptor["transports"]["sse"]["url"] == url + "/mhs/v1/events"
    assert request(url, "GET", "/mhs/v1/events")[0] == 400
    ws = {"url": f"ws{url.removeprefix('http')}/mhs/v1/ws", "subprotocol": "mhs.v1"}
    assert descriptor["transports"]["ws"] == ws
    assert request(url, "GET", "/mhs/v1/ws")[0] == 426


def test_behind_a_public_url_clients_are_told_its_own(start: Start) -> None:
    """[TPT-002, TPT-013]"""
    line = ready(start("--port", "0", "--public-url", "https://lab.example:8443", "--ws-port", "0"))
    assert (line["url"], line["ws_url"]) == ("https://lab.example:8443", "wss://lab.example:8443/mhs/v1/ws")


def validator(document: Any) -> None:
    """Check a descriptor against the shipped schema by a validator that is not ours."""
    store = {name: schema_document(name) for name in ("endpoint-descriptor.schema.json", "defs.schema.json")}
    by_id = {schema["$id"]: schema for schema in store.values()}
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT7

    registry: Any = Registry().with_resources(
        [(uri, Resource.from_contents(dict(schema), DRAFT7)) for uri, schema in by_id.items()]
    )
    jsonschema.Draft7Validator(store["endpoint-descriptor.schema.json"], registry=registry).validate(document)


def test_a_schema_is_served_with_its_digest(start: Start) -> None:
    url = ready(start("--port", "0"))["url"]
    status, body = request(url, "GET", "/mhs/v1/schema/receipt.schema.json")
    assert status == 200
    assert json.loads(body) == schema_document("receipt.schema.json")


def test_over_stdio_stdout_carries_the_protocol_alone_and_the_ready_line_is_on_stderr(start: Start) -> None:
    process = start("--stdio")
    line = json.loads(line_of(process.stderr))
    assert (line["mhs_ready"], line["url"], line["ws_url"]) == (True, None, None)
    assert process.stdin is not None
    process.stdin.write(hello() + b"\n")
    process.stdin.flush()
    answer = json.loads(line_of(process.stdout))
    assert (answer["id"], answer["result"]["endpoint_id"]) == (1, "mhs://localhost:7400")
    assert "stdio" in answer["result"]["features"]
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, b"")


def test_hints_for_people_go_to_stderr_where_they_are_wanted(start: Start) -> None:
    for hints, expected in (("1", True), ("", False)):
        process = start("--port", "0", MHSD_HINTS=hints)
        url = ready(process)["url"]
        _, _, err = end(process)
        assert (f"devices -e {url}".encode() in err) is expected
        assert (f"estop -e {url}".encode() in err) is expected


def test_the_service_manager_is_told(start: Start, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_S)
        process = start("--port", "0", NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="200000")
        told: list[bytes] = []
        while not {b"READY=1", b"WATCHDOG=1"} <= {message.split(b"\n")[0] for message in told}:
            told.append(manager.recv(4096))
        assert f"MAINPID={process.pid}".encode() in b"\n".join(told)
        process.send_signal(signal.SIGTERM)
        while b"STOPPING=1" not in told[-1]:
            told.append(manager.recv(4096))
        assert process.wait(PATIENCE_S) == 0


# Stopping


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("binding", [("--port", "0"), ("--stdio",)])
def test_a_signal_stops_the_daemon_in_order(start: Start, binding: tuple[str, ...], signum: int) -> None:
    process = start(*binding)
    line_of(process.stderr if binding == ("--stdio",) else process.stdout)
    code, _, err = end(process, signum)
    assert code == 0
    assert b"Traceback" not in err


def test_a_client_that_does_not_read_does_not_hold_up_the_stop(start: Start) -> None:
    process = start("--port", "0")
    host, port = ready(process)["url"].removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\n")
        assert end(process)[0] == 0


STUCK = '''
import trio
from mhsd.driver import Driver, Reading

class Stuck(Driver):
    """A device whose stop never comes to an end."""

    commands = {}

    async def open(self, nursery):
        pass

    async def read(self, resource_ids):
        return Reading(resources={"thing": {"on": False}})

    async def halt(self, reason):
        await trio.sleep_forever()
'''

STUCK_MANIFEST = """
path = "/test/stuck"
bindings = []
streams = []
display_name = "A device that does not stop"
risk_class = "R0"
profile = {title = "Stuck", tags = ["test"]}
modes = {fake = "simulated"}
fidelity = {determinism = "none", gaps = [], snapshot_restore = false}

[[resources]]
resource_id = "thing"
kind = "thing"
hash_exclusions = []

[resources.state_schema]
type = "object"
additionalProperties = false
required = ["on"]
properties = {on = {type = "boolean", readOnly = true}}

[safety]
interlocks = []
estop = {kind = "none", latching = true, latency_ms = 1000}
safe_state = {description = "off", achieved_by = ["driver.stop"]}
on_shutdown = "safe_state"
notes = "It has no stop path."
"""


def test_a_second_signal_ends_a_stop_that_hangs(start: Start, tmp_path: Path) -> None:
    driver = tmp_path / "stuck"
    driver.mkdir()
    (driver / "driver.py").write_text(STUCK)
    (driver / "manifest.toml").write_text(STUCK_MANIFEST)
    process = start(driver, "--port", "0", "--stop-grace-s", "3600")
    ready(process)
    process.send_signal(signal.SIGTERM)
    while b"stopping" not in line_of(process.stderr):
        pass
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)  # timeout(1) sends its signal twice at once: that is one signal
    time.sleep(0.5)
    code, _, err = end(process, signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    assert b"second signal" in err


# What is written where


def test_nothing_secret_reaches_the_log(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    process = start("--port", "0", "--log-level", "debug", "--log-format", "json", "--token-file", path)
    url = ready(process)["url"]
    statuses = [
        request(url, "POST", f"/mhs/v1/rpc?access_token={SECRET}", hello(), Authorization=authorization)[0]
        for authorization in (f"Bearer {SECRET}", f"Bearer {SECRET}x", f"Basic {SECRET}")
    ]
    assert statuses == [200, 401, 401]
    assert b"devices" not in request(url, "GET", "/.well-known/mhs.json")[1]
    code, _, err = end(process)
    assert code == 0
    assert SECRET.encode() not in err
    lines = [json.loads(line) for line in err.splitlines()]
    assert {"ts", "level", "logger", "message"} <= lines[0].keys()


def test_a_host_that_does_not_read_the_log_does_not_stop_the_daemon(start: Start) -> None:
    process = start("--port", "0", "--log-level", "debug")
    url = ready(process)["url"]
    for _ in range(1200):  # More than a pipe holds of what each of these refusals logs.
        assert request(url, "GET", "/nothing")[0] == 404
    assert request(url, "POST", "/mhs/v1/rpc", hello())[0] == 200
    assert end(process)[0] == 0


def test_a_stdout_that_nobody_reads_any_more_is_no_reason_to_end(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_S)
        process = start("--port", str(port), NOTIFY_SOCKET=str(tmp_path / "notify"))
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        assert manager.recv(4096).startswith(b"READY=1")
        assert request(f"http://127.0.0.1:{port}", "POST", "/mhs/v1/rpc", hello())[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


# Refusals at start


def refused(start: Start, *options: str | Path, **environ: str) -> tuple[int, str]:
    process = start(*options, **environ)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert out == b""
    lines = [line for line in err.decode().splitlines() if line.startswith("mhsd: ")]
    assert len(lines) == 1, err
    assert "Traceback" not in err.decode()
    return process.returncode, lines[0]


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (("no-such-device",), 2, "no-such-device"),
        (("--port", "x"), 2, "--port"),
        (("--config", "absent.toml"), 2, "absent.toml"),
        (("--token-file", "absent"), 2, "absent"),
        (("--tls-cert", "absent.pem"), 2, "absent.pem"),
        (("conveyor-workcell", "conveyor-workcell"), 2, "/lab/conveyor-workcell"),
        (("--option", "/no/such:x=1"), 2, "/no/such"),
        (("--arm=/no/such",), 2, "/no/such"),
        (("--backend", "hardware"), 4, "MHS.AUTH.HARDWARE_DISABLED"),
        (("scpi-psu:hardware",), 4, "MHS.AUTH.HARDWARE_DISABLED"),
        (("scpi-psu:hardware", "--allow-hardware"), 2, "--state-dir"),
        (("--host", "0.0.0.0", "--port", "0"), 4, "MHS.AUTH.TRANSPORT_INSECURE"),
    ],
)
def test_a_start_that_cannot_be_is_one_line_and_its_exit_code(
    start: Start, options: tuple[str, ...], code: int, told: str
) -> None:
    status, line = refused(start, *options)
    assert status == code
    assert told in line


def test_a_port_in_use_is_exit_1_with_the_address(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, line = refused(start, "--port", str(port))
    assert status == 1
    assert f"127.0.0.1:{port}" in line


def test_a_state_dir_in_use_is_exit_1_with_the_process(start: Start, tmp_path: Path) -> None:
    first = start("--port", "0", "--state-dir", "state")
    ready(first)
    status, line = refused(start, "--port", "0", "--state-dir", "state")
    assert status == 1
    assert str(first.pid) in line


def test_a_device_option_reaches_the_device_that_has_the_path(start: Start) -> None:
    status, line = refused(start, "scpi-psu", "--option", "/bench/psu:timeout_s=never")
    assert status == 2
    assert "timeout_s" in line
    status, line = refused(start, "scpi-psu@/bench/two", "--option", "/bench/two:no_such=1")
    assert status == 2
    assert "no_such" in line


def test_an_unknown_variable_is_told_in_the_log(start: Start) -> None:
    process = start("--port", "0", MHSD_TOKEN_FLE="x")
    ready(process)
    assert b"MHSD_TOKEN_FLE" in end(process)[2]
