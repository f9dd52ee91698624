"""A real daemon in its own process, and a raw client for each binding: what the black-box tests drive.

Nothing here knows the client library: a test sees the bytes that any client would see.
"""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from ulid import ULID
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import AcceptConnection, CloseConnection, Event, Ping, Request, TextMessage

from tests.bindings.sockets import frame
from tests.documents import check_error, check_result

MHSD = Path(sys.executable).parent / "mhsd"
PATIENCE_S = 60.0
"""How long a test waits for anything before it fails; a busy machine may take most of it."""

CONVEYOR = "mhs://localhost:7400/lab/conveyor-workcell"


class RpcError(Exception):
    """A JSON-RPC error; `error` is the error object."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['data']['mhs_code']}: {error['message']}")
        self.error = error

    @property
    def code(self) -> str:
        code: str = self.error["data"]["mhs_code"]
        return code

    @property
    def details(self) -> dict[str, Any]:
        details: dict[str, Any] = self.error["data"].get("details", {})
        return details


def ulid() -> str:
    return str(ULID())


def request(method: str, /, **params: Any) -> dict[str, Any]:
    """A request object with an id of its own."""
    return {"jsonrpc": "2.0", "id": ulid(), "method": method, "params": params}


def ask_until(question: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    """Ask again and again until the answer is the one waited for."""
    for _ in range(int(PATIENCE_S / 0.02)):
        answer = question()
        if holds(answer):
            return answer
        threading.Event().wait(0.02)
    raise AssertionError(f"still not so: {str(answer)[:500]}")


def _taken(answers: "queue.Queue[Any]") -> Any:
    """The next answer, waited for; what came in place of one is raised."""
    answer = answers.get(timeout=PATIENCE_S)
    if isinstance(answer, Exception):
        raise answer
    return answer


class Pending:
    """A request that was sent and whose answer is waited for elsewhere."""

    def __init__(self, method: str, answers: "queue.Queue[Any]") -> None:
        self._method = method
        self._answers = answers

    @property
    def done(self) -> bool:
        return not self._answers.empty()

    def answer(self) -> Any:
        answer = _taken(self._answers)
        self._answers.put(answer)
        return answer

    def result(self) -> Any:
        return result_of(self._method, self.answer())


def result_of(method: str, answer: Any) -> Any:
    """The checked result of an answer; RpcError for its error."""
    assert answer["jsonrpc"] == "2.0"
    if "error" in answer:
        assert answer.keys() == {"jsonrpc", "id", "error"}
        check_error(answer["error"])
        raise RpcError(answer["error"])
    assert answer.keys() == {"jsonrpc", "id", "result"}
    check_result(method, answer["result"])
    return answer["result"]


class Wire:
    """Sends messages and returns what came back for them; one subclass a binding."""

    name: str

    def ask(self, message: dict[str, Any]) -> "queue.Queue[Any]":
        """Send a request without waiting; its answer is put into the queue."""
        raise NotImplementedError

    def exchange(self, message: Any) -> Any:
        """The decoded answer to one message (an object or a batch), which must have one."""
        return self.exchange_bytes(json.dumps(message).encode())

    def exchange_bytes(self, body: bytes) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class HttpWire(Wire):
    """One request a connection, so that any number of threads may use it."""

    name = "http"

    def __init__(self, url: str, token: str | None = None) -> None:
        self.host, self.port = url.removeprefix("http://").rstrip("/").split(":")
        self.token = token

    def exchange_bytes(self, body: bytes) -> Any:
        _, data = self.post(body)
        return json.loads(data) if data else None

    def ask(self, message: dict[str, Any]) -> "queue.Queue[Any]":
        answers: queue.Queue[Any] = queue.Queue()

        def exchange() -> None:
            try:
                answers.put(self.exchange(message))
            except (OSError, HTTPException) as error:
                # A daemon that a test killed; whoever waits for the answer gets to know.
                answers.put(error)

        threading.Thread(target=exchange, daemon=True).start()
        return answers

    def post(self, body: bytes, **headers: str) -> tuple[int, bytes]:
        """The HTTP status and body of one POST to the RPC path."""
        sent = {"Content-Type": "application/json", **headers}
        if self.token is not None:
            sent["Authorization"] = f"Bearer {self.token}"
        connection = HTTPConnection(self.host, int(self.port), timeout=PATIENCE_S)
        try:
            connection.request("POST", "/mhs/v1/rpc", body, sent)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection(self.host, int(self.port), timeout=PATIENCE_S)
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def close(self) -> None:
        pass


class ConnectionWire(Wire):
    """One connection that every call shares; answers are sorted to their callers by id, and events kept apart."""

    def __init__(self) -> None:
        self._answers: dict[str, queue.Queue[Any]] = {}
        self._others: queue.Queue[Any] = queue.Queue()
        self.events: queue.Queue[Any] = queue.Queue()
        """The notifications of every subscription on the connection, as they came."""
        self._ended = False
        self.reads = threading.Event()
        """Clear it, and the peer reads nothing until it is set again."""
        self.reads.set()
        self._lock = threading.Lock()

    def _listen(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _messages(self) -> Iterator[bytes]:
        """What comes on the connection, message by message."""
        raise NotImplementedError

    def send(self, message: bytes) -> None:
        raise NotImplementedError

    def _read(self) -> None:
        for text in self._messages():
            message = json.loads(text)
            if isinstance(message, dict) and "method" in message:
                self.events.put(message)
                continue
            key = message.get("id") if isinstance(message, dict) else None
            with self._lock:
                waiting = self._answers.pop(key, None) if isinstance(key, str) else None
            (waiting or self._others).put(message)
        with self._lock:
            self._ended = True
            for waiting in (*self._answers.values(), self._others, self.events):
                waiting.put(EOFError("the daemon has closed the connection"))

    def exchange(self, message: Any) -> Any:
        key = message.get("id") if isinstance(message, dict) else None
        if not isinstance(key, str):
            return super().exchange(message)
        return _taken(self.ask(message))

    def _revive(self) -> None:
        """Open the connection again where that is the usual thing to do."""

    def ask(self, message: dict[str, Any]) -> "queue.Queue[Any]":
        self._revive()
        waiting: queue.Queue[Any] = queue.Queue()
        with self._lock:
            if self._ended:
                raise EOFError("the daemon has closed the connection")
            self._answers[message["id"]] = waiting
        self.send(json.dumps(message).encode())
        return waiting

    def unclaimed(self) -> list[Any]:
        """The answers so far that nobody waited for."""
        found = []
        while not self._others.empty():
            found.append(self._others.get())
        return found

    def exchange_bytes(self, body: bytes) -> Any:
        self._revive()
        self.send(body)
        return _taken(self._others)


class StdioWire(ConnectionWire):
    """Lines on the daemon's own pipes."""

    name = "stdio"

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        super().__init__()
        self.process = process
        self._listen()

    def _messages(self) -> Iterator[bytes]:
        """The lines; one without a line feed is what a daemon that was killed had written of its last answer."""
        while (line := self._line()).endswith(b"\n"):
            yield line

    def _line(self) -> bytes:
        assert self.process.stdout is not None
        self.reads.wait(PATIENCE_S)
        try:
            return self.process.stdout.readline()
        except ValueError:
            # `stop` closed the pipe of a daemon that has ended before all of it was read.
            return b""

    def send(self, message: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(message + b"\n")
        self.process.stdin.flush()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


class WsWire(ConnectionWire):
    """Text messages of a WebSocket. One that is too long or no UTF-8 costs the connection, and another is opened."""

    name = "ws"

    def __init__(self, url: str, token: str | None = None) -> None:
        super().__init__()
        self.url, self.token = url, token
        self.closed: tuple[int, str | None] | None = None
        """Code and reason of the close frame that the daemon has sent."""
        self._connect()

    def _connect(self) -> None:
        host, _, target = self.url.removeprefix("ws://").partition("/")
        name, port = host.split(":")
        self._socket = socket.create_connection((name, int(port)), timeout=PATIENCE_S)
        self._socket.settimeout(None)
        self._protocol = WSConnection(ConnectionType.CLIENT)
        headers = [] if self.token is None else [(b"Authorization", f"Bearer {self.token}".encode())]
        request = Request(host=host, target=f"/{target}", subprotocols=["mhs.v1"], extra_headers=headers)
        self._socket.sendall(self._protocol.send(request))
        self._ended, self.closed = False, None
        self._others, self.events = queue.Queue(), queue.Queue()
        first = next(self._frames())
        assert isinstance(first, AcceptConnection), first
        self._listen()

    def _frames(self) -> Iterator[Event]:
        while True:
            yield from self._protocol.events()
            self.reads.wait(PATIENCE_S)
            data = self._socket.recv(65536)
            if not data:
                return
            self._protocol.receive_data(data)

    def _messages(self) -> Iterator[bytes]:
        with (
            suppress(OSError),
            self._socket,
        ):  # The end of a daemon that was killed, or of a test's own making.
            yield from self._texts()

    def _texts(self) -> Iterator[bytes]:
        text = ""
        for event in self._frames():
            if isinstance(event, Ping):
                self._write(event.response())
            elif isinstance(event, CloseConnection):
                self.closed = event.code, event.reason
                if self._protocol.state is ConnectionState.REMOTE_CLOSING:
                    self._write(event.response())
                return
            elif isinstance(event, TextMessage):
                text += event.data
                if event.message_finished:
                    yield text.encode()
                    text = ""

    def _write(self, event: Event) -> None:
        with self._lock:
            self._socket.sendall(self._protocol.send(event))

    def send(self, message: bytes) -> None:
        with self._lock:
            # By hand, because some tests send what no library would send as a text.
            self._socket.sendall(frame(message))

    def exchange_bytes(self, body: bytes) -> Any:
        answer = super().exchange_bytes(body)
        code = 1007 if b"\xff" in body else 1009 if len(body) > self.limit else None
        if code is not None:
            assert isinstance(self.ended(), EOFError)
            assert self.closed is not None
            assert self.closed[0] == code
        return answer

    def _revive(self) -> None:
        if self.closed is not None and self.closed[0] in (1007, 1009):
            self._connect()
            self.greet()

    limit = 1 << 20
    """The longest message, as hello has advertised it."""

    def greet(self) -> None:
        hello = request("mhs.hello", client={"name": "tests", "version": "1"}, protocol_versions=["1.0"])
        self.limit = self.exchange(hello)["result"]["limits"]["max_request_bytes"]

    def ended(self) -> Any:
        """What tells that the daemon has closed the connection, waited for."""
        return self._others.get(timeout=PATIENCE_S)

    def reset(self) -> None:
        """Leave without a word, and without reading what is there."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._socket.shutdown(socket.SHUT_RD)
        self._socket.close()

    def close(self) -> None:
        self._write(CloseConnection(code=1000))


class Lab:
    """One daemon. Method calls raise RpcError; receipts are returned whatever their status."""

    def __init__(
        self, wire: Wire, process: "subprocess.Popen[bytes]", ready: dict[str, Any], stderr: Path
    ) -> None:
        self.wire = wire
        self.process = process
        self.ready = ready
        self.stderr_file = stderr

    @property
    def binding(self) -> str:
        return self.wire.name

    def stderr(self) -> str:
        return self.stderr_file.read_text()

    def call(self, method: str, /, **params: Any) -> Any:
        """The result, checked against its schema."""
        return result_of(method, self.wire.exchange(request(method, **params)))

    def begin(self, method: str, /, **params: Any) -> Pending:
        """Send the request and go on; on a connection requests enter in the order of these calls."""
        return Pending(method, self.wire.ask(request(method, **params)))

    def refused(self, method: str, /, **params: Any) -> RpcError:
        """The JSON-RPC error that the call must end in."""
        try:
            result = self.call(method, **params)
        except RpcError as error:
            return error
        raise AssertionError(f"{method} was not refused: {str(result)[:500]}")

    def kill(self) -> None:
        """End the daemon as a power cut would."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def open(
        self, capabilities: Sequence[Any] = ("*",), *, device_id: str = CONVEYOR, **more: Any
    ) -> "Session":
        params = {
            "principal": {"id": "agent:test", "kind": "agent"},
            "device_ids": [device_id],
            "capabilities": list(capabilities),
            "mode": "simulated",
            "ttl_s": 600,
            "client_info": {"name": "tests", "version": "1", "transport": self.binding},
            **more,
        }
        return Session(self, self.call("mhs.session.open", **params))

    def hello(self) -> Any:
        return self.call("mhs.hello", client={"name": "tests", "version": "1"}, protocol_versions=["1.0"])


class Session:
    """One open session on one device."""

    def __init__(self, lab: Lab, grant: dict[str, Any]) -> None:
        self.lab = lab
        self.grant = grant
        self.id: str = grant["session_id"]

    def call(self, method: str, /, **params: Any) -> Any:
        return self.lab.call(method, session_id=self.id, **params)

    def begin(self, capability_id: str, value: Any, **more: Any) -> Pending:
        """Send a command without waiting for its receipt."""
        params = {"command_id": ulid(), "deadline_ms": 30_000, **more}
        return self.lab.begin(
            "mhs.command", session_id=self.id, capability_id=capability_id, input=value, **params
        )

    def refused(self, method: str, /, **params: Any) -> RpcError:
        return self.lab.refused(method, session_id=self.id, **params)

    def command(self, capability_id: str, value: Any, **more: Any) -> Any:
        """The receipt of one command; command_id and deadline_ms have defaults."""
        params = {"command_id": ulid(), "deadline_ms": 30_000, **more}
        return self.call("mhs.command", capability_id=capability_id, input=value, **params)

    def completed(self, capability_id: str, value: Any, **more: Any) -> Any:
        """The receipt of a command that must complete."""
        receipt = self.command(capability_id, value, **more)
        assert receipt["status"] == "completed", receipt
        return receipt

    def started(self, capability_id: str, value: Any, **more: Any) -> tuple[Pending, Any]:
        """A command that is running now, and its running receipt."""
        command_id = more.pop("command_id", ulid())
        pending = self.begin(capability_id, value, command_id=command_id, **more)
        where = {name: more[name] for name in ("device_id",) if name in more}

        def receipt() -> Any:
            try:
                return self.look_up(command_id, **where)
            except RpcError as error:
                if error.code != "MHS.OPERATION.UNKNOWN":
                    raise
                return None

        running = ask_until(receipt, lambda found: found is not None and found["status"] != "accepted")
        assert running["status"] == "running", running
        return pending, running

    def look_up(self, command_id: str, **more: Any) -> Any:
        """The current receipt of a command by its command_id."""
        return self.call("mhs.operations.get", command_id=command_id, **{"deadline_ms": 30_000, **more})

    def cancel(self, operation_id: str, **more: Any) -> Any:
        return self.call(
            "mhs.operations.cancel", operation_id=operation_id, **{"deadline_ms": 30_000, **more}
        )

    def revision(self) -> int:
        revision: int = self.read("world")["revision"]
        return revision

    def write(self, resource_id: str, patch: Any, **more: Any) -> Any:
        params = {"command_id": ulid(), "deadline_ms": 30_000, **more}
        return self.call("mhs.resource.write", resource_id=resource_id, patch=patch, **params)

    def read(self, resource_id: str, **more: Any) -> Any:
        return self.call("mhs.resource.read", resource_id=resource_id, **{"deadline_ms": 30_000, **more})

    def get(self, operation_id: str) -> Any:
        return self.call("mhs.operations.get", operation_id=operation_id, deadline_ms=30_000)

    def follow(self, operation_id: str) -> Any:
        """The final receipt of an operation, asked for until it is there."""
        return ask_until(
            lambda: self.get(operation_id), lambda receipt: receipt["status"] not in ("accepted", "running")
        )

    def close(self) -> Any:
        return self.call("mhs.session.close")


@contextmanager
def running(
    binding: str,
    tmp_path: Path,
    *options: str,
    targets: Sequence[str] = ("conveyor-workcell",),
    program: Sequence[str] = (str(MHSD),),
    greet: bool = True,
    **environ: str,
) -> Iterator[Lab]:
    """A daemon that serves `targets` over one binding; greeted already on stdio and WebSocket, stopped at the end."""
    stderr = tmp_path / f"stderr-{ulid()}.txt"
    where = ("--stdio",) if binding == "stdio" else ("--port", "0")
    environment = {**os.environ, "MHSD_RUNTIME_DIR": str(tmp_path / "run"), **environ}
    with stderr.open("wb") as log:
        process = subprocess.Popen(
            [*program, *targets, *where, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            cwd=tmp_path,
        )
    try:
        if binding == "stdio":
            lab = Lab(StdioWire(process), process, {}, stderr)
            if greet:
                lab.hello()
        else:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"no ready line; stderr: {stderr.read_text()}"
            ready = json.loads(line)
            wire = WsWire(ready["ws_url"]) if binding == "ws" else HttpWire(ready["url"])
            lab = Lab(wire, process, ready, stderr)
            if greet and isinstance(wire, WsWire):
                wire.greet()
        yield lab
    finally:
        stop(process)


def stop(process: "subprocess.Popen[bytes]") -> int:
    """End a daemon by its process id and wait for it."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
    finally:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
