"""The calls of one session, what becomes of its commands, and its signs of life.

A command is sent once. When its answer is lost it is looked up by its command_id, and what cannot be found out is said
to be unknown [TPT-062]. Cancelling a wait never cancels what the device does: that is what `cancel` is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import trio

from mhsd.aclient.pulse import Pulse
from mhsd.client import requests
from mhsd.client.documents import Receipt
from mhsd.client.errors import (
    AnswerLost,
    MHSError,
    OutcomeUnknown,
    SessionError,
    TransportError,
    TransportOver,
)
from mhsd.client.receipts import is_final
from mhsd.client.requests import given

if TYPE_CHECKING:
    from mhsd.aclient.client import AsyncClient

POLL_S = 0.05
MOST_POLL_S = 1.0

OnProgress = Callable[[Receipt], None]


class Operations:
    """What a session does at its endpoint, without the names of the methods for people."""

    def __init__(
        self,
        client: AsyncClient,
        session_id: str,
        device_ids: Sequence[str],
        *,
        over: Callable[[MHSError], None],
        ttl_s: float | None,
    ) -> None:
        """`over` is told that the session has ended by itself."""
        self.client = client
        self.session_id = session_id
        self.device_ids = list(device_ids)
        self._open: set[str] = set()
        self._pulse = Pulse(
            client.nursery,
            beat=self._beat,
            look=self._look,
            over=over,
            every_s=None if ttl_s is None else ttl_s / 3,
        )

    async def call(
        self, method: str, params: Mapping[str, Any] | None = None, *, deadline_s: float | None = None
    ) -> dict[str, Any]:
        """One method inside this session."""
        async with self._pulse.held():
            return await self._call(method, params, deadline_s)

    async def _call(
        self, method: str, params: Mapping[str, Any] | None = None, deadline_s: float | None = None
    ) -> dict[str, Any]:
        sent = {"session_id": self.session_id, **(params or {})}
        return await self.client.call(method, sent, deadline_s=deadline_s)

    async def mutate(
        self, method: str, params: Mapping[str, Any], *, deadline_s: float | None = None
    ) -> Receipt:
        """Sends a mutation once and returns its receipt; `params` names command_id and device_id.

        A lost answer is looked up; OutcomeUnknown where that does not tell either, with both ids in its details.
        """
        async with self._pulse.held():
            try:
                return await self.send(method, params, deadline_s=deadline_s)
            except AnswerLost as lost:
                return await self._found(lost, params)

    async def send(
        self, method: str, params: Mapping[str, Any], *, deadline_s: float | None = None
    ) -> Receipt:
        """The same without looking up: AnswerLost for a lost answer."""
        async with self._pulse.held():
            return self._tracked(Receipt(await self._call(method, params, deadline_s)))

    async def _found(self, lost: AnswerLost, params: Mapping[str, Any]) -> Receipt:
        try:
            found = await self.look_up(params["command_id"], params["device_id"])
        except MHSError as problem:
            looked_up = problem.mhs_code
        else:
            if found is not None:
                return found
            looked_up = "MHS.OPERATION.UNKNOWN"
        elsewhere = await self._found_elsewhere(params) if looked_up.startswith("MHS.SESSION.") else None
        if elsewhere is None:
            raise requests.outcome_unknown(lost, params, self.session_id, looked_up) from lost
        return elsewhere

    async def _found_elsewhere(self, params: Mapping[str, Any]) -> Receipt | None:
        """A command whose session went with its answer, as when the endpoint was started again: another one asks."""
        try:
            async with self.client.session([params["device_id"]], []) as reading:
                return await reading.look_up(params["command_id"], params["device_id"])
        except MHSError:
            return None

    # Operations.

    async def look_up(self, command_id: str, device_id: str | None = None) -> Receipt | None:
        """The receipt of a command as the endpoint has it now; None where it knows no such command."""
        return await self._operation({"command_id": command_id, "device_id": self.find(device_id)})

    async def operation(self, operation_id: str) -> Receipt:
        """The receipt of an operation as it is now [PROTO-030]."""
        receipt = await self._operation({"operation_id": operation_id})
        if receipt is None:
            raise requests.operation_unknown(operation_id)
        return receipt

    async def _operation(self, which: Mapping[str, str]) -> Receipt | None:
        """mhs.operations.get, repeated with growing pauses while only the connection fails [TPT-064]."""
        backoff = self.client.backoff()
        while True:
            try:
                return self._tracked(Receipt(await self._call("mhs.operations.get", which)))
            except TransportOver:
                raise
            except (TransportError, OutcomeUnknown):
                pause_s = backoff.pause_s()
                if pause_s is None:
                    raise
                await trio.sleep(pause_s)
            except MHSError as refusal:
                if refusal.mhs_code == "MHS.OPERATION.UNKNOWN":
                    return None
                raise

    async def operations(
        self, state: str | None = None, *, device_id: str | None = None
    ) -> list[dict[str, Any]]:
        """The operations of this session, and those of the same caller that still run on its devices."""
        device_id = None if device_id is None else self.find(device_id)
        answered = await self.call("mhs.operations.list", given(state=state, device_id=device_id))
        return requests.operations_of(answered)

    async def wait(self, receipt: Mapping[str, Any], *, on_progress: OnProgress | None = None) -> Receipt:
        """The final receipt of the operation that `receipt` belongs to; a final one is returned as it is.

        It ends when the operation does, for which the endpoint allows its capability's `max_duration_ms`.
        `on_progress` is given every receipt on the way. When this session is over, a new one asks [TPT-061].
        OutcomeUnknown, with its ids in the details, where no more can be found out of what had begun [TPT-062].
        """
        try:
            return await self.follow(receipt, on_progress)
        except SessionError:
            return await self.client.found_out(receipt, on_progress)

    async def follow(self, receipt: Mapping[str, Any], on_progress: OnProgress | None = None) -> Receipt:
        """As `wait`, in this session; SessionError when it is over."""
        receipt, pause_s = Receipt(receipt), POLL_S
        async with self._pulse.held():
            while not is_final(receipt) and receipt.operation_id is not None:
                if on_progress is not None:
                    on_progress(receipt)
                await trio.sleep(pause_s)
                pause_s = min(MOST_POLL_S, pause_s * 1.5)
                try:
                    receipt = await self.operation(receipt.operation_id)
                except MHSError as problem:
                    raise requests.fate_unknown(receipt, problem) from problem
        return receipt

    async def cancel(self, operation: str | Mapping[str, Any], *, deadline_s: float | None = None) -> Receipt:
        """Stops an operation, given by its id or a receipt; the answer may still be `running`, for `wait`
        [PROTO-032]."""
        params = {"operation_id": requests.operation_meant(operation)}
        return self._tracked(Receipt(await self.call("mhs.operations.cancel", params, deadline_s=deadline_s)))

    def _tracked(self, receipt: Receipt) -> Receipt:
        """An operation that is open holds the session's pulse, once, whether or not anybody waits for it."""
        operation_id, is_open = receipt.operation_id, not is_final(receipt)
        if operation_id is not None and is_open != (operation_id in self._open):
            if is_open:
                self._open.add(operation_id)
                self._pulse.hold()
            else:
                self._let_go(operation_id)
        return receipt

    def _let_go(self, operation_id: str) -> None:
        self._open.discard(operation_id)
        self._pulse.release()

    async def _look(self) -> None:
        """Finds out which of the operations that nobody waits for have ended."""
        for operation_id in list(self._open):
            try:
                self._tracked(Receipt(await self._call("mhs.operations.get", {"operation_id": operation_id})))
            except MHSError as refusal:
                if refusal.mhs_code != "MHS.OPERATION.UNKNOWN":
                    raise
                if operation_id in self._open:
                    self._let_go(operation_id)

    # Signs of life.

    async def heartbeat(self) -> dict[str, Any]:
        """Sets `expires_at` to now + ttl; returns it with the safety context [SESS-005]."""
        return await self._call("mhs.session.heartbeat")

    async def _beat(self) -> None:
        answered = await self.heartbeat()
        if self._pulse.every_s is None:
            self._pulse.every_s = requests.lifetime_s(answered, await self.client.endpoint_time_s()) / 3

    def kept_alive(self) -> AbstractAsyncContextManager[None]:
        """Heartbeats go out while the block runs, also while nothing is open in the session [MHSD-4-29]."""
        return self._pulse.held()

    def find(self, device_id: str | None = None) -> str:
        """The whole id of a device of this session: its only one, or the one that is named."""
        return requests.device_of_session(self.device_ids, device_id)
