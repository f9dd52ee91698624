"""`token new|list|revoke`: who may use an endpoint, in the file that its daemon reads [MHSD-6-02, TPT-059].

The daemon reads the file again when it changes, so that a new token works and a revoked one stops at its next request.
"""

import os
import re
import secrets
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from mhsd.cli import exits, token_table
from mhsd.cli.boundary import UsageProblem
from mhsd.cli.terminal import Paint, emit, note, plain, say, table, value

_SECRET_BYTES = 32
_SHORTEST_PREFIX = 6
_SHOWN_DIGITS = 12
_LONGEST_PRINCIPAL = 256
_DURATION = re.compile(r"([1-9][0-9]{0,5})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Kind(StrEnum):
    """What a principal is."""

    AGENT = "agent"
    HUMAN = "human"
    SERVICE = "service"


class Role(StrEnum):
    """How far a token goes."""

    READER = "reader"
    CLIENT = "client"
    OPERATOR = "operator"


FileOption = Annotated[
    Path, typer.Option("--file", metavar="FILE", help="the token file that mhsd was given with --token-file")
]
JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON document")]


def token_new(
    file: FileOption,
    principal: Annotated[
        str, typer.Option("--principal", metavar="ID", help="who it is for, as receipts name them: human:kim")
    ],
    kind: Annotated[
        Kind | None,
        typer.Option(
            "--kind", help="what the principal is; else as its id begins, human:… or agent:…, or service"
        ),
    ] = None,
    role: Annotated[
        Role,
        typer.Option("--role", help="reader looks, client also commands, operator also resets and permits"),
    ] = Role.CLIENT,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="WHEN", help="30d, 12h, 90m, 2w, or a time: 2027-01-31T00:00:00Z"),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option("--device", metavar="ID", help="only this device, by its whole id; may be repeated"),
    ] = None,
    capability: Annotated[
        list[str] | None,
        typer.Option("--capability", metavar="CAP", help="only this, or a pattern; may be repeated"),
    ] = None,
    note_text: Annotated[
        str | None, typer.Option("--note", metavar="TEXT", help="a remark to find it again by")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="write the secret to this new file, for --token-file"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Mints a token, shows it once, and adds its hash to the file."""
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    kind = kind or _kind_of(principal)
    entry = _entry(secret, principal, kind, role, expires, device or (), capability or (), note_text)
    with token_table.locked(file):
        existed = file.exists()
        text = token_table.added(token_table.read(file, may_be_missing=True), entry)
        if output is not None:
            _keep_secret(output, secret)
        try:
            token_table.write(file, text)
        except UsageProblem:
            if output is not None:
                output.unlink()
            raise
    shown = _shown(entry)
    if as_json:
        kept = {"token": secret} if output is None else {"token": None}
        emit({"file": str(file), **kept, "token_file": None if output is None else str(output), **shown})
        return exits.OK
    say(
        table(
            [
                ["token", secret] if output is None else ["token in", plain(str(output))],
                ["principal", f"{plain(principal)} ({kind}, {role})"],
                ["expires at", shown["expires_at"] or "never"],
                ["added to", plain(str(file))],
            ]
        )
    )
    if output is None:
        note("The token is shown this once. Keep it in a file that only its user can read (chmod 600).")
    if not existed:
        note(f"{plain(str(file))} is new: start mhsd with --token-file {plain(str(file))}")
    return exits.OK


def token_list(file: FileOption, as_json: JsonOption = False) -> int:
    """The entries of the file; it holds no secrets, so none is shown."""
    text = token_table.read(file)
    entries = [_shown(entry) for entry in token_table.tokens(text)]
    certificates = [_shown(entry) for entry in token_table.certificates(text)]
    if as_json:
        emit({"file": str(file), "tokens": entries, "client_certs": certificates})
        return exits.OK
    paint = Paint(sys.stdout)
    rows = [_row(entry, paint) for entry in [*entries, *certificates]]
    header = ("SHA256", "PRINCIPAL", "KIND", "ROLE", "EXPIRES AT", "STATE", "NOTE")
    say(table(rows, header) if rows else f"{plain(str(file))} lets nobody in")
    return exits.OK


def token_revoke(
    who: Annotated[
        str,
        typer.Argument(
            metavar="PRINCIPAL|SHA256", help="all tokens of this principal, or the one of this hash"
        ),
    ],
    file: FileOption,
    as_json: JsonOption = False,
) -> int:
    """Takes entries out of the file; a running daemon refuses their tokens from its next request on."""
    with token_table.locked(file):
        text = token_table.read(file)
        entries = token_table.tokens(text)
        numbers = _meant(entries, who, file)
        token_table.write(file, token_table.removed(text, numbers))
    revoked = [_shown(entry) for number, entry in enumerate(entries) if number in numbers]
    left = len(entries) - len(revoked)
    if as_json:
        emit({"file": str(file), "revoked": revoked, "left": left})
        return exits.OK
    for entry in revoked:
        say(
            f"revoked {entry['sha256'][:_SHOWN_DIGITS]} of {value(entry['principal'])} ({value(entry['role'])})"
        )
    if left == 0 and not token_table.certificates(text):
        note(
            f"{plain(str(file))} lets nobody in any more, and mhsd does not start with it until it has a token"
        )
    return exits.OK


def _entry(
    secret: str,
    principal: str,
    kind: Kind,
    role: Role,
    expires: str | None,
    devices: Sequence[str],
    capabilities: Sequence[str],
    remark: str | None,
) -> token_table.Token:
    texts = {"--principal": principal, "--note": remark or "-", "--device": "".join(devices)}
    for option, text in {**texts, "--capability": "".join(capabilities)}.items():
        if not text.isprintable():
            raise UsageProblem(f"{option} holds control characters")
    if not principal.strip() or len(principal) > _LONGEST_PRINCIPAL:
        raise UsageProblem(f"--principal has 1 to {_LONGEST_PRINCIPAL} characters, as in human:kim")
    entry: token_table.Token = {
        "sha256": token_table.digest_of_secret(secret),
        "principal": principal,
        "kind": str(kind),
        "role": str(role),
    }
    optional = {
        "expires_at": None if expires is None else _expiry(expires, datetime.now(UTC)),
        "devices": list(devices) or None,
        "capabilities": list(capabilities) or None,
        "note": remark,
    }
    return entry | {name: content for name, content in optional.items() if content is not None}


def _kind_of(principal: str) -> Kind:
    """What the first word of a principal's id says it is."""
    word = principal.partition(":")[0]
    return Kind(word) if word in tuple(Kind) else Kind.SERVICE


def _expiry(text: str, now: datetime) -> datetime:
    """The moment that `--expires` names, in whole seconds of UTC; one that has passed is refused."""
    duration = _DURATION.fullmatch(text)
    try:
        if duration is not None:
            moment = now + timedelta(**{_UNITS[duration[2]]: int(duration[1])})
        else:
            moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise UsageProblem(
            f"--expires {text} is no time; write 30d, 12h, 90m or 2w, or a time with its offset: 2027-01-31T00:00:00Z"
        ) from None
    if moment.tzinfo is None:
        raise UsageProblem(
            f"--expires {text} has no offset; write {text}Z for UTC"
            if "T" in text
            else f"--expires {text} has no time of day; write {text}T00:00:00Z"
        )
    if moment <= now:
        raise UsageProblem(f"--expires {text} has passed already")
    return moment.astimezone(UTC).replace(microsecond=0)


def _keep_secret(path: Path, secret: str) -> None:
    """Writes the secret to a file that was not there and that only its owner can read."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{secret}\n")
    except FileExistsError:
        raise UsageProblem(f"{path} exists already and is not written over") from None
    except OSError as problem:
        raise UsageProblem(f"{path} cannot be written: {problem.strerror}") from None


def _meant(entries: Sequence[token_table.Token], who: str, file: Path) -> set[int]:
    """The numbers of the entries that `who` names."""
    of_principal = {number for number, entry in enumerate(entries) if entry.get("principal") == who}
    if of_principal:
        return of_principal
    prefix = who.removeprefix("sha256:").lower()
    by_digest = {
        number for number, entry in enumerate(entries) if token_table.digest_of(entry).startswith(prefix)
    }
    if len(prefix) >= _SHORTEST_PREFIX and len(by_digest) == 1:
        return by_digest
    if len(prefix) >= _SHORTEST_PREFIX and by_digest:
        raise UsageProblem(f"several tokens of {file} begin with {prefix}; give more of the hash")
    known = ", ".join(sorted({str(entry.get("principal")) for entry in entries})) or "nobody"
    raise UsageProblem(
        f"{file} has no token of {who}; it has tokens of: {known}. A hash is given by its first "
        f"{_SHORTEST_PREFIX} digits or more"
    )


def _shown(entry: token_table.Token) -> dict[str, Any]:
    """An entry as it is shown: whole, with what is not in it as null, and whether its time is over."""
    expires_at = entry.get("expires_at")
    moment = datetime.fromisoformat(expires_at) if isinstance(expires_at, str) else expires_at
    return {
        "sha256": token_table.digest_of(entry) or None,
        "principal": entry.get("principal"),
        "kind": entry.get("kind", "service"),
        "role": entry.get("role"),
        "expires_at": None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "expired": moment is not None and moment <= datetime.now(UTC),
        "devices": entry.get("devices"),
        "capabilities": entry.get("capabilities"),
        "note": entry.get("note"),
        **({"subject": entry["subject"]} if "subject" in entry else {}),
    }


def _row(entry: dict[str, Any], paint: Paint) -> list[str]:
    return [
        (entry["sha256"] or "certificate")[:_SHOWN_DIGITS],
        value(entry["principal"]),
        value(entry["kind"]),
        value(entry["role"] or "by the option"),
        value(entry["expires_at"] or "never"),
        paint("bad", "expired") if entry["expired"] else paint("good", "valid"),
        value(entry["note"] or entry.get("subject") or ""),
    ]
