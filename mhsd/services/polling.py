"""The polling of one device: what moves by itself becomes events, as long as somebody has subscribed to it [EVT-002].

One task reads the device, once a turn for all that is due, so it never overlaps itself. It reads no more often than
the fastest subscription needs, and not at all while a stop is under way. A device that cannot be read is asked more
and more rarely until it can.
"""

import logging
from collections.abc import Callable, Iterable

import trio

from mhsd.base.errors import Fault
from mhsd.core.operations import storable
from mhsd.driver import Reading
from mhsd.services.carriage import Carriage
from mhsd.services.contained import contained
from mhsd.services.device_host import DeviceHost
from mhsd.wire.elements import Stream

log = logging.getLogger("mhsd.device")

READ_S = 2.0
"""How long one reading may take before the device counts as unreadable."""

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
"""How long a device that could not be read is left alone; the pause doubles from reading to reading."""

LONGEST_REASON = 1000
"""Characters of what is told about a device that cannot be read: a driver has written them."""

SETTLES_S = 0.25
"""A command that was dispatched less than this ago is about to tell of its change itself, with the new revision."""


class Poller:
    """Polls one device. `live` gives the commands that are running on it."""

    def __init__(self, host: DeviceHost, live: Callable[[], Iterable[Carriage]]) -> None:
        self._host = host
        self._live = live
        self._due_mono_s: dict[tuple[Stream, str], float] = {}
        self._changed = trio.Event()
        self._failures = 0
        self._driver_failed = False
        host.feed.changed = self._note_change

    def _note_change(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Poll what is subscribed to, until cancelled; wait while that is nothing."""
        while True:
            self._changed = trio.Event()
            rates = self._host.feed.rates()
            now_mono_s = trio.current_time()
            self._due_mono_s = {
                # A subscription that wants more than those before it does not wait for their next turn.
                key: min(self._due_mono_s.get(key, now_mono_s), now_mono_s + 1 / rate_hz)
                for key, rate_hz in rates.items()
            }
            with trio.move_on_at(min(self._due_mono_s.values(), default=float("inf"))) as waiting:
                await self._changed.wait()
            if waiting.cancelled_caught:
                await self._poll_contained(rates)

    async def _poll_contained(self, rates: dict[tuple[Stream, str], float]) -> None:
        try:
            await self._poll(rates)
        except Exception:
            # Named boundary: whatever a driver shows, polling it ends neither the polling nor the device.
            log.exception("%s cannot be polled", self._host.device_id)
            await trio.sleep(LONGEST_PAUSE_S)

    async def _poll(self, rates: dict[tuple[Stream, str], float]) -> None:
        host = self._host
        now_mono_s = trio.current_time()
        due = [key for key, due_mono_s in self._due_mono_s.items() if due_mono_s <= now_mono_s]
        for key in due:
            # On its grid, but never in arrears: turns that were missed are left out.
            self._due_mono_s[key] = max(self._due_mono_s[key] + 1 / rates[key], now_mono_s)
        states = {name for stream, name in due if stream == "state"}
        samples = {name for stream, name in due if stream == "telemetry" and self._flows(name)}
        watches = any(stream == "events" for stream, _ in due)
        if (
            not (states or samples or watches)
            or host.crashed is not None
            or host.safety.stop_pending(host.device_id)
        ):
            return
        revision = host.revision
        reading = await self._read(tuple(states | samples))
        if reading is None:
            return
        shown = reading.resources
        host.feed.sample({name: shown[name] for name in shown if name in samples}, host.revision)
        # What was read before a command's end would contradict what the command has told.
        if host.revision == revision and not self._settles():
            host.feed.show({name: shown[name] for name in shown if name in states}, revision, host.hash_of)

    def _flows(self, resource_id: str) -> bool:
        try:
            with contained():
                return self._host.driver.telemetry_flows(resource_id)
        except Exception:
            # Named boundary: a broken driver ends its own telemetry and nothing else.
            if not self._driver_failed:
                log.exception("driver of %s failed in telemetry_flows", self._host.device_id)
            self._driver_failed = True
            return False

    def _settles(self) -> bool:
        since_mono_s = trio.current_time() - SETTLES_S
        return any(
            carriage.attempt.actuating
            and carriage.operation is not None
            and carriage.operation.started_mono_s > since_mono_s
            for carriage in self._live()
        )

    async def _read(self, resource_ids: tuple[str, ...]) -> Reading | None:
        host = self._host
        why = f"no answer within {READ_S:g} s"
        with trio.move_on_after(READ_S):
            try:
                reading = await host.read(resource_ids)
            except Fault as fault:
                why = fault.message
            else:
                if self._failures:
                    self._failures = 0
                    host.feed.note("device.readable", {})
                return reading
        if not self._failures:
            log.warning("%s cannot be polled: %s", host.device_id, why)
            host.feed.note("device.unreadable", {"reason": storable(why, LONGEST_REASON)})
        await trio.sleep(min(FIRST_PAUSE_S * 2**self._failures, LONGEST_PAUSE_S))
        self._failures = min(self._failures + 1, 16)
        return None
