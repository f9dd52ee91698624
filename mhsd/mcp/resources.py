"""Devices, manifests and states as MCP resources: which uris there are, and what each one names [TPT-043].

All of them can only be read. Where their content comes from is for `reading`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import attrs

from mhsd.mcp import artifacts

_JSON = "application/json"
_RESOURCES = "/resources/"


@attrs.frozen
class Target:
    """What a uri names: the list of devices, one device's manifest, or the state of one of its resources."""

    kind: Literal["devices", "device", "state"]
    device_id: str = ""
    resource_id: str = ""


def listed(endpoint_id: str, manifests: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every resource, in the order of the devices."""
    root = _root(endpoint_id)
    found = [
        {
            "uri": root,
            "name": "devices",
            "title": "Devices",
            "description": "Summaries of the devices",
            "mimeType": _JSON,
        }
    ]
    for device_id, manifest in manifests.items():
        found += _of_device(root, device_path(endpoint_id, device_id), manifest)
    return found


def _of_device(root: str, path: str, manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    uri = root + path
    name = str(manifest.get("display_name", path))
    yield {
        "uri": uri,
        "name": path.removeprefix("/"),
        "title": name,
        "description": f"The manifest of {name}",
        "mimeType": _JSON,
    }
    for resource in manifest.get("resources", []):
        resource_id = resource["resource_id"]
        yield {
            "uri": f"{uri}{_RESOURCES}{resource_id}",
            "name": f"{path}{_RESOURCES}{resource_id}".removeprefix("/"),
            "title": f"{name}: {resource_id}",
            "description": f"The present state of {resource_id} of {name}",
            "mimeType": _JSON,
        }


def templates(endpoint_id: str) -> list[dict[str, Any]]:
    """The forms of the uris, as RFC 6570 templates."""
    root = _root(endpoint_id)
    return [
        {
            "uriTemplate": f"{root}/{{+device_path}}",
            "name": "device",
            "title": "Device",
            "description": "The manifest of a device, by the path in its device_id",
            "mimeType": _JSON,
        },
        {
            "uriTemplate": f"{root}/{{+device_path}}{_RESOURCES}{{resource_id}}",
            "name": "state",
            "title": "State",
            "description": "The present state of a resource of a device",
            "mimeType": _JSON,
        },
        {
            "uriTemplate": f"{artifacts.SCHEME}{{digest}}",
            "name": "artifact",
            "title": "Artifact",
            "description": "A document that was too long for a tool's result, by the digest of its bytes",
            "mimeType": _JSON,
        },
    ]


def target_of(uri: str, endpoint_id: str, manifests: Mapping[str, Mapping[str, Any]]) -> Target | None:
    """What `uri` names; None for nothing that there is."""
    root = _root(endpoint_id)
    if uri == root:
        return Target("devices")
    for device_id, manifest in manifests.items():
        own = root + device_path(endpoint_id, device_id)
        if uri == own:
            return Target("device", device_id)
        resource_id = uri.removeprefix(own + _RESOURCES)
        if any(resource["resource_id"] == resource_id for resource in manifest.get("resources", [])):
            return Target("state", device_id, resource_id)
    return None


def device_path(endpoint_id: str, device_id: str) -> str:
    """What follows the endpoint's id in a device's, with its first slash; a foreign device's whole path."""
    own = device_id.removeprefix(endpoint_id)
    return (
        own
        if own != device_id and own.startswith("/")
        else "/" + device_id.partition("://")[2].partition("/")[2]
    )


def _root(endpoint_id: str) -> str:
    return f"{endpoint_id}/devices"
