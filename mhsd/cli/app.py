"""`mhsctl`: the table of commands as a typer application."""

from collections.abc import Callable
from typing import Any

import typer

from mhsd.cli import fast
from mhsd.cli.application import VersionOption, application, help_text, run
from mhsd.cli.boundary import guarded
from mhsd.cli.cmd_serve import serve_command, with_bare_arm
from mhsd.cli.table import COMMANDS, Command

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
    return guarded(program, argv, lambda: run(_operators(), program, argv))


def _operators() -> typer.Typer:
    whole = application(no_args_is_help=True, help=_ABOUT)
    whole.callback()(_options)
    groups: dict[str, typer.Typer] = {}
    for command in COMMANDS:
        group, _, name = command.name.rpartition(" ")
        place = whole
        if group:
            if group not in groups:
                groups[group] = application(no_args_is_help=True, help=_GROUPS[group])
                whole.add_typer(groups[group], name=group)
            place = groups[group]
        _add(place, name, command)
        if command.alias is not None:
            _add(place, command.alias, command, hidden=True)
    return whole


def _add(place: typer.Typer, name: str, command: Command, *, hidden: bool = False) -> None:
    place.command(
        name,
        help=help_text(command.summary, command.text, command.examples),
        short_help=command.summary,
        hidden=hidden,
        **_settings(command),
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


def _options(version: VersionOption = False) -> None:
    """The options before a command's name."""
