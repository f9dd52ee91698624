"""Writing to a client without a turn of the event loop, as far as its socket takes what there is."""

from __future__ import annotations

import os

import trio


def write_now(stream: trio.abc.Stream, data: bytes) -> int:
    """How many bytes of `data` were written at once; none where only `send_all` can write, as under TLS.

    Nobody else may be writing to the stream. Raises BrokenResourceError where nobody reads any more.
    """
    if not isinstance(stream, trio.SocketStream):
        return 0
    try:
        return os.write(stream.socket.fileno(), data)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise trio.BrokenResourceError from error
