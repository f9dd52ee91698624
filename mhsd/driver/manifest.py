"""Manifests: what a device is, can do and how it is kept safe.

A manifest here is complete: defaults filled in, schemas compiled, every reference resolved. What each key
means stands in `device.schema.json`; what a manifest may say is decided where it is built.
"""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from mhsd.driver.classes import CapabilityClass
from mhsd.wire.schema import Validator

Mode = Literal["simulated", "hardware", "hybrid", "replay"]


@attrs.frozen
class Limit:
    """The allowed range of one input field; None leaves a side open."""

    minimum: float | None
    maximum: float | None
    unit: str
    minimum_source: str = "manifest"
    maximum_source: str = "manifest"
    """Who has set the side: the manifest or the site."""


@attrs.frozen(eq=False)
class Resource:
    resource_id: str
    kind: str
    state_schema: Mapping[str, Any]
    hash_exclusions: tuple[str, ...]
    """JSON pointers of the fields that move without a command."""


@attrs.frozen(eq=False)
class Binding:
    """One capability class on one resource of the device."""

    capability_id: str
    resource: str
    input_schema: Mapping[str, Any]
    limits: Mapping[str, Limit]
    interlocks: tuple[str, ...]
    permit: Literal["none", "required"]
    long_running: bool
    max_duration_ms: int | None
    max_rate_per_s: float | None
    effects: tuple[Mapping[str, Any], ...]
    simulation_control: bool
    input: Validator
    capability: CapabilityClass

    @property
    def actuating(self) -> bool:
        """Whether it changes anything: it declares an effect."""
        return bool(self.effects)


@attrs.frozen
class Interlock:
    id: str
    hard: bool
    description: str
    watch: Literal["driver", "poll"]
    watch_hz: float
    max_age_ms: int


@attrs.frozen(eq=False)
class Safety:
    estop_kind: str
    latching: bool
    latency_ms: int
    interlocks: Mapping[str, Interlock]
    safe_state: Mapping[str, Any]
    reenable: Mapping[str, Any] | None
    on_shutdown: Literal["safe_state", "leave"]
    notes: str | None


@attrs.frozen(eq=False)
class Option:
    """What may be set at start; `needed` on the backends in use when it has no default."""

    name: str
    schema: Mapping[str, Any]
    has_default: bool
    default: Any
    backends: tuple[str, ...]


@attrs.frozen(eq=False)
class Manifest:
    """One device's manifest on one backend; `document` is what is served, the endpoint's members apart."""

    document: Mapping[str, Any]
    path: str
    display_name: str
    mode: Mode
    modes: Mapping[str, Mode]
    options: Mapping[str, Option]
    risk_class: str
    profile: Mapping[str, Any]
    fidelity: Mapping[str, Any]
    resources: Mapping[str, Resource]
    bindings: tuple[Binding, ...]
    safety: Safety
    facts: Mapping[str, Any]
    redaction: tuple[str, ...]
    streams: tuple[Mapping[str, Any], ...]

    def binding(self, capability_id: str, resource: str) -> Binding | None:
        """The binding of the class on the resource, or None."""
        return next((each for each in self.bindings_of(capability_id) if each.resource == resource), None)

    def bindings_of(self, capability_id: str) -> tuple[Binding, ...]:
        """The bindings of the class, one for each resource that it is bound to."""
        return tuple(each for each in self.bindings if each.capability_id == capability_id)

    @property
    def hash_exclusions(self) -> Mapping[str, tuple[str, ...]]:
        """The exclusions of every resource, as the device's state hash takes them."""
        return {name: resource.hash_exclusions for name, resource in self.resources.items()}


def served(manifest: Manifest, source: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest as `devices.get` shows it, every default written out [PROTO-021].

    The endpoint adds device_id, instance_id and digest.
    """
    safety = source["safety"]
    return {
        "path": manifest.path,
        "display_name": manifest.display_name,
        "profile": manifest.profile,
        "mode": manifest.mode,
        "modes": manifest.modes,
        "options": source.get("options", {}),
        "risk_class": manifest.risk_class,
        "fidelity": manifest.fidelity,
        "resources": [
            {**entry, "hash_exclusions": list(entry.get("hash_exclusions", ()))}
            for entry in source["resources"]
        ],
        "bindings": [_served_binding(binding) for binding in manifest.bindings],
        "safety": {
            **safety,
            "interlocks": [attrs.asdict(interlock) for interlock in manifest.safety.interlocks.values()],
            "on_shutdown": manifest.safety.on_shutdown,
        },
        "streams": list(manifest.streams),
        "facts": manifest.facts,
        "redaction": list(manifest.redaction),
    }


EFFECTIVE = "x-mhs-effective-limits"
"""The member of a served binding with the limits that hold: the manifest's, narrowed by the site's."""


def effective_limits(limits: Mapping[str, Limit]) -> dict[str, dict[str, Any]]:
    """The limits that hold, each side with who has set it."""
    return {
        field: {
            **({} if limit.minimum is None else {"min": limit.minimum, "min_source": limit.minimum_source}),
            **({} if limit.maximum is None else {"max": limit.maximum, "max_source": limit.maximum_source}),
            "unit": limit.unit,
        }
        for field, limit in limits.items()
    }


def _served_binding(binding: Binding) -> dict[str, Any]:
    limits = {
        field: {name: each[name] for name in ("min", "max", "unit") if name in each}
        for field, each in effective_limits(binding.limits).items()
    }
    constraints = {"max_duration_ms": binding.max_duration_ms, "max_rate_per_s": binding.max_rate_per_s}
    return {
        "capability_id": binding.capability_id,
        "resource": binding.resource,
        "input_schema": binding.input_schema,
        "limits": limits,
        **({EFFECTIVE: effective_limits(binding.limits)} if binding.limits else {}),
        "interlocks": list(binding.interlocks),
        "permit": binding.permit,
        "long_running": binding.long_running,
        "constraints": {name: value for name, value in constraints.items() if value is not None},
        "effects": list(binding.effects),
        **({"simulation_control": True} if binding.simulation_control else {}),
    }
