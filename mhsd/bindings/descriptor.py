"""The descriptor at /.well-known/mhs.json: where the endpoint is, how to talk to it [TPT-002, TPT-010]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mhsd import MHS_VERSION, SPEC_VERSION
from mhsd.bindings.site import EVENTS, RPC, SCHEMAS
from mhsd.bindings.ws_upgrade import SUBPROTOCOL
from mhsd.core.heads import ALGORITHM
from mhsd.services.endpoint import NOT_CERTIFIED, SERVER, Endpoint
from mhsd.wire.json_text import encode


def descriptor(
    endpoint: Endpoint, *, url: str | None, ws_url: str | None, auth: Sequence[str], shows_devices: bool
) -> bytes:
    """The document of an endpoint that is reached at `url` and `ws_url`, or on stdio alone.

    It is read without a credential, so it `shows_devices` only where none is needed to see them.
    """
    document: dict[str, Any] = {
        "descriptor_version": "1.0.0",
        "endpoint_id": endpoint.endpoint_id,
        "mhs_version": MHS_VERSION,
        "protocol_versions": [MHS_VERSION],
        "spec_version": SPEC_VERSION,
        "server": SERVER,
        "implementation": SERVER,
        "transports": {"stdio": {}} if url is None or ws_url is None else _network(url, ws_url),
        "auth": list(auth),
        "features": [NOT_CERTIFIED, *endpoint.features],
        "safety": {"certified": False, "notice": NOT_CERTIFIED},
    }
    if endpoint.store.public_key is not None:
        # Whoever notes it now can tell later that a chain of receipts was not made anew.
        document["evidence"] = {"algorithm": ALGORITHM, "public_key": endpoint.store.public_key}
    if shows_devices:
        document["devices"] = endpoint.descriptor_devices()
    return encode(document)


def _network(url: str, ws_url: str) -> dict[str, dict[str, str]]:
    return {
        "http": {"url": url, "rpc": url + RPC, "schema": url + SCHEMAS + "{ref}"},
        "sse": {"url": url + EVENTS},
        "ws": {"url": ws_url, "subprotocol": SUBPROTOCOL},
    }
