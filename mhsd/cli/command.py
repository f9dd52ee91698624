"""Gives a function the options that every client command has, and a Link made of them."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from mhsd.cli.link import Link
from mhsd.client.calls import DEFAULT_TIMEOUT_S

_OPTIONS: dict[str, tuple[Any, Any]] = {
    "endpoint": (
        Annotated[
            str | None,
            typer.Option(
                "-e",
                "--endpoint",
                metavar="URL|NAME|unix:PATH|stdio:CMD",
                help="the endpoint, else MHS_ENDPOINT, else http://127.0.0.1:7400",
            ),
        ],
        None,
    ),
    "token_file": (
        Annotated[
            str | None,
            typer.Option("--token-file", metavar="FILE", help="file with the token of the endpoint"),
        ],
        None,
    ),
    "json": (Annotated[bool, typer.Option("--json", help="print one JSON document")], False),
    "timeout_s": (
        Annotated[float, typer.Option("--timeout", metavar="S", help="seconds to wait for each answer")],
        DEFAULT_TIMEOUT_S,
    ),
}


def client_command(run: Callable[..., int]) -> Callable[..., int]:
    """`run(link, …)` as a command with `-e`, `--token-file`, `--json` and `--timeout` [MHSD-8-04].

    The other parameters of `run` are the command's own.
    """
    signature = inspect.signature(run)
    own = [parameter for name, parameter in signature.parameters.items() if name != "link"]
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in _OPTIONS.items()
    ]

    @functools.wraps(run)
    def command(*arguments: Any, **options: Any) -> int:
        link = Link(**{name: options.pop(name) for name in _OPTIONS})
        return run(link, *arguments, **options)

    command.__signature__ = signature.replace(parameters=[*own, *common])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *common]} | {
        "return": int
    }
    return command


DeviceOption = Annotated[
    str | None,
    typer.Option("--device", metavar="DEVICE", help="id, path or name; needed with several devices"),
]
SessionOption = Annotated[
    str | None, typer.Option("--session", metavar="ID", help="use this open session and leave it open")
]
CapabilityOption = Annotated[
    str, typer.Option("-c", "--capability", metavar="CAP", help="capability, as `describe` lists them")
]
InputOption = Annotated[
    str, typer.Option("-i", "--input", metavar="JSON|@FILE", help="its input, a JSON object; @- reads stdin")
]
ResourceOption = Annotated[
    str | None, typer.Option("--resource", metavar="RESOURCE", help="where the capability has several")
]
PermitOption = Annotated[
    str | None, typer.Option("--permit", metavar="ID", help="the permit for exactly this input")
]
RevisionOption = Annotated[
    int | None,
    typer.Option("--expect-revision", metavar="N", help="refuse unless the device is at this revision"),
]
CommandIdOption = Annotated[
    str | None,
    typer.Option("--command-id", metavar="ULID", help="the same id never runs twice; follows a running one"),
]
DeadlineOption = Annotated[
    int | None, typer.Option("--deadline-ms", metavar="MS", help="how long the endpoint may take to answer")
]
NoWaitOption = Annotated[
    bool,
    typer.Option("--no-wait", help="return at once when the operation takes long; leaves the session open"),
]
OperatorTokenOption = Annotated[
    str | None, typer.Option("--operator-token-file", metavar="FILE", help="file with the operator's token")
]
