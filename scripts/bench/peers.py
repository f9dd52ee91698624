"""Clients that cost as little as a client can, so that the measured time is the server's. Blocking."""

import contextlib
import itertools
import json
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_READ_BYTES = 1 << 18
START_LIMIT_S = 30.0

Exchange = Callable[[bytes], bytes]


def ulids() -> Iterator[str]:
    """Distinct ULIDs without end, in rising order."""
    start = int(time.time() * 1000) << 80
    for count in itertools.count():
        value = start + count
        yield "".join(_CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5))


def request(number: int | str, method: str, params: dict[str, Any]) -> bytes:
    """One JSON-RPC request without white space or line end."""
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


@contextlib.contextmanager
def started(argv: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A child process that is stopped at the end, by SIGTERM where the end of its input does not do it."""
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        yield child
    finally:
        child.stdin.close()
        try:
            child.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            child.terminate()
            child.wait(timeout=30)
        child.stdout.close()


def first_line(child: subprocess.Popen[bytes]) -> bytes:
    """The child's first line on stdout; SystemExit when it ends or stays silent for `START_LIMIT_S`."""
    assert child.stdout is not None
    readable, _, _ = select.select([child.stdout], [], [], START_LIMIT_S)
    line = child.stdout.readline() if readable else b""
    if not line:
        raise SystemExit(f"{child.args!r}: no ready line")
    return line


class Lines:
    """NDJSON over a child's pipes."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        self._in, self._out = child.stdin.fileno(), child.stdout.fileno()

    def exchange(self, line: bytes) -> bytes:
        """Send one request and wait for its reply."""
        os.write(self._in, line + b"\n")
        return self._receive()

    def _receive(self) -> bytes:
        answer = os.read(self._out, _READ_BYTES)
        while not answer.endswith(b"\n"):
            more = os.read(self._out, _READ_BYTES)
            if not more:
                raise SystemExit(f"the server ended; last bytes: {answer[-200:]!r}")
            answer += more
        return answer

    def pipeline(self, lines: Iterator[bytes], in_flight: int, seconds: float, check: bytes) -> float:
        """Replies per second with `in_flight` requests outstanding; every reply must contain `check`."""
        os.write(self._in, b"".join(line + b"\n" for line in itertools.islice(lines, in_flight)))
        outstanding, done = in_flight, 0
        start = time.perf_counter()
        end = start + seconds
        while outstanding:
            answer = self._receive()
            count = answer.count(b"\n")
            if answer.count(check) != count:
                raise SystemExit(f"a reply without {check!r} in {answer[:2000]!r}")
            outstanding -= count
            done += count
            if time.perf_counter() < end:
                os.write(self._in, b"".join(line + b"\n" for line in itertools.islice(lines, count)))
                outstanding += count
        return done / (time.perf_counter() - start)


def head(port: int) -> bytes:
    """The head of a POST, as far as the body's length."""
    return (
        f"POST /mhs/v1/rpc HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        "Content-Type: application/json\r\nContent-Length: "
    ).encode()


class Posts:
    """POSTs on one kept-alive HTTP connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = head(port)

    def exchange(self, body: bytes) -> bytes:
        """Send one body and return the body of the reply."""
        self._socket.sendall(b"%s%d\r\n\r\n%s" % (self._head, len(body), body))
        answer = self._socket.recv(_READ_BYTES)
        while (split := answer.find(b"\r\n\r\n")) < 0:
            answer += self._more(answer)
        head = answer[:split].lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        while len(answer) < split + 4 + length:
            answer += self._more(answer)
        return answer[split + 4 :]

    def _more(self, answer: bytes) -> bytes:
        received = self._socket.recv(_READ_BYTES)
        if not received:
            raise SystemExit(f"the server closed the connection; last bytes: {answer[-200:]!r}")
        return received

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def closed_loop(exchange: Exchange, lines: Iterator[bytes], seconds: float, check: bytes) -> float:
    """Exchanges per second, one at a time; every reply must contain `check`."""
    count = 0
    start = time.perf_counter()
    end = start + seconds
    while time.perf_counter() < end:
        answer = exchange(next(lines))
        if check not in answer:
            raise SystemExit(f"a reply without {check!r}: {answer[:2000]!r}")
        count += 1
    return count / (time.perf_counter() - start)
