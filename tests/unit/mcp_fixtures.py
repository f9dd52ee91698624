"""Manifests and class documents as an endpoint serves them, for the tests of the MCP projection."""

import copy
from functools import cache
from typing import Any

from mhsd.base.resources import drivers_dir
from mhsd.driver.classes import directory_classes, spec_classes
from mhsd.driver.loader import load_target
from mhsd.mcp.policy import Policy
from mhsd.mcp.projection import Projection, project

ENDPOINT = "mhs://localhost:7400"
CONVEYOR = f"{ENDPOINT}/lab/conveyor-workcell"
NAMED = "mhs__lab_conveyor_workcell__"


@cache
def _manifest(target: str, path: str | None) -> dict[str, Any]:
    manifest = load_target(target, backend="fake", options={}, path=path).manifest
    return {**manifest.document, "device_id": f"{ENDPOINT}{manifest.path}", "mode": manifest.mode}


def manifest_of(target: str = "conveyor-workcell", path: str | None = None) -> dict[str, Any]:
    """What `mhs.devices.get` answers for a fixture, without its state; the caller's own copy."""
    return copy.deepcopy(_manifest(target, path))


@cache
def classes() -> dict[str, dict[str, Any]]:
    """The class documents that the conveyor's endpoint serves."""
    known = {**spec_classes(), **directory_classes(drivers_dir() / "conveyor_workcell")}
    return {capability_id: dict(each.document) for capability_id, each in known.items()}


def projection_of(*manifests: dict[str, Any], policy: Policy | None = None) -> Projection:
    """The projection of these manifests; of the conveyor where there is none."""
    return project(
        manifests or (manifest_of(),), endpoint_id=ENDPOINT, policy=policy or Policy(), classes=classes()
    )
