"""The bare programs that mhsd is measured against: the same JSON and I/O libraries, and no protocol.

`python echo.py stdio` answers each NDJSON request line with its own params. `python echo.py http` does so for
POST bodies, with h11 on Trio and one send for each reply, and prints its port as the first line of stdout. `python
echo.py ws` does so for text messages, with trio-websocket.
"""

import contextlib
import json
import os
import sys
from functools import partial

import h11
import trio
from trio_websocket import ConnectionClosed, WebSocketRequest, serve_websocket

_READ_BYTES = 65536


def _reply(request: bytes) -> bytes:
    message = json.loads(request)
    body = {"jsonrpc": "2.0", "id": message["id"], "result": message["params"]}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


async def _serve_stdio() -> None:
    stdin, stdout = trio.lowlevel.FdStream(os.dup(0)), trio.lowlevel.FdStream(os.dup(1))
    pending = b""
    async for chunk in stdin:
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            await stdout.send_all(_reply(line) + b"\n")


async def _serve_connection(stream: trio.SocketStream) -> None:
    connection = h11.Connection(h11.SERVER)
    body = b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(_READ_BYTES))
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            answer = _reply(body)
            headers = [("content-type", "application/json"), ("content-length", str(len(answer)))]
            parts = [
                connection.send(h11.Response(status_code=200, headers=headers)),
                connection.send(h11.Data(answer)),
                connection.send(h11.EndOfMessage()),
            ]
            await stream.send_all(b"".join(part for part in parts if part))
            connection.start_next_cycle()
            body = b""
        elif isinstance(event, h11.ConnectionClosed):
            return


async def _serve_http() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    print(listeners[0].socket.getsockname()[1], flush=True)
    await trio.serve_listeners(_serve_connection, listeners)


async def _serve_socket(request: WebSocketRequest) -> None:
    socket = await request.accept(subprotocol=request.proposed_subprotocols[0])
    with contextlib.suppress(ConnectionClosed):
        while True:
            message = await socket.get_message()
            await socket.send_message(
                _reply(message.encode() if isinstance(message, str) else message).decode()
            )


async def _serve_ws() -> None:
    async with trio.open_nursery() as nursery:
        serve = partial(serve_websocket, _serve_socket, "127.0.0.1", 0, None, receive_buffer_size=_READ_BYTES)
        server = await nursery.start(serve)
        print(server.port, flush=True)


if __name__ == "__main__":
    trio.run({"stdio": _serve_stdio, "http": _serve_http, "ws": _serve_ws}[sys.argv[1]])
