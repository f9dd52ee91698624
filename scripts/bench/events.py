"""How long events take to their clients: streams of one session that all get what a command changes.

One process reads all streams, on a core of its own where the machine has two; the daemon has the other.
"""

import re
import selectors
import socket
import time
from collections.abc import Callable
from datetime import datetime

import attrs
from crowd import HttpClient, cpu_s

_READ_BYTES = 1 << 16
_EVENT = re.compile(rb'"seq":([0-9]+),"ts":"([^"]+)"[^\n]*\n\n')

Exchange = Callable[[bytes], bytes]
Request = Callable[[], bytes]


class Stream:
    """One stream; it fails where a seq is left out or comes twice."""

    def __init__(self, port: int, session_id: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        head = f"GET /mhs/v1/events?session_id={session_id} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        self.socket.sendall(head.encode())
        self._buffer = b""
        self._last_seq = 0
        while b"retry: " not in self._buffer:
            self._receive()
        if not self._buffer.startswith(b"HTTP/1.1 200 "):
            raise SystemExit(f"no stream: {self._buffer[:500]!r}")

    def _receive(self) -> None:
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise SystemExit(f"a stream has ended: {self._buffer[:500]!r}")
        self._buffer += data

    def read(self) -> list[bytes]:
        """The times, as the endpoint has written them, of the events that have come."""
        self._receive()
        found, end = [], 0
        for event in _EVENT.finditer(self._buffer):
            seq, end = int(event[1]), event.end()
            if self._last_seq and seq != self._last_seq + 1:
                raise SystemExit(f"seq {seq} came after {self._last_seq}")
            self._last_seq = seq
            found.append(event[2])
        self._buffer = self._buffer[end:]
        return found


@attrs.frozen
class Delivered:
    """What came over all streams."""

    latencies_ms: list[float]
    missing: int
    cpu_us: float
    """CPU time of the daemon for each event that was delivered, the commands behind them included."""
    per_s: float


def measure(
    port: int, pid: int, session_id: str, streams: int, rate_hz: float, seconds: float, request: Request
) -> Delivered:
    """Send a command `rate_hz` times a second, each of which is one event on every stream."""
    opened = [Stream(port, session_id) for _ in range(streams)]
    commands = HttpClient(port)
    interval_s = 1 / rate_hz
    count = round(seconds * rate_hz)
    moments: dict[bytes, float] = {}
    latencies_ms: list[float] = []
    with selectors.DefaultSelector() as selector:
        for stream in opened:
            selector.register(stream.socket, selectors.EVENT_READ, stream)
        selector.register(commands.socket, selectors.EVENT_READ, None)
        cpu_before_s, start = cpu_s(pid), time.perf_counter()
        sent, give_up = 0, start + seconds + 5
        while len(latencies_ms) < count * streams and time.perf_counter() < give_up:
            due_in_s = start + sent * interval_s - time.perf_counter()
            if sent < count and due_in_s <= 0:
                commands.send(request())
                sent += 1
                continue
            for key, _ in selector.select(due_in_s if sent < count else 0.1):
                if key.data is None:
                    commands.read()
                    continue
                times = key.data.read()
                now = time.time()
                for at in times:
                    if at not in moments:
                        moments[at] = datetime.fromisoformat(at.decode()).timestamp()
                    latencies_ms.append((now - moments[at]) * 1000)
        elapsed_s = time.perf_counter() - start
        used_s = cpu_s(pid) - cpu_before_s
    for stream in opened:
        stream.socket.close()
    commands.close()
    delivered = len(latencies_ms)
    return Delivered(
        latencies_ms, count * streams - delivered, used_s * 1e6 / max(1, delivered), delivered / elapsed_s
    )
