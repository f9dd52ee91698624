"""How a typer application is made and run here: plain help, and every failure through the one boundary."""

from typing import Annotated, Any

import typer

from mhsd import __version__
from mhsd.cli import exits
from mhsd.cli.boundary import UsageProblem
from mhsd.cli.terminal import say


def application(**more: Any) -> typer.Typer:
    """A typer application whose help is the same on every terminal and in every log, without rich."""
    settings = {"help_option_names": ["-h", "--help"]}
    return typer.Typer(
        rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=settings, **more
    )


def run(application: typer.Typer, program: str, argv: list[str]) -> int:
    """Runs the command that `argv` names and returns its exit code; UsageProblem for a wrong command line."""
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


def help_text(summary: str, text: str, examples: tuple[str, ...]) -> str:
    """Summary, text and examples as typer wants them; `\\b` keeps lines as they are."""
    parts = [f"{summary[0].upper()}{summary[1:]}."]
    if text:
        parts.append(text)
    if examples:
        parts.append("\n".join(["\b", "Examples:", *(f"  {example}" for example in examples)]))
    return "\n\n".join(parts)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"mhsd {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", help="show the version", callback=_show_version, is_eager=True)
]
