"""The endpoint's evidence, fetched page by page until the head [EVID-001]."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mhsd.client.client import Client
from mhsd.client.errors import error

Bundle = dict[str, Any]

NEWEST = ("created_at", "head_digest", "signature")
"""Members that the last page has right, for all of them."""


def exported_pages(client: Client, selection: Mapping[str, Any]) -> Iterator[Bundle]:
    """Every page of the receipts that `selection` names, in order."""
    asked: Mapping[str, Any] | None = selection
    while asked is not None:
        page = client.call("mhs.evidence.export", asked)
        yield page
        asked = next_page(selection, page)


def next_page(selection: Mapping[str, Any], page: Bundle) -> dict[str, Any] | None:
    """The parameters that ask for what follows this page; None after the last one."""
    truncation = page.get("truncation")
    if not isinstance(truncation, dict):
        return None
    if not page.get("receipts"):
        raise error("MHS.PROTOCOL.INVALID_REQUEST", "the endpoint's next page of evidence is empty")
    return {**selection, "since_receipt": truncation.get("next_since_receipt")}


def joined(pages: Iterable[Bundle]) -> Bundle:
    """One bundle of all pages, created and headed as the newest of them says."""
    bundle: Bundle = {}
    receipts: list[Any] = []
    for page in pages:
        newest = {name: page[name] for name in NEWEST if page.get(name) is not None}
        bundle = bundle | newest if bundle else dict(page)
        receipts += page.get("receipts") or []
    return {**bundle, "receipts": receipts, "truncation": None}
