"""The endpoints that this user knows: from MHS_ENDPOINTS and from the endpoints file [CORE-120, MHSD-8-10].

Listed does not mean trusted: nothing here authenticates an endpoint, and a token file is for its own entry alone
[CORE-121, CORE-122]. Asking whether somebody serves there is in cmd_discover.py.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mhsd.cli.boundary import UsageProblem
from mhsd.client.endpoint import BadEndpoint, Endpoint, StdioEndpoint, parse_endpoint

LIST_VARIABLE = "MHS_ENDPOINTS"
FILE_VARIABLE = "MHS_ENDPOINTS_FILE"
DEFAULT_FILE = "~/.mhs/endpoints.json"
_FORMS = "as http://HOST:PORT, https://HOST:PORT, mhs://HOST:PORT or stdio:COMMAND"


class Known(NamedTuple):
    """One entry; `source` is where it stands, `token_file` and `cwd` are absolute paths."""

    place: Endpoint
    url: str
    source: str
    name: str | None = None
    token_file: str | None = None
    cwd: str | None = None


def is_name(endpoint: str) -> bool:
    """Whether what was given after -e is a name of the endpoints file; every address has a colon."""
    return ":" not in endpoint and "/" not in endpoint


def named(name: str) -> Known:
    """The entry of the endpoints file that has this name."""
    path, entries = file_entries(None, os.environ)
    found = [entry for entry in entries if entry.name == name]
    if not found:
        names = ", ".join(sorted(entry.name for entry in entries if entry.name)) or "none"
        raise UsageProblem(
            f"{name} is no address of an endpoint and no name in {path}, which has: {names}; "
            "write http://HOST:PORT, https://HOST:PORT, unix:PATH or stdio:COMMAND"
        )
    return found[0]


def environment_entries(environ: Mapping[str, str]) -> list[Known]:
    """The entries of MHS_ENDPOINTS, which a comma separates."""
    words = [word.strip() for word in environ.get(LIST_VARIABLE, "").split(",")]
    return [Known(_parsed(word, LIST_VARIABLE), word, LIST_VARIABLE) for word in words if word]


def file_entries(file: str | None, environ: Mapping[str, str]) -> tuple[Path, list[Known]]:
    """The endpoints file that is meant, and its entries; one that nobody named need not be there."""
    stated = file or environ.get(FILE_VARIABLE)
    path = Path(os.path.expanduser(stated or DEFAULT_FILE))
    if stated is None and not path.exists():
        return path, []
    return path, _read(path)


def _read(path: Path) -> list[Known]:
    from mhsd.base.resources import schema_document
    from mhsd.cli.inputs import json_file
    from mhsd.wire.schema import compile_schema

    document = json_file(path, "an endpoints file")
    for defect in compile_schema(schema_document("endpoints"), resolve=schema_document).errors(document):
        forms = f", {_FORMS}" if defect["path"].endswith("/url") else ""
        raise UsageProblem(f"{path}: {defect['path'] or '/'} {defect['message']}{forms}")
    entries = [_entry(path, number, entry) for number, entry in enumerate(document["endpoints"])]
    names = [entry.name for entry in entries if entry.name is not None]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise UsageProblem(f"{path}: two endpoints have the name {name}")
    return entries


def _entry(path: Path, number: int, entry: Mapping[str, str]) -> Known:
    place = _parsed(entry["url"], f"{path}: /endpoints/{number}/url")
    directory = path.absolute().parent
    cwd = str(directory / entry["cwd"]) if "cwd" in entry else None
    if isinstance(place, StdioEndpoint):
        place = place._replace(cwd=cwd)
    return Known(
        place,
        entry["url"],
        str(path),
        entry.get("name"),
        str(directory / entry["token_file"]) if "token_file" in entry else None,
        cwd,
    )


def _parsed(url: str, where: str) -> Endpoint:
    try:
        return parse_endpoint(url)
    except BadEndpoint as problem:
        raise UsageProblem(f"{where}: {problem}") from None
