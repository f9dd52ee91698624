"""Executions: how a command goes through the envelope, runs, and gets its receipt [MHSD-4].

Everything of one command happens in one task of its device's nursery, so that neither a lost connection nor an
ended session can leave it half done. The caller only waits, and its deadline ends only that waiting [PROTO-011].
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import trio

from mhsd.base.errors import Fault
from mhsd.core import receipts
from mhsd.core.admission import Attempt, Step, deadline_refusal, last_refusal, prior_refusal, refusal
from mhsd.core.operations import (
    Ending,
    EndingKind,
    Failed,
    Lost,
    Native,
    Operation,
    Refused,
    Returned,
)
from mhsd.driver import DESCRIBE
from mhsd.driver.manifest import Binding
from mhsd.services.aftermath import look_after
from mhsd.services.carriage import (
    Answer,
    Carriage,
    final_entry,
    intent_entry,
    interim_entry,
    internal_fault,
    new_operation,
    refusal_entry,
    resources_of,
    store_fault,
    unstored_fault,
)
from mhsd.services.device_host import DeviceHost
from mhsd.services.native import call_driver
from mhsd.services.overseer import Overseer
from mhsd.store import CommandRow, Receipt, StoreFailed, Ticket, VoidIntent
from mhsd.wire.json_text import Raw, encode

log = logging.getLogger("mhsd.execution")


class Executions:
    """Runs the commands of one device. `nursery` is the device's own and outlives every caller."""

    def __init__(self, host: DeviceHost, nursery: trio.Nursery, describe: Callable[[], str]) -> None:
        self.host = host
        self.store = host.store
        self._nursery = nursery
        self._describe = describe
        self._reserved: dict[str, Carriage] = {}
        self._running: dict[str, Carriage] = {}
        self.overseer = Overseer(self._live_operations, self._overdue, host.stop_grace_s)

    # (a): one synchronous block.

    def submit(self, attempt: Attempt, *, id_spent: bool = False) -> Raw | Awaitable[Answer]:
        """Take one command into the envelope [CORE-060].

        Answers at once (a replay), or returns what to await. `id_spent` says that the same batch used this
        command_id before [PROTO-009]. No checkpoint in here: the order of the calls is the order of arrival, and
        no other task may pass the same checks.
        """
        attempt.session.commands += 1
        prior = self._prior(attempt, id_spent)
        if prior is not None:
            return self._refuse_at_once(attempt, prior) if isinstance(prior, Fault) else prior
        fault = refusal(attempt, self.host, Step.CLASS, Step.LATCH)
        queues = attempt.guarded and not self.host.slot.free and self.host.slot_refusal(attempt) is None
        if fault is None and not queues:
            # A queued command answers these when it holds the slot.
            fault = refusal(attempt, self.host, Step.INPUT, Step.LIMITS)
            fault = fault or (self.host.slot_refusal(attempt) if attempt.guarded else None)
        return self._refuse_at_once(attempt, fault) if fault is not None else self._admit(attempt)

    def _prior(self, attempt: Attempt, id_spent: bool) -> Raw | Awaitable[Answer] | Fault | None:
        """What the command_id's earlier use answers, or None when the id is free [OP-003, OP-004]."""
        ahead = self._reserved.get(attempt.command_id)
        if ahead is not None:
            prior = prior_refusal(ahead.attempt.input_digest, ahead.attempt.session.principal_id, attempt)
            return self._follow(attempt, ahead) if prior == "replay" else prior
        row = self.store.find_command(attempt.device_id, attempt.command_id)
        if row is not None:
            prior = prior_refusal(row.input_digest, row.principal_id, attempt)
            return self.current(row, replayed=True) if prior == "replay" else prior
        if id_spent:
            spent = prior_refusal("", "", attempt)
            return spent if isinstance(spent, Fault) else None
        return None

    def _admit(self, attempt: Attempt) -> Awaitable[Answer]:
        binding = attempt.binding
        assert isinstance(binding, Binding)  # the rung BINDING stands before this
        carriage = Carriage(
            attempt, binding, receipts.command_members(attempt, self.host.endpoint_id, self.host.mode)
        )
        self._reserved[attempt.command_id] = carriage
        self.host.reserve_permit(attempt)
        if binding.long_running:
            attempt.session.open_operations.add(attempt)
        if attempt.guarded:
            carriage.place = self.host.slot.take_or_queue(attempt)
        self._nursery.start_soon(self._carry_contained, carriage)
        return self._wait(carriage)

    def _refuse_at_once(self, attempt: Attempt, fault: Fault) -> Awaitable[Answer]:
        shared = receipts.command_members(attempt, self.host.endpoint_id, self.host.mode)
        return self._durable(self.store.put(refusal_entry(self.host, attempt, shared, fault)))

    async def _durable(self, ticket: Ticket) -> Answer:
        try:
            return (await ticket.wait())[-1].wire()
        except StoreFailed as error:
            return store_fault(error)

    # Waiting, replays and look-ups.

    async def _wait(self, carriage: Carriage) -> Answer:
        """Wait for the answer inside the caller's deadline; the execution knows nothing of this wait."""
        with trio.move_on_at(carriage.attempt.deadline_mono_s):
            await carriage.answered.wait()
        operation = carriage.operation
        if carriage.answer is None and operation is not None and not operation.concluded:
            if operation.long_running:
                return Raw(encode(receipts.running(carriage.shared, operation)))
            try:
                ticket = self.store.put(interim_entry(self.host, carriage, operation))
                return (await ticket.wait())[-1].wire()
            except StoreFailed:
                return unstored_fault(operation)
        # Not dispatched: its own task refuses it now. Concluded: its receipt is on its way to the disk.
        await carriage.answered.wait()
        assert carriage.answer is not None
        return carriage.answer

    async def _follow(self, attempt: Attempt, ahead: Carriage) -> Answer:
        """The same command is on its way to its dispatch: wait for what becomes of it, inside the own deadline."""
        with trio.move_on_at(attempt.deadline_mono_s):
            await ahead.decided.wait()
        if not ahead.decided.is_set():
            late = deadline_refusal(attempt, attempt.deadline_mono_s)
            assert late is not None
            return await self._refuse_at_once(attempt, late)
        attempt.session.commands -= 1  # submit() counts it again
        again = self.submit(attempt)
        return again if isinstance(again, Raw) else await again

    def current(self, row: CommandRow, *, replayed: bool = False) -> Raw | Awaitable[Answer]:
        """The receipt of a command as it stands, as an answer [OP-010, PROTO-030]; to wait for where it is not durable.

        Raises OUTCOME.UNKNOWN for one that has ended and whose final receipt could not be stored.
        """
        durable_seq, _ = self.store.head()
        if row.final is not None and row.final.seq <= durable_seq:
            return row.final.wire(replayed=replayed)
        if row.final is None and row.operation_id in self._running:
            return Raw(encode({**self.standing(row), "replayed": replayed}))
        if self.store.failure is not None:
            raise unstored_fault(row)
        return self._once_durable(row, replayed)

    async def _once_durable(self, row: CommandRow, replayed: bool) -> Answer:
        """As `current`, when all that was put so far is on the disk: what could be lost is told to nobody."""
        try:
            while True:
                await self.store.put().wait()
                if row.final is not None:
                    return row.final.wire(replayed=replayed)
                # Dispatched by now, or refused: then its operation has that receipt.
                row = self.store.find_operation(row.operation_id) or row
                if row.final is None:
                    return Raw(encode({**self.standing(row), "replayed": replayed}))
        except StoreFailed:
            return unstored_fault(row)

    def standing(self, row: CommandRow) -> Mapping[str, Any]:
        """The receipt of a command as it stands: the final one, or the live snapshot."""
        if row.final is not None:
            return row.final.body
        carriage = self._running.get(row.operation_id)
        if carriage is None or carriage.operation is None:
            return row.body
        return receipts.running(carriage.shared, carriage.operation)

    def running(self, operation_id: str) -> Carriage | None:
        """The execution of an operation while it has no durable final receipt."""
        return self._running.get(operation_id)

    def live(self) -> list[Carriage]:
        """Every dispatched command without a final receipt."""
        return [c for c in self._running.values() if c.operation is not None and not c.operation.concluded]

    def ahead(self) -> Carriage | None:
        """The command that has the slot and was not dispatched yet."""
        reserved = self._reserved.values()
        return next((c for c in reserved if self.host.slot.held_by(c.attempt)), None)

    def open_in_store(self) -> list[Carriage]:
        """Every command whose intent was put and whose last receipt is not durable."""
        return [c for c in (*self._reserved.values(), *self._running.values()) if c.intended]

    def _live_operations(self) -> Iterator[Operation]:
        return (carriage.operation for carriage in self.live() if carriage.operation is not None)

    # Ending early.

    def end(self, operation: Operation, kind: EndingKind, requested_by: str) -> None:
        """Tell one execution to stop and go to the safe state. Returns at once."""
        self._tell(operation, Ending(kind, requested_by, self.host.wall()))

    def _tell(self, operation: Operation, ending: Ending) -> None:
        operation.end(ending, trio.current_time())
        self.overseer.ending()

    def refuse_queue(self, fault: Fault, session_id: str | None = None) -> None:
        """Refuse what queues for the device, of one session when it is named."""
        self.host.slot.refuse_queue(fault, session_id)

    def _overdue(self, operation: Operation) -> None:
        if operation.ending is None:
            self.end(operation, "max_duration", "endpoint:max_duration")
        else:
            self._give_up(self._running[operation.operation_id], operation)

    def _give_up(self, carriage: Carriage, operation: Operation) -> None:
        """The native call did not come back in its stop grace: the outcome is unknown, the slot stays taken."""
        fault = Fault(
            "MHS.OUTCOME.UNKNOWN",
            "the driver did not come back within the stop grace; what the device does is not known",
            details={"reason": "stop_grace_exceeded", "operation_id": operation.operation_id},
        )
        self.host.doubt(f"{carriage.attempt.capability_id} did not end within the stop grace")
        entry = final_entry(self.host, carriage, operation, Lost(fault), False, None)
        ticket = self.store.put(entry)
        self._nursery.start_soon(self._answer_from, carriage, operation, entry, ticket)

    # The command's own task.

    async def _carry_contained(self, carriage: Carriage) -> None:
        try:
            await self._carry(carriage)
        except Exception as error:
            # The boundary of one command: a defect in here must not end the device's other work.
            log.exception("execution of %s on %s failed", carriage.attempt.command_id, self.host.device_id)
            await self._failed_inside(carriage, error)
        finally:
            self._unreserve(carriage)
            carriage.attempt.session.open_operations.discard(carriage.attempt)
            if carriage.place is not None:
                self.host.slot.leave(carriage.place)
            self.host.slot.release(carriage.attempt)

    def _unreserve(self, carriage: Carriage) -> None:
        """Give up the reservation of the command_id, but not one that a later attempt has made since."""
        if self._reserved.get(carriage.attempt.command_id) is carriage:
            del self._reserved[carriage.attempt.command_id]

    async def _failed_inside(self, carriage: Carriage, error: Exception) -> None:
        fault = internal_fault(error)
        operation = carriage.operation
        if operation is not None and not operation.concluded:
            entry = final_entry(self.host, carriage, operation, Failed(fault), False, None)
            await self._answer_from(carriage, operation, entry, self.store.put(entry))
        carriage.settle(fault)

    async def _carry(self, carriage: Carriage) -> None:
        fault = await self._prepare(carriage)
        if fault is not None:
            await self._refuse(carriage, fault)
            return
        # (d): the intent is on the disk before anything is dispatched.
        operation = new_operation(self.host, carriage)
        carriage.intended = True
        try:
            await self.store.put(intent_entry(carriage, operation)).wait()
        except StoreFailed as error:
            carriage.settle(store_fault(error))
            return
        # (e): no checkpoint from here to the driver's code.
        fault = last_refusal(carriage.attempt, self.host, trio.current_time())
        if fault is not None:
            await self._refuse(carriage, fault, operation)
            return
        self._dispatch(carriage, operation)
        await self._finish(carriage, operation, await self._native(carriage, operation))

    async def _prepare(self, carriage: Carriage) -> Fault | None:
        """Wait for the slot; (b) read interlocks and state inside the deadline; (c) check from the latch on."""
        attempt = carriage.attempt
        if carriage.place is not None:
            with trio.move_on_at(attempt.deadline_mono_s):
                await carriage.place.decided.wait()
            if carriage.place.refused is not None:
                return carriage.place.refused
            if not carriage.place.granted:
                return deadline_refusal(attempt, attempt.deadline_mono_s)
            fault = refusal(attempt, self.host, Step.INPUT, Step.LIMITS)
            if fault is not None:
                return fault
        unreadable = await self._look(attempt) if attempt.actuating else None
        fault = (
            refusal(attempt, self.host, Step.AVAILABLE, Step.INTERLOCKS)
            or unreadable
            or refusal(attempt, self.host, Step.SNAPSHOT, Step.CONCURRENCY)
            or (store_fault(self.store.failure) if self.store.failure is not None else None)
            or deadline_refusal(attempt, trio.current_time())
        )
        if fault is None:
            # A permit that another command had when this one came may have been given back since.
            self.host.reserve_permit(attempt)
        return fault

    async def _look(self, attempt: Attempt) -> Fault | None:
        """Read interlocks and state before a mutation. What cannot be read refuses the command."""
        with trio.move_on_at(attempt.deadline_mono_s):
            try:
                reading = await self.host.read(self.host.all_resources())
                attempt.interlocks = reading.interlocks
                self.host.remember(reading, self._unclaimed(attempt))
            except Fault as fault:
                return fault
            return None
        # The read hung until the deadline: that answers, and not the interlocks that nobody saw.
        attempt.interlocks = dict.fromkeys(attempt.binding.interlocks, "closed") if attempt.binding else {}
        return deadline_refusal(attempt, attempt.deadline_mono_s)

    def _unclaimed(self, attempt: Attempt) -> set[str]:
        """The command's resources but for those that something else is changing now, which will settle them."""
        if self.host.resetting or self.host.safety.stop_pending(self.host.device_id):
            return set()
        others = [c.attempt for c in self.live() if c.attempt is not attempt and c.attempt.actuating]
        claimed = {name for other in others for name in resources_of(self.host, other)}
        return set(resources_of(self.host, attempt)) - claimed

    async def _refuse(self, carriage: Carriage, fault: Fault, operation: Operation | None = None) -> None:
        """Answer with a rejected receipt; the slot is free from its hand-over to the store on.

        `operation` is one whose intent was put: it is voided, and whoever asks for the operation finds the refusal.
        """
        if fault.mhs_code == "MHS.INTERNAL.STORE_UNAVAILABLE":
            carriage.settle(fault)
            return
        attempt = carriage.attempt
        entry = refusal_entry(self.host, attempt, carriage.shared, fault, operation)
        voided = () if operation is None else (VoidIntent(attempt.device_id, attempt.command_id),)
        ticket = self.store.put(*voided, entry)
        self._unreserve(carriage)
        self.host.slot.release(attempt)
        carriage.decided.set()
        carriage.settle(await self._durable(ticket))

    def _dispatch(self, carriage: Carriage, operation: Operation) -> None:
        attempt = carriage.attempt
        now_mono_s = trio.current_time()
        if operation.due_mono_s is not None:
            operation.due_mono_s += now_mono_s - operation.started_mono_s
            self.overseer.expect(operation.due_mono_s)
        operation.started_mono_s = now_mono_s
        operation.started_at = self.host.wall()
        if attempt.permit is not None:
            attempt.permit.state = "used"
        self.host.spend_rate(attempt)
        self.host.slot.dispatched(attempt, operation)
        if attempt.actuating:
            self.host.driven_by = attempt.session
        carriage.operation = operation
        self._running[operation.operation_id] = carriage
        self._unreserve(carriage)
        carriage.decided.set()
        self._tell_of_dispatch(attempt, operation)

    def _tell_of_dispatch(self, attempt: Attempt, operation: Operation) -> None:
        feed = self.host.feed
        feed.note_operation("operation.dispatched", operation)
        feed.progress(operation)
        if attempt.permit is not None:
            feed.note("permit.used", attempt.permit.told(), resource_id=attempt.resource)

    def _tell_of_end(self, operation: Operation, status: str, mhs_code: str | None) -> None:
        """The last that is told of an operation; only after its receipt is durable, or can never be."""
        self.host.feed.progress(operation, status)
        self.host.feed.note_operation("operation.ended", operation, status=status, mhs_code=mhs_code)

    async def _native(self, carriage: Carriage, operation: Operation) -> Native:
        if carriage.binding.capability_id == DESCRIBE:
            operation.native_returned = True
            return Returned({"digest": self._describe()}, ())
        return await call_driver(self.host, operation, carriage.binding, self._tell)

    # The end of an execution.

    async def _finish(self, carriage: Carriage, operation: Operation, native: Native) -> None:
        if operation.concluded:
            # It was given up before: that the call is back at last only frees the slot.
            return
        if isinstance(native, Refused):
            # The device did nothing: the intent is voided and the refusal recorded, in one transaction.
            operation.concluded = True
            self._running.pop(operation.operation_id, None)
            await self._refuse(carriage, native.fault, operation)
            self._tell_of_end(operation, "rejected", native.fault.mhs_code)
            return
        safe, reading = await look_after(self.host, operation, native, self.end)
        if operation.concluded:
            return
        entry = final_entry(self.host, carriage, operation, native, safe, reading)
        ticket = self.store.put(entry)
        self.host.slot.release(carriage.attempt)
        await self._answer_from(carriage, operation, entry, ticket)

    async def _answer_from(
        self, carriage: Carriage, operation: Operation, entry: Receipt, ticket: Ticket
    ) -> None:
        try:
            answer: Answer = (await ticket.wait())[-1].wire()
            self._tell_of_end(operation, entry.body["status"], entry.body.get("error", {}).get("mhs_code"))
        except StoreFailed as error:
            log.critical(
                "the final receipt of %s could not be written (%s): %s",
                operation.operation_id,
                self.host.device_id,
                error,
            )
            answer = unstored_fault(operation)
            self._tell_of_end(operation, "unknown", answer.mhs_code)
        carriage.settle(answer)
        self._running.pop(operation.operation_id, None)
