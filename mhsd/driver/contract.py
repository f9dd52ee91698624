"""What a driver author writes against: one class per device, with the device's commands in a table.

The endpoint does the gating (schemas, limits, interlocks, permits, latch, deadlines, receipts) before a
driver is called and never calls it with a refused command. The driver says what the device shows, does what
it is asked, and can bring the device to its safe state at any time.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

import attrs
import trio

from mhsd.driver.errors import Cancelled, DriverFailed

Backend = Literal["fake", "hardware"]

DESCRIBE = "cap.device.describe.v1"
"""Bound to every device by the loader and answered by the endpoint; no driver implements it."""

CONFIGURE = "cap.device.configure.v1"
"""What `mhs.resource.write` runs; its input is any of the resource's writable properties."""


@attrs.frozen
class Settings:
    """What a driver is built from: backend, options with their defaults filled in, and the device's path."""

    backend: Backend
    options: Mapping[str, Any]
    path: str


def logger_of(path: str) -> logging.Logger:
    """The logger of the device at this path."""
    return logging.getLogger("mhsd.driver" + path.replace("/", "."))


@attrs.frozen
class Reading:
    """What the device showed when it was asked: states by resource_id, `closed` or `open` by interlock id.

    An interlock that cannot be read is left out; the endpoint takes it for open. `sampled_at` (RFC 3339) is for a
    state that was recorded before; without it the state is of now.
    """

    resources: Mapping[str, Mapping[str, Any]]
    interlocks: Mapping[str, str] = attrs.field(factory=dict)
    sampled_at: str | None = None


class Progress(Protocol):
    """Reports how far a long-running call is. Never waits; percent (0 to 100) may only rise."""

    def __call__(
        self, percent: float | None = None, ticks: int | None = None, message: str | None = None
    ) -> None: ...


@attrs.define
class Call:
    """One admitted command. `input` has passed the class's and the binding's schema and the limits."""

    capability_id: str
    resource: str
    input: dict[str, Any]
    command_id: str
    max_duration_ms: int | None
    progress: Progress


@attrs.frozen
class Outcome:
    """A confirmed result. `effects` None stands for the effects that the binding declares."""

    output: Mapping[str, Any]
    effects: tuple[Mapping[str, Any], ...] | None = None


Command = Callable[[Any, Call], Awaitable[Outcome]]
"""An async method of a driver that carries out one capability."""


class Driver:
    """One device. A subclass fills `commands` and implements `read` and `halt`."""

    commands: ClassVar[Mapping[str, Command]] = {}
    """The method for each capability class that the manifest binds, describe excepted."""

    def __init__(self, settings: Settings) -> None:
        """Build the driver without any I/O; OptionInvalid for an option that cannot be used."""
        self.settings = settings
        self.log = logger_of(settings.path)
        """The device's own logger: what is written here, subscribers of its log stream get. Nothing secret."""
        self._running: set[trio.CancelScope] = set()

    async def open(self, nursery: trio.Nursery) -> None:
        """Connect and identify; background tasks may be started in `nursery`. DriverFailed or LinkDown."""

    async def aclose(self) -> None:
        """Let go of the device without moving anything."""

    async def read(self, resource_ids: Sequence[str]) -> Reading:
        """The current state of these resources and of all interlocks, asked of the device now [PROTO-024]."""
        raise NotImplementedError

    def telemetry_flows(self, resource_id: str) -> bool:
        """Whether the telemetry of a resource has anything to show now; asked often, so it may not wait [EVT-002].

        A driver that overrides it spares the readings of what stands still.
        """
        return True

    async def invoke(self, call: Call) -> Outcome:
        """Carry out one command; ends early by Trio cancellation, or by `end_commands` as Cancelled."""
        with trio.CancelScope() as scope:
            self._running.add(scope)
            try:
                return await self.perform(call)
            finally:
                self._running.discard(scope)
        raise Cancelled(None)

    async def perform(self, call: Call) -> Outcome:
        """The command itself; a subclass may wrap what all of its commands have in common."""
        return await self.commands[call.capability_id](self, call)

    def end_commands(self) -> None:
        """Cancel every running command at once, so that none of them sends anything more.

        A stop path calls this first: a command that it overtakes must not undo the stop afterwards.
        """
        for scope in tuple(self._running):
            scope.cancel()

    async def halt(self, reason: str) -> bool:
        """Bring the device to its safe state; True only when the device confirmed it [SAFE-002].

        It must work while `read` and `invoke` hang, so it may not wait for anything that they hold.
        """
        raise NotImplementedError

    async def estop(self, reason: str) -> bool:
        """The emergency stop; like `halt`, and by default the same."""
        return await self.halt(reason)

    async def reset(self) -> None:
        """Leave the e-stop state. Never moves anything [SAFE-003]."""

    async def restore(self, resources: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over the whole state of a simulated device, as `read` showed it once [PROTO-035].

        `resources` has a state of its schema for every resource. The endpoint reads back whether the device shows
        that state, and calls this once more with the former one when it does not. A manifest with
        `fidelity.snapshot_restore` promises it.
        """
        raise DriverFailed("MHS.MODE.RESTORE_UNSUPPORTED", "this driver cannot restore a state")

    def recorded_revisions(self) -> Sequence[int]:
        """The revisions that a replay device has a recording of, the newest last; it shows that one by itself."""
        return ()

    async def read_recorded(self, revision: int, resource_ids: Sequence[str]) -> Reading:
        """The recorded state at one of `recorded_revisions`, which is the one asked for [PROTO-035a]."""
        raise NotImplementedError
