"""The schema shelf: the very documents that the endpoint validates against, and no others [PROTO-022, CORE-185]."""

from collections.abc import Mapping
from typing import Any

from mhsd.base.errors import Fault
from mhsd.base.resources import schema_document
from mhsd.driver.manifest import Binding
from mhsd.services.served_device import ServedDevice
from mhsd.wire.canonical import digest

SCHEMA_TYPE = "application/schema+json"
CLASS_TYPE = "application/json"

LONGEST_REF = 1024
"""Characters of an unknown reference that its refusal repeats."""
SCHEMA_SUFFIX = ".schema.json"


class SchemaShelf:
    """Shipped schemas by name or `$id`, and the classes that the devices bind, by capability id."""

    def __init__(self, devices: Mapping[str, ServedDevice]) -> None:
        self._devices = devices

    def get(self, ref: str, device_id: str | None = None, resource: str | None = None) -> dict[str, Any]:
        """`{schema, digest, ref, media_type}`; INVALID_PARAMS with `details.ref` for what is not on the shelf.

        The look-up is by name in what is known, so a path, `..` or a foreign URL finds nothing.
        """
        if ref.startswith(("cap.", "x-cap.")):
            document, media_type = self._class_document(ref, device_id, resource), CLASS_TYPE
        else:
            document, media_type = self._schema(ref), SCHEMA_TYPE
        return {"schema": document, "digest": digest(document), "ref": ref, "media_type": media_type}

    def _schema(self, ref: str) -> Mapping[str, Any]:
        if not ref.endswith(SCHEMA_SUFFIX):  # The short names are for the program itself.
            raise _not_here(ref)
        try:
            return schema_document(ref)
        except KeyError:
            raise _not_here(ref) from None

    def _class_document(self, ref: str, device_id: str | None, resource: str | None) -> Mapping[str, Any]:
        found = [
            binding
            for device in self._devices.values()
            if device_id in (None, device.device_id)
            for binding in device.host.manifest.bindings_of(ref)
            if resource in (None, binding.resource)
        ]
        if not found:
            raise _not_here(ref)
        return self._effective(found[0]) if device_id or resource else found[0].capability.document

    @staticmethod
    def _effective(binding: Binding) -> Mapping[str, Any]:
        """The class document with the input schema that this binding really checks."""
        return {**binding.capability.document, "input_schema": binding.input_schema}


def _not_here(ref: str) -> Fault:
    return Fault(
        "MHS.PROTOCOL.INVALID_PARAMS",
        "ref is neither a schema that ships with mhsd nor a capability class that a device here binds",
        details={"ref": ref[:LONGEST_REF], "field": "ref"},
    )
