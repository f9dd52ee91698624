"""Messages over a limit: nobody parses them, but the stops in them run before they are refused [CORE-076; MHSD-9a]."""

import json
from collections.abc import Awaitable, Coroutine
from typing import Any

import trio

from mhsd.base.errors import Fault
from mhsd.protocol.context import Context
from mhsd.protocol.methods import HANDLERS
from mhsd.protocol.peer import Peer
from mhsd.services.endpoint import Endpoint
from mhsd.wire.json_text import Raw
from mhsd.wire.stop_scanner import StopScanner
from mhsd.wire.structure import structure

SLICE_S = 0.00025
"""A search holds the loop for so long, then lets everybody else run."""

MOST_TARGETS = 64
"""Stops of this many different devices and sessions in one message run one by one; a further one stops everything."""

_PIECE_BYTES = 256

Engaged = Awaitable[Any] | Fault
"""The receipt of a stop that is engaged already, to be waited for, or why there is none."""


def engage(context: Context, params: Any) -> Engaged:
    """Stop now, whatever the parameters are worth."""
    try:
        stopping: Awaitable[Any] = HANDLERS["mhs.safety.estop"](
            context, structure("mhs.safety.estop", params, max_deadline_ms=1)
        )
    except Fault as fault:
        return fault
    return stopping


class StopSearch:
    """Searches one message, piece by piece; every stop runs as soon as its call has been read.

    `turn` lets one search of the endpoint work at a time, so that many of them slow down each other and nobody else.
    A stop that names what an earlier one of the message has stopped already adds nothing and does not run again.
    """

    def __init__(self, endpoint: Endpoint, peer: Peer, turn: trio.CapacityLimiter) -> None:
        self._endpoint = endpoint
        self._peer = peer
        self._turn = turn
        self._scanner = StopScanner()
        self._targets: set[tuple[str | None, str | None]] = set()
        self._engaged: list[Engaged] = []

    async def feed(self, data: bytes) -> None:
        """Search the next piece of the message."""
        received_mono_s = trio.current_time()
        position = 0
        while position < len(data) and not self._scanner.has_ended:
            async with self._turn:
                until_mono_s = trio.current_time() + SLICE_S
                while position < len(data) and trio.current_time() < until_mono_s:
                    piece = data[position : position + _PIECE_BYTES]
                    self._run(self._scanner.feed(piece), received_mono_s)
                    position += _PIECE_BYTES

    def cut(self) -> None:
        """The endpoint reads no more of the message: a stop whose call it has not seen the end of counts as well."""
        self._run(self._scanner.finish(), trio.current_time())

    @property
    def has_found(self) -> bool:
        """Whether there was a stop so far; it has been engaged, or refused for naming nothing that is served."""
        return bool(self._targets)

    async def explain(self, fault: Fault) -> Fault:
        """The refusal of the message, with what became of its stops in the details; waits for their receipts."""
        outcomes: list[Raw | Fault] = []
        while self._engaged:
            stopping = self._engaged.pop(0)
            outcomes.append(stopping if isinstance(stopping, Fault) else await stopping)
        return _with_outcomes(fault, outcomes) if outcomes else fault

    def abandon(self) -> None:
        """Nobody waits for the receipts any more; the stops go on."""
        for stopping in self._engaged:
            if isinstance(stopping, Coroutine):
                stopping.close()
        self._engaged.clear()

    def _run(self, stops: list[dict[str, str]], received_mono_s: float) -> None:
        context = Context(self._endpoint, self._peer, received_mono_s)
        for stop in stops:
            wanted = stop
            if self._target(stop) not in self._targets and len(self._targets) >= MOST_TARGETS:
                wanted = {name: stop[name] for name in ("reason",) if name in stop}
            target = self._target(wanted)
            if target not in self._targets:
                self._targets.add(target)
                self._engaged.append(engage(context, wanted))

    @staticmethod
    def _target(stop: dict[str, str]) -> tuple[str | None, str | None]:
        """What a stop names: a device, else a session whose device it covers, else neither."""
        device_id = stop.get("device_id")
        return (device_id, None) if device_id is not None else (None, stop.get("session_id"))


def _with_outcomes(fault: Fault, outcomes: list[Raw | Fault]) -> Fault:
    receipts = [json.loads(outcome.data) for outcome in outcomes if not isinstance(outcome, Fault)]
    details: dict[str, Any] = {**(fault.details or {}), "estop_served": bool(receipts)}
    if receipts:
        details["receipt"] = next((each for each in receipts if each["status"] != "completed"), receipts[0])
    if len(receipts) > 1:
        details["receipts"] = receipts
    refusals = [outcome.error() for outcome in outcomes if isinstance(outcome, Fault)]
    if refusals:
        details["estop_errors"] = refusals
    return Fault(
        fault.mhs_code,
        fault.message,
        details=details,
        retryable=fault.retryable,
        remediation=fault.remediation,
    )
