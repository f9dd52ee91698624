"""`serve`, which is `mhsd`: every option of the configuration's table as a flag."""

import inspect
import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mhsd.cli import exits
from mhsd.cli.application import VersionOption, application, help_text, run
from mhsd.cli.boundary import guarded
from mhsd.cli.terminal import emit, note, plain
from mhsd.client.errors import MHSError
from mhsd.config import OPTIONS, Config, Option

if TYPE_CHECKING:
    from mhsd.base.errors import StartError

_ARM = "--arm"
_JsonOption = Annotated[
    bool,
    typer.Option("--json", help="print a refused start as a JSON document; the ready line is JSON anyway"),
]
_SUMMARY = "serve laboratory instruments over MHS/1.0"
_TEXT = (
    "A TARGET is the name of a reference device or a driver directory. Every option is also a key of mhsd.toml "
    "(state_dir) and an environment variable (MHSD_STATE_DIR); flags win over variables, variables over the file."
)
_EXAMPLES = (
    "mhsd",
    "mhsd conveyor-workcell scpi-psu --state-dir state",
    "mhsd --stdio conveyor-workcell",
    "mhsd --mcp conveyor-workcell",
)


def main(program: str, argv: list[str]) -> int:
    """`mhsd`; returns its exit code."""
    daemon = application()
    daemon.command(help=help_text(_SUMMARY, _TEXT, _EXAMPLES))(serve_command(VersionOption))
    words = with_bare_arm(argv)
    return guarded(program, words, lambda: run(daemon, program, words))


def serve_command(version: Any = None) -> Callable[..., int]:
    """A function whose parameters are the options; typer makes flags of them.

    `version` is the annotation of a `--version` flag, for the program whose only command this is.
    """

    def serve(**flags: Any) -> int:
        """Serves the TARGETs until it is told to stop; returns the daemon's exit code."""
        flags.pop("version", None)
        as_json = flags.pop("json")
        given = {key: content for key, content in flags.items() if content not in (None, [])}
        return start(given, as_json=as_json)

    parameters = [_parameter(option) for option in OPTIONS]
    for name, annotation in (("json", _JsonOption), ("version", version)):
        if annotation is not None:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(name, kind, default=False, annotation=annotation))
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    serve.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return serve


def start(flags: dict[str, Any], *, as_json: bool) -> int:
    """Runs the daemon; a start that is refused is one line and its exit code, with --json a document [TPT-052]."""
    from mhsd import daemon
    from mhsd.base.errors import StartError

    try:
        return daemon.main(Config.load(flags, os.environ, _working_directory()))
    except StartError as problem:
        if as_json:
            emit({"error": _refused(problem).document()})
            return problem.exit_code
        code = f" ({problem.mhs_code})" if problem.mhs_code is not None else ""
        note(f"mhsd: {plain(problem.message)}{code}")
        return problem.exit_code
    except OSError:
        raise
    except Exception:
        # A defect that ends a daemon is worth its traceback in the log: it may never come again.
        traceback.print_exc()
        return exits.FAILED


def _refused(problem: "StartError") -> MHSError:
    wrong = problem.exit_code == exits.USAGE
    return MHSError(
        problem.mhs_code or ("MHS.PROTOCOL.INVALID_PARAMS" if wrong else "MHS.INTERNAL.ERROR"),
        problem.message,
        remediation="Change what the message names, then start again.",
        retryable=False,
        details={"reason": "usage" if wrong else "start"},
    )


def _working_directory() -> Path:
    from mhsd.base.errors import StartError

    try:
        return Path.cwd()
    except OSError as problem:
        raise StartError(
            f"the working directory cannot be used: {problem.strerror}; start mhsd in another one",
            exit_code=2,
        ) from None


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
                *([option.short] if option.short else []),
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
