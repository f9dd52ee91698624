"""JSON text: strict decoding with bounded work, and encoding that splices what is already encoded.

Decides which bytes are JSON for this protocol [PROTO-001]; what the value means is for `jsonrpc` and
`params`. Parsing holds the interpreter, so a message is measured before it is parsed: bytes first, then items
and levels, counted in linear time by C code.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import attrs

from mhsd.base.errors import Fault

MAX_DEPTH = 64
"""Levels of nesting in one message; the outermost value is level 1."""
MAX_ITEMS = 20_000
"""Containers and members in one message, unless configured otherwise."""
MAX_BYTES = 1 << 20
"""Bytes in one message, unless configured otherwise."""

_BOM = b"\xef\xbb\xbf"
_PARSE_ERROR = "MHS.PROTOCOL.PARSE_ERROR"
_LONGEST_EXCERPT = 64
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_LEVEL_STEP = [1 if byte in b"[{" else -1 for byte in range(256)]


@attrs.frozen
class Raw:
    """One JSON value that is already encoded; `encode_reply` puts its bytes in place as they are."""

    data: bytes


def decode(data: bytes, *, max_bytes: int, max_depth: int = MAX_DEPTH, max_items: int = MAX_ITEMS) -> Any:
    """The value of one strict RFC 8259 text [PROTO-001].

    Raises Fault PARSE_ERROR for a BOM, bytes that are no UTF-8, a duplicate key in any spelling, NaN and the
    infinities, a number that overflows to one (1e999), trailing content, more than `max_depth` levels, an
    integer with more digits than the interpreter converts, and an escape that names half a surrogate pair.
    Raises Fault PAYLOAD_TOO_LARGE, before anything is parsed, for more than `max_bytes` or `max_items`.
    Integers of any size below that are kept exactly; canonical form is refused to them later.
    """
    too_large = size_fault(data, max_bytes=max_bytes, max_depth=max_depth, max_items=max_items)
    if too_large is not None:
        raise too_large
    if data.startswith(_BOM):
        raise _unparsable("The message starts with a byte order mark.", "bom", position=0)
    try:
        value = _STRICT.decode(data.decode())
    except UnicodeDecodeError as error:
        raise _unparsable("The message is not UTF-8.", "utf8", position=error.start) from None
    except json.JSONDecodeError as error:
        message = f"The message is not JSON: {error.msg} (character {error.pos})."
        raise _unparsable(message, "syntax", position=error.pos) from None
    except RecursionError:
        raise _too_deep(max_depth) from None
    except ValueError:
        raise _unparsable("The message has an integer with too many digits.", "integer_digits") from None
    if _may_have_surrogates(data):
        try:
            encode(value)
        except UnicodeEncodeError:
            message = "A string of the message names half a surrogate pair, which is no Unicode text."
            raise _unparsable(message, "lone_surrogate") from None
    return value


def decode_lenient(
    data: bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH, max_items: int = MAX_ITEMS
) -> Any:
    """What can be understood of an e-stop's text; None where that is nothing [PROTO-001].

    NaN, the infinities and numbers that overflow become null, the last of duplicate keys wins, bytes that are
    no UTF-8 are replaced, a BOM and what follows the first value are ignored. The limits of `decode` hold, so
    the work is linear; it never raises. The strict error is still what the message is answered with.
    """
    if size_fault(data, max_bytes=max_bytes, max_depth=max_depth, max_items=max_items) is not None:
        return None
    text = data.removeprefix(_BOM).decode(errors="replace").lstrip(" \t\r\n")
    try:
        value, _ = _LENIENT.raw_decode(text)
        if _may_have_surrogates(data):
            # The reply repeats the reason of the stop, so it must be text that can be encoded.
            value = json.loads(_compact(value).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return value


def encode(value: Any) -> bytes:
    """`value` as compact UTF-8 JSON; ValueError for NaN, an infinity and a lone surrogate."""
    return _compact(value).encode()


def encode_reply(request_id: str | int, result: Any) -> bytes:
    """A JSON-RPC response; a `Raw` result is spliced without being decoded or encoded again [PROTO-004]."""
    body = result.data if type(result) is Raw else encode(result)
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (encode(request_id), body)


def encode_error(request_id: str | int | None, error: Mapping[str, Any]) -> bytes:
    """A JSON-RPC error response; `request_id` is None where the request's id could not be read."""
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (encode(request_id), encode(error))


def count_items(data: bytes) -> int:
    """Containers plus members of the JSON text `data`, as `max_json_items` counts them.

    `{"a": [1, 2]}` has five: two containers, the member `a`, two elements. Linear in the length of `data`;
    what stands in strings does not count.
    """
    return _items_of(_outline(data))


def excerpt(text: str) -> str:
    """A peer's own `text`, short and encodable enough to be named in an error."""
    shown = text if len(text) <= _LONGEST_EXCERPT else text[:_LONGEST_EXCERPT] + "…"
    return shown.encode(errors="replace").decode()


def size_fault(data: bytes, *, max_bytes: int, max_depth: int, max_items: int) -> Fault | None:
    """What `decode` would refuse this text for before it parses any of it; None where its size is allowed."""
    if len(data) > max_bytes:
        return bytes_exceeded(max_bytes)
    try:
        _check_size(data, max_depth, max_items)
    except Fault as fault:
        return fault
    return None


def bytes_exceeded(max_bytes: int) -> Fault:
    """The refusal of a message longer than `max_bytes`, which stays unparsed [TPT-006]."""
    return Fault(
        "MHS.LIMIT.PAYLOAD_TOO_LARGE",
        f"The message is longer than {max_bytes} bytes.",
        details={"reason": "bytes", "limit": max_bytes},
    )


def _unparsable(message: str, reason: str, **details: Any) -> Fault:
    return Fault(_PARSE_ERROR, message, details={"reason": reason, **details})


def _too_deep(max_depth: int) -> Fault:
    return _unparsable(f"The message is nested deeper than {max_depth} levels.", "depth", limit=max_depth)


def _check_size(data: bytes, max_depth: int, max_items: int) -> None:
    if _is_surely_within(data, max_depth, max_items):
        return
    outline = _outline(data)
    if _items_of(outline) > max_items:
        raise Fault(
            "MHS.LIMIT.PAYLOAD_TOO_LARGE",
            f"The message has more than {max_items} JSON items (containers and members).",
            details={"reason": "items", "limit": max_items},
        )
    if _depth_of(outline) > max_depth:
        raise _too_deep(max_depth)


def _is_surely_within(data: bytes, max_depth: int, max_items: int) -> bool:
    """A bound by three counts that ignore strings: true for every ordinary message, at almost no cost."""
    containers = data.count(b"{") + data.count(b"[")
    return containers <= max_depth and 2 * containers + data.count(b",") <= max_items


def _outline(data: bytes) -> bytes:
    """`data` with one quotation mark in place of each string.

    A backslash outside a string ends parsing, so everything that a parser gets to see is told apart rightly.
    """
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b'"'.join(data.split(b'"')[::2])


def _items_of(outline: bytes) -> int:
    containers = outline.count(b"{") + outline.count(b"[")
    tight = outline.translate(None, delete=b" \t\r\n")
    empty = tight.count(b"{}") + tight.count(b"[]")
    # Every container is one item; one that is not empty has one member more than it has commas.
    return containers + outline.count(b",") + (containers - empty)


def _depth_of(outline: bytes) -> int:
    brackets = outline.translate(None, delete=_NOT_BRACKETS)
    # A text with more closing brackets than opening ones is no JSON: the parser stops before the rest.
    openings = brackets.count(b"{") + brackets.count(b"[")
    return max(accumulate(map(_LEVEL_STEP.__getitem__, brackets[: 2 * openings])), default=0)


def _may_have_surrogates(data: bytes) -> bool:
    return b"\\ud" in data or b"\\uD" in data


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise _unparsable(
            f"An object of the message has the key {excerpt(twice)!r} twice.",
            "duplicate_key",
            key=excerpt(twice),
        )
    return members


def _refuse_constant(name: str) -> Any:
    raise _unparsable(f"The message has {name}, which is no JSON.", "non_finite")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _unparsable("The message has a number that is too large for a double.", "non_finite")
    return value


def _finite_or_null(text: str) -> float | None:
    value = float(text)
    return None if math.isinf(value) else value


def _integer_or_null(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


_STRICT = json.JSONDecoder(
    object_pairs_hook=_unique_members, parse_constant=_refuse_constant, parse_float=_finite
)
_LENIENT = json.JSONDecoder(
    parse_constant=lambda _: None,
    parse_float=_finite_or_null,
    parse_int=_integer_or_null,
    strict=False,
)
_compact = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")
).encode
