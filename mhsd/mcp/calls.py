"""One call of a capability's tool: exactly one command, and its receipt as the one response [TPT-036 to TPT-042].

Decides what is sent, how long it is waited for, and what a cancellation does to it. What a result looks like is for
`results`; which sessions there are for `leases`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import attrs
import trio

from mhsd.aclient.client import AsyncClient
from mhsd.base.errors import Fault
from mhsd.client.documents import Receipt
from mhsd.client.errors import AnswerLost, MHSError
from mhsd.client.receipts import is_final
from mhsd.client.requests import outcome_unknown
from mhsd.mcp.controls import Controls
from mhsd.mcp.host import Job, contained
from mhsd.mcp.leases import Lease, Leases
from mhsd.mcp.progress import following
from mhsd.mcp.results import receipt_result
from mhsd.mcp.tools import Tool

log = logging.getLogger("mhsd.mcp")

MARGIN_S = 2.0
"""An endpoint that has not answered so long after the deadline is not waited for any more [TPT-042]."""

CANCEL_S = 15.0
"""How long a cancellation may take to bring a device to its safe state before it is answered as it stands."""

LOOK_UP_S = 10.0
"""An endpoint that has gone in the middle of a command may take so long to come back and tell what became of it."""

_LOOK_AGAIN_S = 0.05


@attrs.frozen
class Command:
    """What is sent for one call."""

    params: Mapping[str, Any]
    tool: Tool
    lease: Lease

    @property
    def command_id(self) -> str:
        return str(self.params["command_id"])


@attrs.define(eq=False)
class Outcome:
    """What has become of one call so far."""

    patience: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    settled: trio.Event = attrs.field(factory=trio.Event)
    command_id: str | None = None
    answered: Receipt | None = None
    cancelled: Receipt | None = None
    problem: MHSError | None = None

    is_recorded: bool = False
    """The cancellation is carried out when the endpoint begins the command, and the call does not wait for that."""

    def settle(self, *, is_cancelling: bool) -> None:
        """There is nothing more to wait for, unless the command goes on and its cancellation is on its way."""
        goes_on = self.answered is not None and not is_final(self.answered)
        has_ended = self.answered is not None or self.problem is not None
        is_cancelled = self.cancelled is not None and is_final(self.cancelled)
        if is_cancelled or self.is_recorded or (has_ended and not (goes_on and is_cancelling)):
            self.settled.set()

    def receipt(self, deadline_ms: int) -> Receipt:
        """The one response: the receipt that says most; Fault or MHSError where there is none."""
        receipts = [each for each in (self.cancelled, self.answered) if each is not None]
        final = [each for each in receipts if is_final(each)]
        if receipts:
            return (final or receipts)[0]
        if self.problem is not None:
            raise self.problem
        raise _not_answered(deadline_ms, self.command_id)


class Calls:
    """Carries out the calls of capability tools."""

    def __init__(
        self, client: AsyncClient, leases: Leases, nursery: trio.Nursery, *, external_sessions: bool
    ) -> None:
        """`nursery` lives as long as the connection; `external_sessions` lets a call name any session id [TPT-048]."""
        self._client = client
        self._leases = leases
        self._nursery = nursery
        self._external_sessions = external_sessions

    async def call(self, job: Job, tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The result of one call; Fault or MHSError where there is no receipt."""
        value, controls = tool.split(arguments, job.call.meta)
        asked = tool.asked(controls)
        job.takes_long = tool.long_running
        outcome = Outcome()
        if job.cancelled.is_set():
            raise _cancelled_before()
        with trio.move_on_after(asked.deadline_ms / 1000 + MARGIN_S) as outcome.patience:
            command = await self._command(tool, value, controls, asked.deadline_ms)
            if job.cancelled.is_set():
                raise _cancelled_before()
            await self._carry_out(job, command, outcome)
        return receipt_result(outcome.receipt(asked.deadline_ms), asked)

    async def _command(
        self, tool: Tool, value: Mapping[str, Any], controls: Controls, deadline_ms: int
    ) -> Command:
        lease = await self._lease(tool, controls)
        optional = {"expected_revision": controls.expected_revision, "permit_id": controls.permit_id}
        params = {
            "device_id": tool.device_id,
            "capability_id": tool.capability_id,
            "resource": tool.resource,
            "input": value,
            "command_id": controls.command_id_for(tool.name, self._client.ulid),
            "deadline_ms": deadline_ms,
            **{name: given for name, given in optional.items() if given is not None},
        }
        return Command(params, tool, lease)

    async def _lease(self, tool: Tool, controls: Controls) -> Lease:
        if controls.session_id is None:
            return await self._leases.for_command(tool.device_id, tool.capability_id, tool.mode)
        if self._external_sessions:
            return self._leases.any(controls.session_id, tool.device_id)
        return self._leases.own(controls.session_id)

    async def _carry_out(self, job: Job, command: Command, outcome: Outcome) -> None:
        """Send it once, and cancel it when the client does."""
        outcome.command_id = command.command_id
        cancelling = trio.CancelScope()
        self._nursery.start_soon(contained, self._cancel, job, command, outcome, cancelling)
        try:
            async with (
                following(self._nursery, job, command.lease.session, command.command_id),
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(self._send, job, command, outcome)
                await outcome.settled.wait()
                nursery.cancel_scope.cancel()
        finally:
            if not outcome.is_recorded:
                cancelling.cancel()

    async def _send(self, job: Job, command: Command, outcome: Outcome) -> None:
        session = command.lease.session
        try:
            outcome.answered = await session.send("mhs.command", command.params)
        except AnswerLost as lost:
            outcome.problem = outcome_unknown(
                lost, command.params, session.session_id, "MHS.TRANSPORT.UNAVAILABLE"
            )
            with trio.move_on_after(LOOK_UP_S):
                outcome.answered = await self._recorded(command)
        except MHSError as problem:
            self._leases.note(command.lease, problem)
            outcome.problem = problem
        outcome.settle(is_cancelling=job.cancelled.is_set())

    async def _recorded(self, command: Command) -> Receipt | None:
        """The receipt of a command whose answer was lost; an endpoint that has been started again has it too, but
        sessions end with it [TPT-062]."""
        try:
            try:
                return await command.lease.session.look_up(command.command_id)
            except MHSError as refusal:
                if not self._leases.note(command.lease, refusal):
                    raise
            lease = await self._leases.for_reading(command.tool.device_id, command.tool.mode)
            return await lease.session.look_up(command.command_id)
        except MHSError as problem:
            log.info("what became of command %s is not to be found: %s", command.command_id, problem)
        return None

    # Cancelling

    async def _cancel(self, job: Job, command: Command, outcome: Outcome, scope: trio.CancelScope) -> None:
        """When the client cancels, end the operation and answer with its receipt [TPT-041]."""
        with scope:
            await job.cancelled.wait()
            # The receipt of the safe state is worth more than the deadline, which bounds the wait for the command.
            until_mono_s = trio.current_time() + CANCEL_S + MARGIN_S
            outcome.patience.deadline = max(outcome.patience.deadline, until_mono_s)
            # By then every command has begun or never will.
            scope.deadline = outcome.patience.deadline
            try:
                outcome.cancelled = await self._cancelled(command, outcome)
            except MHSError as problem:
                # The command's own answer is the response then.
                log.warning("the cancellation of command %s failed: %s", command.command_id, problem)
            outcome.settle(is_cancelling=False)

    @staticmethod
    async def _cancelled(command: Command, outcome: Outcome) -> Receipt:
        """The answer to the cancellation. It waits until the endpoint has an operation of the command, which may have
        been sent a moment ago; an accepted receipt without one is an answer already."""
        session = command.lease.session
        while True:
            found = await session.look_up(command.command_id)
            if found is not None and found.operation_id is not None:
                return await session.cancel(found, deadline_s=CANCEL_S)
            if found is not None and found.final:
                return found
            if found is not None and not outcome.is_recorded:
                outcome.cancelled, outcome.is_recorded = found, True
                outcome.settle(is_cancelling=True)
            await trio.sleep(_LOOK_AGAIN_S)


def _cancelled_before() -> Fault:
    return Fault(
        "MHS.OPERATION.UNKNOWN",
        "the call was cancelled before its command was sent; nothing was done",
        details={"reason": "cancelled_before_dispatch"},
        remediation="Call the tool again if it is still wanted.",
    )


def _not_answered(deadline_ms: int, command_id: str | None) -> Fault:
    details = {"reason": "deadline_exceeded", "deadline_ms": deadline_ms}
    if command_id is None:
        return Fault(
            "MHS.TRANSPORT.UNAVAILABLE",
            f"the endpoint gave no session within {deadline_ms} ms; nothing was sent",
            details=details,
        )
    return Fault(
        "MHS.OUTCOME.TIMEOUT",
        f"the endpoint did not answer within {deadline_ms} ms; whether the command was carried out is not known",
        details={**details, "command_id": command_id},
        remediation="Look at mhs__operations and read the device's state before anything else.",
    )
