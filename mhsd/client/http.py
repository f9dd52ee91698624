"""JSON-RPC over HTTP/1.1 with connections that are kept: http.client, bounded in time and size."""

import contextlib
import http.client
import io
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mhsd.client.endpoint import HttpEndpoint
from mhsd.client.errors import from_answer
from mhsd.client.http_answers import answer_of, check_stream
from mhsd.client.sse_source import SseSource
from mhsd.client.transport import MAX_ANSWER_BYTES, Answer, Lost, NotSent, Over, Sink, Source

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

IDLE_S = 10.0
"""A connection that rested longer is not used again: the endpoint closes idle ones, and a request that
meets the close is lost without an answer."""

CONNECT_TIMEOUT_S = 10.0


TLS_VARIABLES = ("MHS_CA_FILE", "MHS_CERT_FILE", "MHS_KEY_FILE")
"""In the order of Tls."""


class BadCertificates(ValueError):
    """The certificate files cannot be used; a usage error."""


class Tls(NamedTuple):
    """Files for https: further authorities to trust, and the client's own certificate (mTLS)."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Tls":
        """What MHS_CA_FILE, MHS_CERT_FILE and MHS_KEY_FILE name."""
        return cls(*(environ.get(name) or None for name in TLS_VARIABLES))

    def context(self) -> ssl.SSLContext:
        """A context that checks the endpoint's certificate and name; BadCertificates for a bad file."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except OSError as problem:
            raise BadCertificates(self._what_is_wrong(problem)) from None
        return context

    def _what_is_wrong(self, problem: OSError) -> str:
        """Which of the files cannot be used, and why."""
        named = [(name, path) for name, path in zip(TLS_VARIABLES, self, strict=True) if path]
        for name, path in named:
            try:
                Path(path).open("rb").close()
            except OSError as unreadable:
                return f"{name}: {path} cannot be read: {unreadable.strerror}"
        files = ", ".join(f"{name}={path}" for name, path in named)
        return f"the certificate files cannot be used ({files}): {problem}"


class _Reader(io.RawIOBase):
    """Reads a _BoundedSocket, each piece within what is left of its time."""

    def __init__(self, bounded: "_BoundedSocket") -> None:
        self._bounded = bounded

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        return self._bounded.receive_into(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._bounded.release()


class _BoundedSocket:
    """The part of a socket that http.client uses, with one time limit over all its operations.

    A plain socket's time-out starts again at every byte, so that a peer which trickles could hold a caller
    for ever. As with a plain socket, `close` takes effect when the last file over it is closed.
    """

    def __init__(self, inner: socket.socket, until_mono_s: float) -> None:
        self._inner = inner
        self._users = 1
        self.until_mono_s = until_mono_s

    def _bound(self) -> None:
        left_s = self.until_mono_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._inner.settimeout(left_s)

    def sendall(self, content: bytes) -> None:
        self._bound()
        self._inner.sendall(content)

    def receive_into(self, buffer: "WriteableBuffer") -> int:
        self._bound()
        return self._inner.recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        self._users += 1
        return io.BufferedReader(_Reader(self))

    def has_unread(self) -> bool:
        """Whether bytes or an end have arrived: on a resting connection either means that it is over."""
        resting = select.poll()  # `select` knows no descriptor above 1023.
        resting.register(self._inner, select.POLLIN)
        return bool(resting.poll(0))

    def cut(self) -> None:
        """Ends the connection; the descriptor stays, because another thread may be waiting on it."""
        with contextlib.suppress(OSError):
            self._inner.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        self._users -= 1
        if self._users == 0:
            self._inner.close()

    close = release


class _Connection:
    """One connection, used by one exchange at a time."""

    def __init__(self, endpoint: HttpEndpoint, tls: ssl.SSLContext | None) -> None:
        self._endpoint = endpoint
        self._tls = tls
        self._http = http.client.HTTPConnection(endpoint.host, endpoint.port)
        self._http.auto_open = 0  # A connection that broke must not send the request again by itself.
        self._socket: _BoundedSocket | None = None
        self.used_mono_s = 0.0

    def open(self, until_mono_s: float) -> None:
        """Connects, with TLS where the address says so; OSError when it cannot."""
        timeout_s = min(max(0.001, until_mono_s - time.monotonic()), CONNECT_TIMEOUT_S)
        path = self._endpoint.socket_path
        inner = self._tcp_socket(timeout_s) if path is None else _local_socket(path, timeout_s)
        self._socket = _BoundedSocket(inner, until_mono_s)
        self._http.sock = self._socket

    def _tcp_socket(self, timeout_s: float) -> socket.socket:
        inner = socket.create_connection((self._endpoint.host, self._endpoint.port), timeout_s)
        try:
            inner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                inner = self._tls.wrap_socket(inner, server_hostname=self._endpoint.host)
        except BaseException:
            inner.close()
            raise
        return inner

    def is_fresh(self) -> bool:
        """Whether a resting connection can carry another request."""
        if self._socket is None or self._http.sock is None:
            return False
        return time.monotonic() - self.used_mono_s < IDLE_S and not self._socket.has_unread()

    def post(
        self, body: bytes, headers: dict[str, str], until_mono_s: float
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Sends one POST and reads its whole answer; OSError or HTTPException when it breaks."""
        self.keep_waiting(until_mono_s)
        self._http.request("POST", self._endpoint.rpc_path, body, headers)
        response = self._http.getresponse()
        content = response.read(MAX_ANSWER_BYTES + 1)
        if len(content) > MAX_ANSWER_BYTES:
            raise http.client.HTTPException(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
        self.used_mono_s = time.monotonic()
        return response.status, response.headers, content

    def get(self, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        """Sends one GET and reads the head of its answer."""
        self._http.request("GET", path, headers=headers)
        return self._http.getresponse()

    def keep_waiting(self, until_mono_s: float) -> None:
        """Moves the end of the time for all that is read."""
        assert self._socket is not None
        self._socket.until_mono_s = until_mono_s

    def cut(self) -> None:
        """Ends the connection under whoever reads from it in another thread."""
        if self._socket is not None:
            self._socket.cut()

    def is_open(self) -> bool:
        """Whether the answer left the connection open for another request."""
        return self._http.sock is not None

    def close(self) -> None:
        self._http.close()


def _local_socket(path: str, timeout_s: float) -> socket.socket:
    inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        inner.settimeout(timeout_s)
        inner.connect(path)
    except BaseException:
        inner.close()
        raise
    return inner


class EventStream:
    """An open stream of server-sent events: read by one thread, cut by any."""

    def __init__(self, connection: _Connection, response: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._response = response

    def read(self, timeout_s: float) -> bytes:
        """What has come, at least a byte; b"" at the end, Lost when nothing came or the connection broke."""
        self._connection.keep_waiting(time.monotonic() + timeout_s)
        try:
            return self._response.read1(65536)
        except (OSError, ValueError, http.client.HTTPException) as problem:
            raise Lost(f"the stream of events broke: {_text(problem)}") from None

    def cut(self) -> None:
        """Ends it under the thread that reads."""
        self._connection.cut()

    def close(self) -> None:
        """Gives the connection back, in the thread that has read."""
        self._response.close()
        self._connection.close()


class HttpTransport:
    """POSTs to one endpoint; as many connections as there are concurrent calls, kept for the next ones.

    Redirects are never followed: a token and a command go only where the caller said.
    """

    name = "http"
    needs_hello = False
    paced = True

    def __init__(self, endpoint: HttpEndpoint, *, token: str | None = None, tls: Tls | None = None) -> None:
        endpoint.refuse_insecure()
        self._endpoint = endpoint
        self.url = endpoint.url
        self._context = (tls or Tls()).context() if endpoint.tls else None
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._resting: list[_Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    def exchange(self, request_id: str, body: bytes, timeout_s: float) -> Answer:
        """One request and its answer within `timeout_s` [TPT-012]."""
        until_mono_s = time.monotonic() + timeout_s
        connection = self._connection(until_mono_s)
        try:
            status, headers, content = connection.post(body, self._headers, until_mono_s)
        except TimeoutError:
            connection.close()
            raise Lost(
                f"{self._endpoint.url} did not answer within {timeout_s:g} s", timed_out=True
            ) from None
        except (OSError, http.client.HTTPException) as problem:
            connection.close()
            raise Lost(f"the connection to {self._endpoint.url} broke: {_text(problem)}") from None
        except BaseException:
            connection.close()
            raise
        self._keep(connection)
        return answer_of(self._endpoint.url, request_id, status, headers.get, content)

    def _connection(self, until_mono_s: float) -> _Connection:
        with self._lock:
            if self._closed:
                raise Over("the client is closed")
            while self._resting:
                connection = self._resting.pop()
                if connection.is_fresh():
                    return connection
                connection.close()
        return self._new_connection(until_mono_s)

    def _new_connection(self, until_mono_s: float) -> _Connection:
        connection = _Connection(self._endpoint, self._context)
        try:
            connection.open(until_mono_s)
        except (OSError, UnicodeError) as problem:
            told = f"cannot connect to {self._endpoint.url}: {_text(problem)}"
            raise NotSent(told, advice=tls_advice(problem)) from None
        return connection

    def open_stream(self, session_id: str, last_event_id: str) -> EventStream:
        """A connection of its own that brings the events of a session from after `last_event_id` on [TPT-018].

        NotSent and Lost as for a call, MHSError for what the endpoint refused.
        """
        until_mono_s = time.monotonic() + CONNECT_TIMEOUT_S
        connection = self._new_connection(until_mono_s)
        headers = {**self._headers, "Accept": "text/event-stream", "Cache-Control": "no-store"}
        if last_event_id:
            headers["Last-Event-ID"] = last_event_id
        try:
            response = connection.get(self._endpoint.events_path(session_id), headers)
            if response.status == 200:
                check_stream(self.url, response.headers.get)
                return EventStream(connection, response)
            content = response.read(MAX_ANSWER_BYTES)
        except Lost:
            connection.close()
            raise
        except (OSError, http.client.HTTPException) as problem:
            connection.close()
            raise Lost(f"the connection to {self.url} broke: {_text(problem)}") from None
        connection.close()
        answer = answer_of(self.url, "", response.status, response.headers.get, content)
        raise from_answer(answer.body.get("error"), response.status)

    def events(self, session_id: str, sink: Sink) -> Source:
        """Server-sent events over a connection of their own, which is opened again when it breaks."""
        return SseSource(lambda last_event_id: self.open_stream(session_id, last_event_id), sink)

    def _keep(self, connection: _Connection) -> None:
        with self._lock:
            if connection.is_open() and not self._closed:
                self._resting.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Closes the resting connections; a call that is under way ends by itself."""
        with self._lock:
            self._closed = True
            resting, self._resting = self._resting, []
        for connection in resting:
            connection.close()


def tls_advice(problem: BaseException | None) -> str | None:
    """What to do about a TLS handshake that failed; None where it was something else."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return "Name the authority of its certificate in MHS_CA_FILE, and the host as the certificate does."
    if isinstance(problem, ssl.SSLError) and problem.reason == "WRONG_VERSION_NUMBER":
        return "Write http:// for an endpoint of this machine that serves without TLS."
    return None


def _text(problem: BaseException) -> str:
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({problem.verify_message})"
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    return str(problem) or type(problem).__name__
