"""THE method table: the rows of spec/methods.toml meet their handlers here, by name.

A test fails on a served row without a handler and on a handler without a served row.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mhsd.protocol import (
    handlers_commands,
    handlers_discovery,
    handlers_evidence,
    handlers_operations,
    handlers_safety,
    handlers_sessions,
    handlers_snapshots,
    handlers_subscriptions,
)
from mhsd.protocol.context import Context

Handler = Callable[[Context, Any], Any | Awaitable[Any]]
"""Takes the context and the typed parameters; answers a result, or what to await for it. Raises Fault."""

HANDLERS: Mapping[str, Handler] = {
    "mhs.hello": handlers_discovery.hello,
    "mhs.devices.list": handlers_discovery.devices_list,
    "mhs.devices.get": handlers_discovery.devices_get,
    "mhs.schema.get": handlers_discovery.schema_get,
    "mhs.session.open": handlers_sessions.session_open,
    "mhs.session.heartbeat": handlers_sessions.session_heartbeat,
    "mhs.session.close": handlers_sessions.session_close,
    "mhs.resource.read": handlers_commands.resource_read,
    "mhs.resource.write": handlers_commands.resource_write,
    "mhs.command": handlers_commands.command,
    "mhs.operations.get": handlers_operations.operations_get,
    "mhs.operations.list": handlers_operations.operations_list,
    "mhs.operations.cancel": handlers_operations.operations_cancel,
    "mhs.subscribe": handlers_subscriptions.subscribe,
    "mhs.unsubscribe": handlers_subscriptions.unsubscribe,
    "mhs.snapshot": handlers_snapshots.snapshot,
    "mhs.restore": handlers_snapshots.restore,
    "mhs.safety.status": handlers_safety.safety_status,
    "mhs.safety.estop": handlers_safety.safety_estop,
    "mhs.safety.reset": handlers_safety.safety_reset,
    "mhs.safety.permit": handlers_safety.safety_permit,
    "mhs.evidence.export": handlers_evidence.evidence_export,
    "mhs.evidence.verify": handlers_evidence.evidence_verify,
    "mhs.conformance.report": handlers_evidence.report,
}
