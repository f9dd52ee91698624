"""`serve`, which is `mhsd`: every option of the configuration's table as a flag."""

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mhsd.cli.terminal import note, plain
from mhsd.config import OPTIONS, Config, Option

_ARM = "--arm"


def serve_command(version: Any = None) -> Callable[..., int]:
    """A function whose parameters are the options; typer makes flags of them.

    `version` is the annotation of a `--version` flag, for the program whose only command this is.
    """

    def serve(**flags: Any) -> int:
        """Serves the TARGETs until it is told to stop; returns the daemon's exit code."""
        flags.pop("version", None)
        given = {key: content for key, content in flags.items() if content not in (None, [])}
        return start(given)

    parameters = [_parameter(option) for option in OPTIONS]
    if version is not None:
        parameters.append(
            inspect.Parameter("version", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=version)
        )
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    serve.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return serve


def start(flags: dict[str, Any]) -> int:
    """Runs the daemon; a start that is refused is one line and its exit code."""
    from mhsd import daemon
    from mhsd.base.errors import StartError

    try:
        return daemon.main(Config.load(flags, os.environ, Path.cwd()))
    except StartError as problem:
        code = f" ({problem.mhs_code})" if problem.mhs_code is not None else ""
        note(f"mhsd: {plain(problem.message)}{code}")
        return problem.exit_code


def with_bare_arm(argv: Sequence[str]) -> list[str]:
    """`--arm` alone arms every device, `--arm PATH` one; a device's path begins with a slash."""
    words: list[str] = []
    for index, word in enumerate(argv):
        following = argv[index + 1] if index + 1 < len(argv) else ""
        words.append(f"{_ARM}=all" if word == _ARM and not following.startswith("/") else word)
    return words


def _parameter(option: Option) -> inspect.Parameter:
    if option.positional:
        annotation: Any = Annotated[
            list[str] | None,
            typer.Argument(metavar=option.metavar, help=option.help, show_default=False),
        ]
    else:
        kind: Any = bool if option.kind == "switch" else list[str] if option.multiple else str
        metavar = "|".join(option.choices) or option.metavar
        annotation = Annotated[
            kind | None,
            typer.Option(
                option.flag,
                metavar=metavar,
                help=f"{option.help}{_default(option)}",
                show_default=False,
            ),
        ]
    return inspect.Parameter(option.key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _default(option: Option) -> str:
    if option.default in (None, False, ()):
        return ""
    return f" [{option.default}]"
