"""`call` and `write`: the two commands that change a device."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from mhsd.base.ids import is_ulid
from mhsd.cli.boundary import UsageProblem
from mhsd.cli.command import (
    CapabilityOption,
    CommandIdOption,
    DeadlineOption,
    DeviceOption,
    InputOption,
    NoWaitOption,
    PermitOption,
    ResourceOption,
    RevisionOption,
    SessionOption,
    client_command,
)
from mhsd.cli.inputs import json_object
from mhsd.cli.link import Link
from mhsd.cli.mutation import Mutation
from mhsd.cli.targets import Target, bindings_of, chosen, manifests
from mhsd.client.client import Client

CONFIGURE = "cap.device.configure.v1"


@client_command
def call(
    link: Link,
    capability: CapabilityOption,
    input_text: InputOption = "{}",
    resource: ResourceOption = None,
    device: DeviceOption = None,
    session: SessionOption = None,
    permit: PermitOption = None,
    expect_revision: RevisionOption = None,
    command_id: CommandIdOption = None,
    deadline_ms: DeadlineOption = None,
    no_wait: NoWaitOption = False,
) -> int:
    """One mhs.command; waits for its final receipt and prints it."""
    content = json_object(input_text, "--input")
    options = _options(permit, expect_revision, command_id)
    _refuse_unfollowed(link, no_wait)
    again = ["call", "-c", capability, "-i", _compact(content), *_named(resource=resource, device=device)]
    with link.client() as client:
        target, binding = find_binding(client, capability, resource, device)
        params: dict[str, Any] = {"capability_id": capability, "input": content, **options}
        if resource is not None:
            params["resource"] = resource
        return _mutation(
            link, client, target, "mhs.command", params, binding, deadline_ms, not no_wait, again
        ).run(session)


@client_command
def write(
    link: Link,
    resource: Annotated[
        str, typer.Argument(metavar="RESOURCE", help="what to set, as `describe` lists them")
    ],
    patch: Annotated[
        str,
        typer.Option(
            "--patch", metavar="JSON|@FILE", help="the fields to set, a JSON object; @- reads stdin"
        ),
    ],
    device: DeviceOption = None,
    session: SessionOption = None,
    permit: PermitOption = None,
    expect_revision: RevisionOption = None,
    command_id: CommandIdOption = None,
    deadline_ms: DeadlineOption = None,
    no_wait: NoWaitOption = False,
) -> int:
    """One mhs.resource.write, which runs the resource's configure binding [PROTO-025a]."""
    content = json_object(patch, "--patch")
    options = _options(permit, expect_revision, command_id)
    _refuse_unfollowed(link, no_wait)
    again = ["write", resource, "--patch", _compact(content), *_named(device=device)]
    with link.client() as client:
        target, binding = find_binding(client, CONFIGURE, resource, device)
        params = {"resource_id": resource, "patch": content, **options}
        return _mutation(
            link, client, target, "mhs.resource.write", params, binding, deadline_ms, not no_wait, again
        ).run(session)


def find_binding(
    client: Client, capability: str, resource: str | None, device: str | None
) -> tuple[Target, Mapping[str, Any] | None]:
    """The device that binds `capability` and the binding; None where no single binding is meant.

    The endpoint then says why in its own words: a command that nothing binds is refused by a receipt.
    """

    def fitting(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        bindings = bindings_of(manifest, capability)
        return [binding for binding in bindings if resource in (None, binding.get("resource"))]

    target = chosen(manifests(client), device, lambda manifest: bool(fitting(manifest)), capability)
    bindings = fitting(target)
    binding = bindings[0] if len(bindings) == 1 else None
    return Target(target, binding.get("resource") if binding else resource), binding


def _options(permit: str | None, revision: int | None, command_id: str | None) -> dict[str, Any]:
    if command_id is not None and not is_ulid(command_id):
        raise UsageProblem("--command-id is a ULID: 26 letters and digits in upper case")
    given = {"permit_id": permit, "expected_revision": revision, "command_id": command_id}
    return {name: content for name, content in given.items() if content is not None}


def _refuse_unfollowed(link: Link, no_wait: bool) -> None:
    if no_wait and not link.outlives_command():
        raise UsageProblem("--no-wait needs an endpoint that goes on running, which stdio: does not")


def _mutation(
    link: Link,
    client: Client,
    target: Target,
    method: str,
    params: dict[str, Any],
    binding: Mapping[str, Any] | None,
    deadline_ms: int | None,
    wait: bool,
    again: list[str],
) -> Mutation:
    params.setdefault("command_id", client.ulid())
    constraints = binding.get("constraints") if binding else None
    return Mutation(
        link,
        client,
        target,
        method,
        params,
        capability=str(binding["capability_id"]) if binding else None,
        max_duration_ms=constraints.get("max_duration_ms") if isinstance(constraints, dict) else None,
        long_running=bool(binding and binding.get("long_running")),
        deadline_ms=deadline_ms,
        wait=wait,
        again=again,
    )


def _compact(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _named(**options: str | None) -> list[str]:
    return [
        word for name, content in options.items() if content is not None for word in (f"--{name}", content)
    ]
