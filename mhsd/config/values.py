"""One value of an option: the row that describes it, and the check that makes a value of what was written."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn

import attrs

from mhsd.base.errors import StartError

Kind = Literal["text", "path", "integer", "number", "switch"]

_TRUE, _FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})
_DEVICE_PATH = re.compile(r"(/[^\s/?#]+)+")
BACKENDS = ("fake", "hardware")


@attrs.frozen
class Option:
    """What a command line, the file reader and the documentation need to know of one option."""

    key: str
    kind: Kind
    default: Any
    help: str
    metavar: str | None = None
    multiple: bool = False
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    positional: bool = False
    group: str = "General"
    short: str | None = None
    """A flag of one letter beside the long one."""

    @property
    def flag(self) -> str:
        """`state_dir` is `--state-dir`."""
        return "--" + self.key.replace("_", "-")

    @property
    def variable(self) -> str:
        """`state_dir` is `MHSD_STATE_DIR`."""
        return "MHSD_" + self.key.upper()


@attrs.frozen
class DeviceEntry:
    """One device to serve: what to load, and what this device sets differently from the defaults."""

    target: str
    backend: str | None = None
    path: str | None = None
    options: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class DeviceOption:
    """`--option PATH:NAME=VALUE`, taken apart; the driver's manifest decides the type of the value."""

    path: str
    name: str
    text: str


def refuse(message: str) -> NoReturn:
    """End the start with a usage error."""
    raise StartError(message, exit_code=2)


def is_device_path(text: object) -> bool:
    """Whether this is written as the path of a device, such as /bench/psu."""
    return isinstance(text, str) and _DEVICE_PATH.fullmatch(text) is not None


def check_file_type(option: Option, value: Any, where: str) -> None:
    """TOML has types, so a quoted number is a mistake there and not a spelling."""
    if option.key == "arm" and isinstance(value, bool):
        return
    if option.multiple:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            refuse(f"{where} must be a list of strings")
    elif option.kind == "switch" and not isinstance(value, bool):
        refuse(f"{where} must be true or false")
    elif option.kind in ("integer", "number") and (
        isinstance(value, bool) or not isinstance(value, (int, float))
    ):
        refuse(f"{where} must be a number")
    elif option.kind in ("text", "path") and not isinstance(value, str):
        refuse(f"{where} must be a string")


def convert(option: Option, value: Any, where: str, base: Path) -> Any:
    """The checked value of an option; `base` is what a relative path is relative to."""
    special = _SPECIAL.get(option.key)
    if special is not None:
        return special(value, where, base)
    if option.multiple:
        items = [value] if isinstance(value, str) else value
        return tuple(_convert_one(option, item, where, base) for item in items)
    return _convert_one(option, value, where, base)


def _convert_one(option: Option, value: Any, where: str, base: Path) -> Any:
    if option.kind == "switch":
        return _switch(value, where)
    if option.kind in ("integer", "number"):
        return _number(option, value, where)
    text = str(value)
    if option.choices and text not in option.choices:
        refuse(f"{where} must be one of {', '.join(option.choices)}, not {text!r}")
    if not text.strip():
        # An empty path would mean the working directory: --state-dir "$UNSET" must not fill that.
        refuse(f"{where} must not be empty")
    return base / Path(text).expanduser() if option.kind == "path" else text


def _switch(value: Any, where: str) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text not in _TRUE | _FALSE:
        refuse(f"{where} must be true or false, not {value!r}")
    return text in _TRUE


def _number(option: Option, value: Any, where: str) -> float | int:
    try:
        number: float | int = int(value) if option.kind == "integer" else float(value)
        exact = math.isfinite(number) and (isinstance(value, str) or number == value)
    except (TypeError, ValueError, OverflowError):
        exact = False
    if not exact:
        refuse(
            f"{where} must be {'a whole number' if option.kind == 'integer' else 'a number'}, not {value!r}"
        )
    if option.minimum is not None and number < option.minimum:
        refuse(f"{where} must be at least {option.minimum}, not {number}")
    if option.maximum is not None and number > option.maximum:
        refuse(f"{where} must be at most {option.maximum}, not {number}")
    return number


# Options with a form of their own


def _arm(value: Any, where: str, base: Path) -> bool | tuple[str, ...]:
    """True for every device; else the paths of the armed ones."""
    items = [value] if isinstance(value, (bool, str)) else list(value)
    paths = []
    for item in items:
        text = str(item).lower()
        if text in _TRUE or text in ("all", "*", ""):
            return True
        if text in _FALSE:
            continue
        if not _DEVICE_PATH.fullmatch(str(item)):
            refuse(f"{where} takes the path of a device such as /bench/psu, not {item!r}")
        paths.append(str(item))
    return tuple(paths)


def _device_options(value: Any, where: str, base: Path) -> tuple[DeviceOption, ...]:
    items = [value] if isinstance(value, str) else value
    found = []
    for item in items:
        match = re.fullmatch(r"(/[^\s:]+):([A-Za-z_][A-Za-z0-9_]*)=(.*)", str(item), re.DOTALL)
        if match is None:
            refuse(
                f"{where} {str(item)!r} is not of the form PATH:NAME=VALUE, such as /bench/psu:timeout_s=2"
            )
        found.append(DeviceOption(*match.groups()))
    return tuple(found)


def _targets(value: Any, where: str, base: Path) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    return tuple(located(str(item), where, base) for item in items)


def located(target: str, where: str, base: Path) -> str:
    """A target that names a directory, made absolute; a fixture's name stays what it is."""
    entry = device_entry(target)
    if not entry.target.strip():
        refuse(f"{where} {target!r} names nothing to serve")
    if "/" not in entry.target and entry.target not in (".", "..") and not entry.target.startswith("~"):
        return target
    return str(base / Path(entry.target).expanduser()) + target[len(entry.target) :]


_SPECIAL: Mapping[str, Callable[[Any, str, Path], Any]] = {
    "arm": _arm,
    "option": _device_options,
    "targets": _targets,
}


def device_entry(target: str) -> DeviceEntry:
    """`NAME[:fake|:hardware][@/path]`, the two suffixes in either order."""
    rest, backend, path = target, None, None
    for _ in range(2):
        name, mark, suffix = rest.rpartition(":")
        if mark and backend is None and suffix in BACKENDS:
            rest, backend = name, suffix
        name, mark, suffix = rest.rpartition("@/")
        if mark and path is None:
            rest, path = name, "/" + suffix
    if path is not None and not _DEVICE_PATH.fullmatch(path):
        refuse(f"target {target!r}: {path!r} is not a device path such as /bench/psu")
    return DeviceEntry(rest, backend, path)
