"""What an endpoint says of its devices beyond their manifests."""

from collections.abc import Mapping
from typing import Any

from mhsd.client.client import Client
from mhsd.client.errors import MHSError
from mhsd.client.naming import capabilities_of


def capability_classes(client: Client, manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The class documents of a device's capabilities: what each means, and what it gives back [PROTO-022].

    One that the endpoint does not have is left out, since a manifest says enough to use the capability.
    """
    found = {}
    for capability_id in capabilities_of(manifest):
        try:
            answered = client.call("mhs.schema.get", {"ref": capability_id})
        except MHSError as refusal:
            if refusal.mhs_code != "MHS.PROTOCOL.INVALID_PARAMS":
                raise
            continue
        document = answered.get("schema")
        if isinstance(document, dict):
            found[capability_id] = document
    return found
