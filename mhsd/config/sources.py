"""Where the value of an option comes from: flag, environment variable, file, in that order."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from mhsd.config.values import (
    BACKENDS,
    DeviceEntry,
    Option,
    check_file_type,
    convert,
    device_entry,
    is_device_path,
    located,
    refuse,
)

_SEARCH = (Path("mhsd.toml"), Path("/etc/mhsd/mhsd.toml"))
_NOT_OPTIONS = frozenset({"MHSD_HINTS", "MHSD_RUNTIME_DIR"})


@attrs.frozen
class File:
    """What a configuration file says, still as TOML; `path` is None where there is no file."""

    path: Path | None = None
    content: Mapping[str, Any] = attrs.field(factory=dict)


def read_file(options: Sequence[Option], flag: Any, environ: Mapping[str, str], cwd: Path) -> File:
    """The file that was named, else the first that exists of ./mhsd.toml and /etc/mhsd/mhsd.toml."""
    named = flag or environ.get("MHSD_CONFIG")
    for path in [cwd / Path(named).expanduser()] if named else [cwd / path for path in _SEARCH]:
        text = _text(path)
        if text is not None:
            return File(path, _parse(options, path, text))
        if named:
            refuse(f"configuration file {path} does not exist")
    return File()


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        refuse(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}")


def _parse(options: Sequence[Option], path: Path, text: str) -> Mapping[str, Any]:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        refuse(f"{path} is not valid TOML: {error}")
    # A file that named another file would say the same thing in two places.
    known = {option.key for option in options} - {"config"} | {"device"}
    for key in content:
        if key not in known:
            refuse(f"{path}: unknown key {key!r}{_hint(key, known)}")
    return content


def _hint(key: str, known: Collection[str]) -> str:
    import difflib  # Only a typing error needs it, and every start pays for what is imported above.

    close = difflib.get_close_matches(key.replace("-", "_").lower(), known, 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def look_up(
    option: Option, flags: Mapping[str, Any], environ: Mapping[str, str], file: File, cwd: Path
) -> tuple[Any] | None:
    """The value from the first source that has one, in a one-tuple; None where only the default is left."""
    flag = flags.get(option.key)
    if flag is not None and not (option.multiple and flag in ((), [])):
        where = option.metavar if option.positional and option.metavar else option.flag
        return (convert(option, flag, where, cwd),)
    text = environ.get(option.variable)
    if text:  # An empty variable counts as not set, as in compose files that pass one through.
        return (convert(option, _split(option, text), option.variable, cwd),)
    if option.key in file.content and file.path is not None:
        where = f"{file.path}: {option.key}"
        check_file_type(option, file.content[option.key], where)
        return (convert(option, file.content[option.key], where, file.path.parent),)
    return None


def _split(option: Option, text: str) -> Any:
    """A list in a variable is separated by commas, or a JSON array where an item holds a comma."""
    if not option.multiple:
        return text
    if not text.lstrip().startswith("["):
        return [item.strip() for item in text.split(",") if item.strip()]
    try:
        items = json.loads(text)
    except ValueError:
        refuse(f"{option.variable} is not a JSON array")
    if not all(isinstance(item, str) for item in items):
        refuse(f"{option.variable} must be a JSON array of strings")
    return items


def file_devices(file: File) -> tuple[DeviceEntry, ...]:
    """The `[[device]]` tables of the file."""
    tables = file.content.get("device", [])
    if file.path is None or tables == []:
        return ()
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        refuse(f"{file.path}: device must be written as [[device]] tables")
    base = file.path.parent
    return tuple(
        _device(table, f"{file.path}: device {number}", base) for number, table in enumerate(tables, 1)
    )


def _device(table: Mapping[str, Any], where: str, base: Path) -> DeviceEntry:
    unknown = sorted(set(table) - {"target", "backend", "path", "options"})
    if unknown:
        refuse(f"{where}: unknown key {unknown[0]!r}; known are target, backend, path and options")
    target, backend, path = table.get("target"), table.get("backend"), table.get("path")
    if not isinstance(target, str):
        refuse(f"{where} needs target, the name of a fixture or a driver directory")
    if backend is not None and backend not in BACKENDS:
        refuse(f"{where}: backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
    if path is not None and not is_device_path(path):
        refuse(f"{where}: path {path!r} is not a device path such as /bench/psu")
    options = table.get("options", {})
    if not isinstance(options, dict):
        refuse(f"{where}: options must be a table")
    entry = device_entry(located(target, where, base))
    return DeviceEntry(entry.target, backend or entry.backend, path or entry.path, options)


def unknown_variables(options: Sequence[Option], environ: Mapping[str, str]) -> tuple[str, ...]:
    """`MHSD_...` variables that no option has."""
    known = {option.variable for option in options} | _NOT_OPTIONS
    return tuple(sorted(name for name in environ if name.startswith("MHSD_") and name not in known))
