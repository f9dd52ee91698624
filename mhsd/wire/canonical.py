"""Canonical JSON (RFC 8785, JCS) and the digests that are made of it [PROTO-012].

The standard library's C encoder writes most values exactly as RFC 8785 wants them, several times faster than
`rfc8785` does. Where the two could differ the value goes to `rfc8785` whole.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import rfc8785

MAX_SAFE_INTEGER = 2**53 - 1
"""The largest integer with a canonical form; so is its negative the smallest."""

# Inside these bounds repr() of a float is plain decimal, as ECMAScript writes it; outside them it may not be.
_SMALLEST_PLAIN = 1e-4
_LARGEST_PLAIN = 1e16
# Sorting by code point is sorting by UTF-16 unit unless a key has a character from here on.
_FIRST_SURROGATE = "\ud800"

_encode = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode


class NotCanonical(ValueError):
    """The value has no canonical JSON form; the message says why and never repeats the value."""


class _NeedsCare(Exception):
    """The C encoder might not write this value as RFC 8785 does."""


def canonical(value: Any) -> bytes:
    """The RFC 8785 bytes of a JSON value; tuples count as arrays.

    Raises NotCanonical for an integer beyond 2^53-1, NaN, an infinity, a lone surrogate, a key that is no
    string, a type that JSON does not know, and a value that contains itself or is nested without end.
    """
    try:
        return _encode(_normal(value)).encode()
    except _NeedsCare:
        return _canonical_with_care(value)
    except UnicodeEncodeError:
        raise NotCanonical("a string has a lone surrogate, which is no Unicode text") from None
    except RecursionError:
        raise NotCanonical("the value is nested too deeply") from None


def digest(value: Any) -> str:
    """`sha256:<64 lowercase hex>` over the canonical bytes of `value` [PROTO-012]; raises NotCanonical."""
    return sha256_text(canonical(value))


def stays_canonical(value: Any) -> bool:
    """Whether a reader of the canonical bytes can make the same bytes again.

    RFC 8785 writes 1e16 as digits, which most readers take for an integer, and that has no canonical form.
    """
    try:
        return canonical(json.loads(canonical(value))) is not None
    except NotCanonical:
        return False


def sha256_text(data: bytes) -> str:
    """`sha256:<64 lowercase hex>` of `data` itself."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _canonical_with_care(value: Any) -> bytes:
    try:
        return rfc8785.dumps(value)
    except RecursionError:
        raise NotCanonical("the value is nested too deeply") from None
    except (ValueError, TypeError):
        # Its own messages repeat the value, which may be long or secret.
        raise NotCanonical("the value is no JSON, or has a number or text without canonical form") from None


def _normal(value: Any) -> Any:
    """`value` as the C encoder has to see it: integral floats as integers, everything else unchanged.

    Raises _NeedsCare where `rfc8785` has to decide, NotCanonical for an integer without canonical form.
    """
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
            return value
        raise NotCanonical("an integer lies beyond 2^53-1, where JSON readers lose digits")
    if kind is dict:
        _check_keys(value)
        # Text is most of a receipt: skipping the call for it saves a third of the time.
        return {key: child if type(child) is str else _normal(child) for key, child in value.items()}
    if kind is list or kind is tuple:
        return [_normal(child) for child in value]
    if kind is float:
        return _normal_float(value)
    raise _NeedsCare


def _check_keys(keys: Iterable[Any]) -> None:
    for key in keys:
        if type(key) is not str:
            raise NotCanonical("a key of an object is no string")
        if not key.isascii() and max(key) >= _FIRST_SURROGATE:
            raise _NeedsCare


def _normal_float(value: float) -> float | int:
    # NaN fails every comparison and reaches the last line.
    if value == 0:
        return 0
    size = abs(value)
    if value.is_integer() and size <= MAX_SAFE_INTEGER:
        return int(value)
    if _SMALLEST_PLAIN <= size < _LARGEST_PLAIN and not value.is_integer():
        return value
    raise _NeedsCare
