"""A device's host: it reads the device, keeps its revision and brings it to its safe state.

Executions of commands are in `executions.py`; stops and resets in `estop.py`. They share this object, whose fields
change only in synchronous blocks.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import trio

from mhsd.base.clock import Clock, rfc3339
from mhsd.base.errors import Fault
from mhsd.base.ids import Ids
from mhsd.core.admission import CONFIGURE, Attempt
from mhsd.core.hashes import device_hash, resource_hash
from mhsd.core.interlocks import interlock_states
from mhsd.core.latch import SafetyState
from mhsd.core.permits import PermitBook
from mhsd.core.receipts import Change
from mhsd.core.sessions import Session
from mhsd.core.snapshots import Origin
from mhsd.driver import Busy, DriverFailed, LinkDown, OutcomeUnknown, Reading, TerminalStop
from mhsd.driver.loader import LoadedDevice
from mhsd.services.contained import contained
from mhsd.services.feed import Feed
from mhsd.services.signals import device_busy, device_failed, link_down
from mhsd.services.slot import Slot
from mhsd.store import Store
from mhsd.wire.canonical import NotCanonical
from mhsd.wire.schema import compile_schema

log = logging.getLogger("mhsd.device")

STATE_READ_S = 5.0
"""How long the state read behind a finished call may take before the state counts as changed and unknown."""


@attrs.define(eq=False)
class StopRun:
    """One pass of the e-stop path of a device; operations that it ended wait for what it confirmed."""

    done: trio.Event = attrs.Factory(trio.Event)
    achieved: bool = False


class DeviceHost:
    """One device of the endpoint: its driver, its safety facts, its slot, its revision."""

    def __init__(
        self,
        loaded: LoadedDevice,
        *,
        endpoint_id: str,
        store: Store,
        safety: SafetyState,
        permits: PermitBook,
        clock: Clock,
        ids: Ids,
        armed: bool,
        stop_grace_s: float,
        max_open_operations: int,
    ) -> None:
        self.manifest = loaded.manifest
        self.driver = loaded.driver
        self.device_id = endpoint_id + loaded.manifest.path
        self.endpoint_id = endpoint_id
        self.instance_id = ids.instance_id()
        self.mode = loaded.manifest.mode
        self.armed = armed or self.mode not in ("hardware", "hybrid")
        self.store = store
        self.safety = safety
        self.permits = permits
        self.clock = clock
        self.ids = ids
        self.stop_grace_s = stop_grace_s
        self.max_open_operations = max_open_operations
        self.slot = Slot()
        self.feed = Feed(self.device_id, loaded.manifest, self.wall)
        self.revision = store.revision(self.device_id)
        self.draining = False
        self.crashed: Fault | None = None
        self.unconfirmed: Fault | None = None
        self.terminal: str | None = None
        """Why its stop cannot be reset from here, once a driver has said so [CORE-087]."""
        self.driven_by: Session | None = None
        """The session of the last dispatched mutation: its end brings the device to its safe state."""
        self.stop_run: StopRun | None = None
        self.resetting = False
        self.exclusions: Mapping[str, Sequence[str]] = {
            name: resource.hash_exclusions for name, resource in self.manifest.resources.items()
        }
        self.origin = Origin(
            device_id=self.device_id,
            instance_id=self.instance_id,
            mode=self.mode,
            fidelity=self.manifest.fidelity,
            states={
                name: compile_schema(resource.state_schema)
                for name, resource in self.manifest.resources.items()
            },
            exclusions=self.exclusions,
            limits={each.resource: each.limits for each in self.manifest.bindings_of(CONFIGURE)},
        )
        self._known: dict[str, str] = {}
        self._dispatched_mono_s: dict[tuple[str, str], float] = {}

    # What admission looks at (core.admission.DeviceView).

    @property
    def latched(self) -> bool:
        return self.safety.latched(self.device_id)

    def permit_refusal(self, attempt: Attempt) -> Fault | None:
        binding = attempt.binding
        if binding is None or binding.permit != "required":
            return None
        return self.permits.refusal(
            attempt.permit_id,
            wanted=attempt.permit_scope(),
            session_id=attempt.session.session_id,
            own=attempt.permit is not None,
            now_mono_s=trio.current_time(),
        )

    def reserve_permit(self, attempt: Attempt) -> None:
        """Keep the permit that the attempt names for it alone, where it covers it and nobody else has it."""
        binding = attempt.binding
        if binding is None or binding.permit != "required" or attempt.permit is not None:
            return
        if attempt.actuating and self.permit_refusal(attempt) is None:
            attempt.permit = self.permits.get(attempt.permit_id)
            assert attempt.permit is not None  # permit_refusal() has found it
            attempt.permit.state = "reserved"

    def rate_refusal(self, attempt: Attempt) -> Fault | None:
        """LIMIT.RATE_EXCEEDED when this binding would run more often than its max_rate_per_s."""
        binding = attempt.binding
        if binding is None or binding.max_rate_per_s is None:
            return None
        last_mono_s = self._dispatched_mono_s.get((binding.capability_id, binding.resource), float("-inf"))
        wait_s = last_mono_s + 1 / binding.max_rate_per_s - trio.current_time()
        if wait_s <= 0:
            return None
        return Fault(
            "MHS.LIMIT.RATE_EXCEEDED",
            f"{binding.capability_id} runs at most {binding.max_rate_per_s:g} times a second",
            details={"retry_after_ms": max(1, round(wait_s * 1000))},
        )

    def spend_rate(self, attempt: Attempt) -> None:
        """Note a dispatch, for the binding's rate."""
        if attempt.binding is not None:
            self._dispatched_mono_s[attempt.binding.capability_id, attempt.binding.resource] = (
                trio.current_time()
            )

    def slot_refusal(self, attempt: Attempt) -> Fault | None:
        """DEVICE.BUSY, or OPERATION_LIMIT for one long-running operation too many of the session."""
        others = len(attempt.session.open_operations - {attempt})
        if (
            attempt.binding is not None
            and attempt.binding.long_running
            and others >= self.max_open_operations
        ):
            return Fault(
                "MHS.LIMIT.OPERATION_LIMIT",
                f"the session already has {others} long-running operations, as many as are allowed",
                details={"max_open_operations": self.max_open_operations},
            )
        return self.slot.refusal(attempt)

    # Reading.

    async def read(self, resource_ids: Sequence[str], *, revision: int | None = None) -> Reading:
        """The device's current state, or a recorded one; a failure becomes a Fault. The caller bounds it in time.

        A current state is asked of the device now, and never remembered [PROTO-024].
        """
        if self.crashed is not None:
            raise self.crashed
        try:
            with contained():
                if revision is None:
                    reading = await self.driver.read(resource_ids)
                else:
                    reading = await self.driver.read_recorded(revision, resource_ids)
            missing = [name for name in resource_ids if not isinstance(reading.resources.get(name), Mapping)]
        except Exception as error:
            named = next((name for signal, name in UNREAD.items() if isinstance(error, signal)), None)
            if named is not None:
                raise named(error) from error
            log.exception("driver of %s failed in read", self.device_id)
            raise Fault(
                "MHS.ADAPTER.SHIM_FAILED",
                f"driver raised {type(error).__name__}",
                details={"exception_type": type(error).__name__},
            ) from error
        if missing:
            raise unusable(f"the driver shows no state of {', '.join(missing)}")
        if not isinstance(reading.interlocks, Mapping):
            raise unusable("the driver shows no interlocks")
        if revision is None:
            self.feed.saw_interlocks(reading.interlocks)
        return reading

    async def read_within(
        self, resource_ids: Sequence[str], seconds: float, *, shield: bool = True
    ) -> Reading | None:
        """The state, or None when it cannot be read in time: the caller then assumes the worst.

        It is shielded, so that the end of an execution is looked at even while something above is cancelled.
        """
        with trio.move_on_after(seconds, shield=shield):
            try:
                return await self.read(resource_ids)
            except Fault as fault:
                log.warning("state of %s is not readable: %s", self.device_id, fault.message)
        return None

    def all_resources(self) -> tuple[str, ...]:
        return tuple(self.manifest.resources)

    def hash_of(self, resource_id: str, state: Mapping[str, Any]) -> str:
        """The hash of a resource's state as a driver showed it; a Fault where it has none."""
        try:
            return resource_hash(state, self.exclusions[resource_id])
        except NotCanonical as error:
            raise unusable(f"the state of {resource_id} has no canonical form: {error}") from error

    def state_hash(self, reading: Reading) -> str:
        """The hash of the whole device as a driver showed it; a Fault where it has none."""
        try:
            return device_hash(reading.resources, self.exclusions)
        except NotCanonical as error:
            raise unusable(f"the state has no canonical form: {error}") from error

    # Revisions.

    def remember(self, reading: Reading, resource_ids: Iterable[str]) -> None:
        """Take a reading as the state before a mutation, so that only what changes from here on counts [OP-007].

        Not for a resource that another mutation is changing: that one would miss its own change.
        """
        states = {name: reading.resources[name] for name in resource_ids}
        for name, state in states.items():
            self._known[name] = self.hash_of(name, state)
        self.feed.show(states, self.revision, self.hash_of)

    def settle(self, reading: Reading | None, compared: Sequence[str], *, restored: bool = False) -> Change:
        """Move the revision by one when one of the compared resources changed; unreadable counts as changed [OP-009].

        A state that was `restored` counts as a new one, even where it equals the former [PROTO-035].
        No checkpoint between this and the store's `put`: the receipt must carry the revision that it made.
        """
        before = self.revision
        try:
            states = reading.resources if reading is not None else {}
            hashes = {name: self.hash_of(name, state) for name, state in states.items()}
        except Fault as fault:
            log.warning("state of %s is not usable: %s", self.device_id, fault.message)
            reading = None
        if reading is None:
            # What this revision looks like was not seen: whatever is read next may be another state.
            self._known.clear()
            self.revision += 1
            return Change(before, self.revision, None)
        own = {name: hashes[name] for name in compared}
        moved = {name for name, value in own.items() if restored or self._known.get(name) != value}
        if restored or moved:
            self.revision += 1
        self._known.update(own)
        self.feed.show({name: states[name] for name in compared}, self.revision, self.hash_of, moved)
        return Change(before, self.revision, self.state_hash(reading))

    # Safety.

    def interlocks(self, reading: Reading | None) -> list[dict[str, Any]]:
        """`[{id, state, description}]` of every interlock of the device; unreadable is open."""
        states = interlock_states(
            self.manifest.safety.interlocks, reading.interlocks if reading is not None else None
        )
        described = self.manifest.safety.interlocks
        return [
            {**entry, "description": described[entry["id"]].description, "hard": described[entry["id"]].hard}
            for entry in states
        ]

    async def halt(self, reason: str, *, shield: bool = True) -> bool:
        """Bring the device to its safe state; True only when the driver confirmed it within the stop grace.

        Cancelling does not cut it short, unless without a `shield`: then the caller stops the device in another way.
        """
        with trio.move_on_after(self.stop_grace_s, shield=shield):
            try:
                with contained():
                    return await self.driver.halt(reason)
            except Exception:
                # A broken driver must not keep the others from being brought to their safe state.
                log.exception("driver of %s failed in halt", self.device_id)
        log.error("%s: the safe state could not be confirmed (%s)", self.device_id, reason)
        return False

    async def restop(self, why: str) -> None:
        """Run the driver's stop again for a latched device, as after a restart or a reset that failed half-way."""
        if not await self.run_stop(why):
            self.doubt(f"its stop could not be confirmed ({why})")

    async def run_stop(self, reason: str) -> bool:
        """The driver's own stop, bounded; True only where it confirmed the safe state."""
        with trio.move_on_after(self.manifest.safety.latency_ms / 1000 + self.stop_grace_s, shield=True):
            try:
                with contained():
                    return await self.driver.estop(reason)
            except TerminalStop as stopped:
                self.terminal = stopped.message
                return stopped.safe_state_achieved
            except Exception:
                # Named boundary: a broken driver must keep the endpoint neither from serving nor stopping others.
                log.exception("driver of %s failed in estop", self.device_id)
        return False

    async def stop_outcome(self) -> bool:
        """What the e-stop that is running (or ran last) confirmed about the safe state."""
        run = self.stop_run
        if run is None:
            return False
        with trio.move_on_after(self.stop_grace_s, shield=True):
            await run.done.wait()
        return run.achieved

    def doubt(self, why: str) -> None:
        """The device's state cannot be vouched for: mutations are refused until an operator resets it."""
        log.error("%s: %s", self.device_id, why)
        self.unconfirmed = Fault(
            "MHS.DEVICE.UNCONFIRMED", f"the state of {self.device_id} is not confirmed: {why}"
        )
        self.feed.note("device.unconfirmed", {"reason": why})

    def wall(self) -> str:
        return rfc3339(self.clock.now())


def _not_read(error: DriverFailed) -> Fault:
    return device_failed(error, f"the device could not be read: {error}")


def _silent(error: OutcomeUnknown) -> Fault:
    return Fault(
        "MHS.OUTCOME.TIMEOUT", f"the device did not answer: {error}", details={"reason": "read_timeout"}
    )


UNREAD: Mapping[type[Exception], Callable[[Any], Fault]] = {
    DriverFailed: _not_read,
    Busy: device_busy,
    LinkDown: link_down,
    OutcomeUnknown: _silent,
}
"""What a driver says of a read by raising. A read does nothing, so one without an answer is only late [MHSD-9a]."""


def unusable(message: str) -> Fault:
    """A reading that says nothing: the device is not known by it [PROTO-024]."""
    return Fault("MHS.ADAPTER.SHIM_FAILED", message, details={"reason": "state_unusable"})
