"""The host policy of the projection: what the person who set up this host lets a model do [CORE-130].

Decides which keys the policy file has and what they allow. It can only withhold: limits, interlocks, permits,
grants and the latch are the endpoint's and hold whatever stands here [CORE-131].
"""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn

import attrs

from mhsd.base.errors import StartError
from mhsd.core.sessions import pattern_matches

HARDWARE_MODES = frozenset({"hardware", "hybrid"})


@attrs.frozen
class Policy:
    """What the projection may offer; the defaults hold where there is no policy file."""

    allow_hardware: bool = False
    """Whether devices of mode hardware or hybrid may be commanded and read."""
    operator_tools: bool = False
    """Whether mhs__reset and mhs__permit are offered, which are human decisions otherwise."""
    allow_external_sessions: bool = False
    """Whether a call may name a session that this connection did not open [TPT-048]."""
    read_only: bool = False
    """Whether only what does not actuate is offered [TPT-046]; the e-stop always is."""
    cancel_response: Literal["receipt", "none"] = "receipt"
    """How a cancelled call is answered: by its receipt [TPT-041], or not at all for hosts that end the
    connection on a late answer [MHSD-8-08]."""
    capabilities: tuple[str, ...] | None = None
    """Patterns of capability ids, `*` for any characters; None for all of them."""
    devices: tuple[str, ...] | None = None
    """Patterns of device ids, or of their ends from a `/` on; None for all of them."""

    def allows_device(self, device_id: str) -> bool:
        """Whether the device is shown at all."""
        return self.devices is None or any(
            pattern_matches(f"*{pattern}" if pattern.startswith("/") else pattern, device_id)
            for pattern in self.devices
        )

    def allows_capability(self, capability_id: str) -> bool:
        """Whether bindings of this class become tools."""
        return self.capabilities is None or any(
            pattern_matches(pattern, capability_id) for pattern in self.capabilities
        )

    def allows_mode(self, mode: str) -> bool:
        """Whether a device of this mode may be commanded and read."""
        return self.allow_hardware or mode not in HARDWARE_MODES


def read_policy(path: Path) -> Policy:
    """The policy of a file [TPT-053]; StartError names the file and what is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise StartError(f"cannot read the host policy {path}: {reason}") from None
    return parse_policy(text, str(path))


def parse_policy(text: str, source: str) -> Policy:
    """The policy that a TOML text states; `source` names the file to people.

    StartError for a key that is not known, for a value of another type, and where the policy turns the
    projection off (`enabled = false`).
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        _refuse(f"{source} is not valid TOML: {error}")
    enabled = True
    members: dict[str, Any] = {}
    for key, value in content.items():
        check = _KEYS.get(key)
        if check is None:
            _refuse(f"{source}: unknown key {key!r}; a host policy has {', '.join(_KEYS)}")
        checked = check(value, f"{source}: {key}")
        if key == "enabled":
            enabled = checked
        else:
            members[key] = checked
    if not enabled:
        raise StartError(
            f"{source} turns the projection off (enabled = false)",
            exit_code=4,
            mhs_code="MHS.AUTH.FORBIDDEN",
        )
    return checked_policy(Policy(**members), source)


def checked_policy(policy: Policy, source: str) -> Policy:
    """The same policy; StartError where it says two things that exclude each other."""
    if policy.read_only and policy.operator_tools:
        _refuse(f"{source}: read_only leaves no operator tools, so it excludes operator_tools")
    return policy


def _switch(value: Any, where: str) -> bool:
    if type(value) is not bool:
        _refuse(f"{where} must be true or false")
    return value


def _patterns(value: Any, where: str) -> tuple[str, ...]:
    if type(value) is not list or not all(type(item) is str and item for item in value):
        _refuse(f"{where} must be a list of strings, such as an id or an id with *")
    return tuple(value)


def _cancel_response(value: Any, where: str) -> str:
    if value not in ("receipt", "none"):
        _refuse(f'{where} must be "receipt" or "none"')
    return str(value)


def _refuse(message: str) -> NoReturn:
    raise StartError(message, exit_code=2)


_KEYS: Mapping[str, Callable[[Any, str], Any]] = {
    "enabled": _switch,
    "allow_hardware": _switch,
    "operator_tools": _switch,
    "allow_external_sessions": _switch,
    "read_only": _switch,
    "cancel_response": _cancel_response,
    "capabilities": _patterns,
    "devices": _patterns,
}
