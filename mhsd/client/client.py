"""The client: calls one endpoint's methods and turns what goes wrong into MHSError.

Decides when to wait and when to send; what is sent and what an answer means is in calls.py. How bytes travel is
for the transports; sessions and receipts are in session.py.
"""

import threading
import time
from collections.abc import Mapping
from typing import Any, Self

from mhsd.base.ids import Ids
from mhsd.client import calls
from mhsd.client.calls import DEFAULT_TIMEOUT_S, Agreed
from mhsd.client.endpoint import Endpoint, HttpEndpoint, parse_endpoint
from mhsd.client.errors import MHSError, OutcomeUnknown, error
from mhsd.client.http import HttpTransport, Tls
from mhsd.client.pacing import Pace
from mhsd.client.stdio import StdioTransport
from mhsd.client.transport import Answer, Lost, NotSent, Transport


class Client:
    """One endpoint and one caller; safe to use from several threads [TPT-057]. A context manager."""

    def __init__(
        self,
        transport: Transport,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        name: str = "mhsd-client",
    ) -> None:
        self.transport = transport
        self.timeout_s = timeout_s
        self.name = name
        self._ids = Ids()
        self._ids_lock = threading.Lock()
        self._hello: dict[str, Any] | None = None
        self._hello_mono_s = 0.0
        self._hello_lock = threading.Lock()
        self._agreed = Agreed()
        self._pace = Pace()
        self._pace_lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the transport; on stdio this ends the endpoint, and ChildFailed says if it ended badly."""
        self.transport.close()

    def ulid(self) -> str:
        """A new ULID, for a command_id."""
        with self._ids_lock:
            return self._ids.ulid()

    def hello(self) -> dict[str, Any]:
        """The endpoint's answer to mhs.hello, asked once [PROTO-013]; refuses another major version."""
        with self._hello_lock:
            if self._hello is None:
                answered = self._call("mhs.hello", calls.hello_params(self.name), self.timeout_s)
                calls.check_version(answered)
                self._agreed = Agreed.of(answered)
                with self._pace_lock:
                    self._pace.agree(answered)
                self._hello = answered
                self._hello_mono_s = time.monotonic()
            return self._hello

    def endpoint_time_s(self) -> float:
        """The endpoint's wall time now, from its hello; clocks of two machines may differ by hours."""
        told_s = calls.time_of(self.hello())
        return time.time() if told_s is None else told_s + time.monotonic() - self._hello_mono_s

    def call(
        self, method: str, params: Mapping[str, Any] | None = None, *, deadline_s: float | None = None
    ) -> dict[str, Any]:
        """The result of one method, an object for all of them; MHSError when there is none.

        `deadline_s` (the client's timeout_s unless given) becomes `deadline_ms` where the method has one, at
        most what the endpoint allows; the transport waits a little longer. Nothing is sent twice, except what
        the endpoint's rate limit refused unread: that is repeated after the time it asked for, within the
        deadline. A client that sends much keeps to the endpoint's limits by itself.
        """
        if method not in calls.BEFORE_HELLO and (self.transport.needs_hello or self._pace.wants_hello):
            self._hello_first()
        deadline_s = self.timeout_s if deadline_s is None else deadline_s
        return self._call(method, *calls.budget(method, params, deadline_s, self._agreed))

    def _hello_first(self) -> None:
        try:
            self.hello()
        except OutcomeUnknown as lost:
            # Whoever waits for a command must not take a lost hello for a lost command.
            raise calls.unsent(NotSent(lost.message)) from None

    def _call(self, method: str, params: Mapping[str, Any], wait_s: float) -> dict[str, Any]:
        until_mono_s = time.monotonic() + wait_s
        while True:
            self._wait_for_turn(method, until_mono_s)
            answer = self._exchange(method, params, max(0.001, until_mono_s - time.monotonic()))
            result = calls.result_of(answer, method)
            if not isinstance(result, MHSError):
                return result
            pause_s = calls.pause_s(result, answer)
            if pause_s is None or time.monotonic() + pause_s >= until_mono_s:
                raise result
            time.sleep(pause_s)

    def _wait_for_turn(self, method: str, until_mono_s: float) -> None:
        """Keeps to what the endpoint takes in a second [MHSD-7-04]."""
        if not self.transport.paced:
            return
        now_mono_s = time.monotonic()
        with self._pace_lock:
            wait_s = self._pace.reserve(method, now_mono_s, until_mono_s - now_mono_s)
        if wait_s is None:
            raise calls.too_many()
        if wait_s > 0:
            time.sleep(wait_s)

    def _exchange(self, method: str, params: Mapping[str, Any], wait_s: float) -> Answer:
        request_id = self.ulid()
        body = calls.request_body(request_id, method, params, self._agreed.max_request_bytes)
        try:
            return self.transport.exchange(request_id, body, wait_s)
        except NotSent as problem:
            raise calls.unsent(problem) from None
        except Lost as problem:
            raise calls.lost(method, problem) from None


def connect(
    endpoint: str | Endpoint,
    *,
    token: str | None = None,
    tls: Tls | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    name: str = "mhsd-client",
) -> Client:
    """A client of `endpoint` (`http(s)://…`, `mhs://…` or `stdio:COMMAND`).

    BadEndpoint for an unsupported form, AuthError for plain HTTP to another machine, TransportError when a
    stdio command does not start. HTTP connects at the first call.
    """
    place = parse_endpoint(endpoint) if isinstance(endpoint, str) else endpoint
    return Client(open_transport(place, token=token, tls=tls), timeout_s=timeout_s, name=name)


def open_transport(place: Endpoint, *, token: str | None = None, tls: Tls | None = None) -> Transport:
    """The way to an endpoint; a child is started, and HTTP connects at the first call."""
    if isinstance(place, HttpEndpoint):
        return HttpTransport(place, token=token, tls=tls)
    try:
        return StdioTransport(place)
    except NotSent as problem:
        raise error(
            "MHS.TRANSPORT.UNAVAILABLE", str(problem), "Check the command after stdio: for spelling."
        ) from None
