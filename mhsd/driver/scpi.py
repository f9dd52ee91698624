"""SCPI over a line connection: declared items, one exchange at a time, and a stop that waits for nobody.

A driver declares its items (`Setpoint`, `Switch`, `Measurement`) with their wire strings and calls `get` and
`set`. What this module decides is when a result is certain:

* A set has happened when the instrument reported no error and reads back what was asked.
* Before the first byte has left, trouble is LinkDown: nothing happened.
* A refusal by the instrument, or a read-back that differs, is DriverFailed: it is known what happened.
* Anything else after bytes have left is OutcomeUnknown, and the connection is dropped. The next use connects
  again, identifies the instrument again and empties its error queue, so a late reply or an old error is never
  taken for the answer to something else.
"""

import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, Protocol, TypeVar

import attrs
import trio

from mhsd.driver.errors import DriverFailed, LinkDown, OptionInvalid, OutcomeUnknown
from mhsd.driver.lines import Connect, LineWire, NoAnswer
from mhsd.driver.replies import Garbled, Measured, error_entry, measured, number, shown, switch

log = logging.getLogger(__name__)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

ERROR_QUERY = "SYST:ERR?"

STOP_TIMEOUT_S = 1.0
"""How long a stop waits for one reply, whatever the link's own timeout is."""

STOP_BUDGET_S = 4.0
"""How long a stop tries in all."""

STOP_SETTLE_S = 0.2
"""How long a stop gives an unanswered command to arrive before it states the safe values once more."""

_STOP_TRIES = 6
_FIRST_BACKOFF_S = 0.1
_LAST_BACKOFF_S = 5.0
_MAX_QUEUED_ERRORS = 64


@attrs.frozen
class Setpoint:
    """A number that can be set. `set` is a format string, `verify` how far a read-back may differ."""

    get: str
    set: str
    verify: float

    def command(self, value: float) -> str:
        return self.set.format(value + 0.0)  # An instrument is never sent -0.

    def parse(self, reply: str) -> float:
        return number(reply)

    def holds(self, read_back: float, asked: float) -> bool:
        return abs(read_back - asked) <= self.verify


@attrs.frozen
class Switch:
    """Something that is on or off."""

    get: str
    on: str
    off: str

    def command(self, value: bool) -> str:
        return self.on if value else self.off

    def parse(self, reply: str) -> bool:
        return switch(reply)

    def holds(self, read_back: bool, asked: bool) -> bool:
        return read_back is asked


@attrs.frozen
class Measurement:
    """Something that is measured; an overload mark is no value."""

    get: str

    def parse(self, reply: str) -> Measured:
        return measured(reply)


class Item(Protocol[T_co]):
    """What can be asked for."""

    @property
    def get(self) -> str: ...
    def parse(self, reply: str) -> T_co: ...


class Settable(Protocol[T]):
    """What can be asked for and set."""

    @property
    def get(self) -> str: ...
    def command(self, value: T) -> str: ...
    def parse(self, reply: str) -> T: ...
    def holds(self, read_back: T, asked: T) -> bool: ...


SafeStep = tuple[Settable[Any], Any]
"""One step of a stop: an item and the value that is safe."""


class ScpiLink:
    """One instrument. `name` is what messages call it; its *IDN? reply must begin with the regex `idn`."""

    def __init__(
        self,
        connect: Connect,
        *,
        name: str,
        idn: str,
        timeout_s: float,
        confirm: Literal["error_queue", "reply"] = "error_queue",
    ) -> None:
        try:
            self._idn = re.compile(idn)
        except re.error as error:
            raise OptionInvalid(f"idn {idn} is no regular expression: {error}") from error
        self.name = name
        self.identity: str | None = None
        self._connect_stream = connect
        self._timeout_s = timeout_s
        self._confirm = confirm
        self._wire: LineWire | None = None
        self._exchange = trio.Lock()
        self._stopping = trio.Lock()
        self._retry_at_mono_s = -1.0
        self._backoff_s = _FIRST_BACKOFF_S
        self._in_doubt = False

    async def open(self) -> None:
        """Connect, identify, empty the error queue; LinkDown where that does not succeed."""
        async with self._held():
            pass

    async def aclose(self) -> None:
        """Let go of the instrument; nothing is sent."""
        await self._drop()

    async def get(self, item: Item[T]) -> T:
        """Ask the instrument now. A reply that cannot be read is DriverFailed, none at all OutcomeUnknown."""
        try:
            async with self._held() as wire:
                return item.parse(await wire.ask(item.get))
        except NoAnswer as error:
            raise OutcomeUnknown(f"{self.name}: {error}") from error
        except Garbled as error:
            raise DriverFailed("MHS.DEVICE.FAULT", f"{self.name}: {item.get}: {error}") from error

    async def set(self, item: Settable[T], value: T) -> T:
        """Set, see that no error was reported, read back; what was read back is returned [OP-014]."""
        return await self._set(item, value, verify=True)

    async def tell(self, item: Settable[T], value: T) -> None:
        """Set and see that no error was reported, without a read-back; for a step on the way to a `set`."""
        await self._set(item, value, verify=False)

    async def _set(self, item: Settable[T], value: T, verify: bool) -> T:
        command = item.command(value)
        try:
            async with self._held() as wire:
                await self._carry_out(wire, command)
                if not verify:
                    return value
                read_back = item.parse(await wire.ask(item.get))
        except (NoAnswer, Garbled) as error:
            raise OutcomeUnknown(f"{self.name}: {command} was sent and not confirmed: {error}") from error
        if not item.holds(read_back, value):
            raise DriverFailed(
                "MHS.DEVICE.FAULT",
                f"{self.name}: reported no error on {command} and reads back {read_back}",
                details={"asked": value, "read_back": read_back},
            )
        return read_back

    async def _carry_out(self, wire: LineWire, command: str) -> None:
        """Send one command and its error query as one exchange; DriverFailed when the instrument refuses."""
        self._in_doubt = True
        if self._confirm == "reply":
            refusal = _refusal(await wire.ask(command))
            code = None
        else:
            error_code, text = error_entry(await wire.ask(command, ERROR_QUERY))
            refusal = text if error_code else None
            code = str(error_code)
            if refusal is not None:
                await self._empty_error_queue(wire)
        self._in_doubt = False
        if refusal is not None:
            raise DriverFailed("MHS.DEVICE.FAULT", f"{self.name}: refused {command}: {shown(refusal)}", code)

    # --- the connection ---------------------------------------------------------------------------

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[LineWire]:
        """The connection for exchanges that belong together, dropped unless they end cleanly."""
        async with self._exchange:
            wire = await self._ready()
            try:
                yield wire
            except DriverFailed:
                raise  # The instrument's own clear answer: both sides are in step.
            except BaseException:
                await self._drop()
                raise

    async def _ready(self) -> LineWire:
        if self._wire is not None and not await self._wire.in_step():
            await self._drop()
        if self._wire is not None:
            return self._wire
        wait_s = self._retry_at_mono_s - trio.current_time()
        if wait_s > 0:
            raise LinkDown(f"{self.name} is down; it is tried again in {wait_s:.1f} s at the earliest")
        if self._stopping.locked():
            raise LinkDown(f"{self.name} is being stopped")
        try:
            wire = await self._connect(self._timeout_s)
            await self._empty_new_queue(wire)
        except LinkDown:
            self._retry_at_mono_s = trio.current_time() + self._backoff_s
            self._backoff_s = min(2 * self._backoff_s, _LAST_BACKOFF_S)
            raise
        self._backoff_s = _FIRST_BACKOFF_S
        self._wire = wire
        return wire

    async def _connect(self, timeout_s: float) -> LineWire:
        """A new connection to the instrument, which has said who it is; LinkDown otherwise."""
        try:
            with trio.fail_after(timeout_s):
                stream = await self._connect_stream()
        except (OSError, trio.TooSlowError) as error:
            raise LinkDown(f"{self.name}: no connection: {error or 'no answer in time'}") from error
        wire = LineWire(stream, timeout_s)
        try:
            self.identity = await wire.ask("*IDN?")
        except (NoAnswer, Garbled) as error:
            await wire.aclose()
            raise LinkDown(f"{self.name}: does not identify itself: {error}") from error
        except BaseException:
            await wire.aclose()
            raise
        if not self._idn.match(self.identity):
            await wire.aclose()
            raise LinkDown(
                f"{self.name}: identifies as {shown(self.identity)}, not as idn {self._idn.pattern}"
            )
        return wire

    async def _empty_new_queue(self, wire: LineWire) -> None:
        """Errors from before this connection belong to nobody here; they are logged and forgotten."""
        try:
            for code, text in await self._empty_error_queue(wire):
                log.warning("%s: had an error queued at connect: %d %s", self.name, code, shown(text))
        except (NoAnswer, Garbled) as error:
            await wire.aclose()
            raise LinkDown(f"{self.name}: its error queue cannot be read: {error}") from error
        except BaseException:
            await wire.aclose()
            raise

    async def _empty_error_queue(self, wire: LineWire) -> list[tuple[int, str]]:
        entries: list[tuple[int, str]] = []
        if self._confirm == "reply":
            return entries
        while len(entries) < _MAX_QUEUED_ERRORS:
            entry = error_entry(await wire.ask(ERROR_QUERY))
            if entry[0] == 0:
                return entries
            entries.append(entry)
        raise Garbled(f"the error queue has more than {_MAX_QUEUED_ERRORS} entries")

    async def _drop(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.aclose()

    # --- the stop ---------------------------------------------------------------------------------

    async def stop(self, steps: Sequence[SafeStep]) -> bool:
        """Put the instrument into its safe values over a connection of its own; True when it reads them back.

        It waits for no exchange that is under way. Where the instrument takes no second connection, the first
        is closed, which breaks off what runs on it, and the stop connects in its place.
        """
        async with self._stopping:
            with trio.move_on_after(STOP_BUDGET_S):
                for attempt in range(_STOP_TRIES):
                    if attempt == 1:
                        await self._drop()
                    if attempt > 1:
                        await trio.sleep(_FIRST_BACKOFF_S * 2 ** (attempt - 2))
                    try:
                        return await self._stop_once(steps)
                    except (LinkDown, NoAnswer, Garbled) as error:
                        log.warning("%s: stop, attempt %d: %s", self.name, attempt + 1, error)
        return False

    async def _stop_once(self, steps: Sequence[SafeStep]) -> bool:
        wire = await self._connect(STOP_TIMEOUT_S)
        try:
            confirmed = await self._make_safe(wire, steps)
            if self._in_doubt:
                # A command whose reply never came may still be on its way on the other connection.
                await trio.sleep(STOP_SETTLE_S)
                confirmed = await self._make_safe(wire, steps)
                self._in_doubt = False
            with suppress(NoAnswer, Garbled):
                await self._empty_error_queue(wire)
            return confirmed
        finally:
            await wire.aclose()

    async def _make_safe(self, wire: LineWire, steps: Sequence[SafeStep]) -> bool:
        """Every step in its order, whatever the one before has read back."""
        confirmed = True
        for item, value in steps:
            command = item.command(value)
            if self._confirm == "reply":
                await wire.ask(command)
                reply = await wire.ask(item.get)
            else:
                reply = await wire.ask(command, item.get)
            if not item.holds(item.parse(reply), value):
                confirmed = False
                log.warning("%s: stop: %s, and it reads back %s", self.name, command, shown(reply))
        return confirmed


def _refusal(reply: str) -> str | None:
    """What an instrument that answers every command says against it: nothing in OK, the text in ERR."""
    word = reply.split(maxsplit=1)[0].upper() if reply.strip() else ""
    if word == "OK":
        return None
    if word.startswith("ERR"):
        return reply
    raise Garbled(f"{shown(reply)} is neither OK nor an error")
