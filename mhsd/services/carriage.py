"""A command on its way, and what becomes of it in the store: the entries that its stations write.

Everything here is synchronous: an entry and the state that it reports belong to one instant.
"""

from collections.abc import Mapping
from typing import Any, Literal

import attrs
import trio

from mhsd.base.errors import Fault
from mhsd.core import receipts
from mhsd.core.admission import CONFIGURE, Attempt
from mhsd.core.operations import Lost, Native, Operation, Returned, conclude
from mhsd.core.redaction import redacted
from mhsd.driver import Reading
from mhsd.driver.manifest import Binding
from mhsd.services.device_host import DeviceHost
from mhsd.services.slot import Place
from mhsd.store import CommandRow, Intent, Receipt
from mhsd.wire.json_text import Raw

Answer = Raw | Fault
"""What a caller gets: a receipt, or the error that stands in for one that cannot exist."""


class Promise:
    """An answer that is made whether or not somebody waits for it."""

    def __init__(self) -> None:
        self._made = trio.Event()
        self._answer: Answer | None = None

    def settle(self, answer: Answer) -> None:
        self._answer = answer
        self._made.set()

    async def wait(self) -> Answer:
        await self._made.wait()
        assert self._answer is not None
        return self._answer


@attrs.define(eq=False)
class Carriage:
    """One command: what was asked, where it stands, and the answer that its caller waits for."""

    attempt: Attempt
    binding: Binding
    shared: Mapping[str, Any]
    place: Place | None = None
    intended: bool = False
    """Whether its intent was handed to the store."""
    operation: Operation | None = None
    answer: Answer | None = None
    decided: trio.Event = attrs.Factory(trio.Event)
    """Set when the command was dispatched or refused."""
    concluded: trio.Event = attrs.Factory(trio.Event)
    """Set when its last receipt was handed to the store."""
    answered: trio.Event = attrs.Factory(trio.Event)
    """Set when its last receipt is durable, or can never be."""

    def settle(self, answer: Answer) -> None:
        """Answer the caller; only the first answer counts."""
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


def unstored_fault(operation: Operation | CommandRow) -> Fault:
    """The command ran, and the receipt that would say how it ended could not be written."""
    return Fault(
        "MHS.OUTCOME.UNKNOWN",
        "the command was dispatched, but its receipt could not be stored",
        details={"reason": "receipt_not_stored", "operation_id": operation.operation_id},
    )


def internal_fault(error: Exception) -> Fault:
    """A failure of the endpoint's own code: its type is told, and nothing else of it [PROTO-042]."""
    name = type(error).__name__
    return Fault("MHS.INTERNAL.ERROR", f"the endpoint failed with {name}", details={"exception_type": name})


def new_operation(host: DeviceHost, carriage: Carriage) -> Operation:
    """The operation of a command that is about to be dispatched, with the id of its final receipt."""
    now_mono_s = trio.current_time()
    limit_ms = carriage.binding.max_duration_ms
    return Operation(
        attempt=carriage.attempt,
        operation_id=host.ids.operation_id(),
        receipt_id=host.ids.ulid(),
        long_running=carriage.binding.long_running,
        started_mono_s=now_mono_s,
        started_at=host.wall(),
        due_mono_s=None if limit_ms is None else now_mono_s + limit_ms / 1000,
    )


def intent_entry(carriage: Carriage, operation: Operation) -> Intent:
    """The command's reservation; its body becomes the `unknown` receipt if the process dies."""
    attempt = carriage.attempt
    return Intent(
        device_id=attempt.device_id,
        command_id=attempt.command_id,
        input_digest=attempt.input_digest,
        principal_id=attempt.session.principal_id,
        operation_id=operation.operation_id,
        session_id=attempt.session.session_id,
        body={**receipts.running(carriage.shared, operation), "status": "accepted"},
    )


def refusal_entry(
    host: DeviceHost,
    attempt: Attempt,
    shared: Mapping[str, Any],
    fault: Fault,
    operation: Operation | None = None,
) -> Receipt:
    """A rejected receipt; a permit that was reserved for the command is given back.

    `operation` is one that was not dispatched after all, or that the device itself refused: who was told of its id
    finds this receipt by it [PROTO-030].
    """
    attempt.session.outcomes["rejected"] += 1
    if attempt.permit is not None:
        attempt.permit.state = "issued"
        attempt.permit = None
    receipt_id = host.ids.ulid() if operation is None else operation.receipt_id
    body = receipts.rejected(shared, receipt_id, fault, host.revision, host.wall())
    if operation is not None:
        body["operation_id"] = operation.operation_id
        if operation.interim_id is not None:
            receipts.add_vendor(body, {"reconciles": operation.interim_id})
    return _entry(host, "rejected", body, attempt, operation, None)


def interim_entry(host: DeviceHost, carriage: Carriage, operation: Operation) -> Receipt:
    """The `unknown` receipt of a caller whose deadline passed; the final receipt will name it."""
    operation.interim_id = host.ids.ulid()
    body = receipts.interim(carriage.shared, operation, operation.interim_id, host.revision, host.wall())
    return _entry(host, "interim", body, carriage.attempt, operation, None)


def final_entry(
    host: DeviceHost,
    carriage: Carriage,
    operation: Operation,
    native: Native,
    safe_state_achieved: bool,
    reading: Reading | None,
) -> Receipt:
    """Settle the device's revision and write the execution's one final receipt [OP-001, OP-007, OP-009]."""
    attempt = carriage.attempt
    change = receipts.Change(host.revision, host.revision, None)
    if attempt.actuating:
        restored = attempt.restoration is not None and isinstance(native, Returned)
        change = host.settle(reading, resources_at_end(host, operation), restored=restored)
        if change.state_hash is None and isinstance(native, Returned):
            native = Lost(_unreadable(operation))
    if isinstance(native, Returned) and attempt.capability_id == CONFIGURE:
        native = _configured(attempt, native, change, reading)
    conclusion = conclude(native, operation.ending, safe_state_achieved, carriage.binding.capability.output)
    body = receipts.final(
        carriage.shared, operation, conclusion, change, carriage.binding.effects, host.wall()
    )
    operation.concluded = True
    attempt.session.outcomes[conclusion.status] += 1
    carriage.concluded.set()
    return _entry(host, "final", body, attempt, operation, host.revision)


def resources_of(host: DeviceHost, attempt: Attempt) -> tuple[str, ...]:
    """The resources whose change counts as this command's: all while it holds the slot, else its own."""
    if attempt.guarded or attempt.resource is None:
        return host.all_resources()
    return (attempt.resource,)


def resources_at_end(host: DeviceHost, operation: Operation) -> tuple[str, ...]:
    """As `resources_of`; what an e-stop changes elsewhere on the device belongs to the stop's own receipt."""
    stopped = operation.ending is not None and operation.ending.kind == "estop"
    resource = operation.attempt.resource
    return (resource,) if stopped and resource is not None else resources_of(host, operation.attempt)


def _unreadable(operation: Operation) -> Fault:
    return Fault(
        "MHS.OUTCOME.UNKNOWN",
        "the driver reported success, but the device's state could not be read afterwards",
        details={"reason": "state_unreadable", "operation_id": operation.operation_id},
    )


def _configured(
    attempt: Attempt, native: Returned, change: receipts.Change, reading: Reading | None
) -> Returned:
    """A write's output: what was applied, by the driver's word or else as it reads back [PROTO-025]."""
    applied = native.output.get("applied")
    if applied is None and reading is not None and attempt.resource is not None:
        state = reading.resources[attempt.resource]
        applied = {name: state[name] for name in attempt.input if name in state}
    return Returned({"applied": dict(applied or {}), "revision": change.after}, native.effects)


def _entry(
    host: DeviceHost,
    kind: Literal["rejected", "interim", "final"],
    body: dict[str, Any],
    attempt: Attempt,
    operation: Operation | None,
    revision: int | None,
) -> Receipt:
    return Receipt(
        kind=kind,
        body=redacted(body, host.manifest.redaction),
        device_id=attempt.device_id,
        command_id=attempt.command_id,
        operation_id=operation.operation_id if operation is not None else None,
        principal_id=attempt.session.principal_id,
        revision=revision,
    )
