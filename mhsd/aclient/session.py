"""A session as a Trio program holds it: commands and what became of them, reads, heartbeats, subscriptions.

A command is sent once. When its answer is lost it is looked up by its command_id, and what cannot be found out is said
to be unknown [TPT-062]. Cancelling a wait never cancels what the device does: that is what `cancel` is for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Self

import trio

from mhsd.aclient.feed import Feed
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
from mhsd.client.requests import DEFAULT_DEADLINE_MS, Stream, given

if TYPE_CHECKING:
    from mhsd.aclient.client import AsyncClient
    from mhsd.aclient.events import AsyncSubscription

log = logging.getLogger("mhsd.client")

POLL_S = 0.05
MOST_POLL_S = 1.0
CLOSE_S = 10.0
"""How long leaving a session may take, when the program that leaves it is being cancelled too."""

OnProgress = Callable[[Receipt], None]


class AsyncSession:
    """One open session; a context manager that closes it, which cancels its operations to the safe state [SESS-006].

    Every method may be called from any number of tasks at once [TPT-057]. Its heartbeats go out by themselves while a
    call, an operation or a subscription is open.
    """

    def __init__(
        self,
        client: AsyncClient,
        session_id: str,
        device_ids: Sequence[str],
        *,
        grant: Mapping[str, Any] | None = None,
        ttl_s: float | None = None,
    ) -> None:
        """The session of this id, opened by whomever: `AsyncClient.open_session` opens one. Without `ttl_s` the first
        heartbeat, which then goes out at once, tells how long it lives."""
        self.client = client
        self.session_id = session_id
        self.device_ids = list(device_ids)
        self.grant: dict[str, Any] = dict(grant or {})
        """What was granted: capabilities, mode, the time of expiry, the safety context."""
        self._open: set[str] = set()
        self._is_closed = False
        self._pulse = Pulse(
            client.nursery,
            beat=self._beat,
            look=self._look,
            over=self._ended,
            every_s=None if ttl_s is None else ttl_s / 3,
        )
        self._feed = Feed(client, session_id, touch=self.heartbeat, over=self._ended)

    def __repr__(self) -> str:
        return f"<AsyncSession {self.session_id} on {', '.join(self.device_ids)}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        with trio.move_on_after(CLOSE_S, shield=True) as patience:
            try:
                await self.close()
            except SessionError:
                return  # It has ended by itself, which whoever used it last was told.
            except MHSError:
                if problem is None:
                    raise
        if patience.cancelled_caught:
            log.warning(
                "%s did not close session %s in time; it will expire",
                self.client.transport.url,
                self.session_id,
            )

    @property
    def mode(self) -> str:
        """The mode that the session was opened in."""
        return str(self.grant.get("mode"))

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

    # Commands.

    async def invoke(
        self,
        capability_id: str,
        input: Mapping[str, Any],
        *,
        resource: str | None = None,
        device_id: str | None = None,
        command_id: str | None = None,
        expected_revision: int | None = None,
        permit_id: str | None = None,
        deadline_ms: int = DEFAULT_DEADLINE_MS,
        wait: bool = False,
        on_progress: OnProgress | None = None,
    ) -> Receipt:
        """One command, and its receipt whatever its status [TPT-055]. The same `command_id` never runs twice.

        When `deadline_ms` has passed the endpoint answers what it knows and the command keeps running; `wait=True`
        then follows it to its final receipt. Cancelling this call leaves the operation running.
        """
        params = given(capability_id=capability_id, input=input, resource=resource, permit_id=permit_id)
        params |= given(expected_revision=expected_revision, deadline_ms=deadline_ms)
        return await self._mutation("mhs.command", params, device_id, command_id, wait, on_progress)

    async def write(
        self,
        resource_id: str,
        patch: Mapping[str, Any],
        *,
        device_id: str | None = None,
        command_id: str | None = None,
        expected_revision: int | None = None,
        permit_id: str | None = None,
        deadline_ms: int = DEFAULT_DEADLINE_MS,
        wait: bool = False,
    ) -> Receipt:
        """Sets fields of a resource and returns the receipt."""
        params = given(resource_id=resource_id, patch=patch, permit_id=permit_id)
        params |= given(expected_revision=expected_revision, deadline_ms=deadline_ms)
        return await self._mutation("mhs.resource.write", params, device_id, command_id, wait)

    async def restore(
        self,
        snapshot: Mapping[str, Any],
        *,
        device_id: str | None = None,
        command_id: str | None = None,
        expected_revision: int | None = None,
        deadline_ms: int = DEFAULT_DEADLINE_MS,
        wait: bool = False,
    ) -> Receipt:
        """Sets a simulated device to what `snapshot` returned."""
        params = given(snapshot=snapshot, expected_revision=expected_revision, deadline_ms=deadline_ms)
        return await self._mutation("mhs.restore", params, device_id, command_id, wait)

    async def _mutation(
        self,
        method: str,
        params: dict[str, Any],
        device_id: str | None,
        command_id: str | None,
        wait: bool,
        on_progress: OnProgress | None = None,
    ) -> Receipt:
        params["device_id"] = self.find(device_id)
        params["command_id"] = self.client.ulid() if command_id is None else command_id
        async with self._pulse.held():
            receipt = await self.mutate(method, params)
            return await self.wait(receipt, on_progress=on_progress) if wait else receipt

    async def mutate(
        self, method: str, params: Mapping[str, Any], *, deadline_s: float | None = None
    ) -> Receipt:
        """Sends a mutation once and returns its receipt; `params` names command_id and device_id.

        A lost answer is looked up; OutcomeUnknown where that does not tell either, with both ids in its details.
        """
        async with self._pulse.held():
            try:
                receipt = Receipt(await self._call(method, params, deadline_s))
            except AnswerLost as lost:
                receipt = await self._found(lost, params)
            return self._tracked(receipt)

    async def _found(self, lost: AnswerLost, params: Mapping[str, Any]) -> Receipt:
        try:
            found = await self.look_up(params["command_id"], params["device_id"])
        except MHSError as problem:
            looked_up = problem.mhs_code
        else:
            if found is not None:
                return found
            looked_up = "MHS.OPERATION.UNKNOWN"
        raise requests.outcome_unknown(lost, params, self.session_id, looked_up) from lost

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
        answered = await self.call("mhs.operations.list", given(state=state, device_id=device_id))
        found = answered.get("operations")
        return found if isinstance(found, list) else []

    async def wait(self, receipt: Mapping[str, Any], *, on_progress: OnProgress | None = None) -> Receipt:
        """The final receipt of the operation that `receipt` belongs to; a final one is returned as it is.

        It ends when the operation does, for which the endpoint allows its capability's `max_duration_ms`.
        `on_progress` is given every receipt on the way. OutcomeUnknown, with its ids in the details, where no more can
        be found out of what had begun [TPT-062].
        """
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
        operation_id = operation if isinstance(operation, str) else operation.get("operation_id")
        if not isinstance(operation_id, str):
            raise TypeError("a receipt without operation_id belongs to nothing that could be cancelled")
        params = {"operation_id": operation_id}
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

    # Looking.

    async def read(
        self,
        resource_id: str,
        *,
        device_id: str | None = None,
        fields: Sequence[str] = (),
        revision: int | None = None,
        deadline_ms: int = DEFAULT_DEADLINE_MS,
    ) -> dict[str, Any]:
        """`{revision, state, state_hash, sampled_at}` of one resource; of a recorded `revision` on a replay device."""
        params = given(resource_id=resource_id, device_id=self.find(device_id), deadline_ms=deadline_ms)
        params |= given(
            fields=list(fields) or None, filter=None if revision is None else {"revision": revision}
        )
        return await self.call("mhs.resource.read", params)

    async def snapshot(
        self, *, device_id: str | None = None, deadline_ms: int = DEFAULT_DEADLINE_MS
    ) -> dict[str, Any]:
        """The whole state of a simulated device, for `restore`."""
        params = {"device_id": self.find(device_id), "deadline_ms": deadline_ms}
        return await self.call("mhs.snapshot", params)

    async def subscribe(
        self,
        streams: str | Stream | Sequence[str | Stream],
        *,
        rate_hz: float | None = None,
        filter: Mapping[str, Any] | None = None,
    ) -> AsyncSubscription:
        """Opens a subscription: `async with await session.subscribe("state") as events: async for event in events`.

        `streams` are names (state, telemetry, events, log, progress) or objects like `{"stream": "state",
        "resource_id": "belt"}`. `rate_hz` is the most that is wanted. The session is kept alive until it is closed.
        """
        params = requests.subscribe_params(streams, rate_hz=rate_hz, filter=filter)
        granted = await self.call("mhs.subscribe", params)
        self._pulse.hold()
        return self._feed.add(granted, self._unsubscribe)

    async def _unsubscribe(self, subscription: AsyncSubscription) -> dict[str, Any]:
        if not self._feed.remove(subscription):
            return {}
        self._pulse.release()
        had_ended = subscription.over
        subscription.finish()
        if had_ended or self._is_closed:
            return {}
        with trio.move_on_after(CLOSE_S, shield=True):
            return await self._call("mhs.unsubscribe", {"subscription_id": subscription.subscription_id})
        return {}

    # The session itself, and safety on its devices.

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

    async def safety_status(self, device_id: str | None = None) -> dict[str, Any]:
        """Latch, interlocks, permits and safe state of a device of this session."""
        return await self.client.safety_status(self.find(device_id))

    async def estop(self, reason: str | None = None, *, device_id: str | None = None) -> Receipt:
        """Latches the e-stop of this session's only device, of the one that is named, or of all."""
        if device_id is None and len(self.device_ids) == 1:
            device_id = self.device_ids[0]
        return await self.client.estop(reason, device_id=device_id)

    async def reset(self, device_id: str | None = None) -> Receipt:
        """Releases a latched e-stop, as an operator: look at the device before."""
        return Receipt(await self.call("mhs.safety.reset", {"device_id": self.find(device_id)}))

    async def permit(
        self,
        capability_id: str,
        input: Mapping[str, Any],
        *,
        resource: str | None = None,
        device_id: str | None = None,
        ttl_s: int = 300,
        approved_by: Sequence[str] = (),
    ) -> dict[str, Any]:
        """As an operator: approves one command of this session with exactly this input, once."""
        return await self.client.permit(
            self.session_id,
            capability_id,
            input,
            resource=resource,
            device_id=self.find(device_id),
            ttl_s=ttl_s,
            approved_by=approved_by,
        )

    async def export_evidence(self) -> dict[str, Any]:
        """The receipts of this session as a bundle."""
        return await self.client.export_evidence(session_id=self.session_id)

    async def close(self, reason: str | None = None) -> dict[str, Any]:
        """Ends the session: its operations are cancelled to the safe state. Returns the summary; {} when closed."""
        if self._is_closed:
            return {}
        self._is_closed = True
        self.forget()
        return await self._call("mhs.session.close", given(reason=reason))

    def forget(self) -> None:
        """Does no more for the session, and leaves it open for as long as it lives."""
        self._pulse.end()
        self._feed.end()

    def find(self, device_id: str | None = None) -> str:
        """The whole id of a device of this session: its only one, or the one that is named."""
        return requests.device_of_session(self.device_ids, device_id)

    def _ended(self, problem: MHSError) -> None:
        """The session is over, or its events cannot be had any more."""
        self._feed.end(problem)
