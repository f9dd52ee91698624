"""What goes back to a peer, and how long it may be [TPT-006; MHSD-9a].

An answer is a message too. What would make it longer than one may be is refused under the id of its request, and never
cut; a receipt is always told, because what it tells of has happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from mhsd.base.errors import Fault
from mhsd.base.resources import METHODS
from mhsd.wire.json_text import encode_error, encode_reply
from mhsd.wire.jsonrpc import Request

LEAST_BYTES = 1 << 20
"""An answer may be so long whatever the endpoint takes in, as every peer takes it [TPT-006]."""


@attrs.frozen
class Exchange:
    """What goes back to the peer. `body` None sends nothing; `status` is what HTTP says beside it [TPT-012]."""

    body: bytes | None
    status: int = 200
    retry_after_ms: int | None = None
    refusable_id: str | int | None = None
    """The id under which this may be refused where it does not fit; None for what must be told."""


NOTHING = Exchange(None, 204)


def reply(request: Request, result: Any, most_bytes: int) -> Exchange:
    """The answer to one request that was served."""
    body = encode_reply(request.id, result)
    row = METHODS[request.method]
    if row.receipt or row.effectful:
        return Exchange(body)
    if len(body) > most_bytes:
        return Exchange(_exceeded(request.id, most_bytes))
    return Exchange(body, refusable_id=request.id)


def joined(replies: Sequence[Exchange], most_bytes: int) -> Exchange:
    """The answer to a batch. Where it would be too long, its longest elements are refused until it is not."""
    bodies = [each.body for each in replies if each.body is not None]
    ids = [each.refusable_id for each in replies if each.body is not None]
    excess = sum(map(len, bodies)) + len(bodies) + 1 - most_bytes
    if excess > 0:
        for index in sorted(range(len(bodies)), key=lambda index: -len(bodies[index])):
            request_id = ids[index]
            if excess > 0 and request_id is not None:
                refusal = _exceeded(request_id, most_bytes)
                excess -= max(0, len(bodies[index]) - len(refusal))
                bodies[index] = min(bodies[index], refusal, key=len)
    return Exchange(b"[" + b",".join(bodies) + b"]") if bodies else NOTHING


def _exceeded(request_id: str | int, most_bytes: int) -> bytes:
    fault = Fault(
        "MHS.LIMIT.PAYLOAD_TOO_LARGE",
        f"The answer would be longer than a message may be, {most_bytes} bytes.",
        details={"reason": "answer_bytes", "limit": most_bytes},
    )
    return encode_error(request_id, fault.error())
