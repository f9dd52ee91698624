"""Executions: how a command goes through the envelope, runs, and gets its receipt [MHSD-4].

Everything of one command happens in one task of its device's nursery, so that neither a lost connection nor an
ended session can leave it half done. The caller only waits, and its deadline ends only that waiting [PROTO-011].
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import trio

from mhsd.base.errors import Fault
from mhsd.core import receipts
from mhsd.core.admission import (
    CONFIGURE,
    Attempt,
    Step,
    deadline_refusal,
    last_refusal,
    prior_refusal,
    refusal,
)
from mhsd.core.operations import (
    Ending,
    EndingKind,
    Failed,
    Interrupted,
    Lost,
    Native,
    Operation,
    Refused,
    Returned,
    conclude,
)
from mhsd.driver import DESCRIBE
from mhsd.driver.manifest import Binding
from mhsd.services.device_host import DeviceHost
from mhsd.services.native import call_driver
from mhsd.services.slot import Place
from mhsd.store import CommandRow, Intent, Receipt, StoredReceipt, StoreFailed, Ticket, VoidIntent
from mhsd.wire.json_text import Raw, encode

log = logging.getLogger("mhsd.execution")

STATE_READ_S = 5.0
"""How long the state read behind a finished call may take before the state counts as changed and unknown."""

Answer = Raw | Fault
"""What a caller gets: a receipt, or the error that stands in for one that cannot exist."""


@attrs.define(eq=False)
class Carriage:
    """A command on its way: what was asked, where it stands, and the answer that its caller waits for."""

    attempt: Attempt
    binding: Binding
    shared: Mapping[str, Any]
    place: Place | None = None
    operation: Operation | None = None
    answer: Answer | None = None
    decided: trio.Event = attrs.Factory(trio.Event)
    """Set when the command was dispatched or refused."""
    concluded: trio.Event = attrs.Factory(trio.Event)
    """Set when its last receipt was handed to the store."""
    answered: trio.Event = attrs.Factory(trio.Event)
    """Set when its last receipt is durable, or can never be."""

    def settle(self, answer: Answer) -> None:
        if self.answer is None:
            self.answer = answer
            self.decided.set()
            self.concluded.set()
            self.answered.set()


def store_fault(error: object) -> Fault:
    """Nothing was dispatched because it could not have been recorded."""
    return Fault(
        "MHS.INTERNAL.STORE_UNAVAILABLE", f"the receipt store cannot be written: {error}; nothing was done"
    )


class Executions:
    """Runs the commands of one device. `nursery` is the device's own and outlives every caller."""

    def __init__(self, host: DeviceHost, nursery: trio.Nursery, describe: Callable[[], str]) -> None:
        self.host = host
        self.store = host.store
        self._nursery = nursery
        self._describe = describe
        self._reserved: dict[str, Carriage] = {}
        self._running: dict[str, Carriage] = {}
        self._due_mono_s = float("inf")
        self._nudge = trio.Event()

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
        row = self.store.find_command(attempt.device_id, attempt.command_id)
        ahead = self._reserved.get(attempt.command_id)
        if row is not None:
            prior = prior_refusal(row.input_digest, row.principal_id, attempt)
            return self.current(row, replayed=True) if prior == "replay" else prior
        if ahead is not None:
            prior = prior_refusal(ahead.attempt.input_digest, ahead.attempt.session.principal_id, attempt)
            return self._follow(attempt, ahead) if prior == "replay" else prior
        if id_spent:
            spent = prior_refusal("", "", attempt)
            return spent if isinstance(spent, Fault) else None
        return None

    def _admit(self, attempt: Attempt) -> Awaitable[Answer]:
        binding = attempt.binding
        assert isinstance(binding, Binding)  # the rung BINDING stands before this
        carriage = Carriage(attempt, binding, self._shared(attempt))
        self._reserved[attempt.command_id] = carriage
        if attempt.actuating and binding.permit == "required" and self.host.permit_refusal(attempt) is None:
            attempt.permit = self.host.permits.get(attempt.permit_id)
            if attempt.permit is not None:
                attempt.permit.state = "reserved"
        if binding.long_running:
            attempt.session.open_operations.add(attempt.command_id)
        if attempt.guarded:
            carriage.place = self.host.slot.take_or_queue(attempt)
        self._nursery.start_soon(self._carry_contained, carriage)
        return self._wait(carriage)

    def _shared(self, attempt: Attempt) -> dict[str, Any]:
        return receipts.command_members(attempt, self.host.endpoint_id, self.host.mode)

    def _refuse_at_once(self, attempt: Attempt, fault: Fault) -> Awaitable[Answer]:
        return self._durable(self._put_refusal(attempt, self._shared(attempt), fault))

    def _put_refusal(
        self, attempt: Attempt, shared: Mapping[str, Any], fault: Fault, *first: VoidIntent
    ) -> Ticket:
        """Hand a rejected receipt to the store; a permit that was reserved for the command is given back."""
        attempt.session.outcomes["rejected"] += 1
        if attempt.permit is not None:
            attempt.permit.state = "issued"
            attempt.permit = None
        body = receipts.rejected(shared, self.host.ids.ulid(), fault, self.host.revision, self.host.wall())
        entry = Receipt(
            kind="rejected",
            body=body,
            device_id=attempt.device_id,
            command_id=attempt.command_id,
            operation_id=None,
            principal_id=attempt.session.principal_id,
            revision=None,
        )
        return self.store.put(*first, entry)

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
            return await self._interim(carriage, operation)
        # Not dispatched: its own task refuses it now. Concluded: its receipt is on its way to the disk.
        await carriage.answered.wait()
        assert carriage.answer is not None
        return carriage.answer

    async def _interim(self, carriage: Carriage, operation: Operation) -> Answer:
        operation.interim_id = self.host.ids.ulid()
        body = receipts.interim(
            carriage.shared, operation, operation.interim_id, self.host.revision, self.host.wall()
        )
        return await self._durable(self.store.put(self._entry("interim", body, carriage, operation, None)))

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

    def current(self, row: CommandRow, *, replayed: bool = False) -> Raw:
        """The receipt of a command as it stands: the final one, or the live snapshot [OP-010, PROTO-030]."""
        if row.final is not None:
            return row.final.wire(replayed=replayed)
        carriage = self._running.get(row.operation_id)
        if carriage is None or carriage.operation is None:
            return Raw(encode({**row.body, "replayed": replayed}))
        return Raw(encode({**receipts.running(carriage.shared, carriage.operation), "replayed": replayed}))

    def running(self, operation_id: str) -> Carriage | None:
        """The execution of an operation while it has no durable final receipt."""
        return self._running.get(operation_id)

    def live(self) -> list[Carriage]:
        """Every dispatched command without a final receipt."""
        return [c for c in self._running.values() if c.operation is not None and not c.operation.concluded]

    # Ending early.

    def end(self, operation: Operation, kind: EndingKind, requested_by: str) -> None:
        """Tell one execution to stop and go to the safe state. Returns at once."""
        self._tell(operation, Ending(kind, requested_by, self.host.wall()))

    def _tell(self, operation: Operation, ending: Ending) -> None:
        operation.end(ending, trio.current_time())
        self._expect(trio.current_time() + self.host.stop_grace_s)

    def refuse_queue(self, fault: Fault, session_id: str | None = None) -> None:
        self.host.slot.refuse_queue(fault, session_id)

    def _expect(self, due_mono_s: float) -> None:
        if due_mono_s < self._due_mono_s:
            self._due_mono_s = due_mono_s
            self._nudge.set()

    async def oversee(self) -> None:
        """Enforce max_duration_ms and the stop grace of every execution; runs as long as the device is served."""
        while True:
            with trio.move_on_at(self._due_mono_s):
                await self._nudge.wait()
            self._nudge = trio.Event()
            self._due_mono_s = float("inf")
            now_mono_s = trio.current_time()
            for carriage in self.live():
                operation = carriage.operation
                assert operation is not None
                due_mono_s = self._due_of(operation)
                if due_mono_s > now_mono_s:
                    self._due_mono_s = min(self._due_mono_s, due_mono_s)
                elif operation.ending is None:
                    self.end(operation, "max_duration", "endpoint:max_duration")
                else:
                    self._give_up(carriage, operation)

    def _due_of(self, operation: Operation) -> float:
        if operation.native_returned:
            return float("inf")
        if operation.ending_mono_s is not None:
            return operation.ending_mono_s + self.host.stop_grace_s
        return operation.due_mono_s if operation.due_mono_s is not None else float("inf")

    def _give_up(self, carriage: Carriage, operation: Operation) -> None:
        """The native call did not come back within the stop grace: the outcome is unknown, and the slot stays taken."""
        fault = Fault(
            "MHS.OUTCOME.UNKNOWN",
            "the driver did not come back within the stop grace; what the device does is not known",
            details={"reason": "stop_grace_exceeded", "operation_id": operation.operation_id},
        )
        self.host.doubt(f"{carriage.attempt.capability_id} did not end within the stop grace")
        ticket = self._put_final(carriage, operation, Lost(fault), False, None)
        self._nursery.start_soon(self._answer_from, carriage, operation, ticket)

    # The command's own task.

    async def _carry_contained(self, carriage: Carriage) -> None:
        try:
            await self._carry(carriage)
        except Exception as error:
            # The boundary of one command: a defect in here must not end the device's other work.
            log.exception("execution of %s failed", carriage.attempt.command_id)
            fault = Fault(
                "MHS.INTERNAL.ERROR",
                f"the endpoint failed with {type(error).__name__}",
                details={"exception_type": type(error).__name__},
            )
            operation = carriage.operation
            if operation is not None and not operation.concluded:
                ticket = self._put_final(carriage, operation, Failed(fault), False, None)
                await self._answer_from(carriage, operation, ticket)
            carriage.settle(fault)
        finally:
            self._reserved.pop(carriage.attempt.command_id, None)
            carriage.attempt.session.open_operations.discard(carriage.attempt.command_id)
            if carriage.place is not None:
                self.host.slot.leave(carriage.place)
            self.host.slot.release(carriage.attempt)

    async def _carry(self, carriage: Carriage) -> None:
        fault = await self._prepare(carriage)
        if fault is not None:
            await self._refuse(carriage, fault)
            return
        operation = self._operation(carriage)
        try:
            await self.store.put(self._intent(carriage, operation)).wait()
        except StoreFailed as error:
            carriage.settle(store_fault(error))
            return
        # (e): no checkpoint from here to the driver's code.
        fault = last_refusal(carriage.attempt, self.host, trio.current_time())
        if fault is not None:
            await self._refuse(
                carriage, fault, VoidIntent(carriage.attempt.device_id, carriage.attempt.command_id)
            )
            return
        self._dispatch(carriage, operation)
        native = await self._native(carriage, operation)
        await self._finish(carriage, operation, native)

    async def _prepare(self, carriage: Carriage) -> Fault | None:
        """Wait for the slot, (b) read interlocks and state inside the deadline, (c) check again from the latch on."""
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
        return (
            refusal(attempt, self.host, Step.LATCH, Step.INTERLOCKS)
            or unreadable
            or refusal(attempt, self.host, Step.REVISION, Step.CONCURRENCY)
            or (store_fault(self.store.failure) if self.store.failure is not None else None)
            or deadline_refusal(attempt, trio.current_time())
        )

    async def _look(self, attempt: Attempt) -> Fault | None:
        """Read interlocks and state before a mutation. What cannot be read refuses the command."""
        with trio.move_on_at(attempt.deadline_mono_s):
            try:
                reading = await self.host.read(self.host.all_resources())
            except Fault as fault:
                return fault
            attempt.interlocks = reading.interlocks
            self.host.remember(reading, self._compared(attempt))
            return None
        # The read hung: that the interlock is not known is the lesser news.
        attempt.interlocks = dict.fromkeys(attempt.binding.interlocks, "closed") if attempt.binding else {}
        return deadline_refusal(attempt, attempt.deadline_mono_s)

    def _compared(self, attempt: Attempt) -> tuple[str, ...]:
        """The resources whose change counts as this command's: all while it holds the slot, else its own."""
        if attempt.guarded or attempt.resource is None:
            return self.host.all_resources()
        return (attempt.resource,)

    async def _refuse(self, carriage: Carriage, fault: Fault, *first: VoidIntent) -> None:
        if fault.mhs_code == "MHS.INTERNAL.STORE_UNAVAILABLE":
            carriage.settle(fault)
            return
        ticket = self._put_refusal(carriage.attempt, carriage.shared, fault, *first)
        self._reserved.pop(carriage.attempt.command_id, None)
        self.host.slot.release(carriage.attempt)
        carriage.decided.set()
        carriage.settle(await self._durable(ticket))

    def _operation(self, carriage: Carriage) -> Operation:
        now_mono_s = trio.current_time()
        limit_ms = carriage.binding.max_duration_ms
        return Operation(
            attempt=carriage.attempt,
            operation_id=self.host.ids.operation_id(),
            receipt_id=self.host.ids.ulid(),
            long_running=carriage.binding.long_running,
            started_mono_s=now_mono_s,
            started_at=self.host.wall(),
            due_mono_s=None if limit_ms is None else now_mono_s + limit_ms / 1000,
        )

    def _intent(self, carriage: Carriage, operation: Operation) -> Intent:
        attempt = carriage.attempt
        body = {**receipts.running(carriage.shared, operation), "status": "accepted"}
        return Intent(
            device_id=attempt.device_id,
            command_id=attempt.command_id,
            input_digest=attempt.input_digest,
            principal_id=attempt.session.principal_id,
            operation_id=operation.operation_id,
            session_id=attempt.session.session_id,
            body=body,
        )

    def _dispatch(self, carriage: Carriage, operation: Operation) -> None:
        attempt = carriage.attempt
        now_mono_s = trio.current_time()
        if operation.due_mono_s is not None:
            operation.due_mono_s += now_mono_s - operation.started_mono_s
            self._expect(operation.due_mono_s)
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
        self._reserved.pop(attempt.command_id, None)
        carriage.decided.set()

    async def _native(self, carriage: Carriage, operation: Operation) -> Native:
        if carriage.binding.capability_id == DESCRIBE:
            operation.native_returned = True
            return Returned({"digest": self._describe()}, ())
        return await call_driver(self.host, operation, carriage.binding, self._tell)

    # The end of an execution.

    async def _finish(self, carriage: Carriage, operation: Operation, native: Native) -> None:
        if operation.concluded:
            # Given up before: the call is back at last, which only frees the slot.
            return
        if isinstance(native, Refused):
            await self._busy(carriage, operation, native.fault)
            return
        if isinstance(native, Interrupted) and operation.ending is None:
            self.end(operation, "cancel", "endpoint:driver")
        while True:
            ending = operation.ending
            safe = await self._safe_state(operation, native)
            reading = None
            if carriage.attempt.actuating:
                reading = await self.host.read_within(self.host.all_resources(), STATE_READ_S)
            # An e-stop that came during these awaits outranks what they found.
            if operation.ending is ending:
                break
        ticket = self._put_final(carriage, operation, native, safe, reading)
        self.host.slot.release(carriage.attempt)
        await self._answer_from(carriage, operation, ticket)

    async def _busy(self, carriage: Carriage, operation: Operation, fault: Fault) -> None:
        """The device did nothing: the intent is voided and the refusal recorded, in one transaction."""
        operation.concluded = True
        void = VoidIntent(carriage.attempt.device_id, carriage.attempt.command_id)
        await self._refuse(carriage, fault, void)
        self._running.pop(operation.operation_id, None)

    async def _safe_state(self, operation: Operation, native: Native) -> bool:
        """Whether the safe state was reached, for an execution that was ended early [OP-011]."""
        ending = operation.ending
        early = isinstance(native, Interrupted) or (
            ending is not None and ending.kind in ("estop", "interlock")
        )
        if not early or not operation.attempt.actuating:
            return True
        if isinstance(native, Interrupted) and native.safe_state_achieved is not None:
            return native.safe_state_achieved
        assert ending is not None  # _finish() names an ending for every interrupted call
        if ending.kind == "estop":
            return await self.host.stop_outcome()
        return await self.host.halt(ending.kind)

    def _put_final(
        self, carriage: Carriage, operation: Operation, native: Native, safe: bool, reading: Any
    ) -> Ticket:
        """Settle the revision and hand the final receipt to the store. Synchronous: both belong to one instant."""
        attempt = carriage.attempt
        actuating = attempt.actuating
        if not actuating:
            change = receipts.Change(self.host.revision, self.host.revision, None)
        else:
            change = self.host.settle(reading, self._compared_at_end(operation))
            if reading is None and isinstance(native, Returned):
                native = Lost(
                    Fault(
                        "MHS.OUTCOME.UNKNOWN",
                        "the driver reported success but the device's state could not be read afterwards",
                        details={"reason": "state_unreadable", "operation_id": operation.operation_id},
                    )
                )
        if isinstance(native, Returned) and attempt.capability_id == CONFIGURE:
            native = self._configured(attempt, native, change, reading)
        conclusion = conclude(native, operation.ending, safe, carriage.binding.capability.output)
        body = receipts.final(
            carriage.shared, operation, conclusion, change, carriage.binding.effects, self.host.wall()
        )
        operation.concluded = True
        attempt.session.outcomes[conclusion.status] += 1
        carriage.concluded.set()
        return self.store.put(self._entry("final", body, carriage, operation, self.host.revision))

    def _compared_at_end(self, operation: Operation) -> tuple[str, ...]:
        # What an e-stop changes elsewhere on the device belongs to the stop's own receipt.
        stopped = operation.ending is not None and operation.ending.kind == "estop"
        resource = operation.attempt.resource
        return (resource,) if stopped and resource is not None else self._compared(operation.attempt)

    def _configured(
        self, attempt: Attempt, native: Returned, change: receipts.Change, reading: Any
    ) -> Returned:
        """A write's output: what was applied, by the driver's word or else as it reads back [MHS-002 section 6.2]."""
        applied = native.output.get("applied")
        if applied is None:
            state = reading.resources[attempt.resource]
            applied = {name: state[name] for name in attempt.input if name in state}
        return Returned({"applied": dict(applied), "revision": change.after}, native.effects)

    def _entry(
        self, kind: Any, body: dict[str, Any], carriage: Carriage, operation: Operation, revision: int | None
    ) -> Receipt:
        return Receipt(
            kind=kind,
            body=body,
            device_id=carriage.attempt.device_id,
            command_id=carriage.attempt.command_id,
            operation_id=operation.operation_id,
            principal_id=carriage.attempt.session.principal_id,
            revision=revision,
        )

    async def _answer_from(self, carriage: Carriage, operation: Operation, ticket: Ticket) -> None:
        try:
            stored: tuple[StoredReceipt, ...] = await ticket.wait()
        except StoreFailed as error:
            log.critical("the final receipt of %s could not be written: %s", operation.operation_id, error)
            carriage.settle(
                Fault(
                    "MHS.OUTCOME.UNKNOWN",
                    "the command ran, but its receipt could not be stored",
                    details={"reason": "receipt_not_stored", "operation_id": operation.operation_id},
                )
            )
        else:
            carriage.settle(stored[-1].wire())
        self._running.pop(operation.operation_id, None)
