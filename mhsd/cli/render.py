"""Receipts and readings as a person reads them."""

from collections.abc import Mapping
from typing import Any

from mhsd.cli.advice import advice
from mhsd.cli.terminal import Paint, plain, table, value
from mhsd.client.naming import path_of

_ROLES = {"completed": "good", "running": "warn", "accepted": "warn", "unknown": "bad"}


def receipt_lines(receipt: Mapping[str, Any], paint: Paint) -> list[str]:
    """A receipt: its status first, then why or what came of it."""
    status = value(receipt.get("status"))
    where = plain(path_of(str(receipt.get("device_id"))))
    resources = receipt.get("resource_ids")
    resource = f" ({', '.join(map(value, resources))})" if resources else ""
    head = paint(_ROLES.get(status, "bad"), status.upper())
    lines = [f"{head}  {value(receipt.get('capability_id'))} on {where}{resource}"]
    rows = [*_error(receipt), *_outcome(receipt), *_record(receipt)]
    return [*lines, *table(rows, indent="  ")]


def _error(receipt: Mapping[str, Any]) -> list[list[str]]:
    error = receipt.get("error")
    if not isinstance(error, dict):
        return []
    rows = [["reason", value(error.get("message"))], ["", value(error.get("mhs_code"))]]
    if error.get("native_code") is not None:
        rows.append(["native code", value(error["native_code"])])
    details = error.get("details")
    if isinstance(details, dict):
        rows += [["", f"{plain(name)}: {value(content)}"] for name, content in details.items()]
    for interlock in error.get("interlocks") or []:
        rows.append(["interlock", f"{value(interlock.get('id'))} {value(interlock.get('state'))}"])
    if error.get("remediation"):
        rows.append(["what to do", advice(error["remediation"], details)])
    return rows


def _outcome(receipt: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    output = receipt.get("output")
    if isinstance(output, dict):
        for index, (name, content) in enumerate(output.items()):
            rows.append(["output" if index == 0 else "", f"{plain(name)}: {value(content)}"])
    for effect in receipt.get("effects") or []:
        reversible = "" if effect.get("reversible") else ", cannot be undone"
        summary = value(effect.get("summary") or effect.get("kind"))
        rows.append(["effect", f"{summary} ({value(effect.get('severity', '?'))}{reversible})"])
    progress = receipt.get("progress")
    if isinstance(progress, dict) and receipt.get("status") in ("running", "accepted"):
        rows.append(["progress", progress_text(progress)])
    cancellation = receipt.get("cancellation")
    if isinstance(cancellation, dict):
        reached = "reached" if cancellation.get("safe_state_achieved") else "NOT confirmed"
        rows.append(["cancelled by", value(cancellation.get("requested_by", "?"))])
        rows.append(["safe state", reached])
    return rows


def _record(receipt: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    before, after = receipt.get("state_revision_before"), receipt.get("state_revision_after")
    if after is not None:
        rows.append(
            ["revision", f"{value(after)}" if before == after else f"{value(before)} → {value(after)}"]
        )
    if receipt.get("replayed"):
        rows.append(["replayed", "yes: this command_id had already run, nothing was done again"])
    rows.append(["command", value(receipt.get("command_id"))])
    if receipt.get("operation_id") and receipt.get("status") != "completed":
        rows.append(["operation", value(receipt["operation_id"])])
    evidence = receipt.get("evidence")
    seq = f"  (evidence {value(evidence['seq'])})" if isinstance(evidence, dict) and "seq" in evidence else ""
    rows.append(["receipt", f"{value(receipt.get('receipt_id'))}{seq}"])
    return rows


def progress_text(progress: Mapping[str, Any]) -> str:
    """How far an operation is, as `42 %, 1200 ticks, moving`."""
    parts = []
    if isinstance(progress.get("percent"), int | float):
        parts.append(f"{progress['percent']:.0f} %")
    if progress.get("ticks") is not None:
        parts.append(f"{value(progress['ticks'])} ticks")
    if progress.get("message"):
        parts.append(value(progress["message"]))
    return ", ".join(parts) or "running"


def reading_lines(reading: Mapping[str, Any], units: Mapping[str, str]) -> list[str]:
    """A resource's state, one field a line with its unit, then when it was sampled."""
    state = reading.get("state")
    fields = state.items() if isinstance(state, dict) else []
    rows = [[plain(name), f"{value(content)} {units.get(name, '')}".rstrip()] for name, content in fields]
    rows.append(["revision", value(reading.get("revision"))])
    rows.append(["sampled at", value(reading.get("sampled_at"))])
    return table(rows)


def unit_text(unit: Any) -> str:
    """A UCUM unit as a person writes it: `{tick}` is tick, `Cel` is °C, and the unit 1 is none."""
    text = value(unit)
    return _UNITS.get(text, text.replace("{", "").replace("}", ""))


_UNITS = {"1": "", "Cel": "°C", "deg": "°", "Ohm": "Ω"}


def units_of(resource: Mapping[str, Any] | None) -> dict[str, str]:
    """Field → unit (UCUM) of a resource's state, from its state_schema."""
    schema = resource.get("state_schema") if resource else None
    properties = schema.get("properties") if isinstance(schema, dict) else None
    fields = properties.items() if isinstance(properties, dict) else []
    return {
        name: unit_text(field["x-mhs-unit"])
        for name, field in fields
        if isinstance(field, dict) and "x-mhs-unit" in field
    }
