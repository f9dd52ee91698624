"""`validate`: a static check of a driver directory, or of a document against its schema. Runs no driver."""

import ast
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mhsd.cli import exits
from mhsd.cli.boundary import UsageProblem
from mhsd.cli.inputs import NoDocument, json_value, read_file
from mhsd.cli.terminal import Paint, emit, plain, say, value

if TYPE_CHECKING:
    from mhsd.driver.contract import Backend

_MANIFESTS = ("manifest.toml", "manifest.json")
_BACKENDS: tuple["Backend", ...] = ("fake", "hardware")
_BY_MEMBERS = (
    ("evidence-bundle", ("bundle_version",)),
    ("receipt", ("receipt_id", "input_digest")),
    ("permit", ("permit_id", "scope")),
    ("session-grant", ("session_id", "granted")),
    ("session-summary", ("closed_at", "summary")),
    ("state-document", ("revision", "state_hash", "sampled_at")),
    ("verification-report", ("valid", "checked", "errors")),
    ("safety-status", ("estop", "safe_state")),
    ("server-info", ("mhs_version", "server")),
    ("endpoint-descriptor", ("transports",)),
    ("endpoints", ("endpoints",)),
    ("registry", ("entries",)),
    ("device", ("risk_class", "bindings", "resources")),
    ("capability", ("capability_id", "input_schema", "output_schema")),
    ("device-list", ("devices",)),
)
"""Which schema a document is for, by members that only it has; the first that fits."""

Errors = list[dict[str, str]]


def validate(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="a driver directory, or a JSON or TOML document")
    ],
    schema: Annotated[
        str | None, typer.Option("--schema", metavar="NAME", help="the document's schema, as in receipt")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON document")] = False,
) -> int:
    """Whether a driver directory or a document is as its schema wants it; 1 when it is not."""
    if not path.exists():
        raise UsageProblem(f"{path} does not exist")
    is_driver = path.is_dir() or (path.name in _MANIFESTS and schema is None)
    try:
        if is_driver:
            kind, errors = "driver", driver_errors(path if path.is_dir() else path.parent)
        else:
            kind, errors = document_errors(path, schema)
    except NoDocument as problem:
        kind, errors = "driver" if is_driver else "text", [_error(path.name, str(problem))]
    except _Unreadable as problem:
        kind, errors = "driver" if is_driver else "text", [_error(problem.name, problem.text)]
    if as_json:
        emit({"valid": not errors, "path": str(path), "kind": kind, "errors": errors})
    else:
        say(_lines(path, kind, errors))
    return exits.FAILED if errors else exits.OK


def driver_errors(directory: Path) -> Errors:
    """What is wrong with a driver directory, as far as can be seen without running it."""
    from mhsd.base.errors import StartError
    from mhsd.driver.building import build_manifest
    from mhsd.driver.checks import Invalid
    from mhsd.driver.classes import directory_classes, spec_classes

    files = [directory / name for name in _MANIFESTS if (directory / name).is_file()]
    if len(files) != 1:
        raise UsageProblem(f"{directory} is no driver directory: it holds one of {' and '.join(_MANIFESTS)}")
    source = _parsed(files[0])
    if not isinstance(source, dict):
        return [_error(files[0].name, "must hold one object")]
    try:
        classes = {**spec_classes(), **directory_classes(directory)}
    except (StartError, Invalid) as problem:
        return [_error("capabilities", str(problem))]
    modes = source.get("modes")
    # Without readable modes one attempt is enough: it says what is wrong with them.
    backends = [each for each in _BACKENDS if isinstance(modes, dict) and each in modes] or ["fake"]
    errors: Errors = []
    for backend in backends:
        try:
            build_manifest(source, backend=backend, classes=classes)
        except Invalid as problem:
            found = _error(files[0].name, str(problem))
            errors += [] if found in errors else [found]
    return [*errors, *_program_errors(directory / "driver.py")]


def _program_errors(file: Path) -> Errors:
    if not file.is_file():
        return [_error(file.name, "is missing; it defines the driver's class")]
    try:
        tree = ast.parse(read_file(file), file.name)
    except SyntaxError as problem:
        return [_error(f"{file.name}:{problem.lineno}", f"is no Python: {problem.msg}")]
    if not any(isinstance(node, ast.ClassDef) for node in tree.body):
        return [_error(file.name, "defines no class")]
    return []


def document_errors(path: Path, schema: str | None) -> tuple[str, Errors]:
    """The schema's short name, and what the document at `path` has against it."""
    from mhsd.base.resources import SCHEMA_BASE, schema_document, schema_names
    from mhsd.wire.schema import SchemaError, compile_schema, lint

    document = _parsed(path)
    name = schema or _guess(document, SCHEMA_BASE)
    if name is None:
        known = ", ".join(each.removesuffix(".schema.json") for each in schema_names())
        raise UsageProblem(f"{path} does not show what it is; name its schema with --schema: {known}")
    if name == "schema":
        try:
            problems = lint(document)
            compile_schema(document, resolve=schema_document)
        except SchemaError as problem:
            problems = [str(problem)]
        return name, [_error("", str(problem)) for problem in problems]
    try:
        wanted = schema_document(name)
    except KeyError:
        known = ", ".join(each.removesuffix(".schema.json") for each in schema_names())
        raise UsageProblem(f"--schema {name} is not shipped; there are: {known}") from None
    errors = compile_schema(wanted, resolve=schema_document).errors(document)
    return name.removeprefix(SCHEMA_BASE).removesuffix(".schema.json"), errors


def _guess(document: Any, schema_base: str) -> str | None:
    if not isinstance(document, dict):
        return None
    stated = document.get("$schema")
    if isinstance(stated, str):
        return stated if stated.startswith(schema_base) else "schema"
    return next((name for name, members in _BY_MEMBERS if all(each in document for each in members)), None)


def _parsed(path: Path) -> Any:
    text = read_file(path)
    try:
        return tomllib.loads(text) if path.suffix == ".toml" else json_value(text)
    except (ValueError, RecursionError) as problem:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise _Unreadable(path.name, f"is no {kind}: {problem}") from None


class _Unreadable(Exception):
    """The document is no JSON or TOML, so no schema was asked."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name} {text}")
        self.name = name
        self.text = text


def _error(path: str, message: str) -> dict[str, str]:
    return {"path": path, "rule": "file", "message": message}


def _lines(path: Path, kind: str, errors: Errors) -> list[str]:
    paint = Paint(sys.stdout)
    if not errors:
        return [f"{paint('good', 'VALID')}  {plain(str(path))}  ({kind})"]
    head = f"{paint('bad', 'NOT VALID')}  {plain(str(path))}  ({kind})"
    return [head, *(f"  {value(each['path'] or '/')}: {value(each['message'])}" for each in errors)]
