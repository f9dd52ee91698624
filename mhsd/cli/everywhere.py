"""Every endpoint of this machine at once: those with a local socket, and the one on port 7400 [MHSD-9a].

Each is asked in a thread of its own, so that one that does not answer holds up no other. The standard library alone,
as for everything on the way to a stop.
"""

import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from mhsd.cli.terminal import note, plain
from mhsd.client.client import Client
from mhsd.client.endpoint import DEFAULT_ENDPOINT, DEFAULT_PORT, HttpEndpoint, local_endpoint, parse_endpoint
from mhsd.client.errors import MHSError, error
from mhsd.client.http import HttpTransport
from mhsd.client.local import LocalSocket, find_sockets, nobody_listens
from mhsd.client.naming import devices_of

HELLO_S = 5.0
"""How long an endpoint that has answered may take to say who it is."""


class Place(NamedTuple):
    """Where an endpoint may be: at a local socket, or on port 7400."""

    endpoint: HttpEndpoint
    socket: LocalSocket | None = None

    @property
    def name(self) -> str:
        """As it is written after `-e`."""
        return self.endpoint.url

    def is_deserted(self) -> bool:
        """Whether nobody serves there."""
        if self.socket is not None:
            return nobody_listens(self.socket.path)
        try:
            socket.create_connection((self.endpoint.host, self.endpoint.port), HELLO_S).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False


class Found(NamedTuple):
    """What an endpoint answered: one entry and one exit code for each device, or an error for all of them."""

    place: Place
    entries: list[Mapping[str, Any]]
    codes: list[int]
    error: MHSError | None = None
    hello: Mapping[str, Any] = {}
    """Empty where it did not say who it is."""

    @property
    def devices(self) -> list[dict[str, Any]]:
        return devices_of(self.hello)

    @property
    def instances(self) -> frozenset[str]:
        """The instance ids of its devices, which no other process has."""
        return frozenset(str(device["instance_id"]) for device in self.devices if "instance_id" in device)


Ask = Callable[[Client], tuple[list[Mapping[str, Any]], list[int]]]
"""Asks one endpoint; returns the entries and their exit codes."""


def places() -> list[Place]:
    """All places of this machine; directories that may not be looked into are named on stderr."""
    sockets, unreadable = find_sockets(os.environ)
    for directory in unreadable:
        note(
            f"{plain(str(directory))} may not be looked into: what serves there is reached by its own users, or root"
        )
    found = [Place(local_endpoint(str(each.path)), each) for each in sockets]
    port = parse_endpoint(DEFAULT_ENDPOINT)
    assert isinstance(port, HttpEndpoint)
    return [*found, Place(port)]


def ask_everywhere(ask: Ask, *, token: str | None, timeout_s: float) -> Iterator[Found]:
    """What the endpoints answer, each as soon as it is there; places where nobody serves are left out.

    An endpoint that is reached by its socket and by port 7400 comes once. The token is for port 7400: a socket knows
    who its caller is, and a token that another endpoint does not know would only be refused there.
    """
    answers: queue.Queue[Found | Place] = queue.Queue()
    waiting = set()
    for place in places():
        waiting.add(place)
        arguments = (place, ask, token if place.socket is None else None, timeout_s, answers)
        threading.Thread(target=_visit, args=arguments, daemon=True).start()
    shown: list[Found] = []
    held: Found | None = None
    while waiting:
        answer = answers.get()
        waiting.discard(answer if isinstance(answer, Place) else answer.place)
        if isinstance(answer, Found):
            if answer.place.socket is None:
                held = answer
            else:
                shown.append(answer)
                yield answer
        elif answer.socket is not None:
            note(f"{plain(answer.name)} is left over: its endpoint has ended without removing it")
        # Port 7400 is told when no socket can be the same endpoint's any more.
        if held is not None and not any(
            place.socket and place.socket.port == DEFAULT_PORT for place in waiting
        ):
            if not any(_is_same(held, other) for other in shown):
                yield held
            held = None


def _is_same(port: Found, other: Found) -> bool:
    """Whether what port 7400 said came from the endpoint of this socket."""
    if port.error is None:
        return bool(port.instances) and port.instances == other.instances
    # It may not know the caller there, as the socket does.
    serves_port = other.place.socket is not None and other.place.socket.port == DEFAULT_PORT
    return serves_port and other.error is None


def _visit(
    place: Place, ask: Ask, token: str | None, timeout_s: float, answers: "queue.Queue[Found | Place]"
) -> None:
    answer: Found | Place = place
    try:
        if not place.is_deserted():
            answer = _asked(place, ask, token, timeout_s)
    except MHSError as problem:
        answer = Found(place, [], [], problem)
    except Exception as defect:  # Whatever happens here, the others are waited for and shown.
        answer = Found(place, [], [], error("MHS.INTERNAL.ERROR", f"{type(defect).__name__}: {defect}"))
    finally:
        answers.put(answer)


def _asked(place: Place, ask: Ask, token: str | None, timeout_s: float) -> Found:
    with Client(HttpTransport(place.endpoint, token=token), timeout_s=timeout_s, name="mhsctl") as client:
        entries, codes = ask(client)
        client.timeout_s = min(timeout_s, HELLO_S)
        try:
            hello = client.hello()
        except MHSError:
            hello = {}
    return Found(place, entries, codes, None, hello)
