"""A raw, blocking reader of an endpoint's event streams, for black-box tests."""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

from tests.lab import PATIENCE_S, HttpWire, Lab


class EventReader:
    """One stream. What was refused has a `status` other than 200, and its `error`."""

    def __init__(
        self,
        lab: Lab,
        session_id: str | None,
        *,
        subscription_id: str | None = None,
        last_event_id: str | None = None,
        token: str | None = None,
        port: int | None = None,
    ) -> None:
        """`port` names a proxy in front of the endpoint."""
        assert isinstance(lab.wire, HttpWire)
        named = {"session_id": session_id, "subscription_id": subscription_id}
        query = urlencode({name: value for name, value in named.items() if value is not None})
        headers = {"Accept": "text/event-stream"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        if token or lab.wire.token:
            headers["Authorization"] = f"Bearer {token or lab.wire.token}"
        self._connection = HTTPConnection(lab.wire.host, port or int(lab.wire.port), timeout=PATIENCE_S)
        self._connection.request("GET", f"/mhs/v1/events?{query}", headers=headers)
        self._response = self._connection.getresponse()
        self.status = self._response.status
        self.headers = {name.lower(): value for name, value in self._response.getheaders()}
        self.error: Any = None
        self.last_event_id: str | None = None
        if self.status != 200:
            self.error = json.loads(self._response.read())["error"]
            self._connection.close()

    @property
    def code(self) -> str:
        """The code of the refusal."""
        return str(self.error["data"]["mhs_code"])

    def next(self) -> dict[str, Any]:
        """The params of the next event; EOFError at the end of the stream."""
        while True:
            fields = self._block()
            if "data" not in fields:
                continue
            message = json.loads(fields["data"])
            assert message.keys() == {"jsonrpc", "method", "params"}
            assert (message["jsonrpc"], message["method"]) == ("2.0", "mhs.event")
            params: dict[str, Any] = message["params"]
            assert fields["event"] == "mhs.event"
            assert fields["id"] == f"{params['subscription_id']}:{params['seq']}"
            self.last_event_id = fields["id"]
            return params

    def _block(self) -> dict[str, str]:
        fields: dict[str, str] = {}
        while line := self._line():
            name, _, value = line.partition(":")
            assert name not in fields
            fields[name] = value.removeprefix(" ")
        return fields

    def _line(self) -> str:
        line = self._response.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        return line[:-1].decode()

    def take(self, count: int) -> list[dict[str, Any]]:
        return [self.next() for _ in range(count)]

    def until_end(self) -> Iterator[dict[str, Any]]:
        """Every event until the stream ends."""
        while True:
            try:
                yield self.next()
            except EOFError:
                return

    def close(self) -> None:
        self._response.close()
        self._connection.close()

    def __enter__(self) -> "EventReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
