"""Where an endpoint is: reads http(s)://…, mhs://…, unix:PATH and stdio:COMMAND, and refuses what is not safe."""

import ipaddress
import shlex
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from mhsd.client.errors import error

DEFAULT_ENDPOINT = "http://127.0.0.1:7400"
DEFAULT_PORT = 7400
RPC_PATH = "/mhs/v1/rpc"
EVENTS_PATH = "/mhs/v1/events"
_PORTS = {"http": 80, "https": 443, "mhs": DEFAULT_PORT}


class BadEndpoint(ValueError):
    """The text names no endpoint in a form that this client supports; a usage error."""


class HttpEndpoint(NamedTuple):
    """An endpoint behind HTTP; `prefix` is the path in front of `/mhs/v1/rpc`, usually empty.

    With a `socket_path` it is reached by its local socket, and host and port are what the request names.
    """

    tls: bool
    host: str
    port: int
    prefix: str
    socket_path: str | None = None

    @property
    def url(self) -> str:
        """The address without any path, as messages name it."""
        if self.socket_path is not None:
            return f"unix:{self.socket_path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.prefix}"

    @property
    def rpc_path(self) -> str:
        """The path that takes JSON-RPC [TPT-010]."""
        return self.prefix + RPC_PATH

    def events_path(self, session_id: str) -> str:
        """The path that streams the events of a session [TPT-017]."""
        return f"{self.prefix}{EVENTS_PATH}?session_id={quote(session_id, safe='')}"

    def refuse_insecure(self) -> None:
        """Plain HTTP leaves this machine only as an error: anybody on the way could read the token and
        change a command [TPT-013]."""
        if not self.tls and not is_loopback(self.host):
            raise error(
                "MHS.AUTH.TRANSPORT_INSECURE",
                f"plain http to {self.host} is refused, because it is not this machine; nothing was sent",
                f"Use https://{self.host}:{self.port}, or a tunnel that ends on 127.0.0.1.",
            )


class StdioEndpoint(NamedTuple):
    """An endpoint that this program starts as a child, in `cwd`, and talks to over its stdin and stdout."""

    argv: tuple[str, ...]
    cwd: str | None = None

    @property
    def url(self) -> str:
        """The endpoint as it is written after `-e`."""
        return f"stdio:{shlex.join(self.argv)}"


Endpoint = HttpEndpoint | StdioEndpoint


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine by name or number; a name that merely resolves to it is not."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def endpoint_of(url_or_argv: str | Sequence[str] | Endpoint) -> Endpoint:
    """The endpoint of an address, or of a command as a list of words; BadEndpoint for what is neither."""
    if isinstance(url_or_argv, HttpEndpoint | StdioEndpoint):
        return url_or_argv
    if isinstance(url_or_argv, str):
        return parse_endpoint(url_or_argv)
    words = tuple(url_or_argv)
    if not all(isinstance(word, str) for word in words) or not any(words[:1]):
        raise BadEndpoint("a command is a list of words that begins with the name of a program")
    return StdioEndpoint(words)


def parse_endpoint(text: str) -> Endpoint:
    """The endpoint that `text` names; BadEndpoint says what is supported instead.

    `mhs://host:port` is https, and http on loopback; its default port is 7400. A user name, a password or a
    query is refused: a token never stands in an address [TPT-059].
    """
    if text.startswith("stdio:"):
        return _stdio(text.removeprefix("stdio:"))
    if text.startswith("unix:"):
        return local_endpoint(text.removeprefix("unix:"))
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as problem:
        raise BadEndpoint(f"{text!r} is no address: {problem}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise BadEndpoint(
            f"{text!r} is no endpoint; write http://HOST:PORT, https://HOST:PORT, unix:PATH or stdio:COMMAND"
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise BadEndpoint(
            "an endpoint's address holds no user name, password, query or fragment; use --token-file"
        )
    tls = parts.scheme == "https" or (parts.scheme == "mhs" and not is_loopback(parts.hostname))
    prefix = parts.path.rstrip("/").removesuffix(RPC_PATH)
    return HttpEndpoint(tls, parts.hostname, port or _PORTS[parts.scheme], prefix)


def local_endpoint(path: str) -> HttpEndpoint:
    """The endpoint whose local socket is at `path`."""
    if not path:
        raise BadEndpoint(
            "unix: needs the path of an endpoint's socket, as in unix:/run/mhsd/stdio-812-9f3a.sock"
        )
    return HttpEndpoint(False, "localhost", _PORTS["http"], "", path)


def _stdio(command: str) -> StdioEndpoint:
    try:
        argv = tuple(shlex.split(command))
    except ValueError as problem:
        raise BadEndpoint(f"the command after stdio: cannot be read: {problem}") from None
    if not argv:
        raise BadEndpoint("stdio: needs the command that starts the endpoint, as in 'stdio:mhsd --stdio'")
    return StdioEndpoint(argv)
