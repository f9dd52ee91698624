"""Makes recording.json: an afternoon of the simulated thermal chamber, one frame for each of its revisions.

    python drivers/replay_thermal/record.py

It runs on Trio's test clock, so that it takes no time and always gives the same recording.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trio
import trio.testing

from mhsd.driver import CONFIGURE, Call, Driver, resource_state_hash
from mhsd.driver.loader import load_target

RAMP, LID = "cap.thermal.ramp.v1", "x-cap.sim.lid.v1"
BEGAN_AT = datetime(2026, 10, 20, 13, 0, tzinfo=UTC)
FIRST_REVISION = 101
EXCLUSIONS = ("/temperature_cel", "/duty")

PROGRAMME: tuple[tuple[str, dict[str, Any], float], ...] = (
    *((CONFIGURE, {"setpoint_cel": setpoint_cel}, 300.0) for setpoint_cel in (25, 40, 60, 85, 85.5, 85)),
    *((RAMP, {"target_cel": target_cel, "rate_cel_min": 10}, 120.0) for target_cel in (100, 120, 125, 85)),
    (LID, {"closed": False}, 600.0),
    (LID, {"closed": True}, 30.0),
    *((CONFIGURE, {"setpoint_cel": setpoint_cel}, 600.0) for setpoint_cel in (10, 0, -10, -25, -40)),
    *((RAMP, {"target_cel": target_cel, "rate_cel_min": 5}, 60.0) for target_cel in (-20, 0, 20, 23)),
    (LID, {"closed": False}, 60.0),
    (LID, {"closed": True}, 5.0),
    (CONFIGURE, {"setpoint_cel": 37}, 1800.0),
)
"""What is done, and for how many seconds what follows is waited for before the frame is taken."""


async def record() -> dict[str, Any]:
    """The recording as recording.json has it. Needs a clock that jumps."""
    driver = load_target("thermal-chamber", backend="fake", options={}).driver
    frames = [await _frame(driver, FIRST_REVISION)]
    for revision, (capability_id, given, wait_s) in enumerate(PROGRAMME, FIRST_REVISION + 1):
        await driver.invoke(Call(capability_id, "chamber", given, "", None, _unheard))
        await trio.sleep(wait_s)
        frames.append(await _frame(driver, revision))
    return {"device": "thermal-chamber", "frames": frames}


async def _frame(driver: Driver, revision: int) -> dict[str, Any]:
    state = (await driver.read(["chamber"])).resources["chamber"]
    sampled_at = BEGAN_AT + timedelta(seconds=trio.current_time())
    return {
        "revision": revision,
        "sampled_at": sampled_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "resources": {"chamber": state},
        "state_hashes": {"chamber": resource_state_hash(state, EXCLUSIONS)},
    }


def _unheard(percent: float | None = None, ticks: int | None = None, message: str | None = None) -> None:
    """Progress that nobody follows."""


def main() -> None:
    recording = trio.run(record, clock=trio.testing.MockClock(autojump_threshold=0))
    Path(__file__).with_name("recording.json").write_text(
        json.dumps(recording, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
