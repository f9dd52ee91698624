"""GET /mhs/v1/events: the events of one session as Server-Sent Events [TPT-016 to TPT-019].

Decides who may have a stream, how events are framed, and when a stream is over. What is delivered, from where on and
with which gaps is decided by the endpoint's subscriptions; here no event is ever kept, so a client that does not read
costs what its socket holds and gets a gap when it reads again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from urllib.parse import parse_qsl

import attrs
import trio

from mhsd.base.errors import Fault
from mhsd.bindings import checks
from mhsd.bindings.callers import is_still_allowed
from mhsd.bindings.checks import Headers, Refused
from mhsd.bindings.replies import UNBUFFERED
from mhsd.bindings.rpc import Connection
from mhsd.bindings.site import Visit
from mhsd.services.subscriptions import Delivery, EventStream

KEEPALIVE_S = 15.0
"""A comment is sent after so much silence, and the credential is looked at again as often [TPT-016, TPT-059]."""

RETRY_MS = 3000
"""How long a client should wait before it connects again [TPT-016]."""

_TAKE_BYTES = 65536
_KEEPALIVE = b": keepalive\n\n"
_OPENING = b"retry: %d\n\n" % RETRY_MS
_PARAMETERS = ("session_id", "subscription_id")
_EVENT_ID = re.compile(rb"([\x21-\x7e]{1,128}):([0-9]{1,16})")
_ACCEPTABLE = frozenset({b"text/event-stream", b"text/*", b"*/*"})
_STATUS = {"SESSION": 403, "RESOURCE": 404, "LIMIT": 429}
"""The HTTP status by the second part of an error's code; the resource is the subscription."""


@attrs.frozen
class Wanted:
    """What a request for events asks for."""

    session_id: str
    subscription_id: str | None
    after: Mapping[str, int]
    """The last seq that the client has, by subscription; empty where it names none [TPT-018]."""

    @classmethod
    def of(cls, target: bytes, headers: Headers) -> Wanted:
        """Read it from the request's target and headers; Refused with 400 or 406 where that is not possible."""
        _check_accept(headers)
        named = _parameters(target)
        session_id = named.get("session_id", "")
        if not session_id:
            raise checks.invalid(
                400, "The request names no session.", f"Add ?{_PARAMETERS[0]}= with the id of your session."
            )
        return cls(session_id, named.get("subscription_id"), _last_event(headers))


def _check_accept(headers: Headers) -> None:
    """Refuse a client that says that it does not take event streams."""
    ranges = [part for value in checks.values(headers, b"accept") for part in value.split(b",")]
    if ranges and not any(_accepts(media_range) for media_range in ranges):
        raise checks.invalid(
            406, "Only an event stream is served here.", "Send the header Accept: text/event-stream."
        )


def _accepts(media_range: bytes) -> bool:
    media_type, *parameters = media_range.lower().replace(b" ", b"").replace(b"\t", b"").split(b";")
    excluded = any(re.fullmatch(rb"q=0(\.0*)?", parameter) for parameter in parameters)
    return media_type in _ACCEPTABLE and not excluded


def _parameters(target: bytes) -> dict[str, str]:
    """The query, each parameter known and there once; nothing of it is ever repeated in an answer or a log."""
    query = target.decode("latin-1").partition("?")[2].partition("#")[0]
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, strict_parsing=bool(query), errors="strict", max_num_fields=8
        )
    except ValueError:
        pairs = [("", "")]
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names) or not set(names) <= set(_PARAMETERS):
        raise checks.invalid(
            400,
            "The query of this request is not understood.",
            f"Name {' and '.join(_PARAMETERS)} at most once each, and nothing else.",
        )
    return dict(pairs)


def _last_event(headers: Headers) -> dict[str, int]:
    """What the client says that it has. An id of somebody else's names nothing, so that nothing is left out for it."""
    found = checks.values(headers, b"last-event-id")
    match = _EVENT_ID.fullmatch(found[0]) if len(found) == 1 else None
    return {match[1].decode("ascii"): int(match[2])} if match is not None else {}


def frame(subscription_id: str, seq: int, message: bytes) -> bytes:
    """One event; `message` is one line [TPT-016, EVT-010]."""
    return b"id: %b:%d\nevent: mhs.event\ndata: %b\n\n" % (subscription_id.encode(), seq, message)


async def serve_events(visit: Visit) -> None:
    """Stream the events of a session until its client leaves, it ends, or the endpoint does [TPT-017]."""
    wanted = Wanted.of(visit.request.target, visit.request.headers)
    door = visit.connection.site.door
    with ExitStack() as stack:
        try:
            events = stack.enter_context(
                door.streams.open(
                    visit.peer, wanted.session_id, only=wanted.subscription_id, after=wanted.after
                )
            )
        except Fault as fault:
            raise Refused(_STATUS.get(fault.mhs_code.split(".")[1], 500), fault) from None
        await Stream(visit, events).run()


class Stream:
    """Hands the events of one stream to one client."""

    def __init__(self, visit: Visit, events: EventStream) -> None:
        self._peer = visit.peer
        self._connection: Connection = visit.connection
        self._events = events
        self._check_at_mono_s = trio.current_time() + KEEPALIVE_S

    async def run(self) -> None:
        """Deliver until the stream is over. What the client sends after its request is left unread."""
        connection = self._connection
        await connection.begin(("Content-Type", "text/event-stream"), *UNBUFFERED)
        await connection.write(_OPENING)
        while not connection.has_departed and self._is_still_allowed():
            is_over = connection.leaving.is_set() or self._events.ended
            if taken := self._events.take(_TAKE_BYTES):
                await self._send(taken)
            elif is_over:
                break
            elif not await connection.pause(self._events.wait, KEEPALIVE_S) and not self._must_end():
                await connection.write(_KEEPALIVE)
        await connection.end()

    async def _send(self, taken: list[Delivery]) -> None:
        await self._connection.write(
            b"".join([frame(event.subscription_id, event.seq, event.message) for event in taken])
        )
        if self._events.has_more:
            # A client that reads as fast as there is something must not keep the others waiting.
            await trio.lowlevel.checkpoint()

    def _must_end(self) -> bool:
        return self._connection.has_departed or self._connection.leaving.is_set()

    def _is_still_allowed(self) -> bool:
        """Whether the credential of the request is still worth what it was, looked at now and then [TPT-059]."""
        now_mono_s = trio.current_time()
        if now_mono_s < self._check_at_mono_s:
            return True
        self._check_at_mono_s = now_mono_s + KEEPALIVE_S
        return is_still_allowed(self._peer)
