"""Capability classes: what a command means, whatever device it is bound to.

The catalogue is `spec/capabilities/`; a driver directory may add classes of its own, named `x-cap.`, in its
`capabilities/`. Every class of either is known to the endpoint, so a command of one that the device does not
bind is refused as not bound, and one of any other class as unknown [PROTO-014].
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from mhsd.base.errors import StartError
from mhsd.base.resources import read_json, schema_document, spec_file
from mhsd.driver.checks import Invalid, check_schema
from mhsd.wire.schema import Validator, compile_schema


@attrs.frozen(eq=False)
class CapabilityClass:
    """One class document with its compiled schemas."""

    capability_id: str
    document: Mapping[str, Any]
    input: Validator
    output: Validator


def check_document(document: Any, schema_name: str) -> None:
    """Raises Invalid with the first thing that the shipped schema `schema_name` has against the document."""
    errors = compile_schema(schema_document(schema_name), resolve=schema_document).errors(document)
    if errors:
        raise Invalid(errors[0]["path"].strip("/").replace("/", "."), errors[0]["message"])


def _build(document: Any) -> CapabilityClass:
    check_document(document, "capability.schema.json")
    capability_id = document["capability_id"]
    major = capability_id.rpartition(".v")[2]
    if document["version"].split(".")[0] != major:
        raise Invalid("version", f"must begin with {major}, as capability_id ends in .v{major}")
    for key in ("input_schema", "output_schema"):
        check_schema(document[key], key)
    return CapabilityClass(
        capability_id=capability_id,
        document=document,
        input=compile_schema(document["input_schema"]),
        output=compile_schema(document["output_schema"]),
    )


def read_class(file: Path) -> CapabilityClass:
    """The class document in `file`, which is named after its capability_id; StartError names file and key."""
    try:
        document = read_json(file)
    except (OSError, ValueError) as error:
        raise StartError(f"{file}: cannot be read as JSON: {error}") from error
    try:
        found = _build(document)
    except Invalid as problem:
        raise StartError(f"{file}: {problem}") from problem
    if file.name != f"{found.capability_id}.json":
        raise StartError(f"{file}: must be named {found.capability_id}.json, after its capability_id")
    return found


@cache
def spec_classes() -> Mapping[str, CapabilityClass]:
    """The catalogue that ships with the program, by capability_id."""
    return {file.stem: read_class(file) for file in sorted(spec_file("capabilities").glob("*.json"))}


_of_directories: dict[str, CapabilityClass] = {}
"""Classes that driver directories brought. One process serves one endpoint, so one table."""


def directory_classes(directory: Path) -> Mapping[str, CapabilityClass]:
    """The classes of a driver directory, which become known to the endpoint; StartError for a bad one."""
    classes: dict[str, CapabilityClass] = {}
    for file in sorted(directory.joinpath("capabilities").glob("*.json")):
        found = read_class(file)
        if not found.capability_id.startswith("x-cap."):
            raise StartError(f"{file}: a driver directory may only add classes named x-cap.")
        known = _of_directories.get(found.capability_id)
        if known is not None and known.document != found.document:
            raise StartError(f"{file}: another driver directory brought a different {found.capability_id}")
        classes[found.capability_id] = found
    _of_directories.update(classes)
    return classes


def capability_known(capability_id: str) -> bool:
    """Whether the catalogue or a loaded driver directory has the class [PROTO-014]."""
    return capability_id in spec_classes() or capability_id in _of_directories
