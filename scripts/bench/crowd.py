"""Many requests in flight at a server, from one process: how fast it answers a crowd, and what an answer costs it.

Costs as little as it can, so that on a machine of two cores the server has one for itself.
"""

import itertools
import math
import os
import selectors
import socket
import struct
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
from peers import head

_READ_BYTES = 1 << 16
_END = b"\r\n\r\n"
_UPGRADE = (
    b"GET /mhs/v1/ws HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Protocol: mhs.v1\r\n\r\n"
)
_PING = 0x89
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
WARM_UP_S = 0.2

Requests = Iterator[bytes]


class Client:
    """One connection of a binding: `send` a request, `read` until its answer is whole."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.sent_at = 0.0

    def send(self, body: bytes) -> None:
        """Send one request."""
        self.sent_at = time.perf_counter()
        self._write(body)

    def _write(self, body: bytes) -> None:
        raise NotImplementedError

    def read(self) -> bytes | None:
        """Take in what has come: the answer, once it is whole."""
        raise NotImplementedError

    def _received(self) -> bytes:
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise SystemExit("the server closed a connection")
        return data

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


class HttpClient(Client):
    """POSTs on one kept-alive connection."""

    def __init__(self, port: int) -> None:
        super().__init__(_connected(port))
        self._head = head(port)
        self._buffer = b""

    def _write(self, body: bytes) -> None:
        self.socket.sendall(b"%s%d%s%s" % (self._head, len(body), _END, body))

    def read(self) -> bytes | None:
        self._buffer += self._received()
        split = self._buffer.find(_END)
        if split < 0:
            return None
        length = int(self._buffer[:split].lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if len(self._buffer) < split + len(_END) + length:
            return None
        answer, self._buffer = self._buffer[split + len(_END) :], b""
        return answer


class WsClient(Client):
    """Text messages on one WebSocket, which begins with `greeting`. Masked with zeros, which costs nothing."""

    def __init__(self, port: int, greeting: bytes) -> None:
        super().__init__(_connected(port))
        self._buffer = b""
        self.socket.sendall(_UPGRADE % port)
        while _END not in self._buffer:
            self._buffer += self._received()
        answer, _, self._buffer = self._buffer.partition(_END)
        if b" 101 " not in answer:
            raise SystemExit(f"no WebSocket: {answer!r}")
        self.exchange(greeting)

    def exchange(self, body: bytes) -> bytes:
        """Send one request and wait for its answer."""
        self.send(body)
        while (answer := self.read()) is None:
            pass
        return answer

    def _write(self, body: bytes) -> None:
        size = len(body)
        length = bytes([0x80 | size]) if size < 126 else struct.pack("!BH", 0x80 | 126, size)
        self.socket.sendall(b"\x81%b\0\0\0\0%b" % (length, body))

    def read(self) -> bytes | None:
        self._buffer += self._received()
        if len(self._buffer) < 4:
            return None
        opcode, size, start = self._buffer[0], self._buffer[1], 2
        if size == 126:
            size, start = int.from_bytes(self._buffer[2:4], "big"), 4
        if len(self._buffer) < start + size:
            return None
        payload, self._buffer = self._buffer[start : start + size], self._buffer[start + size :]
        if opcode != _PING:
            return payload
        self.socket.sendall(b"\x8a%c\0\0\0\0%b" % (0x80 | size, payload))
        return None


def _connected(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@attrs.frozen
class Run:
    """What a crowd has seen."""

    per_s: float
    cpu_us: float
    """CPU time of the server for each answer."""
    latencies_ms: list[float]

    @classmethod
    def of(cls, latencies_ms: list[float], elapsed_s: float, cpu_s: float) -> "Run":
        """What came of answers with these latencies, in so much time and for so much of the server's."""
        count = len(latencies_ms)
        return cls(count / elapsed_s, cpu_s * 1e6 / count, latencies_ms)

    def percentile_ms(self, part: float) -> float:
        """The latency that this part of the answers does not exceed."""
        ordered = sorted(self.latencies_ms)
        return round(ordered[max(0, math.ceil(part * len(ordered)) - 1)], 3)

    def part_within(self, limit_ms: float) -> float:
        """Which part of the answers came within this time."""
        return sum(latency <= limit_ms for latency in self.latencies_ms) / len(self.latencies_ms)


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used, with all of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


class Crowd:
    """Clients that each have one request in flight. `pid` is the server's."""

    def __init__(self, clients: Sequence[Client], pid: int) -> None:
        self._clients = clients
        self._pid = pid

    def run(self, requests: Requests, seconds: float, check: bytes) -> Run:
        """Keep every client busy for so long; each answer must contain `check`."""
        with selectors.DefaultSelector() as selector:
            for client in self._clients:
                selector.register(client.socket, selectors.EVENT_READ, client)
                client.send(next(requests))
            _answer_until(selector, time.perf_counter() + WARM_UP_S, requests, check)
            cpu_before_s, start = cpu_s(self._pid), time.perf_counter()
            latencies_ms = _answer_until(selector, start + seconds, requests, check)
            elapsed_s = time.perf_counter() - start
            used_s = cpu_s(self._pid) - cpu_before_s
            self._take_last(selector)
        return Run.of(latencies_ms, elapsed_s, used_s)

    def _take_last(self, selector: selectors.BaseSelector) -> None:
        """Take in the last answer of each client, so that the next run begins with none in flight."""
        left = set(self._clients)
        while left:
            for key, _ in selector.select():
                if key.data.read() is not None:
                    selector.unregister(key.fileobj)
                    left.discard(key.data)

    def close(self) -> None:
        """Close every connection."""
        for client in self._clients:
            client.close()


def _answer_until(
    selector: selectors.BaseSelector, end: float, requests: Requests, check: bytes
) -> list[float]:
    """Send a new request for each answer until `end` and one has come; the latencies in ms of the answers."""
    latencies_ms: list[float] = []
    while time.perf_counter() < end or not latencies_ms:
        for key, _ in selector.select():
            client: Client = key.data
            answer = client.read()
            if answer is None:
                continue
            latencies_ms.append((time.perf_counter() - client.sent_at) * 1000)
            if check not in answer:
                raise SystemExit(f"an answer without {check!r}: {answer[:2000]!r}")
            client.send(next(requests))
    return latencies_ms


class Pipe:
    """One client on the pipes of a child, with several requests in flight."""

    def __init__(self, child: subprocess.Popen[bytes], in_flight: int) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        self._in, self._out, self._pid = child.stdin.fileno(), child.stdout.fileno(), child.pid
        self._in_flight = in_flight

    def run(self, requests: Requests, seconds: float, check: bytes) -> Run:
        """Keep so many requests in flight for so long, and until one is answered; each answer must contain `check`."""
        sent_at: deque[float] = deque()
        self._send(requests, self._in_flight, sent_at)
        start = time.perf_counter()
        end, begun, cpu_before_s = start + WARM_UP_S + seconds, False, 0.0
        latencies_ms: list[float] = []
        while (now := time.perf_counter()) < end or not (begun and latencies_ms):
            if not begun and now >= start + WARM_UP_S:
                begun, start, cpu_before_s = True, now, cpu_s(self._pid)
                latencies_ms.clear()
            self._send(requests, self._receive(sent_at, latencies_ms, check), sent_at)
        run = Run.of(latencies_ms, now - start, cpu_s(self._pid) - cpu_before_s)
        while sent_at:
            self._receive(sent_at, latencies_ms, check)
        return run

    def _send(self, requests: Requests, count: int, sent_at: deque[float]) -> None:
        os.write(self._in, b"".join(line + b"\n" for line in itertools.islice(requests, count)))
        sent_at += [time.perf_counter()] * count

    def _receive(self, sent_at: deque[float], latencies_ms: list[float], check: bytes) -> int:
        """How many answers came. They come in the order of their requests but for what waits, which is near enough."""
        answers = b""
        while not answers.endswith(b"\n"):
            more = os.read(self._out, _READ_BYTES)
            if not more:
                raise SystemExit(f"the server ended; last bytes: {answers[-200:]!r}")
            answers += more
        count, now = answers.count(b"\n"), time.perf_counter()
        if answers.count(check) != count:
            raise SystemExit(f"an answer without {check!r} in {answers[:2000]!r}")
        latencies_ms += [(now - sent_at.popleft()) * 1000 for _ in range(count)]
        return count

    def close(self) -> None:
        """The pipes are closed by whoever has opened them."""
