"""The control properties of a call: what bounds or names the call itself and never reaches the input [TPT-033].

Decides how a tool's arguments divide into the capability's input and the controls, and which command_id a
call gets [TPT-036]. The endpoint enforces what the controls ask for [CORE-131].
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from mhsd.base.ids import is_ulid, ulid_of
from mhsd.mcp.results import input_invalid
from mhsd.wire.canonical import MAX_SAFE_INTEGER
from mhsd.wire.schema import SchemaError, Validator, compile_schema

CONTROL_PROPERTIES: Mapping[str, Mapping[str, Any]] = {
    "session_id": {
        "type": "string",
        "minLength": 1,
        "description": "Optional control, not part of the physical action: a session that this connection opened"
        " before, instead of the one it would use.",
    },
    "command_id": {
        "type": "string",
        "minLength": 1,
        "description": "Optional control: the idempotency key. The same key with the same input is done once and"
        " answered again; use a new one for every new intent. A ULID, or any text, from which one is made.",
    },
    "expected_revision": {
        "type": "integer",
        "minimum": 0,
        "maximum": MAX_SAFE_INTEGER,
        "description": "Optional control: do it only if the device still has this state revision.",
    },
    "permit_id": {
        "type": "string",
        "minLength": 1,
        "description": "Optional control: the permit for this exact input, where the capability needs one.",
    },
    "deadline_ms": {
        "type": "integer",
        "minimum": 1,
        "maximum": MAX_SAFE_INTEGER,
        "description": "Optional control: how many ms to wait for the answer. It never ends the action itself.",
    },
}
"""The five properties that a tool has beside its capability's own; all optional [TPT-033]."""


@attrs.frozen
class Controls:
    """The controls of one call, each None where the call does not have it."""

    session_id: str | None = None
    command_id: str | None = None
    expected_revision: int | None = None
    permit_id: str | None = None
    deadline_ms: int | None = None
    retry_token: str | None = None
    """`_meta.retryToken` of the MCP request."""

    def command_id_for(self, tool_name: str, mint: Callable[[], str]) -> str:
        """The command_id of this call: as given, made of the token, or new from `mint` [TPT-036]."""
        token = self.retry_token if self.retry_token is not None else self.command_id
        if token is None:
            return mint()
        if self.retry_token is None and is_ulid(token):
            return token
        return command_id_of(tool_name, token)


def command_id_of(tool_name: str, token: str) -> str:
    """The ULID of a token: the first 16 bytes of sha256(tool_name + "\\n" + token) [TPT-036].

    The same token on the same tool gives the same command, in every conversation and after every restart.
    """
    return ulid_of(hashlib.sha256(f"{tool_name}\n{token}".encode()).digest()[:16])


def split_arguments(
    schema: Validator, arguments: Mapping[str, Any], meta: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], Controls]:
    """The capability's input, which fits `schema`, and the controls, which are stripped from it [TPT-033].

    `meta` is the request's `_meta`. Fault INPUT_INVALID names every control and every field that is wrong;
    nothing is to be sent then [TPT-038]. Limits are not looked at: a value
    outside is the endpoint's to refuse, so that the refusal is in the evidence.
    """
    given = {name: arguments[name] for name in CONTROL_PROPERTIES if name in arguments}
    rest = {name: value for name, value in arguments.items() if name not in CONTROL_PROPERTIES}
    errors = [
        {**error, "path": f"/{name}{error['path']}"}
        for name, value in given.items()
        for error in _CHECKS[name].errors(value)
    ]
    errors += [
        # 1.0 is an integer to the schema, and 1 in the canonical form that is digested.
        {"path": f"/{name}", "rule": "type", "message": "must be written as an integer"}
        for name in ("expected_revision", "deadline_ms")
        if type(given.get(name)) is float and not any(error["path"] == f"/{name}" for error in errors)
    ]
    token = (meta or {}).get("retryToken")
    errors += _token_errors(token, given)
    errors += input_errors(schema, rest)
    if errors:
        raise input_invalid(errors)
    return rest, Controls(**given, retry_token=token)


def input_errors(schema: Validator, value: Mapping[str, Any]) -> list[dict[str, str]]:
    """What is wrong with the input as a whole, and with each of its fields: the first thing of each."""
    whole = schema.errors(value)
    if not whole:
        return []
    fields = [error for name in value for error in _field_errors(schema, name, value[name])]
    named = {error["path"] for error in fields}
    return [error for error in whole if error["path"] not in named] + fields


def _field_errors(schema: Validator, name: str, value: Any) -> list[dict[str, str]]:
    part = schema.schema.get("properties", {}).get(name)
    try:
        errors = compile_schema(part).errors(value) if isinstance(part, Mapping) else []
    except SchemaError:
        # It refers to another part of the schema; the input as a whole was checked with that.
        return []
    return [{**error, "path": f"/{name}{error['path']}"} for error in errors]


def _token_errors(token: Any, given: Mapping[str, Any]) -> list[dict[str, str]]:
    """A retry token is a text, and it is the only thing that names the command [MHSD-9a-83]."""
    if token is None:
        return []
    if type(token) is not str or not token:
        message = "must be a string that is not empty"
    elif "command_id" in given:
        message = "names the command already; leave out command_id, or the token"
    else:
        return []
    return [{"path": "/_meta/retryToken", "rule": "retryToken", "message": message}]


_CHECKS = {name: compile_schema(schema) for name, schema in CONTROL_PROPERTIES.items()}
