"""What the head of an HTTP request must be before its body is read or a method is looked at.

Pure functions over h11's headers (lower-case names, bytes). Each refuses by raising `Refused`, which carries
the status and the JSON-RPC error of the answer; the connection is then closed [TPT-010, TPT-011, TPT-014].
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import attrs

from mhsd.base.errors import Fault

Headers = Sequence[tuple[bytes, bytes]]

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s\[\]:/?#@]+)(?::[0-9]{0,5})?", re.IGNORECASE)
_OWN_PORT = {"http": ":80", "https": ":443"}
_BEARER = re.compile(rb"bearer +([\x21-\x7e]+)", re.IGNORECASE)
_ABSOLUTE = re.compile(r"https?://([^/?#]*)(/[^?#]*)?", re.IGNORECASE)


class Refused(Exception):
    """The request is answered with this status and error, and its connection closed."""

    def __init__(self, status: int, fault: Fault, *headers: tuple[str, str]) -> None:
        super().__init__(status, fault)
        self.status = status
        self.fault = fault
        self.headers = headers


def invalid(status: int, message: str, remediation: str, *headers: tuple[str, str]) -> Refused:
    """A refusal of the HTTP request itself."""
    return Refused(status, Fault("MHS.PROTOCOL.INVALID_REQUEST", message, remediation=remediation), *headers)


def values(headers: Headers, name: bytes) -> list[bytes]:
    """Every value of a header, in order."""
    return [value for key, value in headers if key == name]


def host_of(text: str) -> str | None:
    """The host that `host[:port]` names, in lower case; None where that is not its form."""
    match = _HOST.fullmatch(text)
    return match[1].lower() if match else None


@attrs.frozen
class Names:
    """The hosts and origins by which an endpoint lets itself be addressed [TPT-010]."""

    hosts: frozenset[str]
    origins: frozenset[str]

    @classmethod
    def of(
        cls,
        bound: Iterable[str],
        allowed_hosts: Iterable[str],
        allowed_origins: Iterable[str],
        *,
        port: int,
        tls: bool,
    ) -> Names:
        """Loopback names, the addresses that are bound, and what the configuration allows besides."""
        hosts = {*LOOPBACK_HOSTS}
        for name in (*bound, *allowed_hosts):
            text = f"[{name}]" if name.count(":") > 1 and not name.startswith("[") else name
            hosts.add(host_of(text) or text.lower())
        scheme, usual = ("https", 443) if tls else ("http", 80)
        suffix = "" if port == usual else f":{port}"
        own = {f"{scheme}://{host}{suffix}" for host in LOOPBACK_HOSTS}
        return cls(frozenset(hosts), frozenset(own | {_as_sent(origin) for origin in allowed_origins}))

    def check_host(self, headers: Headers) -> None:
        """Refuse a Host header that is missing, doubled or names another host; the port does not matter."""
        found = values(headers, b"host")
        if len(found) != 1 or host_of(found[0].decode("latin-1")) not in self.hosts:
            raise host_refused()

    def check_origin(self, headers: Headers) -> None:
        """Refuse an Origin header, where there is one, that is neither the endpoint's own nor allowed."""
        found = values(headers, b"origin")
        if found and (len(found) != 1 or found[0].decode("latin-1").lower() not in self.origins):
            raise Refused(
                403,
                Fault(
                    "MHS.AUTH.FORBIDDEN",
                    "The Origin header names a page that may not use this endpoint.",
                    details={"reason": "origin_refused"},
                ),
            )

    def path_of(self, target: bytes) -> str:
        """The path that is asked for, without its query, which is never read nor logged [TPT-059].

        A target in absolute form has an authority of its own, which must pass as the Host header must.
        """
        text = target.decode("latin-1")
        absolute = _ABSOLUTE.match(text)
        if absolute is None:
            return text.partition("?")[0]
        if host_of(absolute[1]) not in self.hosts:
            raise host_refused()
        return absolute[2] or "/"


def _as_sent(origin: str) -> str:
    """An origin as a browser writes it: in lower case, and without the port that its scheme has by itself."""
    text = origin.lower().rstrip("/")
    return text.removesuffix(_OWN_PORT.get(text.partition(":")[0], ""))


def host_refused() -> Refused:
    """The answer to a request that is addressed to another host, as a rebound name would make it."""
    return Refused(
        403,
        Fault(
            "MHS.AUTH.FORBIDDEN",
            "The Host header does not name this endpoint.",
            details={"reason": "host_refused"},
        ),
    )


def bearer_of(headers: Headers) -> str | None:
    """The bearer token of the request; None where there is none, more than one or another scheme."""
    found = values(headers, b"authorization")
    match = _BEARER.fullmatch(found[0].strip()) if len(found) == 1 else None
    return match[1].decode("ascii") if match else None


def unauthenticated() -> Refused:
    """One answer, word for word, to a token that is missing, malformed, wrong or expired [TPT-014]."""
    fault = Fault("MHS.AUTH.UNAUTHENTICATED", "This endpoint needs a valid bearer token.")
    return Refused(401, fault, ("WWW-Authenticate", "Bearer"))


def check_content(headers: Headers) -> None:
    """Refuse a body that is not declared as plain JSON [TPT-011]."""
    types = values(headers, b"content-type")
    media_type = types[0].partition(b";")[0].strip().lower() if len(types) == 1 else b""
    if media_type != b"application/json":
        raise Refused(
            415,
            Fault(
                "MHS.PROTOCOL.INVALID_REQUEST",
                "The request needs exactly one header Content-Type: application/json.",
                details={"reason": "content_type"},
            ),
        )
    encodings = b",".join(values(headers, b"content-encoding")).strip().lower()
    if encodings not in (b"", b"identity"):
        raise invalid(
            415,
            "The body is compressed.",
            "Send the body without Content-Encoding.",
            ("Accept-Encoding", "identity"),
        )


def declared_length(headers: Headers) -> int | None:
    """What Content-Length says, 0 where there is no body, None for a chunked one.

    Both headers at once are how a request is smuggled past a proxy, so together they are refused.
    """
    lengths, chunked = values(headers, b"content-length"), values(headers, b"transfer-encoding")
    if lengths and chunked:
        raise invalid(
            400,
            "Content-Length and Transfer-Encoding exclude each other.",
            "Send one of Content-Length and Transfer-Encoding.",
        )
    if chunked:
        return None
    return int(lengths[0]) if lengths else 0


def is_current(headers: Headers, etag: str) -> bool:
    """Whether If-None-Match says that the client already has this version."""
    tags = [tag.strip() for tag in b",".join(values(headers, b"if-none-match")).decode("latin-1").split(",")]
    return "*" in tags or etag in [tag.removeprefix("W/") for tag in tags]
