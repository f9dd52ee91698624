"""Calls of one endpoint's methods: what goes wrong becomes an MHSError.

Decides when to wait and when to send; what is sent and what an answer means is in mhsd.client.calls, which both
clients share.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import trio

from mhsd.aclient.transport import AsyncTransport, Send
from mhsd.base.ids import Ids
from mhsd.client import calls
from mhsd.client.backoff import ATTEMPTS, Backoff
from mhsd.client.calls import Agreed
from mhsd.client.errors import MHSError, OutcomeUnknown
from mhsd.client.pacing import Pace
from mhsd.client.transport import Answer, Lost, NotSent


class AsyncCaller:
    """One endpoint and one caller."""

    def __init__(
        self,
        transport: AsyncTransport,
        *,
        timeout_s: float = calls.DEFAULT_TIMEOUT_S,
        attempts: int = ATTEMPTS,
        name: str = "mhsd-client",
    ) -> None:
        self.transport = transport
        self.timeout_s = timeout_s
        self.attempts = attempts
        self.name = name
        self._ids = Ids()
        self._agreed = Agreed()
        self._pace = Pace()
        self._hello: dict[str, Any] | None = None
        self._hello_mono_s = 0.0
        self._greeting = trio.Lock()

    async def close(self) -> None:
        """Gives back the connections; over stdio this ends the endpoint, and ChildFailed says if it ended badly."""
        await self.transport.aclose()

    def backoff(self) -> Backoff:
        """The pauses of one interruption, within the attempts that this client declares [TPT-064]."""
        return Backoff(attempts=self.attempts)

    def ulid(self) -> str:
        """A new ULID, for a command_id."""
        return self._ids.ulid()

    async def hello(self) -> dict[str, Any]:
        """The endpoint's answer to mhs.hello, asked once for each connection [PROTO-013]; refuses another major
        version. It tells mhs_version, the devices with their mode and risk class, and the limits [TPT-056]."""
        if self._hello is not None:
            return self._hello
        async with self._greeting:
            if self._hello is None:
                try:
                    await self.transport.greet(self._greet)
                except NotSent as problem:
                    raise calls.unsent(problem) from None
            assert self._hello is not None
            return self._hello

    async def _greet(self, send: Send) -> None:
        hello = await self._call("mhs.hello", calls.hello_params(self.name), self.timeout_s, send)
        calls.check_version(hello)
        self._agreed = Agreed.of(hello)
        self._pace.agree(hello)
        self._hello_mono_s = trio.current_time()
        self._hello = hello

    async def endpoint_time_s(self) -> float:
        """The endpoint's wall time now, from its hello; clocks of two machines may differ by hours."""
        told_s = calls.time_of(await self.hello())
        if told_s is None:
            return time.time()
        return told_s + trio.current_time() - self._hello_mono_s

    async def call(
        self, method: str, params: Mapping[str, Any] | None = None, *, deadline_s: float | None = None
    ) -> dict[str, Any]:
        """The result of one method, an object for all of them; MHSError when there is none.

        `deadline_s` (the client's timeout_s unless given) becomes `deadline_ms` where the method has one, at most
        what the endpoint allows; the answer is waited for a little longer. What changes something is sent once; a
        question whose connection broke is asked once more, after a little while. Cancelling the wait cancels nothing at
        the endpoint.
        """
        deadline_s = self.timeout_s if deadline_s is None else deadline_s
        if method not in calls.BEFORE_HELLO:
            await self._hello_first(deadline_s)
        params, wait_s = calls.budget(method, params, deadline_s, self._agreed)
        return await self._call(method, params, wait_s)

    async def _hello_first(self, deadline_s: float) -> None:
        """Tasks say hello one after the other until one has succeeded, and each waits for its own time only."""
        with trio.move_on_after(deadline_s):
            try:
                await self.hello()
            except OutcomeUnknown as lost:
                # Whoever waits for a command must not take a lost hello for a lost command.
                raise calls.unsent(NotSent(lost.message)) from None
            return
        raise calls.unsent(NotSent(f"{self.transport.url} answered no hello within {deadline_s:g} s"))

    async def _call(
        self, method: str, params: Mapping[str, Any], wait_s: float, send: Send | None = None
    ) -> dict[str, Any]:
        until_mono_s = trio.current_time() + wait_s
        while True:
            answer = await self._answer(method, params, until_mono_s, send)
            result = calls.result_of(answer, method)
            if not isinstance(result, MHSError):
                return result
            pause_s = calls.pause_s(result, answer)
            if pause_s is None or trio.current_time() + pause_s >= until_mono_s:
                raise result
            await trio.sleep(pause_s)

    async def _answer(
        self, method: str, params: Mapping[str, Any], until_mono_s: float, send: Send | None
    ) -> Answer:
        """The answer to one request, which is sent again only if it changes nothing and its connection broke."""
        has_asked = send is not None
        while True:
            await self._wait_for_turn(method, until_mono_s)
            request_id = self.ulid()
            body = calls.request_body(request_id, method, params, self._agreed.max_request_bytes)
            left_s = max(0.001, until_mono_s - trio.current_time())
            try:
                if send is not None:
                    return await send(request_id, body, left_s)
                urgent = method == "mhs.safety.estop"
                return await self.transport.exchange(request_id, body, left_s, urgent=urgent)
            except NotSent as problem:
                raise calls.unsent(problem) from None
            except Lost as problem:
                again = not has_asked and calls.may_ask_again(method, problem)
                pause_s = self.backoff().pause_s() if again else None
                if pause_s is None:
                    raise calls.lost(method, problem) from None
                has_asked = True
                await trio.sleep(pause_s)

    async def _wait_for_turn(self, method: str, until_mono_s: float) -> None:
        """Keeps to what the endpoint takes in a second [MHSD-7-04]."""
        if not self.transport.paced:
            return
        now_mono_s = trio.current_time()
        wait_s = self._pace.reserve(method, now_mono_s, until_mono_s - now_mono_s)
        if wait_s is None:
            raise calls.too_many()
        if wait_s <= 0:
            return
        try:
            await trio.sleep(wait_s)
        except trio.Cancelled:
            self._pace.give_back(method)
            raise
