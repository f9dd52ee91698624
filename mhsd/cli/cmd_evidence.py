"""`evidence`: exports the receipts as one bundle, and checks a bundle by its own computation."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import attrs
import typer

from mhsd.cli import exits
from mhsd.cli.boundary import UsageProblem
from mhsd.cli.command import DeviceOption, client_command
from mhsd.cli.inputs import NoDocument, json_file, output_file
from mhsd.cli.link import Link
from mhsd.cli.progress import Progress
from mhsd.cli.targets import named
from mhsd.cli.terminal import Paint, emit, plain, say, table, value
from mhsd.client.client import Client
from mhsd.client.evidence import NEWEST, exported_pages
from mhsd.client.ledger import LedgerCheck
from mhsd.client.naming import devices_of, path_of

_SHOWN = 20
"""How many receipts the table for a person has; all of them are in the bundle."""

if TYPE_CHECKING:
    from mhsd.core.chain import BundleCheck

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
    public_key: Annotated[
        str | None,
        typer.Option(
            "--public-key",
            metavar="KEY",
            help="with --verify: all must be signed by this key, as the endpoint's descriptor once showed it",
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option("--ledger", metavar="FILE", help="check the ledger of a code file against the evidence"),
    ] = None,
    device: DeviceOption = None,
    session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="only the receipts of this session")
    ] = None,
) -> int:
    """The evidence bundle, or with --verify the report on it; 1 when it is not valid."""
    verify = verify or ledger is not None or (file is not None and output is None)
    kept, no_ledger = (None, None) if ledger is None else _stored(ledger, "a ledger")
    no_bundle = None
    if file is not None:
        bundle, no_bundle = _stored(file, "an evidence bundle")
        if no_bundle is not None and not verify:
            raise UsageProblem(no_bundle)
        export = _take(iter([bundle]), output, public_key, kept, verify=verify, keep=True)
    else:
        with link.client() as client:
            pages = _shown_on_the_way(exported_pages(client, _selection(client, device, session)))
            keep = output is None and not verify
            export = _take(pages, output, public_key, kept, verify=verify, keep=keep)
    if export.report is not None and no_bundle is not None:
        export.report["errors"] = [_unreadable(no_bundle)]
    if export.ledger is not None and no_ledger is not None:
        export.ledger["errors"] = [no_ledger]
    if link.json:
        emit(_document(export, output))
    else:
        say(_lines(export, output))
    reports = [report for report in (export.report, export.ledger) if report is not None]
    return exits.OK if all(report["valid"] for report in reports) else exits.FAILED


def _stored(path: Path, what: str) -> tuple[Bundle, str | None]:
    """What the file holds; nothing, and why, where that is no JSON object: such a document is not valid [TPT-052]."""
    try:
        return json_file(path, what), None
    except NoDocument as problem:
        return {}, str(problem)


def _unreadable(why: str) -> dict[str, Any]:
    """The one error of a bundle that is none: it says more than what an empty one lacks."""
    return {"seq": None, "mhs_code": "MHS.EVIDENCE.RECEIPT_INVALID", "detail": why}


@attrs.define
class Export:
    """What came of one pass over the pages: what is shown, and the receipts only where they are wanted."""

    bundle: Bundle
    count: int = 0
    report: dict[str, Any] | None = None
    ledger: dict[str, Any] | None = None


def _selection(client: Client, device: str | None, session: str | None) -> dict[str, Any]:
    selection: dict[str, Any] = {}
    if device is not None:
        selection["device_id"] = named(devices_of(client.hello()), device)["device_id"]
    if session is not None:
        selection["session_id"] = session
    return selection


def _shown_on_the_way(pages: Iterator[Bundle]) -> Iterator[Bundle]:
    """The pages; a terminal's stderr says how many receipts are there already [MHSD-8-05]."""
    progress = Progress("evidence")
    count = 0
    try:
        for page in pages:
            receipts = page.get("receipts")
            count += len(receipts) if isinstance(receipts, list) else 0
            if page.get("truncation"):
                progress.tell(f"{count} receipts")
            yield page
    finally:
        progress.clear()


def _take(
    pages: Iterator[Bundle],
    output: Path | None,
    public_key: str | None,
    ledger: Mapping[str, Any] | None,
    *,
    verify: bool,
    keep: bool,
) -> Export:
    """Goes over the pages once: checks, writes and keeps them as asked, and holds one at a time otherwise."""
    first = next(pages)
    check = _checker(first, public_key) if verify else None
    ledger_check = None if ledger is None else LedgerCheck(ledger, _endpoint_id(first))
    with _writer(output, first) as write:
        export = Export(dict(first) if keep else {**first, "receipts": []})
        for page in chain([first], pages):
            found = page.get("receipts")
            receipts: list[Any] = found if isinstance(found, list) else []
            export.count += len(receipts)
            if check is not None:
                check.turn(page)
                for receipt in receipts:
                    check.add(receipt)
            if ledger_check is not None:
                for receipt in receipts:
                    ledger_check.add(receipt)
            write(receipts)
            if keep and page is not first:
                export.bundle["receipts"] = [*export.bundle["receipts"], *receipts]
            # Created and headed as the last page says, which is the newest.
            newest = {name: page[name] for name in NEWEST if page.get(name) is not None}
            export.bundle |= {**newest, "truncation": None} if page is not first else newest
        write(None, {name: export.bundle[name] for name in NEWEST if name in export.bundle})
    export.report = None if check is None else check.report()
    export.ledger = None if ledger_check is None else ledger_check.report()
    return export


def _endpoint_id(bundle: Mapping[str, Any]) -> str:
    info = bundle.get("endpoint_info")
    return str(info.get("endpoint_id")) if isinstance(info, dict) else ""


def _checker(bundle: Mapping[str, Any], public_key: str | None) -> "BundleCheck":
    """This program's own check [EVID-003, EVID-004]."""
    from mhsd.base.resources import schema_document
    from mhsd.core.chain import BundleCheck
    from mhsd.wire.schema import compile_schema

    receipt = compile_schema(schema_document("receipt"), resolve=schema_document)
    return BundleCheck(
        bundle,
        lambda body: [f"{each['path']} {each['message']}" for each in receipt.errors(body)],
        public_key=public_key,
    )


class _Write(Protocol):
    def __call__(self, receipts: Sequence[Any] | None, newest: Mapping[str, Any] | None = None) -> None: ...


@contextmanager
def _writer(path: Path | None, first: Bundle) -> Iterator[_Write]:
    """Writes one bundle page by page, whole or not at all; what is written is on the disk in the end."""
    if path is None:
        yield lambda receipts, newest=None: None
        return
    path = output_file(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            lasting = {name: each for name, each in first.items() if name not in (*NEWEST, "receipts")}
            file.write(_json({**lasting, "truncation": None})[:-1] + ', "receipts": [')
            separator = "\n"

            def write(receipts: Sequence[Any] | None, newest: Mapping[str, Any] | None = None) -> None:
                nonlocal separator
                for receipt in receipts or ():
                    file.write(separator + _json(receipt))
                    separator = ",\n"
                if newest is not None:
                    file.write("\n]" + (", " + _json(newest)[1:] if newest else "}") + "\n")

            yield write
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as problem:
        raise UsageProblem(f"{path} cannot be written: {problem.strerror}") from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _document(export: Export, output: Path | None) -> Any:
    ledger = {} if export.ledger is None else {"ledger": export.ledger}
    if output is not None:
        return {
            "file": str(output),
            "receipts": export.count,
            "head_digest": export.bundle.get("head_digest"),
            "report": export.report,
            **ledger,
        }
    return export.bundle if export.report is None else {**export.report, **ledger}


def _lines(export: Export, output: Path | None) -> list[str]:
    receipts = export.bundle.get("receipts")
    receipts = [each for each in receipts if isinstance(each, dict)] if isinstance(receipts, list) else []
    lines = [] if export.report is not None or output is not None else _receipt_table(receipts)
    lines += table(
        [
            ["receipts", str(export.count)],
            ["head digest", value(export.bundle.get("head_digest"))],
            *([["written to", str(output)]] if output is not None else []),
        ]
    )
    lines += [] if export.report is None else _report_lines(export.report)
    return lines if export.ledger is None else [*lines, *_ledger_lines(export.ledger)]


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
    if report.get("contiguous") is False and report["valid"]:
        lines.append("a selection: each receipt was checked, the chain between them cannot be")
    elif report.get("from_seq") not in (None, 1):
        lines.append(f"begins at receipt {report['from_seq']} of the chain")
    lines.append(_signature_line(report.get("signature") or {}))
    for problem in report.get("errors") or []:
        lines.append(
            f"  seq {value(problem.get('seq'))}: {value(problem.get('mhs_code'))} {value(problem.get('detail'))}"
        )
    return lines


def _ledger_lines(report: Mapping[str, Any]) -> list[str]:
    paint = Paint(sys.stdout)
    head = paint("good", "LEDGER VALID") if report["valid"] else paint("bad", "LEDGER NOT VALID")
    text = f"{head}  {report['checked']} of {report['entries']} entries are receipts of this evidence"
    unlisted = report["unlisted"]
    missing = [f"  {unlisted} further receipts of its sessions are not in the ledger"] if unlisted else []
    return [text, *(f"  {plain(problem)}" for problem in report["errors"]), *missing]


def _signature_line(signature: Mapping[str, Any]) -> str:
    if signature.get("state") == "valid":
        unsigned = signature.get("unsigned_receipts")
        rest = f"; {unsigned} later receipts are not covered" if unsigned else ""
        seq, key = value(signature.get("seq")), value(signature.get("public_key"))
        return f"signed through receipt {seq} by {key}{rest}"
    return f"signature {signature.get('state')}: {value(signature.get('detail'))}"
