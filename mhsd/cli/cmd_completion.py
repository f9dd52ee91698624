"""`completion`: the script that makes a shell complete the commands [MHSD-8-06]."""

import os
from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # typer has no __all__

from mhsd.cli import exits
from mhsd.cli.boundary import UsageProblem
from mhsd.cli.terminal import emit, say


class Shell(StrEnum):
    """The shells that there is a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    context: typer.Context,
    shell: Annotated[
        Shell | None, typer.Argument(metavar="bash|zsh|fish", help="the shell; else the one of SHELL")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON document")] = False,
) -> int:
    """The completion script of this program under the name that it was started by."""
    used = shell or _own_shell()
    program = context.find_root().info_name or "mhsctl"
    script = get_completion_script(
        prog_name=program, complete_var=f"_{program.upper()}_COMPLETE", shell=str(used)
    )
    if as_json:
        emit({"shell": str(used), "program": program, "script": script})
    else:
        say(script)
    return exits.OK


def _own_shell() -> Shell:
    name = os.path.basename(os.environ.get("SHELL", ""))
    if name in tuple(Shell):
        return Shell(name)
    raise UsageProblem("SHELL names none of bash, zsh and fish; say which: mhsctl completion bash")
