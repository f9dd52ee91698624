"""Clients that keep an endpoint busy: `python load.py PORT SESSION_ID CLIENTS` sends commands until its stdin ends.

Each client has a connection of its own and one command in flight. Prints a line once every client has had its first
answer, and at the end the number of answers in a second.
"""

import itertools
import selectors
import socket
import sys
import time
from collections.abc import Iterator

from peers import head, request, ulids

_READ_BYTES = 1 << 16
_END = b"\r\n\r\n"


class Client:
    """One connection; `read` is called when there is something to be read."""

    def __init__(self, port: int, commands: Iterator[bytes]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answers = 0
        self._head = head(port)
        self._commands = commands
        self._received = b""
        self._send()

    def _send(self) -> None:
        body = next(self._commands)
        self.socket.sendall(b"%s%d%s%s" % (self._head, len(body), _END, body))

    def read(self) -> None:
        """Take in what has come; once the answer is whole, send the next command."""
        received = self.socket.recv(_READ_BYTES)
        if not received:
            raise SystemExit(f"the server closed a connection; last bytes: {self._received[-200:]!r}")
        self._received += received
        split = self._received.find(_END)
        if split < 0:
            return
        length = int(self._received[:split].lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if len(self._received) < split + len(_END) + length:
            return
        self._received = b""
        self.answers += 1
        self._send()


def commands(session_id: str) -> Iterator[bytes]:
    """One tick of the fixture's world each, every one a new command."""
    fixed = {
        "session_id": session_id,
        "capability_id": "cap.world.step.v1",
        "input": {"ticks": 1},
        "deadline_ms": 60000,
    }
    for number, command_id in zip(itertools.count(1), ulids(), strict=False):
        yield request(number, "mhs.command", fixed | {"command_id": command_id})


def main(port: int, session_id: str, count: int) -> None:
    """Keep `count` clients busy until stdin ends."""
    source = commands(session_id)
    clients = [Client(port, source) for _ in range(count)]
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ, None)
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
        while not all(client.answers for client in clients):
            _answer(selector)
        print("busy", flush=True)
        before, start = sum(client.answers for client in clients), time.perf_counter()
        while _answer(selector):
            pass
        answers = sum(client.answers for client in clients) - before
        print(answers / (time.perf_counter() - start), flush=True)


def _answer(selector: selectors.BaseSelector) -> bool:
    """Let the clients whose answer has come go on; False when stdin has ended."""
    for key, _ in selector.select():
        if key.data is None:
            return False
        key.data.read()
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
