"""Plays back what a thermal chamber showed: one frame for each revision of a recording, and nothing moves.

The recording is `recording.json` beside this file; `record.py` has made it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import trio

from mhsd.driver import Call, Command, Driver, DriverFailed, Outcome, Reading, Settings, resource_state_hash

RECORDING = Path(__file__).with_name("recording.json")
EXCLUSIONS = ("/temperature_cel", "/duty")


class ReplayThermal(Driver):
    """`replay-thermal`: the chamber as it was, by revision."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.frames: dict[int, Mapping[str, Any]] = {}

    async def open(self, nursery: trio.Nursery) -> None:
        """Read the recording, of which every frame must still have the hashes that were recorded with it."""
        recording = json.loads(await trio.Path(RECORDING).read_text(encoding="utf-8"))
        for frame in recording["frames"]:
            for resource_id, state in frame["resources"].items():
                if resource_state_hash(state, EXCLUSIONS) != frame["state_hashes"][resource_id]:
                    raise DriverFailed(
                        "MHS.DEVICE.FAULT",
                        f"{RECORDING.name}: revision {frame['revision']} is not what was recorded",
                    )
            self.frames[frame["revision"]] = frame

    def recorded_revisions(self) -> Sequence[int]:
        return sorted(self.frames)

    async def read_recorded(self, revision: int, resource_ids: Sequence[str]) -> Reading:
        frame = self.frames[revision]
        return Reading(
            {name: frame["resources"][name] for name in resource_ids}, sampled_at=frame["sampled_at"]
        )

    async def read(self, resource_ids: Sequence[str]) -> Reading:
        """The newest frame."""
        return await self.read_recorded(max(self.frames), resource_ids)

    async def halt(self, reason: str) -> bool:
        """A recording does not move."""
        return True

    async def refuse(self, call: Call) -> Outcome:
        """The endpoint lets no command of a replay device get here."""
        raise DriverFailed("MHS.MODE.READ_ONLY", "a recording cannot be driven")

    commands: ClassVar[Mapping[str, Command]] = {
        "cap.device.configure.v1": refuse,
        "cap.thermal.ramp.v1": refuse,
    }
