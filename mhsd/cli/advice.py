"""What to do, in the words of this program: an endpoint's advice names methods and parameters, a person types
commands [MHSD-8-13].

Only text for people is changed; `--json` carries the endpoint's own words.
"""

import re
from typing import Any

from mhsd.cli.terminal import value

_SPOKEN = {
    "mhs.hello": "`mhsctl hello`",
    "mhs.devices.list": "`mhsctl devices`",
    "mhs.devices.get": "`mhsctl describe`",
    "mhs.schema.get": "`mhsctl describe`",
    "mhs.session.open": "`mhsctl session open`",
    "mhs.session.heartbeat": "`mhsctl session keep ID`",
    "mhs.session.close": "`mhsctl session close ID`",
    "mhs.resource.read": "`mhsctl read`",
    "mhs.resource.write": "`mhsctl write`",
    "mhs.command": "`mhsctl call`",
    "mhs.operations.get": "`mhsctl ops ID`",
    "mhs.operations.list": "`mhsctl ops`",
    "mhs.operations.cancel": "`mhsctl ops ID --cancel`",
    "mhs.subscribe": "`mhsctl watch`",
    "mhs.safety.status": "`mhsctl status`",
    "mhs.safety.estop": "`mhsctl estop`",
    "mhs.safety.reset": "`mhsctl reset`",
    "mhs.safety.permit": "`mhsctl permit`",
    "mhs.evidence.export": "`mhsctl evidence`",
    "mhs.evidence.verify": "`mhsctl evidence --verify`",
    "params.device_id": "--device",
    "params.resource": "--resource",
    "device_ids": "--device",
    "filter.revision": "--revision",
    "expected_revision": "--expect-revision",
    "permit_id": "--permit",
    "command_id": "--command-id",
    "session_id": "--session",
    "deadline_ms": "--deadline-ms",
    "ttl_s": "--ttl",
    "capability_id": "-c CAPABILITY",
    "in the header Authorization: Bearer": "with --token-file FILE",
}
# A longer name holds a shorter one, and hello.limits.max_command_deadline_ms is a limit's name, no option's.
_NAMES = re.compile(
    r"(?<![\w.])(?:" + "|".join(map(re.escape, sorted(_SPOKEN, key=len, reverse=True))) + r")(?![\w]|\.\w)"
)


_DETAIL = re.compile(r"\bdetails\.(\w+)")


def advice(text: object, details: object = None) -> str:
    """A remediation as a person at the command line can follow it, safe for the terminal.

    It speaks of the `details` of its error by name; a person gets what they say.
    """
    spoken = _NAMES.sub(lambda match: _SPOKEN[match[0]], value(text))
    told = details if isinstance(details, dict) else {}
    return _DETAIL.sub(lambda match: _said(match[1], told.get(match[1])) or match[0], spoken)


def _said(name: str, content: Any) -> str:
    """A detail in the words of a sentence; empty where it does not fit into one."""
    every = content if isinstance(content, list) else [content]
    if any(each is None or isinstance(each, list | dict) for each in every):
        return ""
    return ", ".join(map(value, every)) + (" ms" if name.endswith("_ms") else "")
