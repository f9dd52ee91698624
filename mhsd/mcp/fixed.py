"""The fixed tools: discovery, reading, safety, operations and evidence beside the capabilities [TPT-044].

This table is their one home: names, inputs, what is listed and what is refused. What they do is for `calls`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs

from mhsd.base.errors import Fault
from mhsd.mcp.controls import input_errors
from mhsd.mcp.listing import Listing
from mhsd.mcp.policy import Policy
from mhsd.mcp.results import input_invalid
from mhsd.wire.schema import Validator, compile_schema

DEVICES, INSPECT, READ, SAFETY = "mhs__devices", "mhs__inspect", "mhs__read", "mhs__safety"
OPERATIONS, EVIDENCE = "mhs__operations", "mhs__evidence"
ESTOP, RESET, PERMIT = "mhs__estop", "mhs__reset", "mhs__permit"

MAX_WAIT_MS = 60_000
"""The longest that mhs__operations waits for an operation."""
DEFAULT_LAST_N, MAX_LAST_N = 10, 50
"""How many receipts mhs__evidence shows."""
DEFAULT_PERMIT_TTL_S, MAX_PERMIT_TTL_S = 300, 3600
"""How long a permit from mhs__permit can be used."""
DEFAULT_REASON = "an MCP client asked for it"
"""The reason that a stop without one records."""


@attrs.frozen
class FixedTool:
    """A tool that every projection has, whatever its devices are."""

    listing: Listing
    input: Validator
    """What is accepted, which may be more than what is listed."""
    for_operators: bool = False

    @property
    def name(self) -> str:
        return self.listing.name

    def shown(self, revision: str) -> dict[str, Any]:
        """The entry of `tools/list`."""
        return self.listing.shown(revision)

    def refusal(self, policy: Policy) -> Fault | None:
        """Why the policy does not let this tool be called, or None [CORE-130]."""
        if self.for_operators and not policy.operator_tools:
            return Fault(
                "MHS.AUTH.FORBIDDEN",
                f"{self.name} is a human decision here (policy operator_tools=false)",
                details={"policy": "operator_tools=false"},
                remediation="Ask a person to do it with mhsctl, or to set operator_tools in the host policy.",
            )
        return None

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The checked arguments; Fault INPUT_INVALID with field reasons.

        The arguments of an e-stop are never refused: what cannot be used is left out [CORE-076].
        """
        if self.name == ESTOP:
            return _usable(given)
        errors = input_errors(self.input, given)
        if errors:
            raise input_invalid(errors)
        # 10.0 is an integer to the schema; no argument of a fixed tool is any other number.
        return {name: int(value) if type(value) is float else value for name, value in given.items()}


def _usable(given: Mapping[str, Any]) -> dict[str, Any]:
    texts = ("device_id", "reason")
    return {name: given[name] for name in texts if type(given.get(name)) is str and given[name]}


_DEVICE_ID = {
    "type": "string",
    "minLength": 1,
    "description": "Which device, by its device_id; mhs__devices lists them.",
}
_OPTIONAL_DEVICE_ID = {
    **_DEVICE_ID,
    "description": "Which device, by its device_id; mhs__devices lists them. Not needed where there is only one.",
}


def _closed(properties: Mapping[str, Any], required: tuple[str, ...] = ()) -> dict[str, Any]:
    schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


def _tool(
    name: str,
    title: str,
    description: str,
    schema: Mapping[str, Any],
    *,
    unlisted: Mapping[str, Any] | None = None,
    read_only: bool = True,
    destructive: bool = False,
    for_operators: bool = False,
) -> FixedTool:
    accepted = {**schema, "properties": {**schema["properties"], **(unlisted or {})}}
    listing = Listing(
        name,
        title,
        description,
        schema,
        read_only=read_only,
        destructive=destructive,
        # Asking twice is as good as asking once, but a second permit is one more permit.
        idempotent=name != PERMIT,
    )
    return FixedTool(listing, compile_schema(accepted), for_operators)


_TABLE = (
    _tool(
        DEVICES,
        "List devices",
        "Lists the devices: id, name, mode (simulated, hardware, hybrid or replay), risk class (R0 has no physical"
        " effect, R3 can injure or destroy), resources that can be read, and the tools that command each device."
        " Start here.",
        _closed({}),
    ),
    _tool(
        INSPECT,
        "Inspect a device",
        "Shows one device in full: what it is, what can be read and commanded, units, limits that are enforced,"
        " interlocks, safe state, and what a simulation does not model. Read it before the first command.",
        _closed({"device_id": _OPTIONAL_DEVICE_ID}),
    ),
    _tool(
        READ,
        "Read a resource",
        "Reads the present state of one resource of a device, with its revision and hash. Changes nothing. Read"
        " again after a command whose outcome is unknown.",
        _closed(
            {
                "resource_id": {
                    "type": "string",
                    "minLength": 1,
                    "description": "Which resource; mhs__devices lists them.",
                },
                "device_id": {
                    **_DEVICE_ID,
                    "description": "Which device, by its device_id. Not needed where only one has this resource.",
                },
                "fields": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 64,
                    "items": {"type": "string", "minLength": 1},
                    "description": "Only these members of the state.",
                },
            },
            ("resource_id",),
        ),
    ),
    _tool(
        SAFETY,
        "Safety status",
        "Shows the risk class, whether the emergency stop is latched, each interlock (closed permits motion, open"
        " forbids it), permits that can be used, and what the safe state of the device is.",
        _closed({"device_id": _OPTIONAL_DEVICE_ID}),
    ),
    _tool(
        OPERATIONS,
        "Operations",
        "Follows commands that take long. Without arguments it lists the operations of this connection; with"
        " operation_id it shows one, waiting up to wait_ms (ms) for its end; with cancel_operation_id it ends one"
        " and brings its device to the safe state.",
        _closed(
            {
                "operation_id": {"type": "string", "minLength": 1, "description": "Which operation to show."},
                "wait_ms": {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": MAX_WAIT_MS,
                    "x-mhs-unit": "ms",
                    "description": "How long to wait for the end of operation_id.",
                },
                "cancel_operation_id": {
                    "type": "string",
                    "minLength": 1,
                    "description": "Which operation to end.",
                },
                "device_id": {**_DEVICE_ID, "description": "Only operations of this device."},
            }
        ),
        read_only=False,
    ),
    _tool(
        EVIDENCE,
        "Evidence",
        "Shows the record of what was done: the number of receipts, the digest of the last one, whether the chain"
        " is unbroken, the latest receipts (or those of one command_id), and the uri under which the full record"
        " can be read as a resource.",
        _closed(
            {
                "last_n": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_LAST_N,
                    "description": f"How many of the latest receipts to show; {DEFAULT_LAST_N} without it.",
                },
                "command_id": {
                    "type": "string",
                    "minLength": 1,
                    "description": "Only the receipts of this command.",
                },
                "verify": {
                    "type": "boolean",
                    "description": "Whether to check the whole chain; true without it.",
                },
            }
        ),
        unlisted={"include_bundle": {"type": "boolean"}},
    ),
    _tool(
        ESTOP,
        "Emergency stop",
        "Stops a device at once and latches the stop: it goes to its safe state and refuses motion until a person"
        " resets it. Needs no session, no approval and no argument; without device_id every device of the endpoint"
        " is stopped. Use it whenever something may be going wrong. It is a stop by software and no certified"
        " safety function.",
        _closed(
            {
                "device_id": {
                    **_DEVICE_ID,
                    "description": "Which device; without it all devices of the endpoint.",
                },
                "reason": {
                    "type": "string",
                    "maxLength": 1000,
                    "description": "Why, for the record and for the person who will reset it.",
                },
            }
        ),
        read_only=False,
        # Hosts hold destructive tools back until a person confirms them, and a stop must not wait for that.
        destructive=False,
    ),
    _tool(
        RESET,
        "Reset the emergency stop",
        "Operator tool: releases a latched emergency stop once every hard interlock reads closed. Starts no motion"
        " and takes up nothing that was interrupted.",
        _closed({"device_id": _OPTIONAL_DEVICE_ID}),
        read_only=False,
        destructive=True,
        for_operators=True,
    ),
    _tool(
        PERMIT,
        "Permit one command",
        "Operator tool: approves one command of a capability that needs a permit. The permit is for exactly this"
        " input, is used up by one command, and ends after ttl_s (s). Pass its permit_id to the capability's tool.",
        _closed(
            {
                "device_id": _OPTIONAL_DEVICE_ID,
                "capability_id": {"type": "string", "minLength": 1, "description": "Which capability."},
                "resource": {
                    "type": "string",
                    "minLength": 1,
                    "description": "Which resource, where the capability is bound to several.",
                },
                "input": {"type": "object", "description": "The exact input that is approved."},
                "ttl_s": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_PERMIT_TTL_S,
                    "x-mhs-unit": "s",
                    "description": f"How long it can be used; {DEFAULT_PERMIT_TTL_S} without it.",
                },
            },
            ("capability_id", "input"),
        ),
        read_only=False,
        destructive=True,
        for_operators=True,
    ),
)

FIXED: Mapping[str, FixedTool] = MappingProxyType({tool.name: tool for tool in _TABLE})
"""The fixed tools by name, in the order in which they are listed [TPT-044]."""


def fixed_tools(policy: Policy) -> list[FixedTool]:
    """The fixed tools that this policy lists."""
    return [tool for tool in FIXED.values() if tool.refusal(policy) is None]
