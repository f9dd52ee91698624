"""`watch`: a subscription followed live, until Ctrl-C, a number of events, or a time [MHSD-8-09].

Nothing is missed silently: a gap is shown where it is, a broken connection and a new session are told, and after each
of them the values are read again [TPT-063, EVT-008].
"""

import math
import queue
import sys
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from mhsd.cli import exits
from mhsd.cli.boundary import UsageProblem
from mhsd.cli.command import DeviceOption, client_command
from mhsd.cli.link import Link
from mhsd.cli.mutation import close_quietly, open_session
from mhsd.cli.render_live import VALUES, Lines, Screen, units_of_device
from mhsd.cli.targets import chosen, manifests, resource_of
from mhsd.cli.terminal import Paint, begin_lines, emit, is_unread, moves_cursor, note, plain, say
from mhsd.client.backoff import Backoff
from mhsd.client.client import Client
from mhsd.client.continuity import is_gap
from mhsd.client.errors import MHSError, OutcomeUnknown, SessionError, TransportError
from mhsd.client.events import Feed, Subscription
from mhsd.client.session import Session

_LOOK_S = 0.5
"""How often the loop looks whether its time is over and whether somebody still reads."""

_SHORTEST_SESSION_S = 1.0
"""A session that ends sooner and brought nothing is not followed by another: it would end in the same way."""

Streams = list[dict[str, str]]


class Stream(StrEnum):
    """The streams that can be subscribed to."""

    STATE = "state"
    TELEMETRY = "telemetry"
    EVENTS = "events"
    LOG = "log"
    PROGRESS = "progress"


@client_command
def watch(
    link: Link,
    resource: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RESOURCE", help="what to watch, as `describe` lists them; else all of the device"
        ),
    ] = None,
    stream: Annotated[
        list[Stream] | None,
        typer.Option(
            "--stream",
            metavar="STREAM",
            help="state, telemetry, events, log or progress; may be repeated; else the first two",
        ),
    ] = None,
    device: DeviceOption = None,
    rate_hz: Annotated[
        float | None,
        typer.Option("--rate", metavar="HZ", help="at most so many events a second of each resource"),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="end after N events")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--for", metavar="S", min=0, help="end after so long")
    ] = None,
) -> int:
    """A table on a terminal, one line an event elsewhere, one JSON document a line with --json."""
    if rate_hz is not None and not 0 < rate_hz < math.inf:
        raise UsageProblem("--rate is a number of events a second above 0")
    if link.json:
        begin_lines()
    with link.client() as client:
        resources = resource or []
        every = manifests(client)
        target = chosen(
            every,
            device,
            lambda each: all(resource_of(each, name) for name in resources),
            "these resources" if resources else "",
        )
        streams = _streams(target, resources, [str(each) for each in stream or ()])
        view = _view(link, target)
        return _Watch(client, target, streams, rate_hz, view).run(count, seconds)


def _view(link: Link, target: Mapping[str, Any]) -> "_Json | Lines | Screen":
    if link.json:
        return _Json()
    units = units_of_device(target)
    paint = Paint(sys.stdout)
    if moves_cursor(sys.stdout):
        return Screen(units, paint, sys.stdout)
    return Lines(units, paint)


def _streams(device: Mapping[str, Any], resources: Sequence[str], names: Sequence[str]) -> Streams:
    """What to subscribe to: the named streams, or the values that the device declares, of the named resources.

    What the device does not have is asked for too: the endpoint says that it is not there.
    """
    device_id = str(device["device_id"])
    declared: list[tuple[str, str | None]] = [
        (str(each["stream"]), str(each["resource_id"]))
        for each in device.get("streams") or []
        if isinstance(each, dict) and each.get("stream") in VALUES and "resource_id" in each
    ]
    wanted: list[tuple[str, str | None]]
    if not names:
        wanted = [pair for pair in declared if not resources or pair[1] in resources]
        wanted += [("state", each) for each in resources if all(each != resource for _, resource in wanted)]
    elif resources:
        wanted = [(name, each) for name in names for each in resources]
    else:
        of_streams = [[pair for pair in declared if pair[0] == name] or [(name, None)] for name in names]
        wanted = [pair for pairs in of_streams for pair in pairs]
    return [
        {"stream": name, "device_id": device_id} | ({} if resource is None else {"resource_id": resource})
        for name, resource in wanted
    ]


class _Json:
    """One document a line: the events as they came, and nothing else."""

    def reading(self, device_id: str, resource_id: str, reading: Mapping[str, Any]) -> None:
        """A program reads for itself."""

    def event(self, event: Mapping[str, Any]) -> None:
        emit(event)

    def note(self, text: str) -> None:
        note(text)

    def forget(self) -> None:
        """A program forgets for itself, at the gap."""


class _Watch:
    """One subscription at a time, and a new one in a new session when the session was lost."""

    def __init__(
        self,
        client: Client,
        target: Mapping[str, Any],
        streams: Streams,
        rate_hz: float | None,
        view: "_Json | Lines | Screen",
    ) -> None:
        self._client = client
        self._target = target
        self._streams = streams
        self._rate_hz = rate_hz
        self._view = view
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._seen = 0

    def run(self, count: int | None, seconds: float | None) -> int:
        """Shows events until there were `count`, until `seconds` have passed, or until nobody reads."""
        until_mono_s = None if seconds is None else time.monotonic() + seconds
        ended: SessionError | None = None
        while True:
            opened_mono_s, seen = time.monotonic(), self._seen
            session = self._session(again=ended is not None)
            feed = Feed(self._client.transport, session.session_id, self._said.put)
            try:
                with session.kept_alive():
                    subscription = self._subscribed(session, feed)
                    if ended is not None:
                        self._lost(subscription)
                    self._read(session)
                    self._follow(session, subscription, count, until_mono_s)
            except SessionError as problem:
                # It ended by itself, as with a restart of the endpoint; there is nothing to close.
                if seen == self._seen and time.monotonic() - opened_mono_s < _SHORTEST_SESSION_S:
                    raise
                ended = problem
                self._show(f"the session ended ({plain(problem.mhs_code)}); a new one is opened")
                continue
            except BaseException:
                close_quietly(session)
                raise
            finally:
                feed.end()
            close_quietly(session)
            return exits.OK

    def _session(self, *, again: bool) -> Session:
        """A reading session; one that takes the place of another may have to wait until the endpoint is back."""
        backoff = Backoff()
        while True:
            try:
                return open_session(self._client, [self._target], [])
            except (TransportError, OutcomeUnknown) as problem:
                pause_s = backoff.pause_s() if again else None
                if pause_s is None:
                    raise
                self._show(f"{plain(problem.message)}; trying again")
                time.sleep(pause_s)

    def _subscribed(self, session: Session, feed: Feed) -> Subscription:
        params: dict[str, Any] = {"streams": self._streams}
        if self._rate_hz is not None:
            params["rate_hz"] = self._rate_hz
        granted = session.call("mhs.subscribe", params)
        return feed.opened(
            granted,
            lambda subscription_id: {},
            lambda device_id, resource_id: session.read(resource_id, device_id),
        )

    def _lost(self, subscription: Subscription) -> None:
        """How much came between two subscriptions, nobody knows; that something may be missing is said."""
        gap = {"subscription_id": subscription.subscription_id, "stream": "control", "type": "gap"}
        unknown = {"seq": None, "ts": None, "from": None, "to": None, "dropped": None}
        self._shown({**gap, **unknown, "payload": {"client": True, "reason": "new_subscription"}})

    def _follow(
        self, session: Session, subscription: Subscription, count: int | None, until_mono_s: float | None
    ) -> None:
        out_of_date = False
        while (count is None or self._seen < count) and not is_unread():
            left_s = _LOOK_S if until_mono_s is None else until_mono_s - time.monotonic()
            if left_s <= 0:
                break
            event = subscription.get(min(left_s, self._patience_s()))
            while not self._said.empty():
                self._view.forget()
                self._show(f"{plain(self._said.get())}; connecting again")
                out_of_date = True
            if event is not None:
                self._seen += 1
                self._shown(event)
                if out_of_date or is_gap(event):
                    out_of_date = not self._read(session)
            elif subscription.over:
                break
            self._draw()

    def _patience_s(self) -> float:
        due_s = self._view.due_s() if isinstance(self._view, Screen) else None
        return _LOOK_S if due_s is None else due_s

    def _read(self, session: Session) -> bool:
        """The values as they are now: what a subscription brings is only what changes from now on. Whether all came."""
        if isinstance(self._view, _Json):
            return True
        all_came = True
        named = [
            each["resource_id"]
            for each in self._streams
            if each["stream"] in VALUES and "resource_id" in each
        ]
        for resource_id in dict.fromkeys(named):
            device_id = str(self._target["device_id"])
            try:
                reading = session.read(resource_id, device_id)
            except SessionError:
                raise
            except MHSError as problem:
                self._show(f"{plain(resource_id)} cannot be read: {plain(str(problem))}")
                all_came = False
                continue
            self._say(self._view.reading(device_id, resource_id, reading))
        self._draw(now=True)
        return all_came

    def _shown(self, event: Mapping[str, Any]) -> None:
        if is_gap(event):
            self._view.forget()
        self._say(self._view.event(event))

    def _show(self, text: str) -> None:
        self._say(self._view.note(text))
        self._draw(now=True)

    def _say(self, lines: list[str] | None) -> None:
        if lines is not None:
            say(lines)

    def _draw(self, *, now: bool = False) -> None:
        if isinstance(self._view, Screen) and (now or self._view.due_s() == 0):
            self._view.draw()
