"""Changing a token file: an entry more, or some less, and every other byte as it was [MHSD-6-02].

The file is written whole beside itself and renamed, so that a daemon that reads it at any moment sees the old or the
new table. What the form of a file is, protocol/token_file.py decides.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mhsd.cli.boundary import UsageProblem
from mhsd.client.local import user_name

if TYPE_CHECKING:
    from mhsd.protocol.token_file import Entries

_ANY_TABLE = re.compile(r"\s*\[")
_TOKEN_TABLE = re.compile(r"\s*\[\[\s*(token|\"token\"|'token')\s*\]\]\s*(#.*)?")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

Token = dict[str, Any]
"""One [[token]] entry as it stands in the file."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one of these programs changes a file of this directory at a time."""
    try:
        descriptor = os.open(path.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as problem:
        raise UsageProblem(f"{path.parent} cannot be used: {problem.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read(path: Path, *, may_be_missing: bool = False) -> str:
    """The text of a token file that is a table; UsageProblem says what is wrong with it."""
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        if may_be_missing:
            return ""
        raise UsageProblem(f"{path} does not exist; `mhsctl token new --file {path}` makes it") from None
    except OSError as problem:
        raise UsageProblem(f"{path} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise UsageProblem(f"{path} is no UTF-8 text") from None
    if not text.strip():
        return text
    entries = _checked(text, path)
    if entries.tokens and not _is_table(text):
        raise UsageProblem(
            f"{path} is one bare token, which has no table; name another file, and start mhsd with that one"
        )
    return text


def _checked(text: str, path: Path) -> "Entries":
    """The text as the daemon reads it; UsageProblem where it would not."""
    # The daemon's half of the program takes longer to import than most commands run.
    from mhsd.protocol.token_file import TokenFileInvalid, parse

    try:
        return parse(text.encode(), path, "client")
    except TokenFileInvalid as problem:
        raise UsageProblem(str(problem)) from None


def _is_table(text: str) -> bool:
    try:
        return "token" in tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False


def tokens(text: str) -> list[Token]:
    """The entries of a text that `read` has accepted."""
    return list(tomllib.loads(text).get("token", []))


def certificates(text: str) -> list[Token]:
    """The [[client_cert]] entries of a text that `read` has accepted."""
    return list(tomllib.loads(text).get("client_cert", []))


def digest_of(entry: Mapping[str, Any]) -> str:
    """The 64 hexadecimal digits of an entry's sha256, however they are written; empty where it has none."""
    return str(entry.get("sha256", "")).removeprefix("sha256:").replace(":", "").lower()


def digest_of_secret(secret: str) -> str:
    """What the file holds of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def added(text: str, entry: Mapping[str, Any]) -> str:
    """The text with one entry more at its end."""
    lines = ["[[token]]", *(f"{name} = {_toml(content)}" for name, content in entry.items())]
    before = text if not text or text.endswith("\n") else f"{text}\n"
    return before + ("\n" if before else "") + "\n".join(lines) + "\n"


def _toml(content: Any) -> str:
    if isinstance(content, list):
        return f"[{', '.join(map(_toml, content))}]"
    if isinstance(content, str):
        # Only printable text comes here, so that nothing else has to be escaped.
        escaped = content.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(content.isoformat()).replace("+00:00", "Z")


def removed(text: str, numbers: set[int]) -> str:
    """The text without the entries of these numbers, counted from 0; comments outside of them stay."""
    lines = text.splitlines(keepends=True)
    kept: list[str] = []
    number = -1
    held: list[str] = []
    dropping = False
    for line in lines:
        if _ANY_TABLE.match(line):
            is_token = _TOKEN_TABLE.fullmatch(line.rstrip("\r\n")) is not None
            number += is_token
            kept += held
            held, dropping = [], is_token and number in numbers
        if not dropping:
            kept.append(line)
        elif line.strip() and not line.lstrip().startswith("#"):
            held = []
        else:
            held.append(line)
    result = "".join([*kept, *held])
    left = [entry for index, entry in enumerate(tokens(text)) if index not in numbers]
    if _parsed(result) != {**tomllib.loads(text), "token": left}:
        raise UsageProblem(
            "this file is written in a way that cannot be changed safely; take the entry out by hand"
        )
    return result


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return {"token": [], **tomllib.loads(text)}
    except tomllib.TOMLDecodeError:
        return None


def write(path: Path, text: str) -> None:
    """Puts `text` in the place of the file, for its owner alone, whole and on the disk."""
    target = path.resolve()
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    _checked(text, path)
    try:
        before = target.stat() if target.exists() else None
        if before is not None and os.geteuid() not in (0, before.st_uid):
            # A renamed file would be this user's, and its daemon could no longer read it.
            raise UsageProblem(f"{path} belongs to {user_name(before.st_uid)}; run this as that user")
        mode = 0o600 if before is None else stat.S_IMODE(before.st_mode) & ~_OTHERS
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            if before is not None and os.geteuid() == 0:
                os.fchown(descriptor, before.st_uid, before.st_gid)
            os.fchmod(descriptor, mode)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        partial.replace(target)
    except OSError as problem:
        raise UsageProblem(f"{path} cannot be written: {problem.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
