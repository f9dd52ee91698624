"""What a tool answers: receipts, documents and errors as MCP results [TPT-037, TPT-038, TPT-039].

The first text block is complete, because many hosts show a model nothing else; `structuredContent` says the
same for programs. It is given in every revision: clients of those that do not know it ignore it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from mhsd.base.errors import Fault
from mhsd.wire.json_text import encode

_NOT_FINAL = frozenset({"accepted", "running"})


@attrs.frozen
class Asked:
    """What is known of a command beside its receipt."""

    long_running: bool
    deadline_ms: int
    max_duration_ms: int | None = None


def receipt_result(receipt: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    """A command's result: its receipt, whatever the status, is an outcome and no error [TPT-038].

    The first text block is the receipt's JSON and nothing else, so that any reader can parse it; the second is a
    line for people.
    """
    structured: dict[str, Any] = {"receipt": receipt, "mhs_error": None}
    operation = operation_of(receipt, asked)
    if operation is not None:
        structured["operation"] = operation
    return _result(structured, json_line(receipt), summary_of(receipt))


def safety_result(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """The result of mhs__estop and mhs__reset; its text is the same document as JSON."""
    return document_result({"receipt": receipt, "mhs_error": None})


def document_result(document: Mapping[str, Any]) -> dict[str, Any]:
    """A fixed tool's result: the document itself, as text and structured."""
    return _result(document, json_line(document))


def fault_result(fault: Fault) -> dict[str, Any]:
    """The result of a refusal by the projection itself."""
    return error_result(fault.message, fault.data())


def error_result(message: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """The result where no receipt exists; `data` is that of the MHS error [TPT-039].

    The text starts with the mhs_code. What is wrong with an input is all that its text says.
    """
    code = data["mhs_code"]
    text = f"{code}: {message}"
    if code != "MHS.CAPABILITY.INPUT_INVALID":
        advice = [
            data.get("remediation"),
            "The same call may be repeated." if data.get("retryable") else None,
        ]
        text = "\n".join([text, " ".join(sentence for sentence in advice if sentence)]).rstrip()
    return _result({"receipt": None, "mhs_error": data}, text, is_error=True)


def input_invalid(errors: Sequence[Mapping[str, str]]) -> Fault:
    """The refusal of arguments; its message is the reason of every field that is wrong [TPT-038]."""
    reasons = "; ".join(f"{error['path'].lstrip('/') or 'input'}: {error['message']}" for error in errors)
    return Fault(
        "MHS.CAPABILITY.INPUT_INVALID", reasons, details={"errors": [dict(error) for error in errors]}
    )


def operation_of(receipt: Mapping[str, Any], asked: Asked) -> dict[str, Any] | None:
    """`structuredContent.operation` of a receipt that has an operation id [TPT-038]."""
    operation_id = receipt.get("operation_id")
    if operation_id is None:
        return None
    operation = {
        "operation_id": operation_id,
        "status": receipt.get("status"),
        "long_running": asked.long_running,
        "deadline_ms": asked.deadline_ms,
    }
    if asked.max_duration_ms is not None:
        operation["max_duration_ms"] = asked.max_duration_ms
    unknown = _unknown_receipt_id(receipt)
    if unknown is not None:
        operation["unknown_receipt_id"] = unknown
    return operation


def _unknown_receipt_id(receipt: Mapping[str, Any]) -> Any:
    """The receipt that said `unknown`: this one, or the one that this one reconciles."""
    if receipt.get("status") == "unknown":
        return receipt.get("receipt_id")
    vendor = receipt.get("x-vendor")
    return vendor.get("reconciles") if isinstance(vendor, Mapping) else None


def summary_of(receipt: Mapping[str, Any]) -> str:
    """The receipt in one line for a person; without braces, for readers that join the text blocks."""
    status = str(receipt.get("status"))
    parts = [f"{status}: {receipt.get('capability_id')} on {receipt.get('device_id')}"]
    error = receipt.get("error")
    if isinstance(error, Mapping):
        parts.append(f"{error.get('mhs_code')}: {error.get('message')}")
    before, after = receipt.get("state_revision_before"), receipt.get("state_revision_after")
    if after is not None:
        parts.append(f"revision {after}" if before == after else f"revision {before} to {after}")
    cancellation = receipt.get("cancellation")
    if isinstance(cancellation, Mapping):
        reached = "was reached" if cancellation.get("safe_state_achieved") else "is not confirmed"
        parts.append(f"the safe state {reached}")
    if receipt.get("replayed"):
        parts.append("answered again, nothing was done a second time")
    if status in _NOT_FINAL:
        parts.append(
            f"still going on; follow it with mhs__operations, operation_id {receipt.get('operation_id')}"
        )
    if status == "unknown":
        parts.append("what happened is not known; read the state before anything else")
    return " ".join("; ".join(parts).translate(_PLAIN).split())


def json_line(document: Any) -> str:
    """The document as one line of JSON, for readers that break lines at more than a line feed too."""
    text = encode(document).decode()
    for character, escape in _LINE_BREAKS.items():
        text = text.replace(character, escape)
    return text


_PLAIN = str.maketrans({"{": "(", "}": ")"})
_LINE_BREAKS = {"\u0085": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def _result(structured: Mapping[str, Any], *texts: str, is_error: bool = False) -> dict[str, Any]:
    return {
        "content": [{"type": "text", "text": text} for text in texts],
        "structuredContent": structured,
        "isError": is_error,
    }
