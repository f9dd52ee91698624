"""The heartbeats of a session, from one task that runs while something is open in it [MHSD-4-29].

A session whose program has stopped doing anything is meant to end: its device then goes to its safe state. So
heartbeats go out only while a call, an operation or a subscription is open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from mhsd.client.errors import AuthError, MHSError, OutcomeUnknown, SessionError, TransportError

AGAIN_S = 1.0
"""How soon a heartbeat that got lost is followed by the next."""


class Pulse:
    """`beat` is called every `every_s` seconds while somebody holds the pulse; then `look`, which lets go of what ran
    unwatched and is over by now. A refused heartbeat ends them, and `over` is told why."""

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        beat: Callable[[], Awaitable[object]],
        look: Callable[[], Awaitable[object]],
        over: Callable[[MHSError], None],
        every_s: float | None,
    ) -> None:
        self._nursery = nursery
        self._beat = beat
        self._look = look
        self._over = over
        self.every_s = every_s
        """None until `beat` has found out how long the session lives; the first one is due at once then."""
        self._due_mono_s = trio.current_time() + (every_s or 0.0)
        self._holders = 0
        self._is_over = False
        self._is_running = False
        self._resting = trio.CancelScope()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """The session lives at least as long as the block."""
        self.hold()
        try:
            yield
        finally:
            self.release()

    def hold(self) -> None:
        """One more thing is open."""
        self._holders += 1
        if not self._is_running and not self._is_over:
            self._is_running = True
            self._nursery.start_soon(self._run)

    def release(self) -> None:
        """One thing less. A heartbeat that is on its way is not called back: calls that are short would end it every
        time, and the session with it."""
        self._holders -= 1
        if self._holders == 0:
            self._resting.cancel()

    def end(self) -> None:
        """No further heartbeat is begun."""
        self._is_over = True
        self._resting.cancel()

    async def _run(self) -> None:
        try:
            while self._holders and not self._is_over:
                if trio.current_time() >= self._due_mono_s:
                    pause_s = await self._tend()
                    self._due_mono_s = trio.current_time() + pause_s
                    continue
                with trio.CancelScope() as self._resting:
                    await trio.sleep_until(self._due_mono_s)
        finally:
            self._is_running = False

    async def _tend(self) -> float:
        """One heartbeat; returns the seconds until the next."""
        again_s = None
        try:
            await self._beat()
            await self._look()
        except (TransportError, OutcomeUnknown):
            again_s = AGAIN_S
        except MHSError as refusal:
            if isinstance(refusal, SessionError | AuthError):
                self.end()
                self._over(refusal)
        pauses_s = [pause_s for pause_s in (again_s, self.every_s) if pause_s is not None]
        return min(pauses_s, default=AGAIN_S)
