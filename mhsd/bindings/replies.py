"""What an HTTP connection answers, before h11 frames it."""

from __future__ import annotations

import math
import time
from functools import lru_cache

import attrs

from mhsd.base.errors import Fault
from mhsd.bindings.checks import Refused
from mhsd.protocol.answers import Exchange

JSON = ("Content-Type", "application/json")
NEVER_STORE = ("Cache-Control", "no-store")
REVALIDATE = ("Cache-Control", "no-cache")
UNBUFFERED = (("Cache-Control", "no-store, no-transform"), ("X-Accel-Buffering", "no"))
"""For a stream: nobody on the way keeps, packs or gathers what it carries [TPT-019]."""
_BUSY_RETRY_MS = 1000


@attrs.frozen
class Reply:
    """One answer: status, body, and the headers that are its own."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


def reply_of(exchange: Exchange) -> Reply:
    """The answer to a message, as HTTP says it [TPT-012]."""
    headers = (JSON, NEVER_STORE)
    if exchange.body is None:
        return Reply(204)
    if exchange.retry_after_ms is None:
        return Reply(exchange.status, exchange.body, headers)
    return Reply(429, exchange.body, (*headers, retry_after(exchange.retry_after_ms)))


def refusal(refused: Refused, exchange: Exchange) -> Reply:
    """The answer to a request that is refused; where its fault says when to ask again, so does a header [TPT-020]."""
    retry_after_ms = (refused.fault.details or {}).get("retry_after_ms")
    when = () if retry_after_ms is None else (retry_after(retry_after_ms),)
    return Reply(refused.status, exchange.body or b"", (JSON, NEVER_STORE, *refused.headers, *when))


def retry_after(retry_after_ms: int) -> tuple[str, str]:
    """The header that says when to ask again, in whole seconds."""
    return "Retry-After", str(max(1, math.ceil(retry_after_ms / 1000)))


def busy() -> Refused:
    """The answer of the stop lane to everything but a stop [TPT-020]."""
    fault = Fault(
        "MHS.LIMIT.CONNECTION_LIMIT",
        "The endpoint has as many connections as it serves; only an e-stop is still accepted.",
        details={"retry_after_ms": _BUSY_RETRY_MS},
    )
    return Refused(503, fault)


@lru_cache(maxsize=1)
def date(second: int) -> str:
    """The Date header; `strftime` would speak the language of the locale."""
    moment = time.gmtime(second)
    day = "MonTueWedThuFriSatSun"[3 * moment.tm_wday :][:3]
    month = "JanFebMarAprMayJunJulAugSepOctNovDec"[3 * (moment.tm_mon - 1) :][:3]
    clock = f"{moment.tm_hour:02d}:{moment.tm_min:02d}:{moment.tm_sec:02d}"
    return f"{day}, {moment.tm_mday:02d} {month} {moment.tm_year} {clock} GMT"
