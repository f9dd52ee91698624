"""A small endpoint in a thread: reads real HTTP and answers what the test says, garbage and silence included."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

import attrs

HELLO = {
    "server": {"name": "tiny", "version": "1"},
    "spec_version": "0.9",
    "mhs_version": "1.0",
    "endpoint_id": "mhs://localhost:7400",
    "devices": [
        {
            "device_id": "mhs://localhost:7400/lab/one",
            "display_name": "One",
            "mode": "simulated",
            "risk_class": "R1",
        }
    ],
    "limits": {"session_max_ttl_s": 86400, "max_request_bytes": 1048576},
    "time": {"now": "2026-10-20T07:45:00.000Z"},
    "started_at": "2026-10-20T07:00:00.000Z",
    "conformance": [],
    "features": ["MHS.SAFETY.NOT_CERTIFIED"],
    "safety": {"certified": False, "notice": "MHS.SAFETY.NOT_CERTIFIED"},
}


@attrs.frozen
class Request:
    """One request as it arrived."""

    head: str
    body: bytes
    connection: int

    @property
    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.body)
        return message

    @property
    def method(self) -> str:
        return str(self.message["method"])

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.message["params"])

    def header(self, name: str) -> str | None:
        for line in self.head.split("\r\n")[1:]:
            key, _, content = line.partition(": ")
            if key.lower() == name.lower():
                return content
        return None


Answer = Callable[[Request], bytes | Iterator[bytes] | None]
"""The bytes to write back, or pieces of them; None closes the connection without a word, b"" is silence."""


def http(status: int, content: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Told", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {text}" for name, text in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + content


def result(request: Request, content: Any) -> bytes:
    answer = {"jsonrpc": "2.0", "id": request.message["id"], "result": content}
    return http(200, json.dumps(answer).encode(), Content_Type="application/json")


def refusal(
    request: Request | None, mhs_code: str, status: int = 200, *, message: str = "no", **more: Any
) -> bytes:
    data = {"mhs_code": mhs_code, "retryable": False, "remediation": "Do something else.", **more}
    error = {"code": -32000, "message": message, "data": data}
    request_id = request.message["id"] if request is not None else None
    answer = {"jsonrpc": "2.0", "id": request_id, "error": error}
    return http(status, json.dumps(answer).encode(), Content_Type="application/json")


class Tiny:
    """Serves until it is closed; `requests` are what came, in order."""

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self._answer = answer
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def methods(self) -> list[str]:
        """The methods that were called; a GET calls none."""
        return [request.method for request in self.requests if request.body]

    def close(self) -> None:
        # Closing alone would leave the accept of the other thread listening.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(
                target=self._serve, args=(connection, len(self._connections)), daemon=True
            ).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection, connection.makefile("rb") as file:
                while (request := _read(file, number)) is not None:
                    self.requests.append(request)
                    content = self._answer(request)
                    if content is None:
                        return
                    for piece in (content,) if isinstance(content, bytes) else content:
                        connection.sendall(piece)
        except OSError:
            return


def _read(file: Any, number: int) -> Request | None:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = file.readline()
        if not line:
            return None
        head += line
    text = head.decode()
    length = next(
        (int(line.split(":")[1]) for line in text.split("\r\n") if line.lower().startswith("content-length")),
        0,
    )
    return Request(text, file.read(length), number)


class Endpoint:
    """Answers MHS methods from a table of functions; what is not in it is METHOD_NOT_FOUND."""

    def __init__(self, **methods: Callable[[Request], Any]) -> None:
        self._methods: dict[str, Callable[[Request], Any]] = {"hello": lambda _: HELLO, **methods}

    def __call__(self, request: Request) -> bytes | None:
        name = request.method.removeprefix("mhs.").replace(".", "_")
        if name not in self._methods:
            return refusal(request, "MHS.PROTOCOL.METHOD_NOT_FOUND")
        content = self._methods[name](request)
        return content if content is None or isinstance(content, bytes) else result(request, content)
