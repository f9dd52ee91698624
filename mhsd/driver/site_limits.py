"""Site limits: what a site allows its devices less than their manifests do (`--site-limits`) [MHSD-3, MHSD-9a].

A file names devices by path, their capabilities and the numbers of their inputs. It can only narrow: an entry that
would allow more, or that names what is not there, refuses the whole start, so that nobody believes in a limit that
does not hold.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from mhsd.base.errors import Fault, StartError
from mhsd.driver.checks import UNIT, types_of
from mhsd.driver.loader import LoadedDevice
from mhsd.driver.manifest import EFFECTIVE, Binding, Limit, Manifest, effective_limits
from mhsd.wire.canonical import MAX_SAFE_INTEGER
from mhsd.wire.json_text import decode

_LARGEST_FILE_BYTES = 1 << 20
_QUOTED = "; in TOML a name with dots or slashes stands in quotation marks"
_SITE = "site"


def narrowed(devices: Sequence[LoadedDevice], file: Path) -> list[LoadedDevice]:
    """The devices with the limits of `file` over those of their manifests; StartError (exit 2) names file and key."""
    by_path = {device.manifest.path: device for device in devices}
    document = _table(_document(file), str(file), "a table")
    _check_names(document, {"devices"}, f"{file}: ", "key")
    hint = _QUOTED if file.suffix == ".toml" else ""
    entries = _table(document.get("devices", {}), f"{file}: devices", "a table of devices by path")
    _check_names(entries, by_path, f"{file}: devices.", "device", hint)
    return [
        attrs.evolve(
            device, manifest=_narrowed(device.manifest, entries[path], f"{file}: devices.{path}", hint)
        )
        if path in entries
        else device
        for path, device in by_path.items()
    ]


def _document(file: Path) -> Any:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise StartError(f"{file}: cannot be read: {error.strerror}") from None
    try:
        if file.suffix == ".toml":
            return tomllib.loads(data.decode())
        return decode(data, max_bytes=_LARGEST_FILE_BYTES)
    except UnicodeDecodeError:
        raise StartError(f"{file}: is no UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise StartError(f"{file}: is no TOML: {error}") from None
    except Fault as fault:
        raise StartError(f"{file}: is no JSON document: {fault.message}") from None


def _table(value: Any, where: str, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise StartError(f"{where}: must be {what}, not {_shown(value)}")
    return value


def _check_names(
    entries: Mapping[str, Any], known: Iterable[str], where: str, kind: str, hint: str = ""
) -> None:
    names = list(known)
    for name in entries:
        if name not in names:
            there = ", ".join(names) or "none"
            raise StartError(f"{where}{name}: there is no such {kind}; there is: {there}{hint}")


def _shown(value: Any) -> str:
    return "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)


def _narrowed(manifest: Manifest, entries: Any, where: str, hint: str) -> Manifest:
    capabilities = _table(entries, where, "a table of capabilities")
    bound = dict.fromkeys(binding.capability_id for binding in manifest.bindings)
    _check_names(capabilities, bound, f"{where}.", "capability of the device", hint)
    for capability_id, fields in capabilities.items():
        place = f"{where}.{capability_id}"
        known = {name for each in manifest.bindings_of(capability_id) for name in _numbers(each)}
        _check_names(
            _table(fields, place, "a table of input fields"),
            sorted(known),
            f"{place}.",
            "number in the input",
        )
    bindings = tuple(
        _narrowed_binding(binding, capabilities[binding.capability_id], f"{where}.{binding.capability_id}")
        if binding.capability_id in capabilities
        else binding
        for binding in manifest.bindings
    )
    served = [
        {**entry, EFFECTIVE: effective_limits(binding.limits)} if binding.limits else entry
        for entry, binding in zip(manifest.document["bindings"], bindings, strict=True)
    ]
    return attrs.evolve(manifest, bindings=bindings, document={**manifest.document, "bindings": served})


def _numbers(binding: Binding) -> Mapping[str, Mapping[str, Any]]:
    fields = binding.input_schema.get("properties", {})
    return {name: schema for name, schema in fields.items() if types_of(schema) & {"number", "integer"}}


def _narrowed_binding(binding: Binding, fields: Mapping[str, Any], where: str) -> Binding:
    """The binding with every limit of the file that is about a field that it has."""
    limits = dict(binding.limits)
    for name, schema in _numbers(binding).items():
        if name in fields:
            limits[name] = _limit(fields[name], schema, limits.get(name), f"{where}.{name}")
    return attrs.evolve(binding, limits=limits)


def _limit(entry: Any, schema: Mapping[str, Any], limit: Limit | None, where: str) -> Limit:
    _check_names(
        _table(entry, where, "a table with min, max or both"), ("min", "max", "unit"), f"{where}.", "key"
    )
    if "min" not in entry and "max" not in entry:
        raise StartError(f"{where}: needs min, max or both")
    unit = schema.get(UNIT, "1")
    if entry.get("unit", unit) != unit:
        raise StartError(f"{where}.unit: is {entry['unit']!r}; the device takes this number in {unit}")
    known = limit or Limit(None, None, unit)
    for name in ("min", "max"):
        if name in entry:
            _check_narrows(name, entry[name], schema, known, f"{where}.{name}")
    narrow = attrs.evolve(
        known,
        **({"minimum": entry["min"], "minimum_source": _SITE} if "min" in entry else {}),
        **({"maximum": entry["max"], "maximum_source": _SITE} if "max" in entry else {}),
    )
    lowest, highest = _outermost("min", schema, narrow), _outermost("max", schema, narrow)
    if lowest is not None and highest is not None and lowest[0] > highest[0]:
        raise StartError(
            f"{where}: leaves no value: from {lowest[0]} {unit} ({lowest[1]}) to {highest[0]} {unit} ({highest[1]})"
        )
    return narrow


def _check_narrows(name: str, value: Any, schema: Mapping[str, Any], known: Limit, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_SAFE_INTEGER:
        raise StartError(f"{where}: must be a number within 2^53, not {_shown(value)}")
    allowed = _outermost(name, schema, known)
    if allowed is None:
        return
    bound, source = allowed
    if value < bound if name == "min" else value > bound:
        side = "below" if name == "min" else "above"
        raise StartError(
            f"{where}: {value} {known.unit} is {side} the {source}'s {bound} {known.unit};"
            " site limits can only narrow what a device allows"
        )


def _outermost(name: str, schema: Mapping[str, Any], limit: Limit) -> tuple[float, str] | None:
    """The last value on this side that is allowed anyway, and by what; None where it is open."""
    if name == "min":
        keywords, bound, source = ("minimum", "exclusiveMinimum"), limit.minimum, limit.minimum_source
    else:
        keywords, bound, source = ("maximum", "exclusiveMaximum"), limit.maximum, limit.maximum_source
    found = [(schema[keyword], "input schema") for keyword in keywords if keyword in schema]
    if bound is not None:
        found.append((bound, source))
    tightest = max if name == "min" else min
    return tightest(found, key=lambda each: each[0], default=None)
