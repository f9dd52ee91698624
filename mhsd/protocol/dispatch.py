"""The one door: every binding hands its messages to `Dispatch.begin`, and none can skip a check.

`begin` is synchronous: it parses, checks and runs the synchronous part of admission, so that messages enter in the
order in which a connection sent them. What has to wait is returned as something to await. An emergency stop is
recognised before anything else, and nothing holds it up [CORE-076, CORE-183].
"""

import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from mhsd.base.errors import Fault
from mhsd.base.resources import METHODS, MethodRow
from mhsd.core.quota import RateLimiter
from mhsd.protocol.answers import LEAST_BYTES, NOTHING, Exchange, joined, reply
from mhsd.protocol.batch import BatchOrder, Place
from mhsd.protocol.context import Context
from mhsd.protocol.event_streams import EventStreams, rate_exceeded
from mhsd.protocol.faults import answer_fault
from mhsd.protocol.methods import HANDLERS
from mhsd.protocol.peer import FREE, Peer, stop_only
from mhsd.protocol.search import Engaged, StopSearch, engage
from mhsd.protocol.stops import Stop, find_stops, mentions_stop
from mhsd.services.endpoint import Endpoint
from mhsd.services.subscriptions import EventStream
from mhsd.wire.json_text import decode, decode_lenient, encode, encode_error, encode_reply, size_fault
from mhsd.wire.jsonrpc import Batch, Malformed, Notification, Request, parse_message
from mhsd.wire.structure import structure

log = logging.getLogger("mhsd.dispatch")

ROLES = ("reader", "client", "operator")


HTTP_STATUS = {
    "MHS.PROTOCOL.PARSE_ERROR": 400,
    "MHS.PROTOCOL.BATCH_TOO_LARGE": 400,
    "MHS.LIMIT.PAYLOAD_TOO_LARGE": 413,
    "MHS.LIMIT.RATE_EXCEEDED": 429,
}
"""The HTTP status of a message that was refused as a whole; any other JSON-RPC error is 200."""


class Dispatch:
    """Serves one endpoint to any number of peers."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.gate = trio.CapacityLimiter(1)
        """Bindings take this around `begin`, but not for a message that mentions a stop."""
        self._search_turn = trio.CapacityLimiter(1)
        limits = endpoint.limits
        self._sizes = {
            "max_bytes": limits.max_request_bytes,
            "max_depth": limits.max_json_depth,
            "max_items": limits.max_json_items,
        }
        self._most_answer_bytes = max(LEAST_BYTES, limits.max_request_bytes)
        self._rate = RateLimiter(limits.max_rate_per_s, limits.rate_burst)
        self._status_rate = RateLimiter(limits.max_status_rate_per_s, limits.max_status_rate_per_s)
        self.streams = EventStreams(endpoint, self._rate)

    @staticmethod
    def mentions_stop(body: bytes) -> bool:
        """Whether a message may hold an emergency stop: a byte search, right for any JSON but escaped names."""
        return mentions_stop(body)

    @staticmethod
    def refuse(fault: Fault, status: int, retry_after_ms: int | None = None) -> Exchange:
        """The refusal of something that never became a message, with id null."""
        return Exchange(encode_error(None, fault.error()), status, retry_after_ms)

    def events(self) -> EventStream:
        """Where the events go of the subscriptions that are made on one connection."""
        return self.endpoint.subscriptions.connection()

    def charge(self, peer: Peer) -> None:
        """Count what is no message against the rate of its sender; LIMIT.RATE_EXCEEDED where it is too much."""
        wait_s = None if peer.rate_exempt else self._rate.take(peer.principal.id, 1, trio.current_time())
        if wait_s is not None:
            raise rate_exceeded(f"{self.endpoint.limits.max_rate_per_s} requests", wait_s)

    def search(self, peer: Peer) -> StopSearch:
        """For a message that is longer than allowed: what a binding feeds it to before it refuses it."""
        return StopSearch(self.endpoint, peer, self._search_turn)

    def begin(
        self, body: bytes, peer: Peer, received_mono_s: float | None = None
    ) -> Exchange | Awaitable[Exchange]:
        """Take in one message: the whole answer, or what to await for it. Never raises.

        `received_mono_s` is when the message was read, where it had to wait for its turn since: deadlines count
        from then, and a stop that was read later is later, although it went ahead.
        """
        if received_mono_s is None:
            received_mono_s = trio.current_time()
        try:
            if mentions_stop(body):
                fault = size_fault(body, **self._sizes)
                if fault is not None:
                    return self._refuse_searched(body, fault, peer)
                stops = find_stops(decode_lenient(body, **self._sizes))
                if stops:
                    return self._begin_stops(body, stops, peer, received_mono_s)
            return self._begin(body, peer, received_mono_s)
        except Exception:
            # The boundary of one message: a defect in here costs its sender an answer and nobody else anything.
            log.exception("a message could not be dispatched")
            return self.refuse(Fault("MHS.INTERNAL.ERROR", "the endpoint failed on this message"), 200)

    def _begin(self, body: bytes, peer: Peer, received_mono_s: float) -> Exchange | Awaitable[Exchange]:
        try:
            value = decode(body, **self._sizes)
        except Fault as fault:
            return self.refuse(fault, HTTP_STATUS[fault.mhs_code])
        # A name that is written with escapes has passed the byte search; it names the same method.
        if b"\\u" in body and (stops := find_stops(value)):
            return self._begin_stops(body, stops, peer, received_mono_s)
        message = parse_message(value, max_batch=self.endpoint.limits.max_batch)
        if isinstance(message, Batch):
            refusal = self._rate_refusal(message.calls, peer)
            if refusal is not None:
                return refusal
            return self._batch(message, peer, received_mono_s)
        if isinstance(message, Malformed):
            reason = (message.fault.details or {}).get("reason")
            status = 400 if reason == "empty_batch" else HTTP_STATUS.get(message.fault.mhs_code, 200)
            return (
                NOTHING
                if message.silent
                else Exchange(encode_error(message.id, message.fault.error()), status)
            )
        if isinstance(message, Notification):
            return self._notification(message)
        refusal = self._rate_refusal((message,), peer)
        if refusal is not None:
            return refusal
        return self._request(message, Context(self.endpoint, peer, received_mono_s))

    # Single calls.

    def _request(
        self, request: Request, context: Context, *, alone: bool = True
    ) -> Exchange | Awaitable[Exchange]:
        try:
            result = self._call(request, context)
        except Exception as error:
            # The boundary of one request: its caller is told under its own id, whatever went wrong.
            return Exchange(encode_error(request.id, answer_fault(error, request.method).error()))
        if isinstance(result, Awaitable):
            return self._finish(request, result, context.afterwards if alone else [])
        if alone:
            _run(context.afterwards)
        return reply(request, result, self._most_answer_bytes)

    def _call(self, request: Request, context: Context) -> Any:
        peer = context.peer
        if not peer.remember_id(request.id):
            raise Fault(
                "MHS.PROTOCOL.INVALID_REQUEST",
                "this connection has already used this id",
                details={"reason": "duplicate_id"},
            )
        if peer.stop_only and request.method not in FREE:
            raise stop_only()
        if peer.needs_hello and not peer.greeted and request.method not in FREE:
            raise Fault(
                "MHS.PROTOCOL.INVALID_REQUEST",
                "the first call on this connection must be mhs.hello",
                details={"reason": "hello_required"},
            )
        row = served_row(request.method)
        # Who is no operator is told by the handlers of reset and permit, each in its own form.
        if row.role == "client" and ROLES.index(peer.role) < ROLES.index(row.role):
            raise Fault(
                "MHS.AUTH.FORBIDDEN",
                f"{request.method} needs the role {row.role}",
                details={"needed_role": row.role},
            )
        params = structure(
            request.method, request.params, max_deadline_ms=self.endpoint.limits.max_command_deadline_ms
        )
        return HANDLERS[request.method](context, params)

    async def _finish(
        self, request: Request, result: Awaitable[Any], afterwards: list[Callable[[], None]]
    ) -> Exchange:
        try:
            value = await result
        except Exception as error:
            value = answer_fault(error, request.method)
        _run(afterwards)
        if isinstance(value, Fault):
            return Exchange(encode_error(request.id, value.error()))
        return reply(request, value, self._most_answer_bytes)

    @staticmethod
    def _notification(notification: Notification) -> Exchange:
        """Nothing is answered to a notification, and an effectful one is not executed either [PROTO-005]."""
        row = METHODS.get(notification.method)
        if row is not None and row.effectful:
            log.warning("dropped an effectful notification: %s", notification.method)
        return NOTHING

    # Batches.

    def _batch(self, batch: Batch, peer: Peer, received_mono_s: float) -> Exchange | Awaitable[Exchange]:
        """Every element by itself; those that mutate one device wait for each other [PROTO-007, PROTO-008].

        What waits for no other element is begun here, so that a batch enters in the order of arrival too.
        """
        order = BatchOrder(self.endpoint.sessions)
        replies: list[Exchange] = []
        waiting: list[tuple[Place, Callable[[], Exchange | Awaitable[Exchange]]]] = []
        afterwards: list[Callable[[], None]] = []
        for call in batch.calls:
            if isinstance(call, Notification):
                self._notification(call)
            elif isinstance(call, Malformed):
                if not call.silent:
                    replies.append(Exchange(encode_error(call.id, call.fault.error())))
            else:
                place = order.place(call)
                context = Context(self.endpoint, peer, received_mono_s, place.id_spent, afterwards)
                begin = partial(self._request, call, context, alone=False)
                if place.after is not None:
                    waiting.append((place, begin))
                    continue
                outcome = begin()
                if isinstance(outcome, Exchange):
                    replies.append(outcome)
                    place.answered.set()
                else:
                    waiting.append((place, lambda outcome=outcome: outcome))  # type: ignore[misc]
        if waiting:
            return self._finish_batch(waiting, replies, afterwards)
        _run(afterwards)
        return joined(replies, self._most_answer_bytes)

    async def _finish_batch(
        self,
        waiting: list[tuple[Place, Callable[[], Exchange | Awaitable[Exchange]]]],
        replies: list[Exchange],
        afterwards: list[Callable[[], None]],
    ) -> Exchange:
        async def run(place: Place, begin: Callable[[], Exchange | Awaitable[Exchange]]) -> None:
            try:
                if place.after is not None:
                    await place.after.wait()
                outcome = begin()
                replies.append(outcome if isinstance(outcome, Exchange) else await outcome)
            finally:
                place.answered.set()

        async with trio.open_nursery() as nursery:
            for place, begin in waiting:
                nursery.start_soon(run, place, begin)
        _run(afterwards)
        return joined(replies, self._most_answer_bytes)

    # Rates.

    def _rate_refusal(self, calls: tuple[Any, ...], peer: Peer) -> Exchange | None:
        """LIMIT.RATE_EXCEEDED for the whole message, before anything of it runs [TPT-020]."""
        if peer.rate_exempt:
            return None
        rates: list[str] = [
            METHODS[call.method].rate if getattr(call, "method", None) in METHODS else "normal"
            for call in calls
        ]
        now_mono_s = trio.current_time()
        for limiter, name, served in (
            (self._rate, "normal", f"{self.endpoint.limits.max_rate_per_s} requests"),
            (self._status_rate, "status", f"{self.endpoint.limits.max_status_rate_per_s} mhs.safety.status"),
        ):
            count = rates.count(name)
            wait_s = limiter.take(peer.principal.id, count, now_mono_s) if count else None
            if wait_s is not None:
                return self._refuse_rate(calls, peer, served, wait_s)
        return None

    @staticmethod
    def _refuse_rate(calls: tuple[Any, ...], peer: Peer, served: str, wait_s: float) -> Exchange:
        """Over HTTP the status refuses the message, and its body has id null as every 4xx's [TPT-012]."""
        fault = rate_exceeded(served, wait_s)
        tells_id = peer.binding != "http" and len(calls) == 1 and isinstance(calls[0], Request)
        request_id = calls[0].id if tells_id else None
        return Exchange(encode_error(request_id, fault.error()), 429, (fault.details or {})["retry_after_ms"])

    # Emergency stops.

    async def _refuse_searched(self, body: bytes, fault: Fault, peer: Peer) -> Exchange:
        """A message of too many items or levels: not parsed, but its stops run [CORE-076]."""
        search = self.search(peer)
        await search.feed(body)
        return self.refuse(await search.explain(fault), HTTP_STATUS[fault.mhs_code])

    def _begin_stops(
        self, body: bytes, stops: list[Stop], peer: Peer, received_mono_s: float
    ) -> Awaitable[Exchange]:
        """Engage every stop of the message now; the rest of the message is served, or refused, afterwards."""
        context = Context(self.endpoint, peer, received_mono_s)
        engaged = [(stop, self._engage(stop, context)) for stop in stops]
        return self._answer_stops(body, engaged, peer, received_mono_s)

    def _engage(self, stop: Stop, context: Context) -> Engaged:
        if stop.id is not None:
            context.peer.remember_id(stop.id)
        return engage(context, stop.params)

    async def _answer_stops(
        self,
        body: bytes,
        engaged: list[tuple[Stop, Engaged]],
        peer: Peer,
        received_mono_s: float,
    ) -> Exchange:
        replies: list[bytes] = []
        for stop, served in engaged:
            value = served if isinstance(served, Fault) else await served
            reply = _stop_reply(stop, value)
            if reply is not None:
                replies.append(reply)
        if not engaged[0][0].in_batch:
            return Exchange(replies[0]) if replies else NOTHING
        rest = self._rest(body, peer, received_mono_s, {stop.index for stop, _ in engaged})
        others = rest if isinstance(rest, Exchange) else await rest
        if others.body is not None:
            replies.append(others.body.removeprefix(b"[").removesuffix(b"]"))
        if not replies:
            return NOTHING
        return Exchange(b"[" + b",".join(replies) + b"]", others.status if others.body is not None else 200)

    def _rest(
        self, body: bytes, peer: Peer, received_mono_s: float, served: set[int]
    ) -> Exchange | Awaitable[Exchange]:
        """The elements of a batch that are no stops. A batch that cannot be read strictly is refused but for them."""
        try:
            value = decode(body, **self._sizes)
        except Fault as fault:
            return self.refuse(fault, 200)
        remaining = [element for index, element in enumerate(value) if index not in served]
        if not remaining:
            return NOTHING
        return self._begin(encode(remaining), peer, received_mono_s)


def _run(afterwards: list[Callable[[], None]]) -> None:
    """What a handler has put off until its reply is there [Context.afterwards]."""
    for call in afterwards:
        call()


def served_row(method: str) -> MethodRow:
    """The row of a method that this endpoint serves; METHOD_NOT_FOUND otherwise [PROTO-016, PROTO-017]."""
    row = METHODS.get(method)
    if row is not None and row.served:
        return row
    known = row is not None
    raise Fault(
        "MHS.PROTOCOL.METHOD_NOT_FOUND",
        f"this endpoint does not serve {method}" if known else "there is no such method",
        details={"method": method[:128], **({"supported": False} if known else {})},
    )


def _stop_reply(stop: Stop, value: Any) -> bytes | None:
    """A stop's receipt; for a defective envelope the error of the defect, with the receipt in its details."""
    if stop.defect is not None:
        details = {**(stop.defect.details or {}), "estop_served": not isinstance(value, Fault)}
        error = stop.defect.error()
        error["data"] = {**error["data"], "details": details}
        if not isinstance(value, Fault):
            details["receipt"] = json.loads(value.data)
        return encode_error(stop.id, error)
    if stop.notification:
        return None
    if isinstance(value, Fault):
        return encode_error(stop.id, value.error())
    assert stop.id is not None  # a request without a usable id is a defect
    return encode_reply(stop.id, value)
