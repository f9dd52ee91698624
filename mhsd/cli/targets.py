"""Which device a command means: by its id, its path, the last word of its path or its display name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mhsd.cli.boundary import UsageProblem
from mhsd.client.client import Client
from mhsd.client.errors import error
from mhsd.client.naming import devices_of, listed, matching

Device = Mapping[str, Any]
"""A device's manifest, or its summary of hello."""


class Target(NamedTuple):
    """The device and the resource that a command is for; `resource` is None where the endpoint decides."""

    device: Device
    resource: str | None = None

    @property
    def device_id(self) -> str:
        return str(self.device["device_id"])


def manifests(client: Client) -> list[dict[str, Any]]:
    """The complete manifests of every device of the endpoint."""
    client.hello()
    return devices_of(client.call("mhs.devices.list", {"detail": "full"}))


def named(devices: Sequence[Device], reference: str) -> Device:
    """The one device that `reference` names; an error lists the devices there are."""
    found = matching(devices, reference)
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageProblem(f"--device {reference} names several devices: {listed(found)}")
    raise error(
        "MHS.DEVICE.UNKNOWN",
        f"the endpoint has no device {reference}; it has: {listed(devices)}",
        "Name one of the endpoint's devices with --device.",
    )


def chosen(
    devices: Sequence[Device],
    reference: str | None,
    fits: Callable[[Device], bool] | None = None,
    what: str = "",
) -> Device:
    """The device that a command is for.

    Without `--device` it is the only one that `fits`; where none fits, the endpoint's only device, so that
    the endpoint itself says why not.
    """
    if reference is not None:
        return named(devices, reference)
    fitting = [device for device in devices if fits is None or fits(device)]
    if len(fitting) == 1:
        return fitting[0]
    if len(devices) == 1:
        return devices[0]
    if not devices:
        raise error("MHS.DEVICE.UNKNOWN", "the endpoint serves no device", "Start mhsd with a device.")
    several = "the endpoint has several devices"
    if what:
        several = f"several devices have {what}" if fitting else f"none of the devices has {what}"
    raise UsageProblem(f"{several}; name one with --device: {listed(fitting or devices)}")


def bindings_of(device: Device, capability_id: str) -> list[Mapping[str, Any]]:
    """The device's bindings of a capability."""
    bindings = device.get("bindings")
    entries = bindings if isinstance(bindings, list) else []
    return [entry for entry in entries if entry.get("capability_id") == capability_id]


def resource_of(device: Device, resource_id: str) -> Mapping[str, Any] | None:
    """The device's declaration of a resource."""
    resources = device.get("resources")
    entries = resources if isinstance(resources, list) else []
    return next((entry for entry in entries if entry.get("resource_id") == resource_id), None)
