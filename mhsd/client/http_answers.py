"""What an HTTP response means to a call: a JSON-RPC answer, a refusal without one, or a lost answer [TPT-012]. Pure."""

import json
from collections.abc import Callable
from typing import Any

from mhsd.client.transport import Answer, Lost, is_answer

Header = Callable[[str], str | None]
"""A header of the response by its name, None where it has none."""

_REFUSALS = {
    401: ("MHS.AUTH.UNAUTHENTICATED", "Give the endpoint's token with --token-file FILE."),
    403: ("MHS.AUTH.FORBIDDEN", "Use a token that is allowed to do this."),
    413: ("MHS.LIMIT.PAYLOAD_TOO_LARGE", "Send a smaller request."),
    429: ("MHS.LIMIT.RATE_EXCEEDED", "Wait a little and repeat the request."),
}


def answer_of(url: str, request_id: str, status: int, header: Header, content: bytes) -> Answer:
    """The answer to a request in a response of `url`; Lost where it says nothing about what became of it."""
    retry_after_s = seconds(header("retry-after"))
    try:
        value: Any = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if is_answer(value, request_id):
        return Answer(value, status, retry_after_s)
    if status < 300 or status >= 500:
        kind = (header("content-type") or "no type").partition(";")[0].strip()
        raise Lost(f"{url} answered HTTP {status} with no JSON-RPC response ({kind})")
    return Answer(refusal(url, status, header), status, retry_after_s)


def refusal(url: str, status: int, header: Header) -> dict[str, Any]:
    """A JSON-RPC error for an HTTP refusal that brought none: nothing was carried out."""
    mhs_code, remediation = _REFUSALS.get(
        status, ("MHS.TRANSPORT.UNAVAILABLE", "Check that the address is that of an MHS endpoint.")
    )
    message = f"{url} answered HTTP {status}"
    details: dict[str, Any] = {"http_status": status}
    if 300 <= status < 400:
        details["location"] = header("location")
        message += ", a redirect, which is never followed"
    elif mhs_code == "MHS.TRANSPORT.UNAVAILABLE":
        message += " and no JSON-RPC response, so no MHS endpoint is there"
    return {
        "error": {
            "message": message,
            "data": {
                "mhs_code": mhs_code,
                "retryable": status == 429,
                "remediation": remediation,
                "details": details,
            },
        }
    }


def check_stream(url: str, header: Header) -> None:
    """Lost where a response is no stream of events as it was asked for: nothing in it would ever be an event."""
    kind = (header("content-type") or "no type").partition(";")[0].strip()
    encoding = header("content-encoding") or "identity"
    if kind.lower() != "text/event-stream" or encoding.lower() != "identity":
        raise Lost(f"{url} answered with no stream of events ({kind}, {encoding})")


def seconds(text: str | None) -> float | None:
    """What `Retry-After` asks for; a date in it is not used."""
    return float(text) if text is not None and text.isascii() and text.isdecimal() else None
