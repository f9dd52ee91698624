"""The JSON documents as spec/guide/cli.md shows them, and whether a document is like one [TPT-051]."""

from __future__ import annotations

import json
import re
from typing import Any

from mhsd.base.resources import schema_document, spec_file
from mhsd.wire.schema import compile_schema


def shapes() -> dict[str, Any]:
    """Title of the guide's section → its JSON document."""
    guide = spec_file("guide", "cli.md").read_text()
    documents = guide.split("## The documents of `--json`")[1]
    found = re.findall(
        r"^### ([^\n]+)\n(?:(?!^### ).)*?```json\n(.*?)```", documents, re.MULTILINE | re.DOTALL
    )
    return {title: json.loads(text) for title, text in found}


def has_shape(document: Any, shape: Any) -> None:
    """Every member of `shape` is there, with a value of the same JSON type where `shape` shows one."""
    if isinstance(shape, dict):
        assert isinstance(document, dict)
        for name, inner in shape.items():
            assert name in document
            has_shape(document[name], inner)
    elif isinstance(shape, list):
        assert isinstance(document, list)
        if shape and isinstance(shape[0], dict):
            assert document
            has_shape(document[0], shape[0])
    elif shape is not None:
        assert type(document) is type(shape) or {type(document), type(shape)} == {int, float}


def check(document: Any, schema: str) -> None:
    """The document is valid against a shipped schema."""
    assert compile_schema(schema_document(schema), resolve=schema_document).errors(document) == []
