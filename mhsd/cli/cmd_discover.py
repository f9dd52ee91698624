"""`discover`: which of the endpoints that this user knows answer [CORE-120 to CORE-122].

Every HTTP entry is asked for its descriptor, all at once and within one short time; a stdio entry is listed and
never started. What answers is believed nothing: every entry is untrusted.
"""

import http.client
import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from mhsd.cli import exits
from mhsd.cli.boundary import UsageProblem
from mhsd.cli.known import Known, environment_entries, file_entries
from mhsd.cli.link import read_token, tls_files
from mhsd.cli.terminal import Paint, emit, plain, say, table, value
from mhsd.client.endpoint import HttpEndpoint, local_endpoint
from mhsd.client.errors import MHSError, error
from mhsd.client.http import BadCertificates
from mhsd.client.local import find_sockets, nobody_listens

DESCRIPTOR_PATH = "/.well-known/mhs.json"
PATIENCE_S = 3.0
LONGEST_S = 60.0
_MAX_BYTES = 1024 * 1024
_MEMBERS = ("endpoint_id", "mhs_version", "server", "auth", "transports")


class Entry(NamedTuple):
    """An endpoint that is known and what it said; neither descriptor nor error where it was not asked."""

    known: Known
    descriptor: dict[str, Any] | None = None
    problem: MHSError | None = None


def discover(
    file: Annotated[
        str | None,
        typer.Option(
            "--file", metavar="FILE", help="endpoints file [MHS_ENDPOINTS_FILE, ~/.mhs/endpoints.json]"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON document")] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="S", help="seconds that all of them together may take")
    ] = PATIENCE_S,
) -> int:
    """The endpoints of MHS_ENDPOINTS and of the endpoints file, and those with a socket on this machine."""
    if not 0 < timeout_s <= LONGEST_S:
        raise UsageProblem(f"--timeout is a number of seconds above 0, at most {LONGEST_S:g}")
    path, listed = file_entries(file, os.environ)
    every = [*environment_entries(os.environ), *listed]
    local = _local_entries()
    found = probe([*every, *local], timeout_s)
    entries, sockets = found[: len(every)], found[len(every) :]
    if as_json:
        emit(
            {
                "file": str(path) if path.exists() else None,
                "endpoints": [_document(entry) for entry in entries],
                "local": [_document(entry) for entry in sockets],
            }
        )
        return exits.OK
    say(_lines(entries, sockets, path, Paint(sys.stdout)))
    return exits.OK


def _local_entries() -> list[Known]:
    """The endpoints of this machine that have a socket of their own and are alive."""
    sockets = [each.path for each in find_sockets(os.environ).sockets if not nobody_listens(each.path)]
    return [Known(local_endpoint(str(path)), f"unix:{path}", "this machine") for path in sockets]


def probe(every: Sequence[Known], timeout_s: float) -> list[Entry]:
    """What each says within `timeout_s`, in the order of `every`; all are asked at once, each in its thread."""
    until_mono_s = time.monotonic() + timeout_s
    answers: queue.SimpleQueue[tuple[int, Entry]] = queue.SimpleQueue()
    entries = [Entry(known) for known in every]
    waiting = {number for number, known in enumerate(every) if isinstance(known.place, HttpEndpoint)}
    for number in waiting:
        arguments = (number, every[number], timeout_s, answers.put)
        threading.Thread(target=_visit, args=arguments, daemon=True).start()
    try:
        while waiting:
            number, entry = answers.get(timeout=max(0.0, until_mono_s - time.monotonic()))
            entries[number] = entry
            waiting.discard(number)
    except queue.Empty:
        for number in waiting:
            silent = _unreached(f"{every[number].url} did not answer within {timeout_s:g} s")
            entries[number] = Entry(every[number], problem=silent)
    return entries


def _visit(number: int, known: Known, timeout_s: float, put: Callable[[tuple[int, Entry]], None]) -> None:
    try:
        entry = Entry(known, _asked(known, timeout_s))
    except MHSError as problem:
        entry = Entry(known, problem=problem)
    except Exception as defect:  # Whatever one endpoint says, the others are shown.
        unread = f"{known.url} answered what cannot be read: {type(defect).__name__}: {defect}"
        entry = Entry(known, problem=_unreached(unread))
    put((number, entry))


def _asked(known: Known, timeout_s: float) -> dict[str, Any]:
    """The descriptor of one endpoint.

    It is asked for without any credential. Only one that refuses this and whose own entry has a token file is
    shown that token, and no other endpoint is [CORE-122].
    """
    assert isinstance(known.place, HttpEndpoint)
    known.place.refuse_insecure()
    status, content = _get(known.place, timeout_s, None)
    if status == 401 and known.token_file is not None:
        status, content = _get(known.place, timeout_s, _token(known.token_file))
    if status != 200:
        if status in (401, 403):
            raise error(
                "MHS.AUTH.UNAUTHENTICATED",
                f"{known.url} shows itself to nobody it does not know (HTTP {status})",
            )
        raise _unreached(f"{known.url} answered HTTP {status}, so no MHS endpoint is there")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("endpoint_id"), str):
        raise _unreached(f"{known.url} serves something that is no MHS endpoint")
    return document


def _token(path: str) -> str:
    try:
        return read_token(Path(path))
    except UsageProblem as problem:
        raise error(
            "MHS.AUTH.UNAUTHENTICATED", str(problem), "Put the endpoint's token into this file."
        ) from None


def _get(place: HttpEndpoint, timeout_s: float, token: str | None) -> tuple[int, bytes]:
    connection = _connection(place, timeout_s)
    try:
        headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        connection.request("GET", place.prefix + DESCRIPTOR_PATH, headers=headers)
        response = connection.getresponse()
        content = response.read(_MAX_BYTES + 1)
    except (OSError, http.client.HTTPException, UnicodeError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
        raise _unreached(f"{place.url} cannot be reached: {reason}") from None
    finally:
        connection.close()
    if len(content) > _MAX_BYTES:
        raise _unreached(f"{place.url} answered more than {_MAX_BYTES} bytes, so no MHS endpoint is there")
    return response.status, content


def _connection(place: HttpEndpoint, timeout_s: float) -> http.client.HTTPConnection:
    if place.socket_path is not None:
        return _LocalConnection(place.socket_path, timeout_s)
    if not place.tls:
        return http.client.HTTPConnection(place.host, place.port, timeout=timeout_s)
    try:
        context = tls_files().context()
    except BadCertificates as problem:
        raise _unreached(str(problem)) from None
    return http.client.HTTPSConnection(place.host, place.port, timeout=timeout_s, context=context)


class _LocalConnection(http.client.HTTPConnection):
    """HTTP to the socket of an endpoint of this machine."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _unreached(message: str) -> MHSError:
    return error("MHS.TRANSPORT.UNAVAILABLE", message, "Check the address, and that mhsd runs there.")


def _document(entry: Entry) -> dict[str, Any]:
    known, descriptor = entry.known, entry.descriptor
    return {
        "name": known.name,
        "url": known.url,
        "source": known.source,
        "trusted": False,
        "reachable": None if descriptor is None and entry.problem is None else descriptor is not None,
        **{name: descriptor.get(name) if descriptor is not None else None for name in _MEMBERS},
        "devices": _count(descriptor),
        "token_file": known.token_file,
        "cwd": known.cwd,
        "error": None if entry.problem is None else entry.problem.document(),
    }


def _lines(entries: Sequence[Entry], sockets: Sequence[Entry], path: Path, paint: Paint) -> list[str]:
    rows = [_row(entry, paint) for entry in [*entries, *sockets]]
    if not rows:
        return [
            "no endpoint is known: MHS_ENDPOINTS is empty, "
            f"{plain(str(path))} lists none, and none has a socket on this machine"
        ]
    lines = table(rows, ("ENDPOINT", "NAME", "STATE", "ID", "DEVICES", "FROM"))
    lines += [f"  {value(each.problem.message)}" for each in entries if each.problem]
    return [*lines, "", "Listed does not mean trusted: nobody was authenticated, and no command was sent."]


def _row(entry: Entry, paint: Paint) -> list[str]:
    descriptor: Mapping[str, Any] = entry.descriptor or {}
    if entry.problem is not None:
        state = paint("bad", "not reached")
    elif entry.descriptor is not None:
        state = paint("good", "answers")
    else:
        state = paint("dim", "not asked")
    devices = _count(entry.descriptor)
    return [
        plain(entry.known.url),
        plain(entry.known.name or "-"),
        state,
        value(descriptor.get("endpoint_id", "-")),
        "-" if devices is None else str(devices),
        plain(entry.known.source),
    ]


def _count(descriptor: Mapping[str, Any] | None) -> int | None:
    """How many devices the descriptor names, which one that wants tokens keeps to itself."""
    devices = descriptor.get("devices") if descriptor is not None else None
    return len(devices) if isinstance(devices, list) else None
