"""The lives of an endpoint, one after the other over the same rigs and state directory."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import trio

from mhsd.base.clock import Clock, rfc3339
from mhsd.base.ids import Ids
from mhsd.config import Limits
from mhsd.core.receipts import ESTOP, RESET
from mhsd.driver.loader import LoadedDevice, load_target
from mhsd.protocol.dispatch import Dispatch
from mhsd.services.endpoint import open_endpoint
from mhsd.store import Receipt, Store, VoidIntent, open_store
from tests.property.model.disk import Disk
from tests.property.model.history import Ask, Put, Visit
from tests.property.model.listen import LISTENERS, Listener
from tests.property.model.record import ENDPOINT, PATHS, Record
from tests.property.model.watch import Watch

EPOCH_S = 1_800_000_000.0
STOP_GRACE_S = 2.0
QUIET_S = 90.0
"""After this long without new calls everything has ended: it is more than any deadline, max_duration_ms and grace."""

LIMITS = Limits(max_open_operations=2)


@cache
def _loaded(device: int) -> LoadedDevice:
    target = str(Path(__file__).parent / "rig")
    return load_target(target, backend="fake", options={}, path=PATHS[device])


class Lives(Record):
    """The rigs, and the endpoint that serves them."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.bodies = [type(_loaded(0).driver)(_loaded(0).driver.settings).body for _ in PATHS]
        self._ids = Ids(self.wall_s, random.Random(1).randbytes)

    @staticmethod
    def wall_s() -> float:
        return EPOCH_S + trio.current_time()

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        """The endpoint from its start to its end. Leaving is a crash: what is not on the disk by then is lost."""
        self.life += 1
        self.disk = Disk()
        self.sessions: list[Visit] = []
        self.permits: list[str] = []
        self.unsettled.clear()
        self.dead = False
        self.watches = [Watch(self, device) for device in range(len(PATHS))]
        clock = Clock(now=self.wall_s, mono=trio.current_time)
        async with open_store(
            self.directory,
            endpoint_id=ENDPOINT,
            mhs_version="1.0",
            created_at=rfc3339(clock.now()),
            device_ids=[self.device_id(device) for device in range(len(PATHS))],
            inline=True,
            connect=self.disk.connect,
        ) as store:
            self.store = store
            orderly = self.life - 1 in self.settled and self.life - 1 not in self.full_lives
            self.expect(not (orderly and store.open_intents), "a command was left open by an orderly end")
            self._note_puts(store)
            endpoint_is = open_endpoint(
                endpoint_id=ENDPOINT,
                devices=[self._device(device) for device in range(len(PATHS))],
                store=store,
                limits=LIMITS,
                features=(),
                operator_configured=True,
                stop_grace_s=STOP_GRACE_S,
                clock=clock,
                ids=self._ids,
            )
            async with endpoint_is as self.endpoint, trio.open_nursery() as self.callers:
                self.dispatch = Dispatch(self.endpoint)
                self._check_start()
                self.tasks_at_rest = trio.lowlevel.current_statistics().tasks_living
                self.listeners = [Listener(self, *each) for each in LISTENERS]
                try:
                    yield
                finally:
                    self.lives_end[self.life] = trio.current_time()
                    self.disk.full = True
                    self.dead = True
                    self.callers.cancel_scope.cancel()

    def _device(self, device: int) -> LoadedDevice:
        loaded = _loaded(device)
        driver: Any = type(loaded.driver)(loaded.driver.settings)
        driver.body, driver.watcher = self.bodies[device], self.watches[device]
        return LoadedDevice(loaded.manifest, driver, loaded.backend, loaded.directory)

    def _note_puts(self, store: Store) -> None:
        put = store.put
        for device in range(len(PATHS)):
            self.revisions[device].append((self.now(), store.revision(self.device_id(device))))

        def noted(*entries: Any) -> Any:
            ticket = put(*entries)
            if store.failure is None:
                for entry in entries:
                    self._note_put(entry)
            return ticket

        store.put = noted  # type: ignore[method-assign]

    def _note_put(self, entry: Any) -> None:
        at = self.now()
        device = self.device_of(entry.device_id)
        put = Put(self.life, entry, at, self.bodies[device].shown(), self.stops[device])
        self.puts.append(put)
        if isinstance(entry, VoidIntent):
            self.unsettled.discard(entry.command_id)
        if not isinstance(entry, Receipt):
            return
        self._put_of[entry.body["receipt_id"]] = put
        before, after = entry.body["state_revision_before"], entry.body["state_revision_after"]
        known = self.revisions[device][-1][1]
        what = f"{entry.body['status']} {entry.body['capability_id']} on rig {device}"
        self.expect(before == known, f"{what} says that the revision was {before}, not {known}")
        self.expect(after - before in (0, 1), f"{what} moves the revision from {before} to {after}")
        self.expect(entry.revision in (None, after), f"{what} stores revision {entry.revision}, not {after}")
        self.revisions[device].append((at, after))
        if entry.body["capability_id"] in (RESET, ESTOP):
            # Such a receipt takes account of all that has changed by then.
            for native in self.natives:
                if native.device == device and native.command_id in self.unsettled:
                    native.alone = False
        if entry.body["capability_id"] == RESET and entry.body["status"] == "completed":
            overtaken, stopping = self.surely_latched(device), self.watches[device].stops_under_way
            self.expect(not overtaken, f"rig {device} is reset by what came before its stop")
            self.expect(not stopping, f"rig {device} is reset while it is being stopped")
            self.latch_changes[device].append((at, False))
        if entry.kind == "final":
            self.unsettled.discard(entry.command_id)

    def _check_start(self) -> None:
        """After a start the latches are those that were durable, and nothing is in flight."""
        for device in range(len(PATHS)):
            latched = self.endpoint.safety.latched(self.device_id(device))
            if self.durable_stop[device]:
                self.expect(latched, f"rig {device} came up without its latch")
            if self.surely_released[device]:
                self.expect(not latched, f"rig {device} came up latched")
            self.stopped_number[device] = self.now().number if latched else -1
            self.latch_changes[device].append((self.now(), latched))

    # Quiet moments.

    def calm(self, device: int) -> bool:
        """Whether nothing is under way on a device."""
        served = self.endpoint.devices[self.device_id(device)]
        return not (
            served.executions.live()
            or not served.host.slot.free
            or self.unsettled
            or self.watches[device].stops_under_way
            or served.host.safety.stop_pending(served.device_id)
            or any(self._open(ask) for ask in self.asks if ask.life == self.life)
        )

    @staticmethod
    def _open(ask: Ask) -> bool:
        """Whether something may still be done for a call; nobody is told when a lost one has ended."""
        return ask.answered is None and (not ask.lost or ask.sent.mono_s + QUIET_S > trio.current_time())

    def note_quiet(self) -> None:
        """At rest, one revision is one state [OP-007]."""
        for device in range(len(PATHS)):
            if not self.calm(device):
                continue
            revision = self.endpoint.devices[self.device_id(device)].host.revision
            shown = self.bodies[device].shown()
            before = self.quiet.setdefault((self.life, device, revision), shown)
            self.expect(before == shown, f"rig {device} shows {shown} and {before} at revision {revision}")
