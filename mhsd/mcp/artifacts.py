"""What is too large for one frame: it is kept aside and named by its digest [TPT-047].

Decides when a result is too large, what is shown in its place, and in which pieces the whole is read. The
documents are kept by the projection and end with it; every receipt is in the endpoint's evidence anyway.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mhsd.mcp.results import json_line
from mhsd.mcp.session import MAX_FRAME_BYTES
from mhsd.wire.canonical import sha256_text

SCHEME = "mhs+artifact://"
MEDIA_TYPE = "application/json"
PIECE_CHARACTERS = 1 << 18
"""Characters of one piece of what does not fit a frame whole; escaped twice it is still within one."""
MOST_CHARACTERS = 1 << 26
"""What is kept in all; the oldest goes first."""

_BYTES_A_CHARACTER = 24
"""At most: a character stands in the text and in structuredContent, each time as two escapes of six bytes."""
_ENVELOPE_BYTES = 4096
_MOST_BYTES = MAX_FRAME_BYTES - _ENVELOPE_BYTES
"""Of a text, in the message around it."""
_NOTE = "The whole is too long for a message; read the uri in artifacts as a resource."
_DRIVER_TEXTS = frozenset(
    {"output", "effects", "progress", "error", "x-vendor", "artifacts", "telemetry_ref"}
)
"""The members of a receipt that a driver can make long."""
_ERROR_MEMBERS = ("code", "message", "mhs_code", "retryable", "remediation")


class Artifacts:
    """JSON texts by their URI, while there is room for them."""

    def __init__(self, most_characters: int = MOST_CHARACTERS) -> None:
        self._most_characters = most_characters
        self._texts: dict[str, str] = {}

    def keep(self, text: str) -> str:
        """Keep a text, the newest whatever its length; answers its URI."""
        uri = f"{SCHEME}{sha256_text(text.encode())}"
        self._texts.pop(uri, None)
        self._texts[uri] = text
        while len(self._texts) > 1 and sum(map(len, self._texts.values())) > self._most_characters:
            del self._texts[next(iter(self._texts))]
        return uri

    def read(self, uri: str) -> dict[str, Any] | None:
        """The entry of `resources/read`, whole where a frame holds it; None for what is not kept here.

        The first piece has the artifact's own URI, a later one `?offset=` behind it, counted in characters.
        `_meta` names the next piece.
        """
        name, _, query = uri.partition("?")
        text = self._texts.get(name)
        offset = _offset(query)
        if text is None or offset is None or offset >= len(text):
            return None
        end = len(text) if _escaped_bytes(text) <= _MOST_BYTES else offset + PIECE_CHARACTERS
        following = f"{name}?offset={end}" if end < len(text) else None
        return {
            "uri": uri,
            "mimeType": MEDIA_TYPE if end - offset >= len(text) else "text/plain",
            "text": text[offset:end],
            "_meta": {"x-mhs": {"offset": offset, "total_characters": len(text), "next": following}},
        }


def fit_twice(texts: Sequence[str]) -> bool:
    """Whether a frame holds these JSON texts both as text and as structured content, as a result says them."""
    return sum(_escaped_bytes(text) + len(text.encode()) for text in texts) <= _MOST_BYTES


def _escaped_bytes(text: str) -> int:
    return len(json.dumps(text))


def within_frame(result: Mapping[str, Any], artifacts: Artifacts, max_bytes: int) -> Mapping[str, Any]:
    """The same result, or, where it would not fit into a frame, a short one that names the whole as an artifact.

    Of a receipt everything but what a driver can make long stays in place, with the artifact in `artifacts[]`.
    """
    text = result["content"][0]["text"]
    if _BYTES_A_CHARACTER * len(text) + _ENVELOPE_BYTES <= max_bytes:
        return result
    if len(json.dumps(result)) + _ENVELOPE_BYTES <= max_bytes:
        return result
    whole = result["structuredContent"]
    receipt = whole.get("receipt")
    if isinstance(receipt, Mapping):
        shown = _short_receipt(receipt, artifacts)
        short = {**whole, "receipt": shown}
    else:
        shown = short = {"artifacts": [_reference(whole, artifacts)]}
    return {
        "content": [{"type": "text", "text": text} for text in (json_line(shown), _NOTE)],
        "structuredContent": short,
        "isError": result["isError"],
    }


def _reference(document: Mapping[str, Any], artifacts: Artifacts) -> dict[str, Any]:
    """What names a document, in the shape of a receipt's `artifacts[]`."""
    text = json_line(document)
    uri = artifacts.keep(text)
    return {
        "uri": uri,
        "digest": uri.removeprefix(SCHEME),
        "media_type": MEDIA_TYPE,
        "size_bytes": len(text.encode()),
    }


def _short_receipt(receipt: Mapping[str, Any], artifacts: Artifacts) -> dict[str, Any]:
    short = {name: value for name, value in receipt.items() if name not in _DRIVER_TEXTS}
    error = receipt.get("error")
    if isinstance(error, Mapping):
        short["error"] = {name: error[name] for name in _ERROR_MEMBERS if name in error}
    return {**short, "artifacts": [_reference(receipt, artifacts)]}


def _offset(query: str) -> int | None:
    if not query:
        return 0
    name, _, value = query.partition("=")
    return (
        int(value) if name == "offset" and value.isascii() and value.isdigit() and len(value) < 12 else None
    )
