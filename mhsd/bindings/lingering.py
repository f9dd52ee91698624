"""How a connection ends whose client may still be sending: a reset would take the last answer from it."""

from __future__ import annotations

from contextlib import suppress

import trio

from mhsd.bindings import limits

_READ_BYTES = 65536


async def linger(stream: trio.abc.Stream) -> None:
    """Close our half where that is possible, then read and drop what comes, for a while."""
    with (
        trio.move_on_after(limits.LINGER_S),
        suppress(trio.BrokenResourceError, trio.ClosedResourceError),
    ):
        if isinstance(stream, trio.SocketStream):
            await stream.send_eof()
        left = limits.LINGER_BYTES
        while left > 0:
            data = await stream.receive_some(_READ_BYTES)
            if not data:
                return
            left -= len(data)
