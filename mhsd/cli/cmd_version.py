"""`version`: which program, which specification, which protocol."""

import platform
from typing import Annotated

import typer

from mhsd import MHS_VERSION, SPEC_VERSION, __version__
from mhsd.cli import exits
from mhsd.cli.terminal import emit, say, table


def version(as_json: Annotated[bool, typer.Option("--json", help="print one JSON document")] = False) -> int:
    """The versions of the program, the specification line and the wire protocol."""
    versions = {
        "mhsd": __version__,
        "spec_version": SPEC_VERSION,
        "mhs_version": MHS_VERSION,
        "python": platform.python_version(),
    }
    if as_json:
        emit(versions)
    else:
        names = ("mhsd", "specification", "protocol MHS", "Python")
        say(table([list(row) for row in zip(names, versions.values(), strict=True)]))
    return exits.OK
