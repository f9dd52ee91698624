"""What a model is told about a tool: what it physically does, and what holds while it does it [TPT-034, CAP-009].

The words are those of the capability class and of the device's manifest; nothing here paraphrases a driver.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

RISKS: Mapping[str, str] = {
    "R0": "no physical effect",
    "R1": "of R0 to R3",
    "R2": "of R0 to R3",
    "R3": "can injure or destroy",
}

_NOT_HARDWARE: Mapping[str, str] = {
    "simulated": "Simulation only, not hardware.",
    "replay": "A recording, not hardware.",
}
_DEEPEST = 6
_NO_UNIT = "1 (no unit)"


def risk_of(binding: Mapping[str, Any], capability: Mapping[str, Any] | None) -> str:
    """The risk class of a binding: the gravest of its effects; without effects the class's own, or R0."""
    severities = [str(effect.get("severity", "R3")) for effect in binding.get("effects") or []]
    if severities:
        return max(severities)
    return str((capability or {}).get("risk_class", "R0"))


def title_of(
    manifest: Mapping[str, Any], binding: Mapping[str, Any], capability: Mapping[str, Any] | None
) -> str:
    """A short name for people, as `Convey - Conveyor workcell`."""
    verb = (capability or {}).get("title") or binding["capability_id"]
    return f"{verb} - {name_of(manifest)}"


def name_of(manifest: Mapping[str, Any]) -> str:
    """What people call the device."""
    profile = manifest.get("profile")
    title = profile.get("title") if isinstance(profile, Mapping) else None
    return str(title or manifest.get("display_name") or manifest["device_id"])


def description_of(
    manifest: Mapping[str, Any], binding: Mapping[str, Any], capability: Mapping[str, Any] | None
) -> str:
    """The tool's description; what matters most stands first, because some hosts cut long ones."""
    risk = risk_of(binding, capability)
    parts = [
        _summary(binding, capability),
        f"Acts on {binding.get('resource')} of {name_of(manifest)}.",
        f"Mode: {manifest.get('mode')}.",
        f"Risk: {risk} ({RISKS.get(risk, 'see the manifest')}).",
        f"Determinism: {_fidelity(manifest).get('determinism', 'not stated')}.",
        f"Units: {_listed([*_units(binding), *_answered_units(capability)], 'none')}.",
        *_what_holds(manifest, binding),
        *_effects(binding),
        f"Safe state: {_safe_state(manifest)}",
        f"Fidelity gaps: {_listed(_fidelity(manifest).get('gaps') or [], 'none declared')}.",
        _NOT_HARDWARE.get(str(manifest.get("mode")), ""),
    ]
    return " ".join(part for part in parts if part)


def _summary(binding: Mapping[str, Any], capability: Mapping[str, Any] | None) -> str:
    if capability is not None:
        return f"{_sentence(capability.get('summary', ''))} {_sentence(capability.get('description', ''))}".strip()
    effects = [str(effect.get("summary") or effect.get("kind")) for effect in binding.get("effects") or []]
    return _sentence(f"{binding['capability_id']}: {_listed(effects, 'has no physical effect')}")


def _what_holds(manifest: Mapping[str, Any], binding: Mapping[str, Any]) -> Iterator[str]:
    """Limits, interlocks, permit and duration, each where there is one."""
    limits = [_limit(field, limit) for field, limit in limits_of(binding).items()]
    if limits:
        yield f"Limits, enforced: {'; '.join(limits)}."
    known = {entry.get("id"): entry for entry in _safety(manifest).get("interlocks") or []}
    for interlock in binding.get("interlocks") or []:
        meaning = str(known.get(interlock, {}).get("description", "")).rstrip(".")
        yield f"Interlock: {interlock} must be closed{f' ({meaning})' if meaning else ''}."
    if binding.get("permit") == "required":
        yield "Permit: needs a permit_id from an operator for exactly this input."
    constraints = _object(binding.get("constraints"))
    if binding.get("long_running"):
        yield "Takes long: may answer a running receipt, which mhs__operations follows."
    if "max_duration_ms" in constraints:
        yield f"Ended to the safe state after {constraints['max_duration_ms']} ms."
    if "max_rate_per_s" in constraints:
        yield f"At most {constraints['max_rate_per_s']} times a second."
    if binding.get("simulation_control"):
        yield "Controls the simulation itself and no part of the device."


def limits_of(binding: Mapping[str, Any]) -> Mapping[str, Any]:
    """The limits that hold, with the site's where it has narrowed them."""
    return _object(binding.get("x-mhs-effective-limits") or binding.get("limits"))


def _limit(field: str, limit: Mapping[str, Any]) -> str:
    lowest, highest, unit = limit.get("min"), limit.get("max"), limit.get("unit", "")
    if lowest is None:
        words = f"at most {highest}"
    elif highest is None:
        words = f"at least {lowest}"
    else:
        words = f"{lowest} to {highest}"
    return f"{field} {words} {unit}".rstrip()


def _effects(binding: Mapping[str, Any]) -> Iterator[str]:
    for effect in binding.get("effects") or []:
        what = str(effect.get("summary") or effect.get("kind")).rstrip(".")
        if effect.get("reversible"):
            yield f"Effect: {what} (can be undone)."
        else:
            reason = str(effect.get("irreversible_reason", "")).rstrip(".")
            yield f"Effect: {what} (cannot be undone{f': {reason}' if reason else ''})."


def _units(binding: Mapping[str, Any]) -> list[str]:
    """`speed_mm_s in mm/s` for each number of the input that has a unit."""
    return [f"{name} in {unit}" for name, unit in _united(_object(binding.get("input_schema")), "", _DEEPEST)]


def _answered_units(capability: Mapping[str, Any] | None) -> list[str]:
    """`position_mm in mm (output)` for each number of the output that has one."""
    schema = _object((capability or {}).get("output_schema"))
    return [f"{name} in {unit} (output)" for name, unit in _united(schema, "", _DEEPEST) if unit != _NO_UNIT]


def _united(schema: Mapping[str, Any], name: str, depth: int) -> Iterator[tuple[str, str]]:
    unit = schema.get("x-mhs-unit")
    if unit is not None:
        yield name or "input", _NO_UNIT if unit == "1" else str(unit)
    if depth == 0:
        return
    for member, part in _object(schema.get("properties")).items():
        yield from _united(_object(part), f"{name}.{member}" if name else str(member), depth - 1)
    yield from _united(_object(schema.get("items")), f"{name}[]", depth - 1)


def _safe_state(manifest: Mapping[str, Any]) -> str:
    return _sentence(str(_object(_safety(manifest).get("safe_state")).get("description", "not declared")))


def _safety(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    return _object(manifest.get("safety"))


def _fidelity(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    return _object(manifest.get("fidelity"))


def _listed(words: Sequence[Any], none: str) -> str:
    return "; ".join(str(word).rstrip(".") for word in words) or none


def _sentence(text: str) -> str:
    stripped = text.strip()
    return stripped if not stripped or stripped[-1] in ".!?" else f"{stripped}."


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def reference_of(manifest: Mapping[str, Any], tools: Mapping[tuple[str, str], str]) -> str:
    """The device's reference for people and models, in Markdown: what it is and what each tool does.

    `tools` names the tool of each (capability, resource); a binding without one is named by its capability.
    """
    lines = [
        f"# {name_of(manifest)}",
        "",
        f"Device {manifest['device_id']}, mode {manifest.get('mode')}, risk {manifest.get('risk_class')}.",
        f"Safe state: {_safe_state(manifest)}",
        f"Fidelity gaps: {_listed(_fidelity(manifest).get('gaps') or [], 'none declared')}.",
        "",
        "## What can be read",
        "",
    ]
    lines += [_readable(resource) for resource in manifest.get("resources") or []]
    lines += ["", "## What can be commanded", ""]
    for binding in manifest.get("bindings") or []:
        name = tools.get((binding["capability_id"], binding["resource"]), "no tool here")
        says = " ".join([f"Units: {_listed(_units(binding), 'none')}.", *_what_holds(manifest, binding)])
        effects = " ".join(_effects(binding)) or "No physical effect."
        lines.append(f"- `{binding['capability_id']}` on {binding['resource']} ({name}). {effects} {says}")
    return "\n".join(lines)


def _readable(resource: Mapping[str, Any]) -> str:
    fields = []
    for name, field in _object(_object(resource.get("state_schema")).get("properties")).items():
        unit = _object(field).get("x-mhs-unit")
        fields.append(f"{name} in {unit}" if unit not in (None, "1") else str(name))
    return f"- `{resource.get('resource_id')}`: {', '.join(fields) or 'nothing declared'}"
