"""The notes of one example, and what the checks ask of them."""

import logging
from collections.abc import Sequence
from typing import Any, TypeVar

import trio

from mhsd.store import Receipt, VoidIntent
from tests.property.model.history import Ask, Grant, Moment, Native, Order, Put, Visit

T = TypeVar("T")
ENDPOINT = "mhs://localhost:7400"
PATHS = ("/test/left", "/test/right")


class Alarms(logging.Handler):
    """The errors that the endpoint logs, but for those of a driver that breaks and of a disk that is full."""

    EXPECTED = ("driver of %s failed", "the final receipt of %s could not be written")

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        named = record.name in ("mhsd.dispatch", "mhsd.execution")
        if named and not str(record.msg).startswith(self.EXPECTED):
            self.heard.append(self.format(record))


class Record:
    """What was noted, from the first step of a program to the last."""

    bodies: list[Any]
    """The rigs themselves."""

    def __init__(self) -> None:
        self.number = 0
        self.life = -1
        self.faults: list[str] = []
        self.asks: list[Ask] = []
        self.natives: list[Native] = []
        self.puts: list[Put] = []
        self._put_of: dict[str, Put] = {}
        self._stops: dict[tuple[int, int], list[Ask]] = {}
        self.last_asks: list[Ask] = []
        self.seq_before_last = 0
        self.visits: list[Visit] = []
        self.visit_of: dict[str, Visit] = {}
        self.grants: dict[str, Grant] = {}
        self.orders: list[Order] = []
        self.operations: dict[str, str] = {}
        """The newest operation of a command, as clients were told."""
        self.told: dict[str, tuple[str, int]] = {}
        """The command and principal of every operation that anybody was told of."""
        self.unsettled: set[str] = set()
        self.stops = [0, 0]
        self.stopped_number = [-1, -1]
        self.reset_number = [0, 0]
        self.durable_stop = [False, False]
        self.surely_released = [True, True]
        self.revisions: list[list[tuple[Moment, int]]] = [[], []]
        self.latch_changes: list[list[tuple[Moment, bool]]] = [[], []]
        self.gate_changes: list[list[tuple[Moment, str]]] = [[], []]
        self.read_changes: list[list[tuple[Moment, str]]] = [[], []]
        self.drained: set[int] = set()
        self.settled: set[int] = set()
        self.quiet: dict[tuple[int, int, int], Any] = {}
        self.full_lives: set[int] = set()
        self.lives_end: dict[int, float] = {}
        self.alarms = Alarms()

    # What the checks ask.

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.faults.append(f"life {self.life}, {self.now().mono_s} s: {otherwise}")

    def now(self) -> Moment:
        """The next event's moment."""
        self.number += 1
        return Moment(trio.current_time(), self.number)

    def device_id(self, device: int) -> str:
        return ENDPOINT + PATHS[device]

    def device_of(self, device_id: str) -> int:
        return PATHS.index(device_id.removeprefix(ENDPOINT))

    def visit(self, session_id: str) -> Visit:
        return self.visit_of[session_id]

    def surely_latched(self, device: int) -> bool:
        """Whether a stop came after which nobody has asked for a reset."""
        return self.stopped_number[device] > self.reset_number[device]

    def revisions_since(self, device: int, mono_s: float) -> set[int]:
        """The revisions that the device has had from then on."""
        return during(self.revisions[device], mono_s, float("inf"))

    def touch(self, device: int, part: str, how: str) -> None:
        """Somebody does something to a rig: moves its gate, or changes how its link behaves."""
        if part == "gate":
            self.bodies[device].gate = how
            self.gate_changes[device].append((self.now(), how))
        else:
            self.bodies[device].conduct[part] = how
            if part == "read":
                self.read_changes[device].append((self.now(), how))

    def answered_s(self, ask: Ask) -> float:
        """When a call was answered."""
        return float("inf") if ask.answered is None else ask.answered.mono_s

    def put_of(self, receipt_id: str) -> Put | None:
        """How a receipt was handed to the store."""
        return self._put_of.get(receipt_id)

    def stops_at(self, receipt_id: str, device: int) -> int:
        """How many stops there had been when a receipt was handed to the store."""
        put = self._put_of.get(receipt_id)
        return self.stops[device] if put is None else put.stops

    def stops_in(self, life: int, device: int) -> list[Ask]:
        """The stops of a device in one life."""
        return self._stops.get((life, device), [])

    def receipts_in(self, life: int, device: int) -> set[str]:
        """The receipts of a device that were handed to the store in one life."""
        return {
            name
            for name, put in self._put_of.items()
            if put.life == life and self.device_of(put.entry.device_id) == device
        }

    def settled_number(self, native: Native) -> float:
        """When the last receipt of a call was handed to the store."""
        for put in self.puts:
            last = isinstance(put.entry, VoidIntent) or (
                isinstance(put.entry, Receipt) and put.entry.kind == "final"
            )
            if last and put.entry.command_id == native.command_id and put.at.number > native.began.number:
                return put.at.number
        return float("inf")


def during(changes: Sequence[tuple[Moment, T]], from_s: float, to_s: float) -> set[T]:
    """What something was in a span of time, both ends included."""
    before = [value for at, value in changes if at.mono_s < from_s]
    return {*before[-1:], *(value for at, value in changes if from_s <= at.mono_s <= to_s)}


def pick(from_these: Sequence[Any], back: int) -> Any:
    """The one that stands so far back from the newest, modulo how many there are; None of none."""
    return from_these[-1 - back % len(from_these)] if from_these else None
