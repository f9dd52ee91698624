"""A session as in a notebook: every `# %%` begins a cell, and the last line of a cell is what the notebook shows.

mhsd
jupyter lab notebook.py            or run it as it is: python notebook.py
"""

# %% Connect; the endpoint is the one that MHS_ENDPOINT names, else the one on this machine.
import os

import mhsd

lab = mhsd.connect(os.environ.get("MHS_ENDPOINT", "http://127.0.0.1:7400"))
lab.devices()

# %% What the device can do, with units and limits. In a notebook this is a table.
workcell = lab.device("conveyor-workcell")
print(workcell)

# %% A session: it covers the device, and stays alive while something is going on.
session = lab.session("conveyor-workcell")
session.read("belt")["state"]

# %% A command, and its receipt.
moved = session.invoke("cap.motion.convey.v1", {"distance_mm": 40, "speed_mm_s": 200}, wait=True)
print(moved)

# %% A refusal is a receipt as well, with what to do about it.
refused = session.invoke("cap.motion.convey.v1", {"distance_mm": 40, "speed_mm_s": 900})
print(refused)

# %% Watch while it moves. The interrupt button of the notebook would stop the belt.
with session.subscribe({"stream": "telemetry", "resource_id": "belt"}, rate_hz=10) as telemetry:
    running = session.invoke("cap.motion.convey.v1", {"distance_mm": 60, "speed_mm_s": 100}, deadline_ms=50)
    positions = [
        event.payload["position_mm"] for event in telemetry.events(timeout_s=0.5) if not event.is_gap
    ]
print(positions)

# %% Two runs from the same state: snapshots are for simulated devices.
start = session.snapshot()
first = session.invoke("cap.world.step.v1", {"ticks": 100})
session.restore(start)
second = session.invoke("cap.world.step.v1", {"ticks": 100})
print(first.output["state_hash"] == second.output["state_hash"])

# %% Done: closing the session brings the device to its safe state.
session.close()
lab.close()
