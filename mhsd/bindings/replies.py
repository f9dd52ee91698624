"""What an HTTP connection answers, before h11 frames it."""

from __future__ import annotations

import math
import time
from functools import lru_cache

import attrs

from mhsd.base.errors import Fault
from mhsd.bindings.checks import Refused
from mhsd.protocol.dispatch import Exchange

JSON = ("Content-Type", "application/json")
NEVER_STORE = ("Cache-Control", "no-store")
REVALIDATE = ("Cache-Control", "no-cache")
UNBUFFERED = (("Cache-Control", "no-store, no-transform"), ("X-Accel-Buffering", "no"))
"""For a stream: nobody on the way keeps, packs or gathers what it carries [TPT-019]."""
_BUSY_RETRY_S = 1


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
    retry_after_s = max(1, math.ceil(exchange.retry_after_ms / 1000))
    return Reply(429, exchange.body, (*headers, ("Retry-After", str(retry_after_s))))


def busy() -> Refused:
    """The answer of the stop lane to everything but a stop [TPT-020]."""
    fault = Fault(
        "MHS.LIMIT.CONNECTION_LIMIT",
        "The endpoint has as many connections as it serves; only an e-stop is still accepted.",
        details={"retry_after_ms": _BUSY_RETRY_S * 1000},
    )
    return Refused(503, fault, ("Retry-After", str(_BUSY_RETRY_S)))


@lru_cache(maxsize=1)
def date(second: int) -> str:
    """The Date header; `strftime` would speak the language of the locale."""
    moment = time.gmtime(second)
    day = "MonTueWedThuFriSatSun"[3 * moment.tm_wday :][:3]
    month = "JanFebMarAprMayJunJulAugSepOctNovDec"[3 * (moment.tm_mon - 1) :][:3]
    clock = f"{moment.tm_hour:02d}:{moment.tm_min:02d}:{moment.tm_sec:02d}"
    return f"{day}, {moment.tm_mday:02d} {month} {moment.tm_year} {clock} GMT"
