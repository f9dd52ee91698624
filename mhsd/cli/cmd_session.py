"""`session open|list|close|keep`: a session that outlives the command, for work over several commands."""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from mhsd.cli import exits, sessions_here
from mhsd.cli.boundary import UsageProblem
from mhsd.cli.command import client_command
from mhsd.cli.link import Link
from mhsd.cli.mutation import SESSION_TTL_S, principal
from mhsd.cli.targets import chosen, named
from mhsd.cli.terminal import Paint, emit, note, plain, say, table, value
from mhsd.client.backoff import Backoff
from mhsd.client.client import Client
from mhsd.client.errors import OutcomeUnknown, SessionError, TransportError
from mhsd.client.naming import devices_of, path_of
from mhsd.client.session import Session

SessionArgument = Annotated[str, typer.Argument(metavar="ID", help="the session's id, mhs_s_…")]


@client_command
def session_open(
    link: Link,
    device: Annotated[
        list[str] | None,
        typer.Option("--device", metavar="DEVICE", help="a device to work with; may be repeated"),
    ] = None,
    capability: Annotated[
        list[str] | None,
        typer.Option("-c", "--capability", metavar="CAP", help="only this, or a pattern like 'cap.motion.*'"),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="grant no command at all")] = False,
    ttl_s: Annotated[
        int, typer.Option("--ttl", metavar="S", min=1, help="seconds until it ends without a heartbeat")
    ] = SESSION_TTL_S,
    approved_by: Annotated[
        list[str] | None,
        typer.Option("--approved-by", metavar="PERSON", help="who answers for a device of risk class R3"),
    ] = None,
) -> int:
    """Opens a session and prints its id."""
    _refuse_stdio(link)
    with link.client() as client:
        every = devices_of(client.hello())
        used = [named(every, reference) for reference in device or ()] or [chosen(every, None)]
        session = Session.open(
            client,
            principal=principal(),
            device_ids=[str(entry["device_id"]) for entry in used],
            capabilities=[] if read_only else capability or ["*"],
            mode=str(used[0].get("mode")),
            ttl_s=ttl_s,
            approvals=[{"principal": {"id": person, "kind": "human"}} for person in approved_by or ()],
        )
        _remember(link, client, session, used)
    if link.json:
        emit(session.grant)
        return exits.OK
    say(_grant_lines(session))
    return exits.OK


def _grant_lines(session: Session) -> list[str]:
    granted = session.grant.get("granted") or []
    texts = [
        f"{value(entry.get('capability_id'))} on {value(entry.get('resource'))}"
        f" of {plain(path_of(str(entry.get('device_id'))))}"
        for entry in granted
    ] or ["reading only"]
    return table(
        [
            ["session", plain(session.session_id)],
            ["mode", value(session.grant.get("mode"))],
            ["ends at", f"{value(session.grant.get('expires_at'))} unless a heartbeat comes"],
            *(["granted" if index == 0 else "", text] for index, text in enumerate(texts)),
            ["use it", f"mhsctl call --session {plain(session.session_id)} ..."],
        ]
    )


def _remember(link: Link, client: Client, session: Session, devices: Sequence[Mapping[str, Any]]) -> None:
    ids = [str(device["device_id"]) for device in devices]
    sessions_here.remember(session.session_id, link.address, client.hello().get("endpoint_id"), ids)


@client_command
def session_list(link: Link) -> int:
    """The sessions that this user's commands have opened and left open at the endpoint, as far as they live.

    No endpoint lists sessions, so they are noted here when they are opened; the endpoint is asked which of them
    still live, which does not make them live longer.
    """
    recorded = sessions_here.records(link.address)
    with link.client() as client:
        answers = [(record, _operations_of(client, record["session_id"])) for record in recorded]
    living = [{**record, "operations": len(open_)} for record, open_ in answers if open_ is not None]
    sessions_here.forget({record["session_id"] for record, open_ in answers if open_ is None})
    if link.json:
        emit({"sessions": living})
        return exits.OK
    rows = [
        [
            plain(each["session_id"]),
            plain(each["opened_at"]),
            str(each["operations"]),
            ", ".join(plain(path_of(device)) for device in each["devices"]),
        ]
        for each in living
    ]
    say(table(rows, ("SESSION", "OPENED AT", "RUNNING", "DEVICES")) if rows else "no session is open")
    elsewhere = sorted({each["endpoint"] for each in sessions_here.records()} - {link.address})
    if elsewhere:
        note(f"more were opened at: {', '.join(map(plain, elsewhere))}; ask there with -e")
    return exits.OK


def _operations_of(client: Client, session_id: str) -> list[Any] | None:
    """What runs in a session; None where the session is over or no longer this caller's."""
    try:
        answered = Session(client, session_id).call("mhs.operations.list", {"state": "running"})
    except SessionError:
        return None
    operations = answered.get("operations")
    return operations if isinstance(operations, list) else []


@client_command
def session_close(link: Link, session: SessionArgument) -> int:
    """Ends a session; what still runs in it is cancelled to the safe state."""
    with link.client() as client:
        answered = Session(client, session).close()
    sessions_here.forget({session})
    if link.json:
        emit(answered)
        return exits.OK
    summary = answered.get("summary") or {}
    rows = [["closed at", value(answered.get("closed_at"))]]
    rows += [[plain(name).replace("_", " "), value(content)] for name, content in summary.items()]
    say(table(rows))
    if summary.get("cancellation_pending"):
        note(Paint(sys.stderr)("warn", "an operation is still being cancelled; look at `mhsctl status`"))
    return exits.OK


@client_command
def session_keep(
    link: Link,
    session: SessionArgument,
    seconds: Annotated[
        float | None, typer.Option("--for", metavar="S", min=0, help="stop after so long; else until Ctrl-C")
    ] = None,
) -> int:
    """Sends heartbeats, so that a session does not end while a person works with it."""
    _refuse_stdio(link)
    with link.client() as client:
        kept = Session(client, session)
        until_mono_s = None if seconds is None else time.monotonic() + seconds
        answered: dict[str, Any] = {}
        while True:
            answered = _beat(kept, again=bool(answered))
            pause_s = kept.lifetime_s(answered) / 3
            if not link.json:
                say(f"session {plain(session)} lives until {value(answered.get('expires_at'))}")
            if until_mono_s is not None:
                pause_s = min(pause_s, until_mono_s - time.monotonic())
                if pause_s <= 0:
                    break
            try:
                time.sleep(pause_s)
            except KeyboardInterrupt:
                if link.json:
                    emit(answered)
                raise
    if link.json:
        emit(answered)
    return exits.OK


def _beat(kept: Session, *, again: bool) -> dict[str, Any]:
    """One heartbeat; but for the first it is sent again while only the connection fails, which a session outlives
    [TPT-061, TPT-064]."""
    backoff = Backoff()
    while True:
        try:
            return kept.heartbeat()
        except (TransportError, OutcomeUnknown) as problem:
            pause_s = backoff.pause_s() if again else None
            if pause_s is None:
                raise
            note(f"{plain(problem.message)}; trying again")
            time.sleep(pause_s)


def _refuse_stdio(link: Link) -> None:
    if not link.outlives_command():
        raise UsageProblem(
            "a session on stdio: would end with this command; use an endpoint that goes on running"
        )
