"""JSON-RPC over the stdin and stdout of a child that this program starts [TPT-004 to TPT-009].

One thread reads the child's stdout and hands each answer to the call that waits for its id; another keeps
the last lines of its stderr, which are shown when the child fails.
"""

import collections
import collections.abc
import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import threading
import time
from typing import IO, Any, NamedTuple

from mhsd.client.endpoint import StdioEndpoint
from mhsd.client.errors import no_more_events
from mhsd.client.transport import MAX_ANSWER_BYTES, Answer, Lost, NotSent, Over, Sink, Source, is_answer

STOP_GRACE_S = 15.0
"""How long the child may take to bring its devices to their safe state, after its stdin ended and again
after SIGTERM; more than the endpoint's own stop grace."""

_LONGEST_POLL_S = 3600.0
"""A longer wait is made of several of these: `poll` counts milliseconds in an int."""

KEPT_LINES = 40
"""How much of what the child says on stderr is kept for the message that tells of its failure."""


class ChildFailed(Exception):
    """The child did not end with status 0, which is to be shown to the operator [TPT-008]."""


def cannot_start(endpoint: StdioEndpoint, problem: OSError) -> NotSent:
    """The error of a child that did not start. A missing directory is reported as a missing program, so it is named."""
    where = f" in {endpoint.cwd}" if endpoint.cwd is not None else ""
    return NotSent(f"cannot start {endpoint.argv[0]}{where}: {problem.strerror}")


class StdioTransport:
    """Owns the child: started here, ended by `close`."""

    name = "stdio"
    needs_hello = True
    paced = False

    def __init__(self, endpoint: StdioEndpoint) -> None:
        self._endpoint = endpoint
        self.url = endpoint.url
        self._sinks: list[Sink] = []
        self._waiting: dict[str, queue.SimpleQueue[dict[str, Any] | None]] = {}
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._broken: str | None = None
        self._closed = False
        self._answered = False
        self._missed_start = False
        self._log: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        try:
            # A session of its own keeps the terminal's Ctrl-C from the child: the operation is cancelled in
            # order first, and the child ends when its stdin does.
            self._child = subprocess.Popen(  # noqa: S603 - the operator names the command after -e
                endpoint.argv,
                cwd=endpoint.cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as problem:
            raise cannot_start(endpoint, problem) from None
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self._stdin = self._child.stdin.fileno()
        os.set_blocking(self._stdin, False)
        self._threads = [
            threading.Thread(target=self._read_answers, args=(self._child.stdout,), daemon=True),
            threading.Thread(target=self._read_log, args=(self._child.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def exchange(self, request_id: str, body: bytes, timeout_s: float) -> Answer:
        """One request and its answer within `timeout_s`; answers of concurrent calls are told by id."""
        until_mono_s = time.monotonic() + timeout_s
        inbox: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        with self._lock:
            if self._broken is not None:
                raise Over(self._failure(self._broken))
            self._waiting[request_id] = inbox
        try:
            self._write(body + b"\n", until_mono_s)
            answer = inbox.get(timeout=max(0.0, until_mono_s - time.monotonic()))
        except queue.Empty:
            self._missed_start = not self._answered
            raise Lost(
                f"{self._endpoint.url} did not answer within {timeout_s:g} s", timed_out=True
            ) from None
        finally:
            with self._lock:
                self._waiting.pop(request_id, None)
        if answer is None:
            raise Lost(self._failure(self._broken or "the endpoint ended"))
        return Answer(answer)

    def _write(self, line: bytes, until_mono_s: float) -> None:
        if not self._write_lock.acquire(timeout=max(0.0, until_mono_s - time.monotonic())):
            raise NotSent("an earlier request could not be written to the endpoint")
        try:
            rest = memoryview(line)
            writable = select.poll()  # `select` knows no descriptor above 1023.
            writable.register(self._stdin, select.POLLOUT)
            while rest:
                left_s = until_mono_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError("the endpoint does not read its requests")
                if writable.poll(min(left_s, _LONGEST_POLL_S) * 1000):
                    with contextlib.suppress(BlockingIOError):
                        rest = rest[os.write(self._stdin, rest) :]
        except (OSError, ValueError) as problem:
            if len(rest) == len(line):
                raise NotSent(self._failure(f"nothing could be written to the endpoint: {problem}")) from None
            # Half a line is on its way; anything written after it would be read as its continuation.
            self._break(f"a request was written in part only: {problem}")
            raise Lost(self._failure(str(problem)), timed_out=isinstance(problem, TimeoutError)) from None
        finally:
            self._write_lock.release()

    def _read_answers(self, stdout: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in _lines(stdout, MAX_ANSWER_BYTES):
                if line is None:
                    self._break(f"the endpoint wrote a line of more than {MAX_ANSWER_BYTES} bytes")
                    return
                if line.strip():
                    self._take(line)
        self._break("the endpoint ended")

    def _take(self, line: bytes) -> None:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            self._log.append(f"no JSON on stdout: {line[:200]!r}")
            return
        if isinstance(value, dict) and "mhs_ready" in value:
            self._break("the command serves HTTP; give it --stdio")
            return
        if isinstance(value, dict) and value.get("method") == "mhs.event":
            self._hand_out(value.get("params"))
            return
        request_id = value.get("id") if isinstance(value, dict) else None
        with self._lock:
            inbox = self._waiting.get(request_id) if isinstance(request_id, str) else None
            if inbox is None and request_id is None and len(self._waiting) == 1:
                # An error that could not name its request answers the only one that is open.
                request_id, inbox = next(iter(self._waiting.items()))
        if inbox is not None and isinstance(request_id, str) and is_answer(value, request_id):
            self._answered = True
            inbox.put(value)

    def _hand_out(self, event: object) -> None:
        """Every sink knows the subscriptions of its own session."""
        if isinstance(event, dict):
            with self._lock:
                sinks = list(self._sinks)
            for sink in sinks:
                sink.deliver(event)

    def events(self, session_id: str, sink: Sink) -> Source:
        """The notifications among the answers. They end with the child, and nothing brings them back."""
        with self._lock:
            broken = self._broken
            self._sinks.append(sink)
        if broken is not None:
            sink.fail(no_more_events(self._failure(broken)))
        return _Hearing(self, sink)

    def forget(self, sink: Sink) -> None:
        """Nothing more is delivered to `sink`."""
        with self._lock:
            if sink in self._sinks:
                self._sinks.remove(sink)

    def _read_log(self, stderr: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in _lines(stderr, 65536):
                if line is not None:
                    self._log.append(line.decode("utf-8", "replace").rstrip())

    def _break(self, why: str) -> None:
        with self._lock:
            if self._broken is None:
                self._broken = why
            for inbox in self._waiting.values():
                inbox.put(None)
            sinks, self._sinks = self._sinks, []
        for sink in sinks:
            sink.fail(no_more_events(why))

    def _failure(self, why: str) -> str:
        """`why`, with what the child last said on stderr: usually the reason."""
        if not self._closed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(0.5)
                self._threads[1].join(0.5)
        last = self._log[-1] if self._log else ""
        status = self._child.returncode
        ended = f" (status {status})" if status not in (None, 0) else ""
        return f"{why}{ended}: {last}" if last else f"{why}{ended}"

    def close(self) -> None:
        """Ends the child's stdin, waits for it, then SIGTERM and SIGKILL to its process group [TPT-009].

        A child that has never answered in time has failed to start, and gets SIGTERM at once [TPT-007]. ChildFailed
        if it did not end well: a device may then not be in its safe state.
        """
        if self._closed:
            return
        self._closed = True
        self._break("the client is closed")
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        status = self._ended()
        for thread, pipe in zip(self._threads, (self._child.stdout, self._child.stderr), strict=True):
            thread.join(1.0)
            assert pipe is not None
            pipe.close()
        if status != 0:
            log = "\n  ".join(["", *self._log])
            raise ChildFailed(f"{self._endpoint.url} ended with status {status}{log}")

    def _ended(self) -> int:
        for stop in stops(self._missed_start):
            if stop is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._child.pid, stop)
            try:
                return self._child.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                continue
        return -signal.SIGKILL


def stops(missed_start: bool) -> tuple[signal.Signals | None, ...]:
    """What a child is told one after the other until it ends; first of all nothing, as its stdin has ended."""
    return (signal.SIGTERM, signal.SIGKILL) if missed_start else (None, signal.SIGTERM, signal.SIGKILL)


class _Hearing(NamedTuple):
    """One sink that is listening."""

    transport: StdioTransport
    sink: Sink

    def end(self) -> None:
        """It listens no more."""
        self.transport.forget(self.sink)


def _lines(pipe: IO[bytes], max_bytes: int) -> "collections.abc.Iterator[bytes | None]":
    """The lines of an unbuffered pipe; None ends it where one is longer than `max_bytes`."""
    kept = bytearray()
    while piece := pipe.read(65536):
        *whole, tail = piece.split(b"\n")
        for line in whole:
            yield bytes(kept) + line
            kept.clear()
        kept += tail
        if len(kept) > max_bytes:
            yield None
            return
    if kept:
        yield bytes(kept)
