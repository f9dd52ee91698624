"""What devices are called: by id, by path, by the last word of the path or by display name. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

Named = TypeVar("Named", bound=Mapping[str, Any])
"""A device's manifest, or its summary of hello."""


def devices_of(answered: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The `devices` of a hello or a list; entries that name no device are left out."""
    devices = answered.get("devices")
    entries = devices if isinstance(devices, list) else []
    return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("device_id"), str)]


def path_of(device_id: str) -> str:
    """The device's path, which is its name below the endpoint's id, as in `/lab/conveyor-workcell`."""
    rest = device_id.split("://", 1)[-1]
    return "/" + rest.split("/", 1)[1] if "/" in rest else device_id


def name_of(device: Mapping[str, Any]) -> str:
    """The last word of the device's path."""
    return path_of(str(device["device_id"])).rsplit("/", 1)[-1]


def matching(devices: Sequence[Named], reference: str) -> list[Named]:
    """The devices that `reference` names: the one of that id, else all of that path or name."""
    return [device for device in devices if device["device_id"] == reference] or [
        device
        for device in devices
        if reference in (path_of(str(device["device_id"])), name_of(device), device.get("display_name"))
    ]


def capabilities_of(device: Mapping[str, Any]) -> list[str]:
    """The capability ids that are bound on a device, each once."""
    bindings = device.get("bindings")
    entries = [entry for entry in bindings if isinstance(entry, dict)] if isinstance(bindings, list) else []
    return list(dict.fromkeys(str(entry.get("capability_id")) for entry in entries))


def listed(devices: Sequence[Mapping[str, Any]]) -> str:
    """The paths of devices, for a message."""
    return ", ".join(path_of(str(device["device_id"])) for device in devices) or "none"
