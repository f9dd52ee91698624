"""The registry: what a site's index file lists, and the drivers that ship with this program.

The index is a local file for people to search; nothing is loaded, reached or trusted because it stands there, and no
endpoint is asked (`mhs.registry.search` is no method of one) [TPT-050, PROTO-017, MHSD-8-14].
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mhsd.cli.boundary import UsageProblem
from mhsd.cli.inputs import json_file

FILE_VARIABLE = "MHS_REGISTRY_FILE"
DEFAULT_FILE = "~/.mhs/registry.json"
INSTALLED = "installed"
"""The `source` of a driver that ships with this program."""

_MANIFESTS = ("manifest.toml", "manifest.json")
_SEARCHED = ("name", "summary", "vendor", "model", "location", "device", "tags", "capabilities")

Entry = Mapping[str, Any]


def index_path(file: str | None, environ: Mapping[str, str]) -> Path | None:
    """The index file that is meant; None where nobody named one and the usual place is empty."""
    stated = file or environ.get(FILE_VARIABLE)
    path = Path(os.path.expanduser(stated or DEFAULT_FILE))
    return path if stated is not None or path.exists() else None


def all_entries(path: Path | None) -> list[Entry]:
    """The index's entries in its order, then the installed drivers that it does not name."""
    listed = [] if path is None else _index_entries(path)
    names = {entry["name"] for entry in listed}
    return [*listed, *(entry for entry in _installed() if entry["name"] not in names)]


def _index_entries(path: Path) -> list[Entry]:
    from mhsd.base.resources import schema_document
    from mhsd.wire.schema import compile_schema

    document = json_file(path, "a registry index")
    for defect in compile_schema(schema_document("registry"), resolve=schema_document).errors(document):
        raise UsageProblem(f"{path}: {defect['path'] or '/'} {defect['message']}")
    names: set[str] = set()
    for entry in document["entries"]:
        if entry["name"] in names:
            raise UsageProblem(f"{path}: two entries have the name {entry['name']}")
        names.add(entry["name"])
    return [_resolved(entry, path) for entry in document["entries"]]


def _resolved(entry: Entry, path: Path) -> Entry:
    """The entry with its source, and a target that is a path as seen from anywhere."""
    target = entry.get("target")
    if isinstance(target, str) and "/" in target:
        entry = {**entry, "target": str(path.absolute().parent / target)}
    return {**entry, "source": str(path)}


def _installed() -> list[Entry]:
    from mhsd.base.resources import drivers_dir, read_json, read_toml
    from mhsd.driver.loader import fixture_names

    entries: list[Entry] = []
    for name in fixture_names():
        entry: dict[str, Any] = {"name": name, "kind": "driver", "target": name, "source": INSTALLED}
        for file in (drivers_dir() / name.replace("-", "_") / manifest for manifest in _MANIFESTS):
            if file.is_file():
                entry |= _declared(read_toml(file) if file.suffix == ".toml" else read_json(file))
        entries.append(entry)
    return entries


def _declared(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "summary": manifest["display_name"],
        "device": manifest["path"],
        "risk_class": manifest["risk_class"],
        "modes": sorted(set(manifest["modes"].values())),
        "capabilities": sorted({binding["capability_id"] for binding in manifest["bindings"]}),
        "tags": manifest["profile"].get("tags", []),
    }


def matching(entries: Sequence[Entry], words: Sequence[str]) -> list[Entry]:
    """The entries in which every word occurs, in any of the texts that describe them; case does not matter."""
    return [entry for entry in entries if all(word.casefold() in _text(entry) for word in words)]


def _text(entry: Entry) -> str:
    texts: list[str] = []
    for name in _SEARCHED:
        content = entry.get(name, "")
        texts += content if isinstance(content, list) else [content]
    return "\n".join(texts).casefold()


def named(entries: Sequence[Entry], name: str) -> Entry:
    """The entry of this name; UsageProblem lists what comes near."""
    for entry in entries:
        if entry["name"] == name:
            return entry
    near = [entry["name"] for entry in matching(entries, [name])] or [entry["name"] for entry in entries]
    raise UsageProblem(f"the registry has no entry {name}; it has: {', '.join(near)}")
