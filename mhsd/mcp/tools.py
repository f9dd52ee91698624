"""A binding of a device as an MCP tool [TPT-031, TPT-033, TPT-035].

Decides the tool's input schema, its metadata for programs, and how long a call waits without being told.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from mhsd.base.errors import StartError
from mhsd.mcp.controls import CONTROL_PROPERTIES, Controls, split_arguments
from mhsd.mcp.descriptions import description_of, limits_of, risk_of, title_of
from mhsd.mcp.listing import Listing
from mhsd.mcp.results import Asked
from mhsd.wire.lint import DRAFT_07, lint
from mhsd.wire.schema import SchemaError, Validator, compile_schema

LONG_RUNNING_DEADLINE_MS = 25_000
"""How long a call of a long-running binding, or of one without a longest duration, waits [MHSD-9a-84]."""
DEADLINE_GRACE_MS = 2_000
"""How much longer than the longest duration any other call waits [MHSD-9a-84]."""

_NOT_IN_2020_12 = frozenset({"additionalItems", "dependencies"})


class ProjectionError(StartError):
    """Something that cannot be projected as it stands; nothing is projected then [TPT-032]."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=1)


@attrs.frozen
class Tool:
    """One binding as a tool: its name stands for the device, the capability and the resource [TPT-036]."""

    listing: Listing
    device_id: str
    capability_id: str
    resource: str
    mode: str
    input: Validator
    """Of the binding's own input, without the controls."""
    long_running: bool
    max_duration_ms: int | None
    default_deadline_ms: int

    @property
    def name(self) -> str:
        return self.listing.name

    def shown(self, revision: str) -> dict[str, Any]:
        """The entry of `tools/list`."""
        return self.listing.shown(revision)

    def split(
        self, arguments: Mapping[str, Any], meta: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], Controls]:
        """The checked input and the controls of a call; Fault INPUT_INVALID."""
        return split_arguments(self.input, arguments, meta)

    def asked(self, controls: Controls) -> Asked:
        """What the result says of a call beside its receipt."""
        deadline_ms = self.default_deadline_ms if controls.deadline_ms is None else controls.deadline_ms
        return Asked(self.long_running, deadline_ms, self.max_duration_ms)


def tool_of(
    name: str,
    manifest: Mapping[str, Any],
    binding: Mapping[str, Any],
    capability: Mapping[str, Any] | None,
    *,
    max_deadline_ms: int,
) -> Tool:
    """The tool of a binding; `capability` is its class document where the endpoint serves one.

    ProjectionError for an input that cannot be a tool's [TPT-033].
    """
    where = f"{binding['capability_id']} of {manifest['device_id']}"
    schema = binding.get("input_schema")
    validator = _validator(schema, where)
    constraints = binding.get("constraints") or {}
    max_duration_ms = constraints.get("max_duration_ms")
    long_running = binding.get("long_running", False)
    listing = Listing(
        name=name,
        title=title_of(manifest, binding, capability),
        description=description_of(manifest, binding, capability),
        input_schema=projected_schema(validator.schema),
        read_only=only_reads(binding),
        destructive=any(not effect.get("reversible") for effect in binding.get("effects") or []),
        x_mhs=_x_mhs(manifest, binding, capability),
    )
    return Tool(
        listing=listing,
        device_id=manifest["device_id"],
        capability_id=binding["capability_id"],
        resource=binding["resource"],
        mode=manifest["mode"],
        input=validator,
        long_running=long_running,
        max_duration_ms=max_duration_ms,
        default_deadline_ms=default_deadline_ms(long_running, max_duration_ms, max_deadline_ms),
    )


def only_reads(binding: Mapping[str, Any]) -> bool:
    """Whether a read-only projection offers it [TPT-046]; what steers a simulation is no reading."""
    return not binding.get("effects") and not binding.get("simulation_control")


def default_deadline_ms(long_running: bool, max_duration_ms: int | None, max_deadline_ms: int) -> int:
    """How long a call waits that names no deadline [TPT-042, MHSD-9a-84]."""
    if long_running or max_duration_ms is None:
        return min(LONG_RUNNING_DEADLINE_MS, max_deadline_ms)
    return min(max_duration_ms + DEADLINE_GRACE_MS, max_deadline_ms)


def projected_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The binding's input schema with the control properties, and otherwise as it is [TPT-033].

    MCP reads a schema as 2020-12 where it does not say otherwise; one that means something else there says so.
    """
    projected = {
        **schema,
        "properties": {**schema.get("properties", {}), **CONTROL_PROPERTIES},
    }
    if any(_differs_in_2020_12(part) for part in _parts(schema)):
        projected.setdefault("$schema", DRAFT_07)
    return projected


def _validator(schema: Any, where: str) -> Validator:
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise ProjectionError(
            f"{where} cannot be an MCP tool: its input is no object; leave it out with capabilities in the host policy"
        )
    taken = [name for name in CONTROL_PROPERTIES if name in schema.get("properties", {})]
    if taken:
        raise ProjectionError(
            f"{where} cannot be an MCP tool: its input has {', '.join(taken)}, which every tool has as a control"
            " property; leave it out with capabilities in the host policy"
        )
    problems = lint(schema)
    try:
        validator = compile_schema(schema)
    except SchemaError as error:
        problems.append(str(error))
    if problems:
        raise ProjectionError(
            f"{where} cannot be an MCP tool: its input schema cannot be checked: {problems[0]}"
        )
    return validator


def _differs_in_2020_12(part: Mapping[str, Any]) -> bool:
    return isinstance(part.get("items"), list) or not _NOT_IN_2020_12.isdisjoint(part)


def _parts(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every object in the schema; one that is no schema only makes the dialect be named needlessly."""
    if isinstance(value, Mapping):
        yield value
        for member in value.values():
            yield from _parts(member)
    elif isinstance(value, list):
        for item in value:
            yield from _parts(item)


def _x_mhs(
    manifest: Mapping[str, Any], binding: Mapping[str, Any], capability: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What a host can gate a tool by without reading prose [TPT-035]."""
    return {
        "risk_class": risk_of(binding, capability),
        "mode": manifest["mode"],
        "capability_id": binding["capability_id"],
        "device_id": manifest["device_id"],
        "resource": binding["resource"],
        "device_risk_class": manifest.get("risk_class"),
        "actuating": bool(binding.get("effects")),
        "simulation_control": binding.get("simulation_control", False),
        "permit": binding.get("permit", "none"),
        "interlocks": list(binding.get("interlocks") or []),
        "long_running": binding.get("long_running", False),
        "max_duration_ms": (binding.get("constraints") or {}).get("max_duration_ms"),
        "effective_limits": dict(limits_of(binding)),
    }
