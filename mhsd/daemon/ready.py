"""The ready line, for programs, and what to try next, for people [TPT-053]."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from mhsd.services.endpoint import Endpoint

_USUAL_URL = "http://127.0.0.1:7400"
_STEP = "cap.world.step.v1"


def announce(url: str | None, ws_url: str | None, endpoint: Endpoint, *, wants_hints: bool) -> None:
    """One JSON line that says that everything is up: on stdout, or on stderr where stdout is the protocol's.

    People see what to try next on stderr, where it is a terminal or `wants_hints` says so.
    """
    ready = {
        "mhs_ready": True,
        "url": url,
        "ws_url": ws_url,
        "endpoint_id": endpoint.endpoint_id,
        "devices": len(endpoint.devices),
    }
    _write(sys.stderr if url is None else sys.stdout, json.dumps(ready) + "\n")
    if url is not None and (wants_hints or (sys.stderr is not None and sys.stderr.isatty())):
        _write(sys.stderr, _hints(url, endpoint))


def announce_projection(endpoint_id: str, devices: int) -> None:
    """The ready line of a projection of an endpoint that runs elsewhere."""
    ready = {"mhs_ready": True, "url": None, "ws_url": None, "endpoint_id": endpoint_id, "devices": devices}
    _write(sys.stderr, json.dumps(ready) + "\n")


def _write(stream: TextIO | None, text: str) -> None:
    """Write where somebody listens; a closed stream is no reason to stop serving."""
    if stream is not None:
        with suppress(OSError, ValueError):
            stream.write(text)
            stream.flush()


def _hints(url: str, endpoint: Endpoint) -> str:
    program = _operators_program()
    where = "" if url == _USUAL_URL else f" -e {url}"
    binds_step = any(device.host.manifest.bindings_of(_STEP) for device in endpoint.devices.values())
    act = f"call{where} -c {_STEP} -i '{{\"ticks\": 100}}'" if binds_step else f"describe{where}"
    lines = ["Try next, in another terminal:", f"{program} devices{where}", f"{program} {act}"]
    # Without -e it would stop what others run on this machine, too.
    return "\n  ".join([*lines, f"{program} estop -e {url}"]) + "\n"


def _operators_program() -> str:
    """How to call mhsctl from here: by its name where it is on the path, else beside this program."""
    place = os.path.dirname(sys.argv[0])
    is_on_path = os.path.abspath(place) in map(os.path.abspath, os.get_exec_path())
    beside = os.path.join(place, "mhsctl")
    return beside if place and not is_on_path and os.path.exists(beside) else "mhsctl"
