"""The heartbeats of a session, from one thread that rests while nothing is open [MHSD-4-29].

A session whose program has stopped doing anything is meant to end: its device then goes to its safe state. So the
heartbeats go out only while a call, an operation or a subscription is open.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mhsd.client.errors import AuthError, MHSError, SessionError

_AGAIN_S = 1.0
"""How soon a heartbeat that got lost is followed by the next."""


class Pulse:
    """`beat` is called every `every_s` seconds while somebody holds the pulse.

    `look` is called before: it releases what was left running unwatched and is over by now. `over` is told when the
    endpoint refuses a heartbeat because the session has ended.
    """

    def __init__(
        self,
        beat: Callable[[], object],
        look: Callable[[], object],
        over: Callable[[MHSError], object],
        every_s: float,
    ) -> None:
        self._beat = beat
        self._look = look
        self._session_over = over
        self._every_s = every_s
        self._holders = 0
        self._over = False
        self._resting = False
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._due_mono_s = time.monotonic() + every_s

    @contextmanager
    def held(self) -> Iterator[None]:
        """The session lives at least as long as the block."""
        self.hold()
        try:
            yield
        finally:
            self.release()

    def hold(self) -> None:
        """One more thing is open."""
        with self._changed:
            self._holders += 1
            if self._thread is None and not self._over:
                self._thread = threading.Thread(target=self._run, name="mhs-heartbeat", daemon=True)
                self._thread.start()
            elif self._resting:
                self._changed.notify()

    def release(self) -> None:
        """One thing less."""
        with self._changed:
            self._holders -= 1

    def end(self) -> None:
        """No further heartbeat is begun."""
        with self._changed:
            self._over = True
            self._changed.notify()

    def _run(self) -> None:
        while self._wait():
            try:
                self._look()
                if self._holders:
                    self._beat()
                pause_s = self._every_s
            except (SessionError, AuthError) as refusal:
                self._session_over(refusal)
                return
            except (
                Exception
            ):  # Whatever one heartbeat ended in, the next is tried: a session must not end by it.
                pause_s = min(_AGAIN_S, self._every_s)
            self._due_mono_s = time.monotonic() + pause_s

    def _wait(self) -> bool:
        """Waits until a heartbeat is due; False when there will be none."""
        with self._changed:
            while not self._over:
                left_s = self._due_mono_s - time.monotonic()
                if left_s > 0:
                    self._changed.wait(left_s)
                elif self._holders:
                    return True
                else:
                    self._resting = True
                    self._changed.wait()
                    self._resting = False
            return False
