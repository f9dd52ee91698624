"""`registry list|search|show`: looking through the local registry index."""

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from mhsd.cli import exits
from mhsd.cli.registry_index import Entry, all_entries, index_path, matching, named
from mhsd.cli.terminal import emit, plain, say, table, value

FileOption = Annotated[
    str | None,
    typer.Option("--file", metavar="FILE", help="the index file [MHS_REGISTRY_FILE, ~/.mhs/registry.json]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON document")]


def registry_list(file: FileOption = None, as_json: JsonOption = False) -> int:
    """Everything that the index and this installation have."""
    return _listed(file, [], as_json)


def registry_search(
    words: Annotated[list[str], typer.Argument(metavar="WORD", help="words that must all occur")],
    file: FileOption = None,
    as_json: JsonOption = False,
) -> int:
    """The entries that every word occurs in."""
    return _listed(file, words, as_json)


def registry_show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="the entry's name, as `registry list` shows it")
    ],
    file: FileOption = None,
    as_json: JsonOption = False,
) -> int:
    """Everything about one entry, and the command that uses it."""
    entry = named(all_entries(index_path(file, os.environ)), name)
    if as_json:
        emit(dict(entry))
        return exits.OK
    rows = []
    for member, content in entry.items():
        texts = content if isinstance(content, list) else [content]
        rows += [
            [member.replace("_", " ") if index == 0 else "", value(text)] for index, text in enumerate(texts)
        ]
    say(table([*rows, ["use it", plain(_use(entry))]]))
    return exits.OK


def _listed(file: str | None, words: Sequence[str], as_json: bool) -> int:
    path = index_path(file, os.environ)
    entries = matching(all_entries(path), words)
    if as_json:
        emit({"file": None if path is None else str(path), "entries": [dict(entry) for entry in entries]})
        return exits.OK
    rows = [
        [
            value(entry["name"]),
            value(entry["kind"]),
            value(entry.get("risk_class", "-")),
            ", ".join(map(value, entry.get("modes", []))) or "-",
            plain(str(entry["source"])),
            value(entry.get("summary", "")),
        ]
        for entry in entries
    ]
    say(table(rows, ("NAME", "KIND", "RISK", "MODES", "FROM", "SUMMARY")) if rows else "nothing fits")
    return exits.OK


def _use(entry: Entry) -> str:
    if entry["kind"] == "driver":
        return f"mhsd {entry.get('target', entry['name'])}"
    endpoint = f" -e {entry['endpoint']}" if "endpoint" in entry else ""
    device = f" {entry['device']}" if "device" in entry else ""
    return f"mhsctl describe{device}{endpoint}"
