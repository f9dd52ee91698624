"""The driver of the witness: every command that reaches it leaves a line in a file that no crash of mhsd can change."""

import os
from collections.abc import Mapping, Sequence
from typing import ClassVar

import trio

from mhsd.driver import Call, Command, Driver, Outcome, Reading, Settings


class Witness(Driver):
    """`/test/witness`, or any other path."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.log = os.open(str(settings.options["log"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.count = 0

    async def read(self, resource_ids: Sequence[str]) -> Reading:
        return Reading({name: {"count": self.count} for name in resource_ids})

    async def halt(self, reason: str) -> bool:
        self.end_commands()
        return True

    async def mark(self, call: Call) -> Outcome:
        self.write(f"start {call.command_id}")
        await trio.sleep(call.input["wait_ms"] / 1000)
        self.count += 1
        self.write(f"end {call.command_id}")
        return Outcome({"count": self.count})

    def write(self, line: str) -> None:
        # One write of one short line: it is there whole, or not at all.
        os.write(self.log, line.encode() + b"\n")

    commands: ClassVar[Mapping[str, Command]] = {"x-cap.test.mark.v1": mark}
