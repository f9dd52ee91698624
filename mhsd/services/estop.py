"""The emergency stop and its reset [SAFE-002, SAFE-003, CORE-074 to CORE-087; MHSD-4, Fenced stop].

The latch is set in the same synchronous block that recognises the request; from then on admission refuses. Each
device is stopped in a task of its own, so that one broken driver cannot keep its neighbour moving. A slow disk delays
the receipt, never the stop.
"""

import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import attrs
import trio

from mhsd.base.errors import Fault
from mhsd.core import receipts
from mhsd.core.latch import SafetyState
from mhsd.driver import Reading
from mhsd.services.carriage import Answer, Carriage, Promise, internal_fault
from mhsd.services.device_host import StopRun
from mhsd.services.served_device import ServedDevice
from mhsd.store import Receipt, Store, StoreFailed, Ticket
from mhsd.wire.json_text import Raw, encode

log = logging.getLogger("mhsd.safety")

STORE_PATIENCE_S = 2.0
"""After this long the stop's receipt is answered with `evidence: {"pending": true}`."""

STATE_READ_S = 1.0
"""How long the stop waits for the state that it reports; a hung device delays its receipt by this and no more."""

SETTLE_S = 1.0
"""How long the stop waits for the receipts of the operations that it ended, so that they stand before its own."""

LONGEST_SUMMARY = 1000
"""Characters of an effect's summary; a longer reason is cut there, and stands whole in the status."""


@attrs.frozen
class StopRequest:
    """Who stops (or resets) what, and why. `command_id` and `session_id` are the caller's where it gave usable ones."""

    reason: str
    principal: Mapping[str, str]
    received_mono_s: float
    accepted_at: str
    session_id: str | None = None
    command_id: str | None = None


@attrs.frozen
class DeviceStop:
    """What was confirmed of one device."""

    device: ServedDevice
    achieved: bool
    latency_ms: float
    latch_latency_ms: float
    latch_durable: bool
    operations: list[dict[str, str]]

    @property
    def complete(self) -> bool:
        return self.achieved and all(entry["state"] == "stopped" for entry in self.operations)


class EmergencyStop:
    """Stops devices. `nursery` is the endpoint's own: a stop goes on when its caller is gone."""

    def __init__(self, store: Store, nursery: trio.Nursery) -> None:
        self._store = store
        self._nursery = nursery

    def engage(self, devices: Sequence[ServedDevice], request: StopRequest) -> Awaitable[Answer]:
        """Latch now, stop at once; what is returned is the receipt to wait for.

        No checkpoint in here: when it returns, every device is latched and its operations are told to stop.
        """
        safety = devices[0].host.safety
        safety.engage(
            [device.device_id for device in devices],
            request.reason,
            request.accepted_at,
            request.received_mono_s,
        )
        latch_latency_ms = _elapsed_ms(request.received_mono_s)
        for device in devices:
            log.warning("EMERGENCY STOP of %s by %s", device.device_id, request.principal["id"])
        refused = Fault("MHS.SAFETY.ESTOP_LATCHED", "the emergency stop was engaged while the command waited")
        durable = _Once(self._store, safety)
        reports: list[_Report] = []
        for device in devices:
            device.host.stop_run = StopRun()
            device.executions.refuse_queue(refused)
            ended = [c for c in device.executions.live() if c.attempt.guarded]
            for carriage in ended:
                assert carriage.operation is not None
                device.executions.end(carriage.operation, "estop", "endpoint:estop")
            report = _Report(device, ended, device.host.stop_run)
            reports.append(report)
            safety.stop_begins(device.device_id)
            self._nursery.start_soon(self._stop, report, request, latch_latency_ms, durable)
        self._nursery.start_soon(self._tell, reports, request)
        self._nursery.start_soon(durable.write)
        answer = Promise()
        self._nursery.start_soon(self._record_contained, reports, request, answer)
        return answer.wait()

    async def _stop(
        self, report: "_Report", request: StopRequest, latch_latency_ms: float, durable: "_Once"
    ) -> None:
        host = report.device.host
        achieved = await host.run_stop(request.reason)
        report.run.achieved = achieved
        report.run.done.set()
        latency_ms = _elapsed_ms(request.received_mono_s)
        report.tell(request)
        report.tell_outcome(latency_ms)
        with trio.move_on_after(SETTLE_S):
            for carriage in report.ended:
                await carriage.concluded.wait()
        if not achieved:
            host.doubt("the emergency stop could not confirm the safe state")
        report.stop = DeviceStop(
            report.device,
            achieved,
            latency_ms,
            latch_latency_ms,
            await durable.outcome(),
            report.operations(),
        )
        report.done.set()

    @staticmethod
    async def _tell(reports: list["_Report"], request: StopRequest) -> None:
        """A task of its own: the subscribers of a device are many, and its stop comes first."""
        for report in reports:
            report.tell(request)
            await trio.lowlevel.checkpoint()

    async def _record_contained(
        self, reports: list["_Report"], request: StopRequest, answer: Promise
    ) -> None:
        try:
            answer.settle(await self._record(reports, request))
        except Exception as error:
            # Named boundary: whatever is wrong with a receipt, the devices are stopped and others are served.
            log.exception("the receipts of an emergency stop could not be made")
            answer.settle(internal_fault(error))
            _end_all(reports)

    async def _record(self, reports: list["_Report"], request: StopRequest) -> Raw:
        """One receipt a device; the answer is the first that is not completed, else the first [SAFE-002].

        It is recorded as the last one, since it lists the others.
        """
        async with trio.open_nursery() as nursery:
            for report in reports:
                nursery.start_soon(report.look)
        # No checkpoint until the last put(): each receipt carries the revision that it made.
        bodies = [self._body(report, request) for report in reports]
        chosen = next((body for body in bodies if body["status"] != "completed"), bodies[0])
        plain = dict(chosen)
        tickets = [self._store.put(safety_entry(body)) for body in bodies if body is not chosen]
        if tickets:
            others = iter(tickets)
            listed = [plain if body is chosen else _as_put(next(others), body) for body in bodies]
            receipts.add_vendor(chosen, {"estop": {"devices": listed}})
        ticket = self._store.put(safety_entry(chosen))
        _end_all(reports)
        return await self._recorded([*tickets, ticket], chosen)

    async def _recorded(self, tickets: list[Ticket], body: dict[str, Any]) -> Raw:
        """The last receipt once all are recorded; when the disk does not answer in time, it goes out as pending."""
        try:
            with trio.move_on_after(STORE_PATIENCE_S):
                for ticket in tickets:
                    stored = await ticket.wait()
                return stored[-1].wire()
        except StoreFailed as error:
            log.critical("the receipts of an emergency stop could not be stored: %s", error)
        for listed in body.get("x-vendor", {}).get("estop", {}).get("devices", ()):
            if "evidence" in listed:
                listed["evidence"] = {"pending": True}
        return Raw(encode({**body, "evidence": {"pending": True}}))

    @staticmethod
    def _body(report: "_Report", request: StopRequest) -> dict[str, Any]:
        host = report.device.host
        stop = report.stop
        assert stop is not None
        change = host.settle(report.reading, host.all_resources())
        safe_state = host.manifest.safety.safe_state
        latch = host.safety.latch_of(host.device_id)
        body = {
            **safety_members(report.device, request, receipts.ESTOP, {"reason": request.reason}),
            "status": "completed" if stop.complete else "failed",
            **change.members(),
            "ended_at": host.wall(),
            "output": {
                "estop": "engaged",
                "latched": latch is not None,
                "latency_ms": stop.latency_ms,
                "latch_latency_ms": stop.latch_latency_ms,
                "latch_durable": stop.latch_durable,
                "safe_state_achieved": stop.achieved,
                "safe_state": safe_state["description"],
                "cancelled_operations": [entry["operation_id"] for entry in stop.operations],
                "operations": stop.operations,
            },
            "effects": [
                {
                    "kind": "safety.estop",
                    "summary": f"emergency stop engaged: {request.reason}"[:LONGEST_SUMMARY],
                    "reversible": True,
                    "severity": host.manifest.risk_class,
                }
            ],
        }
        if not stop.complete:
            body["error"] = Fault(
                "MHS.SAFETY.SAFE_STATE_UNREACHED",
                "the stop is latched, but the safe state of the device was not confirmed",
                details={"operations": stop.operations, "safe_state_achieved": stop.achieved},
            ).receipt_error()
        return body


def _end_all(reports: list["_Report"]) -> None:
    """The stop is over when what it changed is settled: no reset may come before."""
    for report in reports:
        if not report.ended_stop:
            report.ended_stop = True
            report.device.host.safety.stop_ends(report.device.device_id)


def _as_put(ticket: Ticket, body: dict[str, Any]) -> dict[str, Any]:
    """A receipt as it was handed to the store, which knows its place in the chain already, unless it has failed."""
    return ticket.receipts[-1].as_dict() if ticket.receipts else {**body, "evidence": {"pending": True}}


class _Once:
    """The latch file is written once for a stop of several devices; each of them waits for the same outcome."""

    def __init__(self, store: Store, safety: SafetyState) -> None:
        self._store = store
        self._safety = safety
        self._done = trio.Event()
        self._durable = False

    async def write(self) -> None:
        try:
            # The latches as they are now: tasks of two stops may start in either order, and the last one wins.
            self._durable = await self._store.write_latch(self._safety.snapshot())
        finally:
            self._done.set()

    async def outcome(self) -> bool:
        with trio.move_on_after(STORE_PATIENCE_S):
            await self._done.wait()
        return self._durable


@attrs.define(eq=False)
class _Report:
    device: ServedDevice
    ended: list[Carriage]
    run: StopRun
    stop: DeviceStop | None = None
    reading: Reading | None = None
    ended_stop: bool = False
    has_told: bool = False
    done: trio.Event = attrs.Factory(trio.Event)

    def tell(self, request: StopRequest) -> None:
        """Tell subscribers that the stop is engaged, once, and before its outcome [CORE-184]."""
        if not self.has_told:
            self.has_told = True
            self.device.host.feed.safety(
                {
                    "kind": "estop.engaged",
                    "estop": "engaged",
                    "reason": request.reason,
                    "principal": dict(request.principal),
                }
            )

    def tell_outcome(self, latency_ms: float) -> None:
        """Tell subscribers whether the device has confirmed its safe state."""
        self.device.host.feed.safety(
            {
                "kind": "estop.confirmed" if self.run.achieved else "estop.unconfirmed",
                "estop": "engaged",
                "safe_state_achieved": self.run.achieved,
                "latency_ms": latency_ms,
            }
        )

    async def look(self) -> None:
        """Wait for the stop and read the state that it left; a hung device delays this by STATE_READ_S."""
        await self.done.wait()
        host = self.device.host
        self.reading = await host.read_within(host.all_resources(), STATE_READ_S)

    def operations(self) -> list[dict[str, str]]:
        """What each ended operation is known to be: `stopped`, `still_running` or `unknown`, never more."""
        entries = []
        for carriage in self.ended:
            operation = carriage.operation
            assert operation is not None
            confirmed = "stopped" if self.run.achieved else "unknown"
            state = confirmed if operation.native_returned else "still_running"
            entries.append({"operation_id": operation.operation_id, "state": state})
        return entries


def _elapsed_ms(since_mono_s: float) -> float:
    return round((trio.current_time() - since_mono_s) * 1000, 3)


def safety_members(
    device: ServedDevice, request: StopRequest, capability_id: str, value: Mapping[str, Any]
) -> dict[str, Any]:
    """The members that the receipts of a stop and of a reset share."""
    host = device.host
    return {
        "receipt_id": host.ids.ulid(),
        "command_id": request.command_id or host.ids.ulid(),
        "session_id": request.session_id,
        "endpoint_id": host.endpoint_id,
        "device_id": host.device_id,
        "capability_id": capability_id,
        "resource_ids": [],
        "input_digest": receipts.input_digest(capability_id, None, value),
        "mode": host.mode,
        "principal": dict(request.principal),
        "accepted_at": request.accepted_at,
        "started_at": request.accepted_at,
        "replayed": False,
    }


def safety_entry(body: dict[str, Any]) -> Receipt:
    """A stop's or reset's receipt as it goes to the store."""
    return Receipt(
        kind="rejected" if body["status"] == "rejected" else "final",
        body=body,
        device_id=body["device_id"],
        command_id=body["command_id"],
        operation_id=None,
        principal_id=body["principal"]["id"],
        revision=body["state_revision_after"],
    )
