"""Builds a manifest from its document, or refuses it as a whole with the key and what is allowed there.

`device.schema.json` says what each key means. This module decides what that schema cannot say: that every
reference resolves, that a binding is no wider than its class, that limits and inputs agree in their units.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from mhsd.core.events import PER_RESOURCE, payload_schema
from mhsd.driver.checks import (
    UNIT,
    Invalid,
    check_closed_object,
    check_narrower,
    check_schema,
    types_of,
    writable,
)
from mhsd.driver.classes import CapabilityClass, check_document
from mhsd.driver.contract import CONFIGURE, DESCRIBE, Backend
from mhsd.driver.manifest import (
    EFFECTIVE,
    Binding,
    Interlock,
    Limit,
    Manifest,
    Mode,
    Option,
    Resource,
    Safety,
    served,
)
from mhsd.wire.schema import compile_schema

STOP = "driver.stop"
"""The one action that `safe_state.achieved_by` may name: the driver's `halt`."""

WEAK_STOPS = ("shared_link", "process_kill", "none")
"""The kinds of e-stop that may not reach the device; what that means is told in `safety.notes` [TPT-009]."""

SERVED_ONLY = ("device_id", "instance_id", "mode", "digest")
_WATCH_HZ = 10
_MAX_AGE_MS = 1000


def build_manifest(
    source: Mapping[str, Any],
    *,
    backend: Backend,
    classes: Mapping[str, CapabilityClass],
    path: str | None = None,
) -> Manifest:
    """The manifest in `source` on `backend`; `path` replaces the one it states. Raises Invalid."""
    for key in SERVED_ONLY:
        if key in source:
            raise Invalid(key, "is added by the endpoint; leave it out of the file")
    check_document(source, "device.schema.json")
    modes = source["modes"]
    if backend not in modes:
        raise Invalid("modes", f"there is no {backend} backend; there is: {', '.join(modes)}")
    mode: Mode = modes[backend]
    resources = _resources(source["resources"])
    safety = _safety(source["safety"], mode)
    bindings = tuple(_bindings(source, resources, safety, classes, mode))
    streams = tuple(_streams(source.get("streams", ()), resources))
    manifest = Manifest(
        document={},
        path=_path(path if path is not None else source["path"]),
        display_name=source["display_name"],
        mode=mode,
        modes=modes,
        options={name: _option(name, each, modes) for name, each in source.get("options", {}).items()},
        risk_class=source["risk_class"],
        profile=source["profile"],
        fidelity=source["fidelity"],
        resources=resources,
        bindings=bindings,
        safety=safety,
        facts=source.get("facts", {}),
        redaction=tuple(source.get("redaction", ())),
        streams=streams,
    )
    return attrs.evolve(manifest, document=served(manifest, source))


def _path(path: str) -> str:
    segments = path.split("/")[1:]
    if not path.startswith("/") or any(segment in ("", ".", "..") for segment in segments):
        raise Invalid("path", f"{path} must be / and names between single slashes, as in /lab/psu")
    return path


def _option(name: str, entry: Mapping[str, Any], modes: Mapping[str, Any]) -> Option:
    key = f"options.{name}"
    option = Option(
        name=name,
        schema=entry["schema"],
        has_default="default" in entry,
        default=entry.get("default"),
        backends=tuple(entry.get("backends", modes)),
    )
    check_schema(option.schema, f"{key}.schema")
    strange = [backend for backend in option.backends if backend not in modes]
    if strange:
        raise Invalid(
            f"{key}.backends", f"the driver has no backend {strange[0]}; it has: {', '.join(modes)}"
        )
    if option.has_default:
        errors = compile_schema(option.schema).errors(option.default)
        if errors:
            raise Invalid(f"{key}.default", errors[0]["message"])
    return option


def _resources(entries: Iterable[Mapping[str, Any]]) -> dict[str, Resource]:
    resources: dict[str, Resource] = {}
    for entry in entries:
        resource_id, schema = entry["resource_id"], entry["state_schema"]
        key = f"resources[{resource_id}]"
        if resource_id in resources:
            raise Invalid(key, "stands twice; every resource_id is unique")
        check_schema(schema, f"{key}.state_schema")
        check_closed_object(schema, f"{key}.state_schema")
        exclusions = tuple(entry.get("hash_exclusions", ()))
        for pointer in exclusions:
            field = pointer.split("/")[1].replace("~1", "/").replace("~0", "~")
            if field not in schema.get("properties", {}):
                raise Invalid(f"{key}.hash_exclusions", f"{pointer} points at nothing in the state_schema")
        resources[resource_id] = Resource(resource_id, entry["kind"], schema, exclusions)
    return resources


def _safety(entry: Mapping[str, Any], mode: Mode) -> Safety:
    interlocks: dict[str, Interlock] = {}
    for each in entry["interlocks"]:
        if each["id"] in interlocks:
            raise Invalid(f"safety.interlocks[{each['id']}]", "stands twice; every id is unique")
        interlocks[each["id"]] = Interlock(
            id=each["id"],
            hard=each["hard"],
            description=each["description"],
            watch=each.get("watch", "poll"),
            watch_hz=each.get("watch_hz", _WATCH_HZ),
            max_age_ms=each.get("max_age_ms", _MAX_AGE_MS),
        )
    achieved_by = entry["safe_state"]["achieved_by"]
    if achieved_by != [STOP]:
        raise Invalid("safety.safe_state.achieved_by", f'must be ["{STOP}"], the driver\'s own stop')
    estop = entry["estop"]
    if estop["kind"] in WEAK_STOPS and not entry.get("notes"):
        raise Invalid("safety.notes", f"must say what an e-stop of the kind {estop['kind']} cannot do")
    return Safety(
        estop_kind=estop["kind"],
        latching=estop["latching"],
        latency_ms=estop["latency_ms"],
        interlocks=interlocks,
        safe_state=entry["safe_state"],
        reenable=entry.get("reenable"),
        on_shutdown=entry.get("on_shutdown", "safe_state" if mode in ("hardware", "hybrid") else "leave"),
        notes=entry.get("notes"),
    )


def _bindings(
    source: Mapping[str, Any],
    resources: Mapping[str, Resource],
    safety: Safety,
    classes: Mapping[str, CapabilityClass],
    mode: Mode,
) -> Iterable[Binding]:
    seen: set[tuple[str, str]] = set()
    describe = {"capability_id": DESCRIBE, "resource": next(iter(resources))}
    for entry in [*source["bindings"], describe]:
        key = f"bindings[{entry['capability_id']}]"
        if entry["resource"] not in resources:
            raise Invalid(f"{key}.resource", f"{entry['resource']} is none of {', '.join(resources)}")
        pair = (entry["capability_id"], entry["resource"])
        if entry is not describe and entry["capability_id"] == DESCRIBE:
            raise Invalid(key, "is bound to every device without being written down; leave it out")
        if pair in seen:
            raise Invalid(key, f"is bound to {entry['resource']} twice")
        seen.add(pair)
        yield _binding(entry, key, resources[entry["resource"]], safety, classes, mode)


def _binding(
    entry: Mapping[str, Any],
    key: str,
    resource: Resource,
    safety: Safety,
    classes: Mapping[str, CapabilityClass],
    mode: Mode,
) -> Binding:
    if EFFECTIVE in entry:
        raise Invalid(f"{key}.{EFFECTIVE}", "is added by the endpoint; leave it out of the file")
    capability = classes.get(entry["capability_id"])
    if capability is None or entry["capability_id"].startswith("cap.internal."):
        raise Invalid(
            f"{key}.capability_id",
            "is a class of neither the catalogue nor the driver's capabilities/ directory",
        )
    constraints = {**capability.document.get("constraints", {}), **entry.get("constraints", {})}
    input_schema = _input_schema(entry, key, resource, capability)
    binding = Binding(
        capability_id=entry["capability_id"],
        resource=resource.resource_id,
        input_schema=input_schema,
        limits=_limits(entry.get("limits", {}), input_schema, f"{key}.limits"),
        interlocks=tuple(entry.get("interlocks", ())),
        permit=entry.get("permit", "none"),
        long_running=entry.get("long_running", False),
        max_duration_ms=constraints.get("max_duration_ms"),
        max_rate_per_s=constraints.get("max_rate_per_s"),
        effects=tuple(entry.get("effects", ())),
        simulation_control=entry.get("simulation_control", False),
        input=compile_schema(input_schema),
        capability=capability,
    )
    _check_effects(binding, key)
    for interlock in binding.interlocks:
        if interlock not in safety.interlocks:
            known = ", ".join(safety.interlocks) or "none"
            raise Invalid(f"{key}.interlocks", f"{interlock} is none of safety.interlocks: {known}")
    if binding.actuating and binding.max_duration_ms is None:
        raise Invalid(f"{key}.constraints.max_duration_ms", "is required of a binding that has effects")
    if binding.simulation_control and mode != "simulated":
        raise Invalid(f"{key}.simulation_control", f"is for simulated devices; this backend's mode is {mode}")
    return binding


def _input_schema(
    entry: Mapping[str, Any], key: str, resource: Resource, capability: CapabilityClass
) -> Mapping[str, Any]:
    class_schema: Mapping[str, Any] = capability.document["input_schema"]
    configures = capability.capability_id == CONFIGURE
    settable = writable(resource.state_schema) if configures else {}
    if configures and not settable["properties"]:
        raise Invalid(key, f"nothing in the state_schema of {resource.resource_id} can be written")
    schema: Mapping[str, Any] = entry.get("input_schema", settable if configures else class_schema)
    place = f"{key}.input_schema"
    check_schema(schema, place)
    if schema is not class_schema:
        check_narrower(schema, settable if configures else class_schema, place)
    return schema


def _limits(
    entries: Mapping[str, Mapping[str, Any]], schema: Mapping[str, Any], key: str
) -> dict[str, Limit]:
    fields = schema.get("properties", {})
    for field, entry in entries.items():
        if field not in fields or not types_of(fields[field]) & {"number", "integer"}:
            numbers = [name for name, each in fields.items() if types_of(each) & {"number", "integer"}]
            raise Invalid(f"{key}.{field}", f"limits a number of the input: {', '.join(numbers) or 'none'}")
        unit = fields[field][UNIT]
        if entry["unit"] != unit:
            raise Invalid(f"{key}.{field}.unit", f"is {entry['unit']}; the input has the unit {unit}")
        if "min" in entry and "max" in entry and entry["min"] > entry["max"]:
            raise Invalid(f"{key}.{field}", f"min = {entry['min']} is above max = {entry['max']}")
    return {
        field: Limit(entry.get("min"), entry.get("max"), entry["unit"]) for field, entry in entries.items()
    }


def _check_effects(binding: Binding, key: str) -> None:
    """Every effect is of a kind that the class names; `*` stands for one name between dots."""
    allowed: list[str] = binding.capability.document["effects"]
    for effect in binding.effects:
        names = effect["kind"].split(".")
        if not any(_kind_matches(names, pattern.split(".")) for pattern in allowed):
            kinds = ", ".join(allowed) or "none"
            raise Invalid(f"{key}.effects", f"{effect['kind']} is no effect of the class, which has: {kinds}")


def _kind_matches(names: list[str], pattern: list[str]) -> bool:
    return len(names) == len(pattern) and all(
        part in ("*", name) for name, part in zip(names, pattern, strict=True)
    )


def _streams(
    entries: Iterable[Mapping[str, Any]], resources: Mapping[str, Resource]
) -> Iterable[Mapping[str, Any]]:
    """Each stream with the schema of its payload: of a resource, or what the endpoint itself sends [EVT-005]."""
    seen: set[tuple[str, str | None]] = set()
    for entry in entries:
        stream, named = entry["stream"], entry.get("resource_id")
        key = f"streams[{stream}]"
        if named is not None and named not in resources:
            raise Invalid(f"{key}.resource_id", f"{named} is none of {', '.join(resources)}")
        if stream in PER_RESOURCE and named is None:
            raise Invalid(f"{key}.resource_id", f"is required; one of {', '.join(resources)}")
        if (stream, named) in seen:
            raise Invalid(key, f"stands twice{'' if named is None else f' for {named}'}")
        seen.add((stream, named))
        if stream in PER_RESOURCE:
            assert named is not None  # checked above
            yield {"schema": resources[named].state_schema, **entry}
            continue
        schema = payload_schema(stream)
        if entry.get("schema", schema) != schema:
            raise Invalid(f"{key}.schema", "is the endpoint's own for this stream; leave it out")
        yield {"schema": schema, **entry}
