"""What makes the daemon stop: a signal, or the end of a binding. A second signal, later, ends it at once.

So does, in the end, a driver that does not come back.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import NoReturn

import trio

_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_REPEAT_S = 0.5
"""So long the signal counts as the first one again: timeout(1) sends it to its child and to its group, and a process
between a terminal and the daemon often hands on what the terminal has sent to both."""


class StopRequest:
    """Becomes true once. During the start it cancels what is being started, afterwards it is waited for."""

    def __init__(self) -> None:
        self.starting = trio.CancelScope()
        self.signum: int | None = None
        self.reason = ""
        self._has_started = False
        self._asked = trio.Event()

    def started(self) -> None:
        """From now on a stop takes its course instead of cancelling."""
        self._has_started = True

    async def wait(self) -> None:
        """Until somebody asks for the stop."""
        await self._asked.wait()

    def ask(self, reason: str) -> None:
        """Stop, for the first reason that is given."""
        if not self._asked.is_set():
            self.reason = reason
            self._asked.set()
            if not self._has_started:
                self.starting.cancel()

    async def ask_after(self, event: trio.Event, reason: str) -> None:
        """Stop as soon as this has happened."""
        await event.wait()
        self.ask(reason)

    async def watch_signals(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Stop at the first signal [TPT-009]; the next one does not even wait for the loop."""
        # A hang-up would leave devices as they are, and whoever has it ignored (nohup) means it.
        signals = [signum for signum in _STOP if signal.getsignal(signum) is not signal.SIG_IGN]
        since_s = math.inf

        def again(signum: int, frame: FrameType | None) -> None:
            if time.monotonic() - since_s > _REPEAT_S:
                _end("ended by a second signal", 128 + signum)

        for each in signals:
            signal.signal(each, again)  # In force as soon as the receiver is closed.
        with trio.open_signal_receiver(*signals) as received:
            task_status.started()
            async for signum in received:
                since_s = time.monotonic()
                self.signum = signum
                break
        assert self.signum is not None
        self.ask(signal.Signals(self.signum).name)


class LastResort:
    """Ends the process when a driver's call goes on although it was cancelled: Trio would wait for it for ever."""

    def __init__(self, patience_s: float) -> None:
        self._timer = threading.Timer(patience_s, _end, ("a driver did not come back and was left behind", 1))
        self._timer.daemon = True

    def start(self) -> None:
        """From now on there is so much time, until `cancel`."""
        self._timer.start()

    def cancel(self) -> None:
        """Everything has ended by itself."""
        self._timer.cancel()


def _end(why: str, exit_code: int) -> NoReturn:
    with suppress(OSError):
        os.set_blocking(2, False)
        os.write(2, f"mhsd: {why}; devices may not be in their safe state\n".encode())
    os._exit(exit_code)
