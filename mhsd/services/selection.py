"""Which streams of which devices a subscription asks for; what cannot be had is refused [EVT-002].

A stream is had where the device's manifest declares it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mhsd.base.errors import Fault
from mhsd.core.events import PER_RESOURCE, Selection
from mhsd.driver.manifest import Manifest
from mhsd.wire.elements import StreamRequest


def select(requests: Sequence[StreamRequest], manifests: Mapping[str, Manifest]) -> dict[Selection, None]:
    """What these requests come to on these devices, each once; a Fault for the first that is nothing."""
    selected: dict[Selection, None] = {}
    for index, request in enumerate(requests):
        found = [
            selection
            for device_id, manifest in manifests.items()
            if request.device_id in (None, device_id)
            for selection in _on_device(request, device_id, manifest)
        ]
        if not found:
            raise _nothing(request, index, manifests)
        selected |= dict.fromkeys(found)
    return selected


def _on_device(request: StreamRequest, device_id: str, manifest: Manifest) -> Iterable[Selection]:
    declared = [entry for entry in manifest.streams if entry["stream"] == request.stream]
    bound = {binding.resource for binding in manifest.bindings_of(request.capability_id or "")}
    if request.stream in PER_RESOURCE:
        for entry in declared:
            resource_id = entry["resource_id"]
            wanted = request.resource_id in (None, resource_id)
            if wanted and (request.capability_id is None or resource_id in bound):
                yield Selection(request.stream, device_id, resource_id)
    elif declared and _is_about_something(request, bound, manifest):
        yield Selection(request.stream, device_id, request.resource_id, request.capability_id)


def _is_about_something(request: StreamRequest, bound: set[str], manifest: Manifest) -> bool:
    """Whether events of the named capability and resource can ever come; the log is of the whole device."""
    if request.stream == "log":
        return request.resource_id is None and request.capability_id is None
    if request.capability_id is not None:
        return request.resource_id in bound or (request.resource_id is None and bool(bound))
    return request.resource_id is None or request.resource_id in manifest.resources


def _nothing(request: StreamRequest, index: int, manifests: Mapping[str, Manifest]) -> Fault:
    """Why a request comes to nothing: the part of it that no device in question has."""
    field = f"streams[{index}]"
    asked = {
        device_id: manifest
        for device_id, manifest in manifests.items()
        if request.device_id in (None, device_id)
    }
    resources = sorted({name for manifest in asked.values() for name in manifest.resources})
    if request.resource_id is not None and request.resource_id not in resources:
        return Fault(
            "MHS.RESOURCE.UNKNOWN",
            f"there is no resource {request.resource_id}",
            details={"field": f"{field}.resource_id", "resources": resources},
        )
    if request.capability_id is not None and not any(
        manifest.bindings_of(request.capability_id) for manifest in asked.values()
    ):
        return Fault(
            "MHS.CAPABILITY.UNKNOWN",
            f"{request.capability_id} is bound to no device in question",
            details={"field": f"{field}.capability_id", "capability_id": request.capability_id},
        )
    declared: list[dict[str, Any]] = [
        {
            "device_id": device_id,
            **{name: entry[name] for name in ("stream", "resource_id") if name in entry},
        }
        for device_id, manifest in asked.items()
        for entry in manifest.streams
    ]
    return Fault(
        "MHS.PROTOCOL.INVALID_PARAMS",
        f"no device in question has such a stream {request.stream}; details.declared lists those that there are",
        details={"field": field, "reason": "stream_not_declared", "declared": declared[:64]},
    )
