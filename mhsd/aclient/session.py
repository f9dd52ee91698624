"""A session as a Trio program holds it: commands, reads, subscriptions, and safety on its devices [TPT-054]."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import trio

from mhsd.aclient.feed import Feed
from mhsd.aclient.operations import OnProgress, Operations
from mhsd.aclient.pending import Pending
from mhsd.client import requests
from mhsd.client.documents import Event, Receipt
from mhsd.client.errors import MHSError, SessionError
from mhsd.client.requests import DEFAULT_DEADLINE_MS, Stream, device_meant, given

if TYPE_CHECKING:
    from mhsd.aclient.client import AsyncClient
    from mhsd.aclient.events import AsyncSubscription

log = logging.getLogger("mhsd.client")

CLOSE_S = 10.0
"""How long leaving a session may take, when the program that leaves it is being cancelled too."""

UNSUBSCRIBE_S = 2.0
"""As long for a subscription, which ends with its session in any case."""


class AsyncSession(Operations):
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
        """The session of this id, opened by whomever: `AsyncClient.session` opens one. Without `ttl_s` the first
        heartbeat, which then goes out at once, tells how long it lives."""
        super().__init__(client, session_id, device_ids, over=self._ended, ttl_s=ttl_s)
        self.grant: dict[str, Any] = dict(grant or {})
        """What was granted: capabilities, mode, the time of expiry, the safety context."""
        self._is_closed = False
        self._feed = Feed(client, session_id, touch=self.heartbeat, over=self._ended)
        client.holds(self)

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
        on_progress: OnProgress | None = None,
    ) -> Receipt:
        """Sets fields of a resource and returns the receipt."""
        params = given(resource_id=resource_id, patch=patch, permit_id=permit_id)
        params |= given(expected_revision=expected_revision, deadline_ms=deadline_ms)
        return await self._mutation("mhs.resource.write", params, device_id, command_id, wait, on_progress)

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
        params["device_id"] = device_meant(self.device_ids, device_id, self.grant, params)
        params["command_id"] = self.client.ulid() if command_id is None else command_id
        async with self._pulse.held():
            receipt = await self.mutate(method, params)
            return await self.wait(receipt, on_progress=on_progress) if wait else receipt

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
        params = given(resource_id=resource_id, deadline_ms=deadline_ms)
        params["device_id"] = device_meant(self.device_ids, device_id, self.grant, params)
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

    def subscribe(
        self,
        streams: str | Stream | Sequence[str | Stream],
        *,
        rate_hz: float | None = None,
        filter: Mapping[str, Any] | None = None,
    ) -> Pending[AsyncSubscription]:
        """Opens a subscription: `async with` ends it behind the block, `await` leaves that to `close`.

        `streams` are names (state, telemetry, events, log, progress) or objects like `{"stream": "state",
        "resource_id": "belt"}`. `rate_hz` is the most that is wanted. The session is kept alive until it is closed.
        """
        params = requests.subscribe_params(streams, rate_hz=rate_hz, filter=filter)
        return Pending(partial(self._subscribe, params))

    async def _subscribe(self, params: Mapping[str, Any]) -> AsyncSubscription:
        granted = await self.call("mhs.subscribe", params)
        subscription = self._feed.add(granted, self._unsubscribe, self._reading)
        self._pulse.hold()
        return subscription

    async def _reading(self, device_id: str, resource_id: str) -> dict[str, Any]:
        return await self.read(resource_id, device_id=device_id)

    async def _unsubscribe(self, subscription: AsyncSubscription) -> dict[str, Any]:
        if not self._feed.remove(subscription):
            return {}
        self._pulse.release()
        had_ended = subscription.over
        subscription.finish()
        if had_ended or self._is_closed:
            return {}
        try:
            with trio.move_on_after(UNSUBSCRIBE_S, shield=True):
                return await self._call("mhs.unsubscribe", {"subscription_id": subscription.subscription_id})
        except MHSError as refusal:
            # It was ended by the first of two requests, the answer to which was lost.
            if refusal.mhs_code != "MHS.RESOURCE.UNKNOWN":
                raise
        return {}

    async def events(
        self,
        streams: str | Stream | Sequence[str | Stream],
        *,
        rate_hz: float | None = None,
        filter: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[Event]:
        """The events of a subscription of its own, until nothing has come for `timeout_s` or the loop is left."""
        async with self.subscribe(streams, rate_hz=rate_hz, filter=filter) as subscription:
            async for event in subscription.events(timeout_s):
                yield event

    # The session itself, and safety on its devices.

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
        which = given(capability_id=capability_id, resource=resource)
        return await self.client.permit(
            self.session_id,
            capability_id,
            input,
            resource=resource,
            device_id=device_meant(self.device_ids, device_id, self.grant, which),
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

    def _ended(self, problem: MHSError) -> None:
        """The session is over, or its events cannot be had any more."""
        self._feed.end(problem)
