"""What is answered to a GET at once: the descriptor, and the schemas by their refs [TPT-010]."""

from __future__ import annotations

from urllib.parse import unquote

from mhsd.base.errors import Fault
from mhsd.bindings import checks
from mhsd.bindings.checks import Refused
from mhsd.bindings.replies import JSON, REVALIDATE, Reply
from mhsd.bindings.site import SCHEMAS, Visit


async def serve_descriptor(visit: Visit) -> Reply:
    """Where the endpoint is and how to talk to it."""
    return Reply(200, visit.connection.site.descriptor, (JSON, REVALIDATE))


async def serve_schema(visit: Visit) -> Reply:
    """A document, or that the client has this version of it already."""
    ref = unquote(visit.path.removeprefix(SCHEMAS), errors="replace")
    try:
        document = visit.connection.site.schema(ref)
    except Fault as fault:
        raise Refused(404, fault) from None
    etag = f'"{document.digest}"'
    if checks.is_current(visit.request.headers, etag):
        return Reply(304, headers=(("ETag", etag), REVALIDATE))
    content_type = ("Content-Type", document.media_type)
    return Reply(200, document.body, (content_type, ("ETag", etag), REVALIDATE))
