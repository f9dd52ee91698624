"""Devices as a person reads them: one line each, or everything that matters before using one."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from mhsd.cli.render import unit_text, units_of
from mhsd.cli.terminal import Paint, plain, table, value
from mhsd.client.naming import path_of

_TEXT_WIDTH = 63
"""So that a line fits beside its label into 80 columns."""


def device_table(devices: Sequence[Mapping[str, Any]]) -> list[str]:
    """One device a line."""
    rows = [
        [
            plain(path_of(str(device["device_id"]))),
            value(device.get("mode", "?")),
            value(device.get("risk_class", "?")),
            value(device.get("display_name", "")),
        ]
        for device in devices
    ]
    return table(rows, ("DEVICE", "MODE", "RISK", "NAME"))


def trust_of(hello: Mapping[str, Any], device_id: str) -> dict[str, Any]:
    """What may be believed of a device: `{certified, conformance[], notice}`, from hello's own claims.

    A claim that names another device is left out; one that names none is the endpoint's for all.
    """
    safety = hello.get("safety")
    safety = safety if isinstance(safety, dict) else {}
    certified = safety.get("certified") is True and "MHS.SAFETY.NOT_CERTIFIED" not in hello.get(
        "features", []
    )
    claims = [
        claim
        for claim in hello.get("conformance") or []
        if isinstance(claim, dict) and claim.get("device_id", device_id) == device_id
    ]
    return {"certified": certified, "conformance": claims, "notice": safety.get("notice")}


def trust_text(trust: Mapping[str, Any]) -> str:
    """Trust in one line, as `not certified; not conformance tested`."""
    certified = "certified by its endpoint's own word" if trust["certified"] else "not certified"
    claims = [
        f"claims {value(claim.get('level', '?'))} of {value(claim.get('profile', '?'))}"
        for claim in trust["conformance"]
    ]
    return f"{certified}; {', '.join(claims) or 'not conformance tested'}"


def device_lines(manifest: Mapping[str, Any], trust: Mapping[str, Any], paint: Paint) -> list[str]:
    """The whole device: mode, risk, trust, safety, state, verbs with limits and units, gaps and facts."""
    title = plain(path_of(str(manifest["device_id"])))
    lines = [f"{paint('bold', title)}  {value(manifest.get('display_name', ''))}"]
    lines += table([*_identity(manifest, trust), *_safety(manifest)], indent="  ")
    lines += _section("resources", _resources(manifest), paint)
    lines += _section("verbs", _verbs(manifest), paint)
    lines += _section("facts", _facts(manifest), paint)
    return lines


def _section(title: str, body: list[str], paint: Paint) -> list[str]:
    return [f"  {paint('bold', title)}", *body] if body else []


def _identity(manifest: Mapping[str, Any], trust: Mapping[str, Any]) -> list[list[str]]:
    fidelity = _object(manifest.get("fidelity"))
    gaps = fidelity.get("gaps") or []
    rows = [
        ["mode", value(manifest.get("mode", "?"))],
        ["risk class", value(manifest.get("risk_class", "?"))],
        ["trust", trust_text(trust)],
        ["determinism", value(fidelity.get("determinism", "not stated"))],
    ]
    for index, gap in enumerate(gaps):
        rows += _wrapped("fidelity gap" if index == 0 else "", gap)
    return rows if gaps else [*rows, ["fidelity gaps", "none declared"]]


def _safety(manifest: Mapping[str, Any]) -> list[list[str]]:
    safety = _object(manifest.get("safety"))
    estop = _object(safety.get("estop"))
    latching = "latching" if estop.get("latching") else "not latching"
    within = f", within {value(estop['latency_ms'])} ms" if "latency_ms" in estop else ""
    rows = [["e-stop", f"{value(estop.get('kind', '?'))}, {latching}{within}"]]
    rows += _wrapped("safe state", _object(safety.get("safe_state")).get("description", "not declared"))
    for interlock in safety.get("interlocks") or []:
        hard = "hard" if interlock.get("hard") else "soft"
        text = f"{value(interlock.get('id'))} ({hard}): {value(interlock.get('description', ''))}"
        rows += _wrapped("interlock", text)
    if not safety.get("interlocks"):
        rows.append(["interlocks", "none"])
    notes = safety.get("notes") or []
    for note in [notes] if isinstance(notes, str) else notes:
        rows += _wrapped("note", note)
    return rows


def _wrapped(label: str, text: Any) -> list[list[str]]:
    """One row for each line of a text that may be long."""
    lines = textwrap.wrap(value(text), _TEXT_WIDTH) or [""]
    return [[label if index == 0 else "", line] for index, line in enumerate(lines)]


def _resources(manifest: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for resource in manifest.get("resources") or []:
        lines.append(f"    {value(resource.get('resource_id'))}  {value(resource.get('kind', ''))}".rstrip())
        units = units_of(resource)
        properties = _object(_object(resource.get("state_schema")).get("properties"))
        rows = [
            [plain(name), _kind(_object(field)), _bounds(_object(field), units.get(name, "")), _access(field)]
            for name, field in properties.items()
        ]
        lines += table(rows, indent="      ")
    return lines


def _verbs(manifest: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for binding in manifest.get("bindings") or []:
        marks = _marks(binding)
        tail = f"  [{', '.join(marks)}]" if marks else ""
        lines.append(f"    {value(binding.get('capability_id'))}  on {value(binding.get('resource'))}{tail}")
        lines += table(_input_rows(binding), indent="      ")
        for effect in binding.get("effects") or []:
            undo = "can be undone" if effect.get("reversible") else "cannot be undone"
            lines.append(f"      effect  {value(effect.get('summary') or effect.get('kind'))} ({undo})")
    return lines


def _marks(binding: Mapping[str, Any]) -> list[str]:
    marks = []
    if binding.get("permit") == "required":
        marks.append("needs a permit")
    if binding.get("long_running"):
        marks.append("takes long")
    marks += [f"needs {value(interlock)}" for interlock in binding.get("interlocks") or []]
    constraints = _object(binding.get("constraints"))
    if "max_duration_ms" in constraints:
        marks.append(f"at most {value(constraints['max_duration_ms'])} ms")
    if "max_rate_per_s" in constraints:
        marks.append(f"at most {value(constraints['max_rate_per_s'])}/s")
    return marks


def _input_rows(binding: Mapping[str, Any]) -> list[list[str]]:
    schema = _object(binding.get("input_schema"))
    limits = _object(binding.get("x-mhs-effective-limits") or binding.get("limits"))
    required = schema.get("required") or []
    rows = []
    for name, field in _object(schema.get("properties")).items():
        unit = unit_text(_object(field).get("x-mhs-unit", ""))
        limit = _object(limits.get(name))
        limited = f"limit {_range(limit.get('min'), limit.get('max'), unit_text(limit.get('unit', unit)))}"
        if "site" in (limit.get("min_source"), limit.get("max_source")):
            limited += " (set by the site)"
        rows.append(
            [
                plain(name) + ("" if name in required else " (optional)"),
                _kind(_object(field)),
                _bounds(_object(field), unit),
                limited if limit else "",
            ]
        )
    return rows


def _kind(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return " | ".join(value(choice) for choice in field["enum"])
    kind = field.get("type", "any")
    return " or ".join(map(value, kind)) if isinstance(kind, list) else value(kind)


def _bounds(field: Mapping[str, Any], unit: str) -> str:
    lowest, highest = field.get("minimum"), field.get("maximum")
    return unit if lowest is None and highest is None else _range(lowest, highest, unit)


def _range(lowest: Any, highest: Any, unit: str) -> str:
    if lowest is None:
        return f"up to {value(highest)} {unit}".rstrip()
    if highest is None:
        return f"from {value(lowest)} {unit}".rstrip()
    return f"{value(lowest)} to {value(highest)} {unit}".rstrip()


def _access(field: Any) -> str:
    return "read only" if _object(field).get("readOnly") else "writable"


def _facts(manifest: Mapping[str, Any]) -> list[str]:
    facts = manifest.get("facts")
    if isinstance(facts, dict):
        return table([[plain(name), value(content)] for name, content in facts.items()], indent="    ")
    return [f"    {value(fact)}" for fact in facts] if isinstance(facts, list) else []


def _object(content: Any) -> Mapping[str, Any]:
    return content if isinstance(content, dict) else {}
