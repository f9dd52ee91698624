"""`hello`, `devices`, `describe`, `read`: looking at an endpoint and its devices."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from mhsd.cli import exits
from mhsd.cli.boundary import UsageProblem
from mhsd.cli.command import DeviceOption, SessionOption, client_command
from mhsd.cli.link import Link
from mhsd.cli.mutation import close_quietly, open_session
from mhsd.cli.render import reading_lines, units_of
from mhsd.cli.render_devices import device_lines, device_table, trust_of
from mhsd.cli.targets import chosen, manifests, named, resource_of
from mhsd.cli.terminal import Paint, emit, put, say, table, value
from mhsd.client.client import Client
from mhsd.client.discovery import capability_classes
from mhsd.client.naming import devices_of
from mhsd.client.session import Session


@client_command
def hello(link: Link) -> int:
    """The result of mhs.hello: who serves, in which version, with which limits."""
    with link.client() as client:
        answered = client.hello()
    if link.json:
        emit(answered)
        return exits.OK
    server = answered.get("server") or {}
    rows = [
        ["endpoint", value(answered.get("endpoint_id"))],
        ["server", f"{value(server.get('name'))} {value(server.get('version'))}"],
        [
            "protocol",
            f"MHS {value(answered.get('mhs_version'))}, specification {value(answered.get('spec_version'))}",
        ],
        ["started at", value(answered.get("started_at"))],
        ["devices", str(len(devices_of(answered)))],
        ["features", " ".join(value(feature) for feature in answered.get("features") or [])],
    ]
    limits = answered.get("limits") or {}
    texts = [f"{value(name)}: {value(content)}" for name, content in limits.items()]
    rows += [["limits" if index == 0 else "", text] for index, text in enumerate(texts)]
    say(table(rows))
    return exits.OK


@client_command
def devices(link: Link) -> int:
    """One device a line."""
    with link.client() as client:
        client.hello()
        answered = client.call("mhs.devices.list", {"detail": "summary"})
    if link.json:
        emit(answered)
    else:
        say(device_table(devices_of(answered)) or "the endpoint serves no device")
    return exits.OK


@client_command
def describe(
    link: Link,
    device: Annotated[str | None, typer.Argument(metavar="DEVICE", help="id, path or name; else all")] = None,
    also_device: Annotated[
        str | None, typer.Option("--device", metavar="DEVICE", help="the same, as other commands spell it")
    ] = None,
    python: Annotated[
        bool, typer.Option("--python", help="write a Python module of typed methods for the device")
    ] = False,
) -> int:
    """Everything about a device before it is used: mode, risk, gaps and trust first [TPT-050]."""
    if device is not None and also_device not in (None, device):
        raise UsageProblem(f"{device} and --device {also_device} are two devices; name one, or none for all")
    device = device or also_device
    with link.client() as client:
        answered = client.hello()
        every = manifests(client)
        if python:
            return _python(client, chosen(every, device), as_json=link.json)
    shown = every if device is None else [named(every, device)]
    described = [(manifest, trust_of(answered, str(manifest["device_id"]))) for manifest in shown]
    if link.json:
        emit({"devices": [{"trust": trust, "manifest": manifest} for manifest, trust in described]})
        return exits.OK
    paint = Paint(sys.stdout)
    for index, (manifest, trust) in enumerate(described):
        say([*([""] if index else []), *device_lines(manifest, trust, paint)])
    return exits.OK


def _python(client: Client, manifest: Mapping[str, Any], *, as_json: bool) -> int:
    """The typed bindings of one device, made of its manifest and its capability classes [TPT-054]."""
    from mhsd.client.bindings_generator import python_module

    text = python_module(manifest, capability_classes(client, manifest))
    if as_json:
        emit({"device_id": manifest.get("device_id"), "digest": manifest.get("digest"), "module": text})
    else:
        put(sys.stdout, text)
    return exits.OK


@client_command
def read(
    link: Link,
    resource: Annotated[
        str, typer.Argument(metavar="RESOURCE", help="what to read, as `describe` lists them")
    ],
    device: DeviceOption = None,
    field: Annotated[
        list[str] | None, typer.Option("--field", metavar="NAME", help="only this field; may be repeated")
    ] = None,
    revision: Annotated[
        int | None,
        typer.Option("--revision", metavar="N", min=0, help="the state that a replay device recorded then"),
    ] = None,
    session: SessionOption = None,
) -> int:
    """The current state of one resource, with units."""
    with link.client() as client:
        target = chosen(
            manifests(client),
            device,
            lambda manifest: resource_of(manifest, resource) is not None,
            f"a resource {resource}",
        )
        device_id = str(target["device_id"])
        used = Session(client, session) if session is not None else open_session(client, [target], [])
        params: dict[str, Any] = {"resource_id": resource, "device_id": device_id}
        if field:
            params["fields"] = field
        if revision is not None:
            params["filter"] = {"revision": revision}
        try:
            reading = used.call("mhs.resource.read", params)
        finally:
            if session is None:
                close_quietly(used)
    if link.json:
        emit(reading)
    else:
        say(reading_lines(reading, units_of(resource_of(target, resource))))
    return exits.OK
