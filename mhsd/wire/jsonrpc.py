"""JSON-RPC 2.0 envelopes: what one decoded value asks for.

Decides whether a value is a request, a notification, a batch of them or malformed. Which methods exist, and
what a connection may ask now, is for dispatch.
"""

from typing import Any

import attrs

from mhsd.base.errors import Fault
from mhsd.wire.json_text import excerpt

_INVALID_REQUEST = "MHS.PROTOCOL.INVALID_REQUEST"
_ENVELOPE = frozenset({"jsonrpc", "id", "method", "params"})


@attrs.frozen
class Request:
    """A call that is answered with its own id [PROTO-004]."""

    id: str | int
    method: str
    params: dict[str, Any]


@attrs.frozen
class Notification:
    """A call that is never answered [PROTO-005]."""

    method: str
    params: dict[str, Any]


@attrs.frozen
class Malformed:
    """A value that is no call. `id` is what its answer carries, None where none could be read.

    `silent` marks a notification whose only defect is its params: it is not answered either [PROTO-005].
    """

    id: str | int | None
    fault: Fault
    silent: bool = False


Call = Request | Notification | Malformed


@attrs.frozen
class Batch:
    """A non-empty array of calls within the limit, in the order in which they were sent [PROTO-007]."""

    calls: tuple[Call, ...]


def parse_message(value: Any, *, max_batch: int) -> Call | Batch:
    """What one message of a connection holds; never raises.

    An empty array is Malformed INVALID_REQUEST [PROTO-007], one of more than `max_batch` elements Malformed
    BATCH_TOO_LARGE with nothing of it looked at. Elements are judged one by one [PROTO-008].
    """
    if type(value) is not list:
        return classify(value)
    if not value:
        return _malformed(None, "The batch is empty.", "empty_batch")
    if len(value) > max_batch:
        fault = Fault(
            "MHS.PROTOCOL.BATCH_TOO_LARGE",
            f"The batch has {len(value)} elements; at most {max_batch} are allowed.",
            details={"limit": max_batch, "size": len(value)},
        )
        return Malformed(None, fault)
    return Batch(tuple([classify(element) for element in value]))


def classify(value: Any) -> Call:
    """One decoded value as a call; never raises [PROTO-002, PROTO-004, PROTO-005].

    An id that is no string and no integer (true and 1.0 are none) is answered with id null.
    """
    if type(value) is not dict:
        return _malformed(None, "A message must be a JSON-RPC object or an array of them.", "not_an_object")
    request_id = value.get("id")
    if type(request_id) is not str and type(request_id) is not int:
        if "id" in value:
            return _malformed(None, "id must be a string or an integer.", "id")
        request_id = None
    method = value.get("method")
    if value.get("jsonrpc") != "2.0" or type(method) is not str or not value.keys() <= _ENVELOPE:
        return _bad_envelope(request_id, value)
    params = value.get("params", _ABSENT)
    if params is _ABSENT:
        params = {}
    elif type(params) is not dict:
        return _bad_params(request_id)
    return Notification(method, params) if request_id is None else Request(request_id, method, params)


_ABSENT: Any = object()


def _malformed(request_id: str | int | None, message: str, reason: str) -> Malformed:
    return Malformed(request_id, Fault(_INVALID_REQUEST, message, details={"reason": reason}))


def _bad_envelope(request_id: str | int | None, value: dict[str, Any]) -> Malformed:
    """Names the first defect, in the order in which a reader would look for one."""
    if "method" not in value and ("result" in value or "error" in value):
        # Nothing was asked of this peer, so the id is not one that it could be waiting for.
        return _malformed(None, "The message is a response, and nothing was asked.", "response")
    if value.get("jsonrpc") != "2.0":
        return _malformed(request_id, 'jsonrpc must be the string "2.0".', "jsonrpc")
    if type(value.get("method")) is not str:
        return _malformed(request_id, "method must be a string.", "method")
    unknown = excerpt(next(key for key in value if key not in _ENVELOPE))
    fault = Fault(
        _INVALID_REQUEST,
        f"The request has the unknown member {unknown!r}; allowed are jsonrpc, id, method and params.",
        details={"reason": "unknown_member", "field": unknown},
    )
    return Malformed(request_id, fault)


def _bad_params(request_id: str | int | None) -> Malformed:
    fault = Fault(
        "MHS.PROTOCOL.INVALID_PARAMS",
        "params must be an object with named members.",
        details={"field": "params", "reason": "not_an_object"},
    )
    return Malformed(request_id, fault, silent=request_id is None)
