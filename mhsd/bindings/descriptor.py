"""The descriptor at /.well-known/mhs.json: where the endpoint is, how to talk to it [TPT-002, TPT-010]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mhsd.bindings.rpc import RPC, SCHEMAS
from mhsd.wire.json_text import encode

_SHARED = (
    "endpoint_id",
    "mhs_version",
    "protocol_versions",
    "spec_version",
    "server",
    "implementation",
    "features",
    "safety",
)


def descriptor(
    server_info: Mapping[str, Any],
    *,
    url: str,
    auth: Sequence[str],
    devices: Sequence[Mapping[str, Any]] | None,
) -> bytes:
    """The document for an endpoint whose hello says `server_info` and that is reached at `url`.

    It is read without a credential, so `devices` is None where tokens are needed to see them.
    """
    document: dict[str, Any] = {"descriptor_version": "1.0.0"}
    document |= {key: server_info[key] for key in _SHARED}
    document["transports"] = {"http": {"url": url, "rpc": url + RPC, "schema": url + SCHEMAS + "{ref}"}}
    document["auth"] = list(auth)
    if devices is not None:
        document["devices"] = list(devices)
    return encode(document)
