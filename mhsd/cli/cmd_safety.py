"""`reset` and `permit`: what only a responsible person does. `estop` and `status` are in fast.py."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from mhsd.cli import exits
from mhsd.cli.boundary import UsageProblem
from mhsd.cli.cmd_act import find_binding
from mhsd.cli.command import (
    CapabilityOption,
    DeviceOption,
    InputOption,
    OperatorTokenOption,
    ResourceOption,
    client_command,
)
from mhsd.cli.inputs import json_object
from mhsd.cli.link import Link
from mhsd.cli.mutation import close_quietly, open_session
from mhsd.cli.render import receipt_lines
from mhsd.cli.render_safety import status_lines
from mhsd.cli.targets import Device, bindings_of, chosen
from mhsd.cli.terminal import Paint, emit, note, plain, say, table, value
from mhsd.client.client import Client
from mhsd.client.errors import error
from mhsd.client.naming import devices_of, matching, name_of, path_of

PERMIT_TTL_S = 300


@client_command
def reset(
    link: Link,
    operator_token_file: OperatorTokenOption = None,
    device: DeviceOption = None,
) -> int:
    """Releases a latched e-stop: a person at a terminal only; nothing is sent otherwise [CORE-083]."""
    if not sys.stdin.isatty():
        raise error(
            "MHS.AUTH.FORBIDDEN",
            "a reset needs a person at an interactive terminal, and stdin is none; nothing was sent",
            "Run it by hand where you can see the device.",
        )
    with link.client(operator_token_file) as client:
        target = chosen(devices_of(client.hello()), device)
        _show(client, target)
        if operator_token_file is None:
            _confirm(target)
        session = open_session(client, [target], [])
        try:
            receipt = session.call("mhs.safety.reset", {"device_id": target["device_id"]})
        finally:
            close_quietly(session)
    if link.json:
        emit(receipt)
    else:
        say(receipt_lines(receipt, Paint(sys.stdout)))
    return exits.of_receipt(receipt)


def _show(client: Client, target: Device) -> None:
    """What the person is about to release, on stderr, since stdout may belong to a program."""
    status = client.call("mhs.safety.status", {"device_id": target["device_id"]})
    note(status_lines([{**target, **status}], Paint(sys.stderr)))


def _confirm(target: Device) -> None:
    """On an endpoint without operators the name of the device, typed, stands for the credential."""
    name = name_of(target)
    note(["", f"Is everybody clear of the device? Type its name, {plain(name)}, to release the e-stop:"])
    typed = sys.stdin.readline().strip()
    if not typed or not matching([target], typed):
        raise error(
            "MHS.AUTH.FORBIDDEN",
            "the name of the device was not typed; nothing was sent",
            f"Run the command again and type {name}.",
        )


@client_command
def permit(
    link: Link,
    capability: CapabilityOption,
    session: Annotated[
        str, typer.Option("--session", metavar="ID", help="the session that will use the permit")
    ],
    input_text: InputOption = "{}",
    resource: ResourceOption = None,
    device: DeviceOption = None,
    operator_token_file: OperatorTokenOption = None,
    ttl_s: Annotated[
        int, typer.Option("--ttl", metavar="S", min=1, help="seconds that the permit holds")
    ] = PERMIT_TTL_S,
) -> int:
    """A single-use permit for exactly this input [SAFE-004]."""
    content = json_object(input_text, "--input")
    with link.client(operator_token_file) as client:
        target, binding = find_binding(client, capability, resource, device)
        if binding is None and resource is None and len(bindings_of(target.device, capability)) > 1:
            raise UsageProblem(f"{capability} is bound to several resources; name one with --resource")
        params: dict[str, Any] = {
            "session_id": session,
            "device_id": target.device_id,
            "capability_id": capability,
            "input_digest": _input_digest(capability, target.resource, content),
            "ttl_s": ttl_s,
            "approvals": [],
        }
        if target.resource is not None:
            params["resource"] = target.resource
        answered = client.call("mhs.safety.permit", params)
    if link.json:
        emit(answered)
        return exits.OK
    say(
        table(
            [
                ["permit", value(answered.get("permit_id"))],
                [
                    "for",
                    f"{capability} on {plain(target.resource or '-')} of {plain(path_of(target.device_id))}",
                ],
                ["input", value(content)],
                ["holds until", f"{value(answered.get('expires_at'))}, once"],
            ]
        )
    )
    return exits.OK


def _input_digest(capability: str, resource: str | None, content: Mapping[str, Any]) -> str:
    """The digest that binds the permit to its input [PROTO-036]."""
    from mhsd.wire.canonical import NotCanonical, digest

    try:
        return digest({"capability_id": capability, "resource": resource, "input": content})
    except NotCanonical as problem:
        raise UsageProblem(f"--input has no canonical form: {problem}") from None
