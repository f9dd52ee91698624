"""E-stops and safety status as a person reads them: per device what was confirmed, and no more."""

from collections.abc import Mapping
from typing import Any

from mhsd.cli.advice import advice
from mhsd.cli.terminal import Paint, plain, table, value
from mhsd.client.naming import path_of

_DURABLE = {"True": ", kept over a restart", "False": ", not kept over a restart"}


def stop_lines(receipts: list[Mapping[str, Any]], paint: Paint) -> list[str]:
    """One entry for each device of a stop: stopped, or what is not confirmed [SAFE-002]."""
    lines: list[str] = []
    for receipt in receipts:
        output = _object(receipt.get("output"))
        confirmed = receipt.get("status") == "completed"
        head = paint("good", "STOPPED") if confirmed else paint("bad", "NOT CONFIRMED")
        name = plain(path_of(str(receipt.get("device_id"))))
        lines.append(f"{head}  {paint('bold', name)}")
        lines += [f"  {line}" for line in _stop_facts(receipt, output)]
    return lines


def _stop_facts(receipt: Mapping[str, Any], output: Mapping[str, Any]) -> list[str]:
    facts = []
    error = _object(receipt.get("error"))
    if error:
        facts.append(f"{value(error.get('mhs_code'))}: {value(error.get('message'))}")
        facts.append(advice(error.get("remediation") or "Use the instrument's own emergency stop."))
    if "latched" in output:
        durable = _DURABLE.get(str(output.get("latch_durable")), "")
        latched = f"latched{durable}" if output["latched"] else "not latched"
        facts.append(f"e-stop {value(output.get('estop', 'engaged'))}, {latched}")
    if "safe_state_achieved" in output:
        reached = "reached" if output["safe_state_achieved"] else "NOT reached"
        facts.append(f"safe state {reached}{_safe_state(output.get('safe_state'))}{_after(output)}")
    cancelled = output.get("operations") or output.get("cancelled_operations")
    if cancelled:
        facts.append(f"operations ended: {', '.join(_operation(entry) for entry in cancelled)}")
    return facts


def _safe_state(declared: Any) -> str:
    description = declared.get("description") if isinstance(declared, dict) else declared
    return f" ({value(description)})" if isinstance(description, str) and description else ""


def _after(output: Mapping[str, Any]) -> str:
    latency_ms = output.get("latency_ms")
    return f" after {latency_ms:g} ms" if isinstance(latency_ms, int | float) else ""


def _operation(entry: Any) -> str:
    if not isinstance(entry, dict):
        return value(entry)
    return f"{value(entry.get('operation_id'))} {value(entry.get('state'))}"


def status_lines(entries: list[Mapping[str, Any]], paint: Paint) -> list[str]:
    """A table with one device a line, then what each one's safe state and permits are."""
    rows = [_status_row(entry, paint) for entry in entries]
    lines = table(rows, ("DEVICE", "MODE", "RISK", "E-STOP", "INTERLOCKS"))
    for entry in entries:
        details = _status_details(entry)
        if details:
            lines.append("")
            lines.append(paint("bold", plain(path_of(str(entry["device_id"])))))
            lines += [f"  {detail}" for detail in details]
    return lines


def _status_row(entry: Mapping[str, Any], paint: Paint) -> list[str]:
    name = plain(path_of(str(entry["device_id"])))
    mode = value(entry.get("mode", "?"))
    failure = _object(entry.get("error"))
    if failure:
        return [name, mode, "?", paint("bad", "NOT KNOWN"), value(failure.get("mhs_code"))]
    estop = _object(entry.get("estop"))
    engaged = paint("bad", "ENGAGED") if estop.get("engaged") else paint("good", "released")
    interlocks = [_interlock(interlock, paint) for interlock in entry.get("interlocks") or []]
    return [name, mode, value(entry.get("risk_class", "?")), engaged, ", ".join(interlocks) or "none"]


def _interlock(interlock: Mapping[str, Any], paint: Paint) -> str:
    state = value(interlock.get("state", "?"))
    text = f"{value(interlock.get('id', '?'))} {state}"
    return paint("good" if state == "closed" else "bad", text)


def _status_details(entry: Mapping[str, Any]) -> list[str]:
    failure = _object(entry.get("error"))
    if failure:
        return [value(failure.get("message")), advice(failure.get("remediation") or "")]
    details = []
    if entry.get("available") is False:
        details.append("not available: it takes no commands until an operator has looked at it")
    safe_state = _object(entry.get("safe_state"))
    if safe_state.get("description"):
        details.append(f"safe state  {value(safe_state['description'])}")
    for interlock in entry.get("interlocks") or []:
        if interlock.get("description"):
            details.append(f"interlock   {value(interlock.get('id'))}: {value(interlock['description'])}")
    for permit in entry.get("permits") or []:
        details.append(
            f"permit      {value(permit.get('permit_id'))} for {value(permit.get('capability_id'))}"
            f" until {value(permit.get('expires_at'))}"
        )
    return details


def _object(content: Any) -> Mapping[str, Any]:
    return content if isinstance(content, dict) else {}
