"""A tool as `tools/list` shows it, in the words of the revision that was negotiated."""

from collections.abc import Mapping
from typing import Any

import attrs

ANNOTATIONS_SINCE = "2025-03-26"
TITLE_AND_META_SINCE = "2025-06-18"
"""Revisions are dates, so they compare in their order."""


@attrs.frozen
class Listing:
    """What a client is told about one tool."""

    name: str
    title: str
    description: str
    input_schema: Mapping[str, Any]
    read_only: bool
    destructive: bool = False
    idempotent: bool = False
    x_mhs: Mapping[str, Any] | None = None
    """Risk class, mode and the like for programs [TPT-035]; None for the fixed tools."""

    def shown(self, revision: str) -> dict[str, Any]:
        """The entry of `tools/list`; members that the revision does not know are left out.

        `x-mhs` is an extension of ours and stands at the top level in every revision, because clients ignore
        what they do not know; `_meta`, the place that MCP has for extensions, has it too where it exists.
        """
        shown: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.input_schema,
        }
        if revision >= ANNOTATIONS_SINCE:
            shown["annotations"] = {
                "title": self.title,
                "readOnlyHint": self.read_only,
                "destructiveHint": self.destructive,
                "idempotentHint": self.idempotent,
                "openWorldHint": False,
            }
        if revision >= TITLE_AND_META_SINCE:
            shown["title"] = self.title
        if self.x_mhs is not None:
            shown["x-mhs"] = self.x_mhs
            if revision >= TITLE_AND_META_SINCE:
                shown["_meta"] = {"x-mhs": self.x_mhs}
        return shown
