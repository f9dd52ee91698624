"""Builds the typer application from the table of commands, and runs it."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from mhsd import __version__
from mhsd.cli import exits, fast
from mhsd.cli.boundary import UsageProblem, guarded
from mhsd.cli.cmd_serve import serve_command, with_bare_arm
from mhsd.cli.table import COMMANDS, Command
from mhsd.cli.terminal import say

_GROUPS = {"session": "open, close or keep a session that outlives a command"}
_ABOUT = (
    "Look at, command and stop the devices of an MHS endpoint. Every command takes -e, --token-file, --json and "
    "--timeout after its name. Exit codes: 0 done, 1 refused or failed, 2 wrong command line, 3 endpoint not "
    "reached or answer lost, 4 not allowed, 130 interrupted."
)


def main(program: str, argv: list[str]) -> int:
    """`mhsctl`."""
    if argv[:1] == ["serve"]:
        argv = with_bare_arm(argv)
    return guarded(program, argv, lambda: _run(_operators(), program, argv))


def main_serve(program: str, argv: list[str]) -> int:
    """`mhsd`."""
    argv = with_bare_arm(argv)
    return guarded(program, argv, lambda: _run(_daemon(), program, argv))


def _application(**more: Any) -> typer.Typer:
    # Plain help is the same on every terminal and in every log, and needs no import of rich.
    return typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, **more)


def _operators() -> typer.Typer:
    application = _application(no_args_is_help=True, help=_ABOUT)
    application.callback()(_options)
    groups: dict[str, typer.Typer] = {}
    for command in COMMANDS:
        group, _, name = command.name.rpartition(" ")
        place = application
        if group:
            if group not in groups:
                groups[group] = _application(no_args_is_help=True, help=_GROUPS[group])
                application.add_typer(groups[group], name=group)
            place = groups[group]
        _add(place, name, command)
        if command.alias is not None:
            _add(place, command.alias, command, hidden=True)
    return application


def _add(place: typer.Typer, name: str, command: Command, *, hidden: bool = False) -> None:
    place.command(
        name, help=help_of(command), short_help=command.summary, hidden=hidden, **_settings(command)
    )(_function(command))


def _function(command: Command) -> Callable[..., int]:
    if command.name == "serve":
        return serve_command()
    if command.run is not None:
        return command.run
    return _fast(command.name)


def _settings(command: Command) -> dict[str, Any]:
    if command.name in fast.COMMANDS:
        return {
            "context_settings": {"ignore_unknown_options": True, "allow_extra_args": True},
            "add_help_option": False,
        }
    return {}


def _fast(name: str) -> Callable[..., int]:
    """The row of a command that main.py hands to fast.py; reached where its name is not the first word."""

    def run(context: typer.Context) -> int:
        return fast.main(context.find_root().info_name or "mhsctl", [name, *context.args])

    return run


def help_of(command: Command) -> str:
    """Summary, text and examples as typer wants them; `\\b` keeps lines as they are."""
    parts = [f"{command.summary[0].upper()}{command.summary[1:]}."]
    if command.text:
        parts.append(command.text)
    if command.examples:
        parts.append("\n".join(["\b", "Examples:", *(f"  {example}" for example in command.examples)]))
    return "\n\n".join(parts)


def _daemon() -> typer.Typer:
    application = _application(
        help="Serve laboratory instruments over MHS/1.0.\n\n"
        "A TARGET is the name of a reference device or a driver directory. Every option is also a key of mhsd.toml "
        "(state_dir) and an environment variable (MHSD_STATE_DIR); flags win over variables, variables over the "
        "file.\n\n\b\nExamples:\n  mhsd\n  mhsd conveyor-workcell scpi-psu --state-dir state\n"
        "  mhsd --stdio conveyor-workcell"
    )
    application.command(help=application.info.help)(serve_command(VersionOption))
    return application


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"mhsd {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", help="show the version", callback=_show_version, is_eager=True)
]


def _options(version: VersionOption = False) -> None:
    """The options before a command's name."""


def _run(application: typer.Typer, program: str, argv: list[str]) -> int:
    command = typer.main.get_command(application)
    try:
        code = command.main(args=argv, prog_name=program, standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except typer.TyperException as problem:
        if type(problem).__name__ == "NoArgsIsHelpError":
            say(problem.format_message())
            return exits.USAGE
        context = getattr(problem, "ctx", None)
        raise UsageProblem(problem.format_message(), context.command_path if context else None) from None
    return code if isinstance(code, int) else exits.OK
