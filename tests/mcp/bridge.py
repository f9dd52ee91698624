"""An HTTP door before a server that speaks MCP on stdio, for the conformance suite, which knows servers by URL only.

One POST is one line to the server; its response is the line with the same id. The server is one for all connections,
as the suite's scenarios come one after the other. Requests that the server sends by itself are dropped.
"""

import json
import queue
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.lab import PATIENCE_S, stop


class Bridge:
    """Lines out and in, sorted by id."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._answers: dict[str, queue.Queue[bytes]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            with self._lock:
                waiting = self._answers.pop(json.dumps(message.get("id")), None)
            if waiting is not None:
                waiting.put(line)

    def exchange(self, body: bytes) -> bytes | None:
        """The answer to one message; None for one that has none."""
        message = json.loads(body)
        answer: queue.Queue[bytes] = queue.Queue()
        if "id" in message:
            with self._lock:
                self._answers[json.dumps(message["id"])] = answer
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()
        return answer.get(timeout=PATIENCE_S) if "id" in message and "method" in message else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bridge: Bridge

    def do_POST(self) -> None:
        answer = self.bridge.exchange(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(202 if answer is None else 200)
        if answer is not None:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer or b"")))
        self.end_headers()
        self.wfile.write(answer or b"")

    def do_GET(self) -> None:
        self.send_response(405)
        self.send_header("Allow", "POST")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_DELETE(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def bridged(command: Sequence[str], **more: Any) -> Iterator[str]:
    """The URL of a server that `command` starts, while the block runs."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **more)
    handler = type("Handler", (_Handler,), {"bridge": Bridge(process)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
    finally:
        server.shutdown()
        server.server_close()
        stop(process)
