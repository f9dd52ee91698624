"""`evidence`: exports the receipts as one bundle, and checks a bundle by its own computation."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from mhsd.cli import exits
from mhsd.cli.boundary import UsageProblem
from mhsd.cli.command import DeviceOption, client_command
from mhsd.cli.inputs import json_object
from mhsd.cli.link import Link
from mhsd.cli.targets import devices_of, named, path_of
from mhsd.cli.terminal import Paint, emit, plain, say, table, value
from mhsd.client.client import Client
from mhsd.client.errors import error

_SHOWN = 20
"""How many receipts the table for a person has; all of them are in the bundle."""

Bundle = dict[str, Any]


@client_command
def evidence(
    link: Link,
    verify: Annotated[
        bool, typer.Option("--verify", help="check the chain and every receipt here, not by the endpoint")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="write the bundle to this file")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="BUNDLE", help="a stored bundle in place of the endpoint's"),
    ] = None,
    device: DeviceOption = None,
    session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="only the receipts of this session")
    ] = None,
) -> int:
    """The evidence bundle, or with --verify the report on it; 1 when it is not valid."""
    if file is not None:
        bundle = json_object(f"@{file}", "--file")
        verify = verify or output is None
    else:
        with link.client() as client:
            bundle = export(client, device, session)
    report = verified(bundle) if verify else None
    if output is not None:
        _write(output, bundle)
    if link.json:
        emit(_document(bundle, report, output))
    else:
        say(_lines(bundle, report, output))
    return exits.OK if report is None or report["valid"] else exits.FAILED


def export(client: Client, device: str | None, session: str | None) -> Bundle:
    """All pages as one bundle [EVID-001]; `device` and `session` make it a selection."""
    selection: dict[str, Any] = {}
    if device is not None:
        selection["device_id"] = named(devices_of(client.hello()), device)["device_id"]
    if session is not None:
        selection["session_id"] = session
    bundle = client.call("mhs.evidence.export", selection)
    receipts = list(bundle.get("receipts") or [])
    last = bundle
    while last.get("truncation"):
        since = last["truncation"].get("next_since_receipt")
        last = client.call("mhs.evidence.export", {**selection, "since_receipt": since})
        page = last.get("receipts") or []
        if not page:
            raise error("MHS.PROTOCOL.INVALID_REQUEST", "the endpoint's next page of evidence is empty")
        receipts += page
    # Created and headed as the last page says, which is the newest.
    return {**bundle, **{name: last.get(name) for name in ("created_at", "head_digest")}} | {
        "receipts": receipts,
        "truncation": None,
    }


def verified(bundle: Mapping[str, Any]) -> dict[str, Any]:
    """The report of this program's own check [EVID-003, EVID-004]."""
    from mhsd.base.resources import schema_document
    from mhsd.core.chain import verify_bundle
    from mhsd.wire.schema import compile_schema

    receipt = compile_schema(schema_document("receipt"), resolve=schema_document)
    return dict(
        verify_bundle(
            bundle, lambda body: [f"{each['path']} {each['message']}" for each in receipt.errors(body)]
        )
    )


def _write(path: Path, bundle: Bundle) -> None:
    """Writes the file whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(json.dumps(bundle, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as problem:
        partial.unlink(missing_ok=True)
        raise UsageProblem(f"{path} cannot be written: {problem.strerror}") from None


def _document(bundle: Bundle, report: dict[str, Any] | None, output: Path | None) -> Any:
    if output is not None:
        return {
            "file": str(output),
            "receipts": len(bundle["receipts"]),
            "head_digest": bundle.get("head_digest"),
            "report": report,
        }
    return bundle if report is None else report


def _lines(bundle: Bundle, report: dict[str, Any] | None, output: Path | None) -> list[str]:
    receipts = bundle.get("receipts")
    receipts = [each for each in receipts if isinstance(each, dict)] if isinstance(receipts, list) else []
    lines = [] if report is not None else _receipt_table(receipts)
    lines += table(
        [
            ["receipts", str(len(receipts))],
            ["head digest", value(bundle.get("head_digest"))],
            *([["written to", str(output)]] if output is not None else []),
        ]
    )
    return lines if report is None else [*lines, *_report_lines(report)]


def _receipt_table(receipts: list[Any]) -> list[str]:
    rows = [
        [
            value((receipt.get("evidence") or {}).get("seq")),
            value(receipt.get("accepted_at")),
            value(receipt.get("status")),
            value(receipt.get("capability_id")),
            plain(path_of(str(receipt.get("device_id")))),
        ]
        for receipt in receipts[-_SHOWN:]
    ]
    lines = table(rows, ("SEQ", "ACCEPTED AT", "STATUS", "CAPABILITY", "DEVICE")) if rows else []
    if len(receipts) > _SHOWN:
        lines.insert(0, f"the last {_SHOWN} of {len(receipts)}; -o FILE or --json has them all")
    return [*lines, ""] if lines else []


def _report_lines(report: Mapping[str, Any]) -> list[str]:
    paint = Paint(sys.stdout)
    head = paint("good", "VALID") if report["valid"] else paint("bad", "NOT VALID")
    lines = [f"{head}  {report.get('checked')} receipts checked"]
    if report.get("contiguous") is False:
        lines.append("a selection: each receipt was checked, the chain between them cannot be")
    elif report.get("from_seq") not in (None, 1):
        lines.append(f"begins at receipt {report['from_seq']} of the chain")
    for problem in report.get("errors") or []:
        lines.append(
            f"  seq {value(problem.get('seq'))}: {value(problem.get('mhs_code'))} {value(problem.get('detail'))}"
        )
    return lines
