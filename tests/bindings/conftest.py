from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio

from mhsd.base.errors import Fault
from mhsd.bindings.checks import Names
from mhsd.bindings.front import Front
from mhsd.bindings.routes import ROUTES
from mhsd.bindings.site import Document, Site
from mhsd.bindings.tls import listen, port_of, resolve
from mhsd.protocol.auth import TokenFiles
from tests.bindings.fakes import Client, EchoDoor

SCHEMA = Document(b'{"type":"object"}', "sha256:" + "0" * 64)


def schema(ref: str) -> Document:
    if ref == "receipt":
        return SCHEMA
    raise Fault("MHS.PROTOCOL.INVALID_PARAMS", "not on the shelf", details={"field": "ref"})


class Served:
    """A front with an echo door behind it."""

    def __init__(self, front: Front, door: EchoDoor, port: int) -> None:
        self.front = front
        self.door = door
        self.port = port
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(await trio.open_tcp_stream("127.0.0.1", self.port))
        self.clients.append(client)
        return client


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve(nursery: trio.Nursery) -> Serve:
    """Start a front; keyword arguments change its site, `max_connections` its size."""

    async def start(*, max_connections: int = 256, context: Any = None, **changes: Any) -> Served:
        door = EchoDoor()
        listeners = await listen(await resolve("127.0.0.1"), 0, context)
        port = port_of(listeners)
        site = Site(
            door=door,  # type: ignore[arg-type]
            tokens=TokenFiles.load(None, None),
            names=Names.of(["127.0.0.1"], ["lab.example"], ["https://pages.example"], port=port, tls=False),
            routes=ROUTES,
            descriptor=b'{"descriptor_version":"1.0.0"}',
            schema=schema,
            max_request_bytes=100_000,
            socket_timeout_s=10.0,
        )
        url = f"http://127.0.0.1:{port}"
        front = Front(attrs.evolve(site, **changes), listeners, url=url, max_connections=max_connections)
        nursery.start_soon(front.serve)
        return Served(front, door, port)

    return start


@pytest.fixture
async def served(serve: Serve) -> Served:
    return await serve()


@pytest.fixture
async def client(served: Served) -> Client:
    return await served.connect()
