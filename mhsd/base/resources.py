"""Finds and reads what ships beside the code: `spec/` and `drivers/`.

The one file reader of the pure half. A wheel carries the two directories inside the package as `_spec`
and `_drivers`; a checkout has them beside it. What the documents mean is decided by their readers.
"""

import json
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import attrs

SCHEMA_BASE = "https://mhs.openai4s.org/schema/0.9/"
"""Every shipped schema's `$id` is this plus its file name."""

_PACKAGE = Path(__file__).resolve().parent.parent


def _shipped(name: str) -> Path:
    """The directory `name` of this installation: `_name` in the package, else `name` beside it."""
    inside = _PACKAGE / f"_{name}"
    return inside if inside.is_dir() else _PACKAGE.parent / name


_SPEC = _shipped("spec")
_DRIVERS = _shipped("drivers")


def spec_file(*parts: str) -> Path:
    """The path of a shipped spec document, as in `spec_file("schemas", "receipt.schema.json")`."""
    return _SPEC.joinpath(*parts)


def drivers_dir() -> Path:
    """The directory that holds the reference drivers, one directory each."""
    return _DRIVERS


def read_toml(path: Path) -> dict[str, Any]:
    """The TOML document at `path`; OSError or tomllib.TOMLDecodeError is the caller's to explain."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def read_json(path: Path) -> Any:
    """The JSON document at `path`; OSError or ValueError is the caller's to explain."""
    return json.loads(path.read_text(encoding="utf-8"))


@cache
def schema_names() -> tuple[str, ...]:
    """File names of the shipped schemas, sorted."""
    return tuple(sorted(path.name for path in spec_file("schemas").glob("*.schema.json")))


@cache
def _schema(file_name: str) -> dict[str, Any]:
    document: dict[str, Any] = read_json(spec_file("schemas", file_name))
    return document


def schema_document(ref: str) -> dict[str, Any]:
    """The shipped schema of a short name, file name or `$id`; KeyError for anything else [PROTO-022].

    `receipt`, `receipt.schema.json` and the `$id` name one document. The look-up is by the list of shipped
    names, so a path, `..` or a foreign URL never reaches the file system. The document is shared and must
    not be changed.
    """
    file_name = ref.removeprefix(SCHEMA_BASE).removesuffix("#")
    if not file_name.endswith(".schema.json"):
        file_name += ".schema.json"
    if file_name not in schema_names():
        raise KeyError(ref)
    return _schema(file_name)


ERROR_TABLE: Mapping[str, Any] = read_toml(spec_file("errors.toml"))
"""spec/errors.toml as it stands; mhsd.base.errors makes rows of it."""


@attrs.frozen
class MethodRow:
    """One row of spec/methods.toml, whose header explains the columns [PROTO-003]."""

    name: str
    level: str
    deadline: bool
    idempotent: bool
    receipt: bool
    effectful: bool
    served: bool
    rate: Literal["normal", "exempt", "status"]
    role: Literal["reader", "client", "operator"]
    result: str


METHODS: Mapping[str, MethodRow] = MappingProxyType(
    {
        name: MethodRow(name=name, **row)
        for name, row in read_toml(spec_file("methods.toml"))["methods"].items()
    }
)
"""All 26 methods of the protocol in the seed's order, served here or not."""
