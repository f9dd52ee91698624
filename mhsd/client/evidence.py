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
        following = next_page(asked, page)
        yield page
        asked = following


def next_page(asked: Mapping[str, Any], page: Bundle) -> dict[str, Any] | None:
    """The parameters that ask for what follows the page that was asked for with `asked`; None after the last one.

    ProtocolError for a page that is none, or that leads nowhere.
    """
    receipts, truncation = page.get("receipts"), page.get("truncation")
    if not isinstance(receipts, list | None):
        raise error("MHS.PROTOCOL.INVALID_REQUEST", "the endpoint's page of evidence has no list of receipts")
    if not isinstance(truncation, dict):
        return None
    following = {**asked, "since_receipt": truncation.get("next_since_receipt")}
    if not receipts or following == asked:
        raise error("MHS.PROTOCOL.INVALID_REQUEST", "the endpoint's next page of evidence leads nowhere")
    return following


def joined(pages: Iterable[Bundle]) -> Bundle:
    """One bundle of all pages, created and headed as the newest of them says."""
    bundle: Bundle = {}
    receipts: list[Any] = []
    for page in pages:
        newest = {name: page[name] for name in NEWEST if page.get(name) is not None}
        bundle = bundle | newest if bundle else dict(page)
        receipts += page.get("receipts") or []
    return {**bundle, "receipts": receipts, "truncation": None}
