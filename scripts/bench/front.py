"""The front of mhsd with nothing behind it: the bare stack that the HTTP binding is measured against.

`python front.py` prints its port as the first line of stdout and answers each POST with its own params.
"""

import json
from typing import cast

import trio

from mhsd.base.errors import Fault
from mhsd.bindings.checks import Names
from mhsd.bindings.front import Front
from mhsd.bindings.routes import ROUTES
from mhsd.bindings.site import Document, Site
from mhsd.bindings.tls import listen, port_of, resolve
from mhsd.protocol.answers import Exchange
from mhsd.protocol.auth import TokenFiles
from mhsd.protocol.dispatch import Dispatch
from mhsd.protocol.peer import Peer

_MOST_CONNECTIONS = 2000


class EchoDoor:
    """In place of `Dispatch`: no method, no session, no check."""

    def __init__(self) -> None:
        self.gate = trio.CapacityLimiter(1)

    def begin(self, body: bytes, peer: Peer, received_mono_s: float | None = None) -> Exchange:
        """The params of a request as its result."""
        message = json.loads(body)
        reply = {"jsonrpc": "2.0", "id": message["id"], "result": message["params"]}
        return Exchange(json.dumps(reply, separators=(",", ":"), ensure_ascii=False).encode())

    refuse = staticmethod(Dispatch.refuse)


def _nothing(ref: str) -> Document:
    raise Fault("MHS.PROTOCOL.INVALID_PARAMS", "there are no schemas here")


async def _serve() -> None:
    listeners = await listen(await resolve("127.0.0.1"), 0, None)
    port = port_of(listeners)
    site = Site(
        door=cast(Dispatch, EchoDoor()),
        tokens=TokenFiles.load(None, None),
        names=Names.of(["127.0.0.1"], [], [], port=port, tls=False),
        routes=ROUTES,
        descriptor=b"{}",
        schema=_nothing,
        max_request_bytes=1 << 20,
        socket_timeout_s=30.0,
    )
    front = Front(site, listeners, url=f"http://127.0.0.1:{port}", max_connections=_MOST_CONNECTIONS)
    print(port, flush=True)
    await front.serve()


if __name__ == "__main__":
    trio.run(_serve)
