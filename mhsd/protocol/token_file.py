"""The form of a token file: who may act, by which secret or certificate [TPT-059, MHSD-6-01].

A file is TOML with `[[token]]` and `[[client_cert]]` entries, or one bare line that is a secret itself. The
bare line apart, it holds no more of a secret than its SHA-256. Reading it again when it changes is `auth`'s
matter.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import attrs

from mhsd.protocol.peer import Principal, PrincipalKind, Role

_TOKEN_KEYS = frozenset(
    {"sha256", "principal", "kind", "role", "expires_at", "devices", "capabilities", "note"}
)
_CERTIFICATE_KEYS = _TOKEN_KEYS | {"subject"}
_LONG_NAMES = {
    "commonname": "cn",
    "organizationname": "o",
    "organizationalunitname": "ou",
    "countryname": "c",
    "localityname": "l",
    "stateorprovincename": "st",
    "domaincomponent": "dc",
    "userid": "uid",
}

Subject = tuple[tuple[str, str], ...]


class TokenFileInvalid(ValueError):
    """What is wrong with a token file, in one line that holds no secret."""


@attrs.frozen
class Identity:
    """Who a credential speaks for, and how far: None leaves devices or capabilities unlimited."""

    principal: Principal
    role: Role
    devices: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] | None = None


@attrs.frozen
class Entry:
    """One credential: the digest of a secret or of a certificate, or a certificate's subject."""

    identity: Identity
    sha256: str | None
    subject: Subject | None = None
    expires_s: float | None = None

    def is_live(self, now_s: float) -> bool:
        """Whether the entry has not expired at this wall time."""
        return self.expires_s is None or now_s < self.expires_s


@attrs.frozen
class Entries:
    """All credentials of one file."""

    tokens: tuple[Entry, ...] = ()
    certificates: tuple[Entry, ...] = ()

    def has_operator(self) -> bool:
        """Whether any credential here is an operator's."""
        return any(entry.identity.role == "operator" for entry in (*self.tokens, *self.certificates))


def parse(data: bytes, path: Path, default_role: Role) -> Entries:
    """The entries of a token file; raises TokenFileInvalid."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise TokenFileInvalid(f"{path} is not UTF-8 text") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) == 1 and re.fullmatch(r"[^\s\[#]\S*", lines[0]):
        return Entries(tokens=(_bare(lines[0], default_role),))
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # The parser's text names line and column and never quotes the line.
        raise TokenFileInvalid(f"{path} is neither one bare token nor valid TOML: {error}") from None
    unknown = sorted(set(content) - {"token", "client_cert"})
    if unknown:
        raise TokenFileInvalid(f"{path}: unknown key {unknown[0]!r}; known are [[token]] and [[client_cert]]")
    tokens = [
        _entry(table, f"{path}: token {number}", _TOKEN_KEYS, default_role)
        for number, table in enumerate(_tables(content, "token", path), 1)
    ]
    certificates = [
        _entry(table, f"{path}: client_cert {number}", _CERTIFICATE_KEYS, default_role)
        for number, table in enumerate(_tables(content, "client_cert", path), 1)
    ]
    for name, entries in (("token", tokens), ("client_cert", certificates)):
        digests = [entry.sha256 for entry in entries if entry.sha256 is not None]
        if len(digests) != len(set(digests)):
            raise TokenFileInvalid(f"{path}: one sha256 stands in two {name} entries")
    return Entries(tuple(tokens), tuple(certificates))


def _bare(secret: str, role: Role) -> Entry:
    digest = hashlib.sha256(secret.encode()).hexdigest()
    return Entry(Identity(Principal(f"token:{digest[:12]}", "service"), role), digest)


def _tables(content: Mapping[str, Any], key: str, path: Path) -> Sequence[Mapping[str, Any]]:
    tables = content.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise TokenFileInvalid(f"{path}: {key} must be written as [[{key}]] tables")
    return tables


def _entry(table: Mapping[str, Any], where: str, known: frozenset[str], default_role: Role) -> Entry:
    unknown = sorted(set(table) - known)
    if unknown:
        raise TokenFileInvalid(f"{where}: unknown key {unknown[0]!r}")
    subject = parse_subject(_text(table, "subject", where)) if "subject" in table else None
    digest = _digest(table, where) if "sha256" in table or subject is None else None
    if digest is not None and subject is not None:
        raise TokenFileInvalid(f"{where}: give sha256 or subject, not both")
    kind = _one_of(table, "kind", get_args(PrincipalKind), "service", where)
    role = _one_of(table, "role", get_args(Role), default_role, where)
    identity = Identity(
        Principal(_text(table, "principal", where), kind),
        role,
        _names(table, "devices", where),
        _names(table, "capabilities", where),
    )
    return Entry(identity, digest, subject, _expiry(table, where))


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value.strip():
        raise TokenFileInvalid(f"{where}: {key} must be a text")
    return value


def _digest(table: Mapping[str, Any], where: str) -> str:
    value = table.get("sha256")
    match = re.fullmatch(r"(?:sha256:)?([0-9a-fA-F:]{64,95})", value) if isinstance(value, str) else None
    digest = match[1].replace(":", "").lower() if match else ""
    if len(digest) != 64:
        raise TokenFileInvalid(f"{where}: sha256 must be 64 hexadecimal digits")
    return digest


def _one_of(table: Mapping[str, Any], key: str, allowed: tuple[str, ...], default: str, where: str) -> Any:
    value = table.get(key, default)
    if value not in allowed:
        raise TokenFileInvalid(f"{where}: {key} must be one of {', '.join(allowed)}")
    return value


def _names(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...] | None:
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TokenFileInvalid(f"{where}: {key} must be a list of texts")
    return tuple(value)


def _expiry(table: Mapping[str, Any], where: str) -> float | None:
    value = table.get("expires_at")
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = datetime.datetime.fromisoformat(value)
        except ValueError:
            value = None
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        raise TokenFileInvalid(f"{where}: expires_at must be a time with an offset, as 2027-01-31T00:00:00Z")
    return value.timestamp()


def parse_subject(text: str) -> Subject:
    """`CN=agent-7, O=Lab` as comparable pairs; a comma inside a value is written `\\,`."""
    pairs = []
    for part in re.split(r"(?<!\\),", text):
        name, _, value = part.partition("=")
        pairs.append((name.strip(), value.strip().replace("\\,", ",")))
    return subject_of(pairs)


def subject_of(pairs: Sequence[tuple[str, str]]) -> Subject:
    """A subject in a form that neither the order nor the spelling of its attribute names changes."""
    named = [(_LONG_NAMES.get(name.lower(), name.lower()), value) for name, value in pairs]
    return tuple(sorted(named))
