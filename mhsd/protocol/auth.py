"""Which principal a credential speaks for [TPT-014, TPT-058, TPT-059].

Token files are stat'ed at every request and read again when they changed, so that a removed token stops
working at once. A file that is missing allows nobody; one that cannot be understood leaves the last good set
in force and is logged. Nothing here ever logs, returns or raises a secret.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import pwd
import shlex
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from mhsd.base.errors import StartError
from mhsd.protocol.peer import Principal, Role
from mhsd.protocol.token_file import Entries, Entry, Identity, Subject, TokenFileInvalid, parse, subject_of

__all__ = ["Identity", "TokenFiles", "local_principal", "principal_of"]

log = logging.getLogger("mhsd.auth")

_MAX_FILE_BYTES = 1 << 20
_SECRETS_DIR = Path("/run/secrets")
_OTHERS_READ_OR_WRITE = 0o066

_Signature = tuple[int, int, int, int]


def local_principal() -> Principal:
    """The user whose process this is: who acts on stdio, and on loopback without tokens."""
    return principal_of(os.getuid())


def principal_of(uid: int) -> Principal:
    """A user of this machine, whom the kernel vouches for."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:  # A container may run under a uid that no database knows.
        name = str(uid)
    return Principal(f"local:{name}", "human")


@attrs.define
class _WatchedFile:
    """The entries of one file, as of its last readable state."""

    path: Path
    default_role: Role
    entries: Entries = attrs.field(factory=Entries)
    _seen: _Signature | None = None

    def load(self) -> None:
        """Read the file at start; raises StartError where it is missing or unusable."""
        try:
            status = os.stat(self.path)
            self.entries = self._read(status)
        except FileNotFoundError:
            raise StartError(f"token file {self.path} does not exist", exit_code=2) from None
        except OSError as error:
            raise StartError(f"cannot read token file {self.path}: {error.strerror}", exit_code=2) from None
        except TokenFileInvalid as error:
            raise StartError(str(error), exit_code=2) from None
        if not self.entries.tokens and not self.entries.certificates:
            raise StartError(f"token file {self.path} holds no [[token]] and no [[client_cert]]", exit_code=2)
        self._seen = _signature(status)

    def refresh(self) -> Entries:
        """The entries now in force."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            if self._seen is not None:
                log.warning("token file %s is gone: no token of it is valid", self.path)
            self._seen, self.entries = None, Entries()
            return self.entries
        except OSError as error:
            log.warning(
                "cannot stat token file %s: %s; its last tokens stay valid", self.path, error.strerror
            )
            return self.entries
        signature = _signature(status)
        if signature != self._seen:
            self._seen = signature
            try:
                self.entries = self._read(status)
                log.info("token file %s changed and was read again", self.path)
            except (OSError, TokenFileInvalid) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                log.warning("token file %s: %s; its last good tokens stay valid", self.path, reason)
        return self.entries

    def _read(self, status: os.stat_result) -> Entries:
        if status.st_mode & _OTHERS_READ_OR_WRITE and not _is_mounted_secret(self.path):
            raise TokenFileInvalid(
                f"token file {self.path} is open to others (mode {stat.S_IMODE(status.st_mode):04o});"
                f" mend it with: chmod 600 {shlex.quote(str(self.path))}"
            )
        with open(self.path, "rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise TokenFileInvalid(f"token file {self.path} is larger than {_MAX_FILE_BYTES} bytes")
        return parse(data, self.path, self.default_role)


def _signature(status: os.stat_result) -> _Signature:
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def _is_mounted_secret(path: Path) -> bool:
    """Container runtimes mount secrets world-readable in /run/secrets, inside a container of one user."""
    return _SECRETS_DIR in path.parents or _SECRETS_DIR in path.resolve().parents


class TokenFiles:
    """The credentials of an endpoint. Without any token file everybody is the local principal."""

    def __init__(self, files: Sequence[_WatchedFile], now: Callable[[], float]) -> None:
        self._files = tuple(files)
        self._now = now
        self.configured = bool(self._files)
        """Either token file makes a token necessary."""
        self.operator_configured = any(
            file.default_role == "operator" or file.entries.has_operator() for file in self._files
        )
        """Whether resets and permits are an operator's from now on; does not change while the daemon runs."""
        self.local = Identity(local_principal(), "client" if self.operator_configured else "operator")
        """Who acts on stdio, and on loopback without tokens: every role, unless operators have tokens."""

    @classmethod
    def load(
        cls,
        token_file: Path | None,
        operator_token_file: Path | None,
        *,
        now: Callable[[], float] = time.time,
    ) -> TokenFiles:
        """Read both files; raises StartError where one is missing, open to others or invalid."""
        named: list[tuple[Path | None, Role]] = [(token_file, "client"), (operator_token_file, "operator")]
        files = [_WatchedFile(path, role) for path, role in named if path is not None]
        for file in files:
            file.load()
        digests = [entry.sha256 for file in files for entry in file.entries.tokens]
        if len(digests) != len(set(digests)):
            raise StartError(f"one token stands in both {token_file} and {operator_token_file}", exit_code=2)
        return cls(files, now)

    def authenticate(self, bearer: str | None) -> Identity | None:
        """Who this bearer token speaks for; None for one that is missing, wrong or expired.

        The time taken does not depend on how much of a token is right, nor on which entry it matches.
        """
        if not self.configured:
            return self.local
        digest = hashlib.sha256((bearer or "").encode("utf-8", "surrogateescape")).hexdigest()
        found: Entry | None = None
        for file in self._files:
            for entry in file.refresh().tokens:
                equal = hmac.compare_digest(entry.sha256 or "", digest)
                # The token file comes before the operator's, so a doubled token has the lesser role.
                if equal and found is None and entry.is_live(self._now()):
                    found = entry
        return found.identity if found is not None and bearer else None

    def authenticate_certificate(self, der: bytes, subject: Sequence[tuple[str, str]]) -> Identity | None:
        """Who this client certificate, already verified by TLS, speaks for; None where no entry names it."""
        digest = hashlib.sha256(der).hexdigest()
        normal: Subject = subject_of(subject)
        for file in self._files:
            for entry in file.refresh().certificates:
                if entry.is_live(self._now()) and (
                    entry.sha256 == digest or (entry.subject is not None and entry.subject == normal)
                ):
                    return entry.identity
        return None
