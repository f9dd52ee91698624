"""The devices of an endpoint as the tools of an MCP server [TPT-030 to TPT-035].

Decides which bindings become tools, that no two share a name, and what the host policy withholds. It knows the
manifests as `mhs.devices.get` answers them and nothing else, so that a local and a remote endpoint are one case.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from mhsd.base.errors import Fault
from mhsd.core.sessions import RESERVED_CLASSES
from mhsd.mcp.descriptions import reference_of
from mhsd.mcp.fixed import FIXED, fixed_tools
from mhsd.mcp.naming import tool_name
from mhsd.mcp.policy import Policy
from mhsd.mcp.tools import ProjectionError, Tool, only_reads, tool_of
from mhsd.wire.schema import compile_schema

MAX_DEADLINE_MS = 600_000
"""The longest deadline of an endpoint that states none."""


@attrs.frozen
class Withheld:
    """A tool that the host policy does not offer."""

    mhs_code: str
    policy: str
    """The key and value of the policy that withholds it."""


@attrs.frozen
class Projection:
    """What an MCP client sees of one endpoint under one policy."""

    endpoint_id: str
    policy: Policy
    manifests: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    """Device id → manifest, of the devices that the policy shows."""
    tools: Mapping[str, Tool] = attrs.field(factory=dict)
    """The capability tools by name, in the order of devices and bindings."""
    withheld: Mapping[str, Withheld] = attrs.field(factory=dict)

    def listed(self, revision: str) -> list[dict[str, Any]]:
        """Every entry of `tools/list`: the fixed tools first, then the capabilities."""
        listings = [tool.listing for tool in fixed_tools(self.policy)]
        listings += [tool.listing for tool in self.tools.values()]
        return [listing.shown(revision) for listing in listings]

    def refusal(self, name: str) -> Fault | None:
        """Why the policy does not let this tool be called; None where it does, or where there is no such tool."""
        if name in FIXED:
            return FIXED[name].refusal(self.policy)
        withheld = self.withheld.get(name)
        if withheld is None:
            return None
        return _withheld_fault(withheld, name)

    def device_id(self, asked: str | None) -> str:
        """The device that a fixed tool means: the one that is asked for, else the only one.

        Fault DEVICE.UNKNOWN where there is no such device, INVALID_PARAMS where there are several.
        """
        if asked is not None:
            if asked not in self.manifests:
                raise Fault("MHS.DEVICE.UNKNOWN", f"there is no device {asked[:256]!r} here; {self._known()}")
            return asked
        if len(self.manifests) != 1:
            raise _which("device_id is needed", list(self.manifests))
        return next(iter(self.manifests))

    def device_of(self, resource_id: str, asked: str | None) -> str:
        """The device whose resource `mhs__read` means; `asked` may be left out where only one has it [TPT-044]."""
        if asked is not None:
            return self.device_id(asked)
        having = [
            device_id
            for device_id, manifest in self.manifests.items()
            if resource_id in _resource_ids(manifest)
        ]
        if not having:
            known = sorted({each for manifest in self.manifests.values() for each in _resource_ids(manifest)})
            raise Fault(
                "MHS.RESOURCE.UNKNOWN",
                f"no device has a resource {resource_id[:128]!r}; there are: {', '.join(known) or 'none'}",
            )
        if len(having) > 1:
            raise _which(f"several devices have {resource_id}, so device_id is needed", having)
        return having[0]

    def reading_refusal(self, device_id: str) -> Fault | None:
        """Why this device may not be read, or None: what is read from hardware is a command to it too."""
        if self.policy.allows_mode(str(self.manifests[device_id].get("mode"))):
            return None
        return _withheld_fault(_HARDWARE, f"reading {device_id}")

    def devices(self) -> dict[str, Any]:
        """The document of `mhs__devices` [TPT-044]."""
        return {
            "devices": [
                {
                    "device_id": device_id,
                    "display_name": manifest.get("display_name"),
                    "mode": manifest.get("mode"),
                    "risk_class": manifest.get("risk_class"),
                    "resources": _resource_ids(manifest),
                    "tools": [tool.name for tool in self._tools_of(device_id)],
                }
                for device_id, manifest in self.manifests.items()
            ]
        }

    def inspected(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """The document of `mhs__inspect`: a manifest as it was just read, with its reference [TPT-044].

        `x-mhs-effective-limits` stands in each binding that has limits; `x-mhs-reference` is the reference
        of the device in Markdown, which names the tools.
        """
        tools = {
            (tool.capability_id, tool.resource): tool.name for tool in self._tools_of(manifest["device_id"])
        }
        return {**manifest, "x-mhs-reference": reference_of(manifest, tools)}

    def _tools_of(self, device_id: str) -> Iterator[Tool]:
        return (tool for tool in self.tools.values() if tool.device_id == device_id)

    def _known(self) -> str:
        return "there are: " + (", ".join(self.manifests) or "none")


def project(
    manifests: Iterable[Mapping[str, Any]],
    *,
    endpoint_id: str,
    policy: Policy,
    classes: Mapping[str, Mapping[str, Any]] | None = None,
    max_deadline_ms: int = MAX_DEADLINE_MS,
) -> Projection:
    """The projection of these devices.

    `classes` are the class documents by capability id, as `mhs.schema.get` answers them; they give titles and
    summaries, and a class that is missing is described by its effects. ProjectionError, which is a StartError,
    where two tools would have one name [TPT-032] or an input cannot be a tool's.
    """
    shown = {m["device_id"]: m for m in map(usable, manifests) if policy.allows_device(m["device_id"])}
    tools: dict[str, Tool] = {}
    withheld: dict[str, Withheld] = {}
    for manifest, binding in _bindings(shown.values()):
        name = _name(manifest, binding)
        capability = (classes or {}).get(binding["capability_id"])
        refused = _withheld_by(policy, manifest, binding)
        if refused is not None:
            withheld[name] = refused
            continue
        tool = tool_of(name, manifest, binding, capability, max_deadline_ms=max_deadline_ms)
        if name in tools:
            raise _collision(tools[name], tool)
        tools[name] = tool
    return Projection(
        endpoint_id,
        policy,
        shown,
        tools,
        {name: entry for name, entry in withheld.items() if name not in tools},
    )


_TEXT = {"type": "string", "minLength": 1}
_FLAG = {"type": "boolean"}
_NEEDED = compile_schema(
    {
        "type": "object",
        "required": ["device_id", "mode"],
        "properties": {
            "device_id": _TEXT,
            "mode": _TEXT,
            "resources": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["resource_id"],
                    "properties": {"resource_id": _TEXT},
                },
            },
            "bindings": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["capability_id", "resource"],
                    "properties": {
                        "capability_id": _TEXT,
                        "resource": _TEXT,
                        "effects": {"type": "array", "items": {"type": "object"}},
                        "interlocks": {"type": "array", "items": _TEXT},
                        "constraints": {
                            "type": "object",
                            "properties": {"max_duration_ms": {"type": "integer", "minimum": 1}},
                        },
                        "long_running": _FLAG,
                        "simulation_control": _FLAG,
                    },
                },
            },
        },
    }
)
"""What is relied on in a manifest; this program's own endpoints serve much stricter ones."""


def usable(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same manifest; ProjectionError for one of a foreign endpoint that cannot be projected."""
    errors = _NEEDED.errors(manifest)
    if errors:
        which = manifest.get("device_id") if isinstance(manifest, Mapping) else None
        problem = f"{errors[0]['path']} {errors[0]['message']}".strip()
        raise ProjectionError(f"the manifest of {which!s:.256} cannot be projected: {problem}")
    return manifest


_HARDWARE = Withheld("MHS.AUTH.HARDWARE_DISABLED", "allow_hardware=false")
_READ_ONLY = Withheld("MHS.AUTH.FORBIDDEN", "read_only=true")
_NOT_ON_THE_LIST = Withheld("MHS.AUTH.FORBIDDEN", "capabilities")


def _withheld_by(policy: Policy, manifest: Mapping[str, Any], binding: Mapping[str, Any]) -> Withheld | None:
    if not policy.allows_mode(str(manifest.get("mode"))):
        return _HARDWARE
    if policy.read_only and not only_reads(binding):
        return _READ_ONLY
    if not policy.allows_capability(binding["capability_id"]):
        return _NOT_ON_THE_LIST
    return None


def _withheld_fault(withheld: Withheld, what: str) -> Fault:
    return Fault(
        withheld.mhs_code,
        f"{what} is not allowed on this host (policy {withheld.policy})",
        details={"policy": withheld.policy},
        remediation="Ask the person who set up this host; its policy file (--mcp-config) decides.",
    )


def _bindings(
    manifests: Iterable[Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Every binding but those of internal classes, which are never projected [TPT-031]."""
    for manifest in manifests:
        for binding in manifest.get("bindings") or []:
            if not binding["capability_id"].startswith(RESERVED_CLASSES):
                yield manifest, binding


def _name(manifest: Mapping[str, Any], binding: Mapping[str, Any]) -> str:
    try:
        return tool_name(manifest["device_id"], binding["capability_id"])
    except ValueError as error:
        raise ProjectionError(str(error)) from None


def _collision(first: Tool, second: Tool) -> ProjectionError:
    def words(tool: Tool) -> str:
        return f"{tool.capability_id} on {tool.resource} of {tool.device_id}"

    return ProjectionError(
        f"two MCP tools would be named {first.name}: {words(first)}, and {words(second)};"
        " give one device another path, or leave one out with devices or capabilities in the host policy"
    )


def _which(problem: str, choices: list[str]) -> Fault:
    return Fault(
        "MHS.PROTOCOL.INVALID_PARAMS",
        f"{problem}; there are: {', '.join(choices) or 'none'}",
        details={"field": "device_id"},
    )


def _resource_ids(manifest: Mapping[str, Any]) -> list[str]:
    return [resource["resource_id"] for resource in manifest.get("resources") or []]
