"""`mhsctl`: the table of commands as a typer application."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import typer
from typer.models import ArgumentInfo, OptionInfo

from mhsd.cli import fast
from mhsd.cli.application import VersionOption, application, help_text, run
from mhsd.cli.boundary import Interrupted, UsageProblem, guarded
from mhsd.cli.cmd_serve import serve_command, with_bare_arm
from mhsd.cli.table import COMMANDS, Command
from mhsd.client.endpoint import BadEndpoint

_GROUPS = {
    "session": "open, list, close or keep a session that outlives a command",
    "registry": "look through the local index of drivers and devices; alone it lists them",
    "token": "make, list and revoke the tokens of a token file",
}
_BARE = {"registry": "list"}
"""What a group does without the name of one of its commands."""
_ABOUT = (
    "Look at, command and stop the devices of an MHS endpoint. Every command takes -e, --token-file, --json and "
    "--timeout after its name. Exit codes: 0 done, 1 refused or failed, 2 wrong command line, 3 endpoint not "
    "reached or answer lost, 4 not allowed, 130 interrupted."
)


def main(program: str, argv: list[str]) -> int:
    """`mhsctl`."""
    if argv[:1] == ["serve"]:
        argv = with_bare_arm(argv)
    words = _with_bare_group(argv)
    return guarded(program, argv, lambda: _run(program, words))


def _run(program: str, words: list[str]) -> int:
    try:
        return run(_operators(), program, words)
    except (UsageProblem, BadEndpoint) as problem:
        command = problem.command if isinstance(problem, UsageProblem) else None
        if command is None and words[0] in _GROUPS:
            command = " ".join([program, *words[:2]])
        raise UsageProblem(str(problem), command) from None


def _with_bare_group(argv: list[str]) -> list[str]:
    """`registry --json` is `registry list --json`; the group's own help stays the group's."""
    if not argv or argv[0] not in _BARE or {"-h", "--help"} & set(argv):
        return argv
    if argv[1:] and not argv[1].startswith("-"):
        return argv
    return [argv[0], _BARE[argv[0]], *argv[1:]]


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
        return _checked(command.run)
    return _fast(command.name)


def _checked(run: Callable[..., int]) -> Callable[..., int]:
    """Refuses an option or argument that is there and empty: a shell's unset variable must not mean "any"."""
    names = {name: _spelling(name, each) for name, each in inspect.signature(run).parameters.items()}

    @functools.wraps(run)
    def checked(**given: Any) -> int:
        for name, content in given.items():
            if "" in (content if isinstance(content, list) else [content]):
                raise UsageProblem(f"{names[name]} is empty; give it a value or leave it out")
        try:
            return run(**given)
        except KeyboardInterrupt:
            raise Interrupted from None

    return checked


def _spelling(name: str, parameter: inspect.Parameter) -> str:
    """How a person writes this parameter: the long form of an option, the metavar of an argument."""
    for about in getattr(parameter.annotation, "__metadata__", ()):
        if isinstance(about, OptionInfo):
            # typer takes an annotation's first spelling for a default.
            return str([about.default, *(about.param_decls or ())][-1])
        if isinstance(about, ArgumentInfo) and about.metavar:
            return about.metavar
    return name


def _settings(command: Command) -> dict[str, Any]:
    if command.name in fast.COMMANDS:
        return {
            "context_settings": {"ignore_unknown_options": True, "allow_extra_args": True},
            "add_help_option": False,
        }
    if command.hands_on_rest:
        return {"context_settings": {"allow_extra_args": True, "allow_interspersed_args": False}}
    return {}


def _fast(name: str) -> Callable[..., int]:
    """The row of a command that main.py hands to fast.py; reached where its name is not the first word."""

    def run(context: typer.Context) -> int:
        return fast.main(context.find_root().info_name or "mhsctl", [name, *context.args])

    return run


def _options(version: VersionOption = False) -> None:
    """The options before a command's name."""
