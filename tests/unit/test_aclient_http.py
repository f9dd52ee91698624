"""One HTTP connection of the Trio client, on streams in memory."""

from typing import Any, cast

import h11
import pytest
import trio
import trio.testing

from mhsd.aclient.http import Connection
from mhsd.aclient.streams import Stream


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\nContent-Le"])
async def test_a_connection_that_ends_before_its_answer_is_said_to_be_closed(part: bytes) -> None:
    """[TPT-062]"""
    near, far = trio.testing.memory_stream_pair()
    connection = Connection(cast(Stream, cast(Any, near)))
    await far.send_all(part)
    await far.send_eof()
    request = h11.Request(method="POST", target="/", headers=[("Host", "x"), ("Content-Length", "0")])
    with pytest.raises(h11.RemoteProtocolError, match="it was closed before an answer came"):
        await connection.request(request)
