"""What the tools are called: slugs of devices and capabilities, and the bound on a name [TPT-030].

A name is a function of the device id and the capability id alone, so that it is the same after every restart;
what happens when two bindings have one name is for `projection` [TPT-032].
"""

import re

from mhsd.wire.canonical import digest

PREFIX = "mhs__"
LONGEST_NAME = 63
"""Characters of a tool's name, at most."""

_DEVICE_LENGTH = 24
_CAPABILITY_LENGTH = 20
_SHORT_LENGTH = 12
_MARK_LENGTH = 6
_ONLY_SEGMENT_MARK_LENGTH = 4

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
_MAJOR = re.compile(r"\.v[0-9]+\Z")


def tool_name(device_id: str, capability_id: str) -> str:
    """`mhs__<device_slug>__<capability_slug>`, at most 63 characters [TPT-030].

    ValueError for an id that gives no name which MCP clients take; this endpoint's own ids always do.
    """
    device, capability = device_slug(device_id), capability_slug(capability_id)
    name = f"{PREFIX}{device}__{capability}"
    if len(name) > LONGEST_NAME:
        mark = _mark(f"{device_id}\n{capability_id}", _MARK_LENGTH)
        name = f"{PREFIX}{device[:_SHORT_LENGTH]}__{capability[:_SHORT_LENGTH]}_{mark}"
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{capability_id} of {device_id} has characters that no tool name may have")
    return name


def device_slug(device_id: str) -> str:
    """The last two segments of the device's path, in lower case and of [a-z0-9_] alone [TPT-030].

    A path of one segment, or of none that has such a character, gets four digits of the id's digest.
    """
    _, _, path = device_id.partition("://")[2].partition("/")
    segments = [segment for segment in path.split("/") if segment]
    text = _plain("_".join(segments[-2:]))
    if len(segments) < 2 or not text:
        text = _plain(f"{text}_{_mark(device_id, _ONLY_SEGMENT_MARK_LENGTH)}")
    return _truncated(text, _DEVICE_LENGTH, device_id)


def capability_slug(capability_id: str) -> str:
    """The capability's id without `cap.` or `x-cap.` and without its version, dots as `_` [TPT-030]."""
    text = capability_id.removeprefix("x-").removeprefix("cap.")
    return _truncated(_MAJOR.sub("", text).replace(".", "_").lower(), _CAPABILITY_LENGTH, capability_id)


def _plain(text: str) -> str:
    return re.sub("[^a-z0-9]+", "_", text.lower()).strip("_")


def _truncated(text: str, length: int, full_id: str) -> str:
    return text if len(text) <= length else f"{text[:length]}_{_mark(full_id, _MARK_LENGTH)}"


def _mark(text: str, length: int) -> str:
    """The first hex digits of the digest of `text` as a JSON string."""
    return digest(text).removeprefix("sha256:")[:length]
