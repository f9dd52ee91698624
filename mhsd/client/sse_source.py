"""The thread that brings server-sent events: reads, resumes after a break, and gives up when its budget is spent.

A break is mended by a new connection with Last-Event-ID [TPT-018, TPT-061]; what the endpoint sends twice or has
dropped meanwhile is for the subscriptions to sort out. What the endpoint refuses ends it at once.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from mhsd.client.backoff import Backoff
from mhsd.client.errors import MHSError, no_more_events
from mhsd.client.sse import SseMessage, SseParser, SseTooLong, event_of
from mhsd.client.transport import Lost, NotSent, Sink

QUIET_S = 90.0
"""A stream that brings nothing for so long, not even the endpoint's comments, is taken for broken."""

STEADY_S = 30.0
"""A connection that lasted so long gives the whole budget of attempts back, as an event does."""


class Stream(Protocol):
    """One connection."""

    def read(self, timeout_s: float) -> bytes: ...
    def cut(self) -> None: ...
    def close(self) -> None: ...


Opened = Callable[[str], Stream]
"""Opens a connection that goes on after this Last-Event-ID; NotSent, Lost or MHSError."""


class SseSource:
    """One stream of one session, from now until `end`."""

    def __init__(self, open_stream: Opened, sink: Sink, backoff: Backoff | None = None) -> None:
        self._open_stream = open_stream
        self._sink = sink
        self._backoff = backoff or Backoff()
        self._last_event_id = ""
        self._was_open = False
        self._stream: Stream | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name="mhs-events", daemon=True).start()

    def end(self) -> None:
        """Nothing more is brought."""
        self._ended.set()
        with self._lock:
            if self._stream is not None:
                self._stream.cut()

    def _run(self) -> None:
        try:
            self._bring()
        except (
            Exception
        ) as defect:  # In a thread nobody would hear of it, and whoever waits for events would for ever.
            self._give_up(no_more_events(f"{type(defect).__name__}: {defect}"))

    def _bring(self) -> None:
        while not self._ended.is_set():
            at_least_s = 0.0
            try:
                self._read_one()
                problem = no_more_events("the endpoint closed the stream")
            except (NotSent, Lost, SseTooLong) as broken:
                problem = no_more_events(str(broken))
            except MHSError as refusal:
                problem = refusal
                if not may_ask_again(refusal, was_open=self._was_open):
                    self._give_up(refusal)
                    return
                at_least_s = refusal.retry_after_s or 0.0
            pause_s = self._backoff.pause_s(at_least_s)
            if pause_s is None:
                self._give_up(problem)
                return
            if not self._ended.is_set():
                self._sink.interrupted(problem.message)
            self._ended.wait(pause_s)

    def _give_up(self, problem: MHSError) -> None:
        if not self._ended.is_set():
            self._sink.fail(problem)

    def _read_one(self) -> None:
        """One connection, to its end."""
        stream = self._open_stream(self._last_event_id)
        with self._lock:
            self._stream = stream
        self._was_open = True
        opened_mono_s = time.monotonic()
        parser = SseParser()
        try:
            # `end` cuts the stream that it sees, or has set this before the stream was there to be seen.
            while not self._ended.is_set() and (piece := stream.read(QUIET_S)):
                for message in parser.feed(piece):
                    self._take(message)
                    self._backoff.reset()
        finally:
            with self._lock:
                self._stream = None
            stream.close()
            if time.monotonic() - opened_mono_s > STEADY_S:
                self._backoff.reset()

    def _take(self, message: SseMessage) -> None:
        self._last_event_id = message.id
        event = event_of(message)
        if event is not None:
            self._sink.deliver(event)


def may_ask_again(refusal: MHSError, *, was_open: bool) -> bool:
    """Whether waiting helps a stream that was refused.

    After a break the endpoint may still count the stream that is gone; before the first one, too many streams are too
    many [TPT-017]. An endpoint that says that it does not serve now is being stopped or started.
    """
    if refusal.mhs_code == "MHS.LIMIT.CONNECTION_LIMIT":
        return was_open
    is_away = refusal.mhs_code == "MHS.TRANSPORT.UNAVAILABLE" and (refusal.http_status or 0) >= 500
    return is_away or refusal.mhs_code == "MHS.LIMIT.RATE_EXCEEDED"
