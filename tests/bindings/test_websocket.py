"""WebSocket on a raw socket: the way in, messages, what is no WebSocket, and the end [TPT-021, TPT-022]."""

from __future__ import annotations

import json
import struct

import pytest
import trio
import trio.testing

from mhsd.bindings import limits
from mhsd.bindings.routes import ROUTES
from mhsd.bindings.ws import BOUNDS, websocket_routes
from tests.bindings.conftest import Serve, Served
from tests.bindings.fakes import STOP, Client, Sent, call, until
from tests.bindings.sockets import (
    ACCEPT,
    BINARY,
    CLOSE,
    KEY,
    MASK,
    PING,
    PONG,
    TEXT,
    WsClient,
    close,
    frame,
    in_fragments,
    opening,
    turned,
)

MAX_BYTES = 100_000
FOUND = {"found": [{}]}
"""What the fake door tells of one stop without parameters."""


@pytest.fixture
async def served(serve: Serve) -> Served:
    return await serve(routes={**ROUTES, **websocket_routes()})


async def connect(served: Served) -> WsClient:
    return WsClient((await served.connect()).stream)


@pytest.fixture
async def client(served: Served) -> WsClient:
    """A client that has got its WebSocket."""
    return await (await connect(served)).opened()


# The way in


async def test_an_upgrade_is_answered_with_the_subprotocol_and_no_extension(served: Served) -> None:
    """[TPT-021]"""
    client = await connect(served)
    answer = await client.open("Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits")
    assert answer.status == 101
    assert answer.headers == {
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec-websocket-accept": ACCEPT,
        "sec-websocket-protocol": "mhs.v1",
    }
    await client.say(call())
    assert await client.text() == call()


@pytest.mark.parametrize(
    "changes",
    [
        {"Sec-WebSocket-Protocol": "mhs.v0, mhs.v1 ,chat"},
        {"Connection": "keep-alive, upgrade"},
        {"Upgrade": "WebSocket"},
        {"Host": "127.0.0.1:1"},
    ],
    ids=str,
)
async def test_other_ways_to_say_the_same_are_understood(served: Served, changes: dict[str, str]) -> None:
    await (await connect(served)).opened(**changes)


async def test_frames_that_came_with_the_request_are_served(served: Served) -> None:
    client = await connect(served)
    await client.send(opening(), frame(call()))
    assert (await client.answer()).status == 101
    assert await client.text() == call()


@pytest.mark.parametrize(
    ("changes", "status", "header"),
    [
        ({"Upgrade": None}, 426, ("upgrade", "websocket")),
        ({"Upgrade": "h2c"}, 426, ("upgrade", "websocket")),
        ({"Connection": None}, 426, ("upgrade", "websocket")),
        ({"Connection": "keep-alive"}, 426, ("upgrade", "websocket")),
        ({"Sec-WebSocket-Version": None}, 426, ("sec-websocket-version", "13")),
        ({"Sec-WebSocket-Version": "8"}, 426, ("sec-websocket-version", "13")),
        ({"Sec-WebSocket-Key": None}, 400, None),
        ({"Sec-WebSocket-Key": "c2hvcnQ="}, 400, None),
        ({"Sec-WebSocket-Key": "no base64 at all!!"}, 400, None),
        ({"Sec-WebSocket-Key": f"{KEY}\r\nSec-WebSocket-Key: {KEY}"}, 400, None),
        ({"Sec-WebSocket-Protocol": None}, 400, None),
        ({"Sec-WebSocket-Protocol": "mhs.v2"}, 400, None),
        ({"Sec-WebSocket-Protocol": "MHS.V1"}, 400, None),
        ({"Sec-WebSocket-Protocol": "\xff"}, 400, None),
        ({"Host": "localhost\r\nContent-Length: 2"}, 400, None),
        ({"Host": "localhost\r\nTransfer-Encoding: chunked"}, 400, None),
        ({"line": "GET {target} HTTP/1.0"}, 400, None),
        ({"Host": "evil.example"}, 403, None),
        ({"Host": None}, 403, None),
        ({"Host": "localhost\r\nOrigin: null"}, 403, None),
        ({"Host": "localhost\r\nOrigin: https://evil.example"}, 403, None),
        ({"target": "/mhs/v1/ws/"}, 404, None),
        ({"line": "POST {target} HTTP/1.1"}, 405, ("allow", "GET")),
        ({"target": "/mhs/v1/ws?ticket=guessed"}, 401, ("www-authenticate", "Bearer")),
        ({"target": "/mhs/v1/ws?ticket=a&ticket=b"}, 401, None),
        ({"target": "/mhs/v1/ws?ticket="}, 401, None),
    ],
    ids=str,
)
async def test_what_is_no_upgrade_is_refused_as_http_refuses_and_closed(
    served: Served, changes: dict[str, str | None], status: int, header: tuple[str, str] | None
) -> None:
    """[TPT-021, TPT-023]"""
    client = await connect(served)
    answer = await client.open(**changes)
    assert answer.status == status
    error = json.loads(answer.body)
    assert error["id"] is None
    assert error["error"]["data"]["mhs_code"].startswith(("MHS.PROTOCOL.INVALID_REQUEST", "MHS.AUTH."))
    assert answer.headers["connection"] in ("close", "Upgrade, close")
    if header is not None:
        assert answer.headers[header[0]] == header[1]
    assert await client.at_end()
    assert served.front.defects == 0


async def test_the_lane_of_the_stop_is_not_for_sockets(serve: Serve) -> None:
    served = await serve(routes={**ROUTES, **websocket_routes()}, max_connections=1)
    first = await (await connect(served)).opened()
    answer = await (await connect(served)).open()
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    await first.say(call())
    assert await first.text() == call()


async def test_the_peer_is_one_that_orders_its_messages(client: WsClient, served: Served) -> None:
    await client.say(call())
    await client.text()
    peer = served.door.peers[0]
    assert (peer.binding, peer.needs_hello, peer.remembers_ids, peer.rate_exempt) == ("ws", True, True, False)


# Messages


async def test_a_message_or_batch_is_answered_by_one_text(client: WsClient) -> None:
    """[TPT-021, PROTO-007]"""
    batch = b"[" + call() + b"," + call(request_id=2) + b"]"
    await client.say(call(), batch)
    assert await client.texts(2) == [call(), batch]


@pytest.mark.parametrize("size", [100, 110, 111, 112, 113, 126, 127, 65_000, 65_521, 65_522, 65_523, 99_000])
async def test_messages_of_any_length_are_framed_as_they_must_be(client: WsClient, size: int) -> None:
    body = b'"' + b"x" * size + b'"'
    await client.say(body)
    assert await client.text() == body


async def test_a_message_in_fragments_with_control_frames_in_between_is_one(client: WsClient) -> None:
    """[TPT-021, TPT-022]"""
    body = call(text="schön €")
    between = [frame(b"are you there", PING), frame(b"nobody asked", PONG)]
    await client.send(in_fragments(body, 1, 0, len(body) - 5, 1, between=between))
    for _ in range(4):
        pong = await client.frame()
        assert (pong.opcode, pong.payload) == (PONG, b"are you there")
    assert await client.text() == body


async def test_a_message_may_come_byte_by_byte(client: WsClient) -> None:
    for byte in in_fragments(call(text="€"), 10, 20):
        await client.send(bytes([byte]))
    assert await client.text() == call(text="€")


@pytest.mark.parametrize("body", [b"{", b"", b"nonsense"])
async def test_what_is_no_json_is_answered_and_the_next_message_served(client: WsClient, body: bytes) -> None:
    await client.say(body, call())
    assert await client.texts(2) == [b'{"error":"parse"}', call()]


async def test_a_notification_is_not_answered(client: WsClient) -> None:
    await client.say(call("notify"), call())
    assert await client.text() == call()


async def test_many_messages_enter_and_are_answered_in_order(client: WsClient, served: Served) -> None:
    bodies = [call(request_id=number) for number in range(2000)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.say, *bodies)
        assert await client.texts(len(bodies)) == bodies
    assert served.door.entered == bodies


async def test_an_answer_that_waits_does_not_hold_up_the_next_message(
    client: WsClient, served: Served
) -> None:
    await client.say(call("wait", 1), call(request_id=2))
    assert await client.text() == call(request_id=2)
    served.door.released.set()
    assert await client.text() == call("wait", 1)


async def test_a_message_that_comes_alone_waits_for_no_gate_and_one_of_many_does(
    client: WsClient, served: Served
) -> None:
    await client.say(call())
    await client.text()
    await client.say(call(), call())
    await client.texts(2)
    assert served.door.gate_was_held == [False, True, True]


# Stops


async def test_a_stop_overtakes_the_messages_in_front_of_it_and_takes_no_gate(
    client: WsClient, served: Served
) -> None:
    """[CORE-076]"""
    await client.say(*[call(request_id=number) for number in range(20)], STOP)
    await client.texts(21)
    assert served.door.entered[0] == STOP
    assert served.door.gate_was_held[0] is False


async def test_a_stop_is_served_although_no_more_messages_are_entered(
    client: WsClient, served: Served
) -> None:
    """[CORE-076]"""
    await client.say(*[call("wait", number) for number in range(BOUNDS.unanswered + 50)])
    await until(lambda: len(served.door.entered) == BOUNDS.unanswered)
    await client.say(STOP)
    assert await client.text() == STOP
    assert len(served.door.entered) == BOUNDS.unanswered + 1
    served.door.released.set()
    await client.texts(BOUNDS.unanswered + 50)


async def test_a_stop_of_a_peer_that_reads_nothing_and_pings_is_served(
    client: WsClient, served: Served
) -> None:
    """[CORE-076, TPT-022]"""
    await client.say(*[call("large", number, bytes=1_000_000) for number in range(20)])
    await until(lambda: len(served.door.entered) >= 1)
    for _ in range(50):
        await client.send(frame(b"x" * 100, PING) * 100)
    await client.say(STOP)
    await until(lambda: STOP in served.door.entered)
    assert len(served.door.entered) < 20


async def test_a_pong_waits_behind_a_long_answer_and_comes(client: WsClient, served: Served) -> None:
    """[TPT-022]"""
    await client.say(call("large", bytes=30_000_000))
    await until(lambda: len(served.door.entered) == 1)
    await client.send(frame(b"still there?", PING))
    await client.text()
    assert (await client.frame()).payload == b"still there?"


async def test_pongs_that_nobody_reads_are_not_kept(client: WsClient, served: Served) -> None:
    """[TPT-022]"""
    await client.say(call("large", bytes=30_000_000))
    await until(lambda: len(served.door.entered) == 1)
    await client.send(frame(b"unread", PING) * 5000)
    await client.say(STOP)
    await until(lambda: STOP in served.door.entered)
    assert len(await client.text()) == 30_000_002
    pongs = 0
    while (await client.frame()).opcode == PONG:
        pongs += 1
    assert 0 < pongs < 2100


async def test_reading_ahead_is_bounded_and_goes_on_when_there_is_room(
    client: WsClient, served: Served
) -> None:
    await client.say(*[call("wait", number) for number in range(BOUNDS.unanswered)])
    await until(lambda: len(served.door.entered) == BOUNDS.unanswered)
    body = b'"' + b"x" * 90_000 + b'"'
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.say, *[body] * 200, STOP)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert STOP not in served.door.entered
        served.door.released.set()
        await client.texts(BOUNDS.unanswered + 201)
    assert STOP in served.door.entered


# Events


async def test_an_answer_waits_for_few_events_and_a_peer_that_does_not_read_costs_little(
    client: WsClient, served: Served
) -> None:
    """[TPT-024, EVT-006]"""
    events = served.door.connections[0]
    events.push(*[Sent("s", seq, b'"%b"' % (b"x" * 10_000)) for seq in range(3000)])
    await trio.testing.wait_all_tasks_blocked(0.05)
    taken = sum(events.takes)
    assert taken < 10_000_000, "what the sockets hold; most of the 30 MB stays where it is bounded"
    await client.say(call())
    await until(lambda: served.door.entered == [call()])
    before = 0
    while (message := await client.text()) != call():
        before += len(message)
    assert before <= taken + 2 * 65536


# What is no WebSocket

VIOLATIONS = {
    "unmasked": (frame(call(), mask=None), 1002),
    "binary": (frame(call(), BINARY), 1002),
    "rsv1": (frame(call(), rsv=4), 1002),
    "rsv3": (frame(call(), rsv=1), 1002),
    "opcode 3": (frame(call(), 3), 1002),
    "opcode 11": (frame(b"", 11), 1002),
    "fragmented ping": (frame(b"", PING, fin=False), 1002),
    "long ping": (frame(b"x" * 126, PING), 1002),
    "continuation of nothing": (frame(b"x", 0), 1002),
    "message within a message": (frame(b"[", fin=False) + frame(b"[]"), 1002),
    "length in two bytes for nothing": (frame(b"x" * 5, length=struct.pack("!BH", 126, 5)), 1002),
    "length in eight bytes for nothing": (frame(b"x" * 5, length=struct.pack("!BQ", 127, 5)), 1002),
    "length beyond all": (frame(b"x" * 5, length=struct.pack("!BQ", 127, 1 << 63)), 1002),
    "close of one byte": (frame(b"x", CLOSE), 1002),
    "close with a code that is never sent": (close(1005), 1002),
    "close with a code of nobody": (close(999), 1002),
    "no UTF-8": (frame(b'"\xff"'), 1007),
    "half a character at the end": (frame('"€'.encode()[:-1]), 1007),
    "no UTF-8 in the second fragment": (in_fragments(b'"abc\xc0\x80"', 3), 1007),
    "surrogate": (frame(b'"\xed\xa0\x80"'), 1007),
    "no UTF-8 in a reason": (close(1000, b"\xff"), 1007),
}


@pytest.mark.parametrize("name", VIOLATIONS)
async def test_a_violation_is_closed_with_its_code_and_nothing_is_served_after_it(
    served: Served, client: WsClient, name: str
) -> None:
    """[TPT-022]"""
    data, code = VIOLATIONS[name]
    await client.send(data, frame(call()))
    assert (await client.closed()).code == code
    assert served.door.entered == []
    assert served.front.defects == 0


async def test_a_message_in_more_fragments_than_one_may_have_is_refused(
    client: WsClient, served: Served
) -> None:
    """[TPT-022]"""
    await client.send(in_fragments(call(), *[0] * 3000))
    error = json.loads(await client.text())
    assert error["error"]["data"]["mhs_code"] == "MHS.PROTOCOL.INVALID_REQUEST"
    assert (await client.closed()).code == 1008
    assert served.door.entered == []


# Too long


async def refused_as_too_long(client: WsClient) -> object:
    """The details of the refusal, after which the connection is closed."""
    error = json.loads(await client.text())
    assert error["id"] is None
    assert error["error"]["data"]["mhs_code"] == "MHS.LIMIT.PAYLOAD_TOO_LARGE"
    assert (await client.closed()).code == 1009
    return error["error"]["data"]["details"]


async def test_a_message_of_exactly_the_limit_is_served(client: WsClient, served: Served) -> None:
    """[TPT-020]"""
    body = '"{}"'.format("€" * 33_332 + "xx").encode()
    assert len(body) == MAX_BYTES
    await client.send(in_fragments(body, 40_000, 1))
    assert await client.text() == body


@pytest.mark.parametrize("fragments", [(), (100,), (MAX_BYTES,), (50_000, 50_000, 1)], ids=str)
async def test_the_limit_counts_bytes_and_not_characters(
    client: WsClient, served: Served, fragments: tuple[int, ...]
) -> None:
    """[TPT-020]"""
    body = '"{}"'.format("€" * 33_333).encode()
    assert len(body) == MAX_BYTES + 1
    assert len(body.decode()) < MAX_BYTES
    await client.send(in_fragments(body, *fragments))
    assert await refused_as_too_long(client) == {"reason": "bytes", "limit": MAX_BYTES}
    assert served.door.entered == []


async def test_a_stop_in_a_message_that_is_too_long_is_served_before_the_message_has_ended(
    client: WsClient, served: Served
) -> None:
    """[CORE-076]"""
    body = b'[{"x":"' + b"x" * MAX_BYTES + b'"},' + STOP
    await client.send(frame(body, length=struct.pack("!BQ", 127, 300_000)))
    await until(lambda: bool(served.door.searches) and served.door.searches[0].has_found)
    rest = frame(b" " * (300_000 - len(body)), mask=turned(MASK, len(body)))
    await client.send(rest[14:])
    assert await refused_as_too_long(client) == FOUND


async def test_a_stop_in_front_of_what_makes_a_message_too_long_is_served(
    client: WsClient, served: Served
) -> None:
    """[CORE-076]"""
    body = b"[" + STOP + b',{"x":"' + b"x" * 300_000 + b'"}]'
    await client.send(in_fragments(body, 30, 10, 200_000))
    assert await refused_as_too_long(client) == FOUND
    assert served.door.searches[0].fed == body
    assert served.door.entered == []


async def test_half_a_message_that_is_too_long_is_not_waited_for(
    client: WsClient, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[CORE-076, MHSD-9a-90]"""
    monkeypatch.setattr(limits, "SEARCH_S", 0.05)
    await client.send(frame(b"[" + STOP + b"x" * MAX_BYTES, fin=False))
    assert await refused_as_too_long(client) == FOUND
    assert served.door.searches[0].was_cut


async def test_no_more_of_it_is_searched_than_on_http(client: WsClient, served: Served) -> None:
    """[CORE-076]"""
    endless = frame(b"x" * 1_000_000, 0, fin=False)

    async def send() -> None:
        try:
            await client.send(frame(b"[" + STOP, fin=False), *[endless] * 40)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        error = json.loads(await client.text())
        assert error["error"]["data"]["details"] == FOUND
        assert (await client.frame()).code == 1009
        await client.stream.aclose()
    assert len(served.door.searches[0].fed) < MAX_BYTES + limits.SEARCH_BYTES + 10_000


# Ends


@pytest.mark.parametrize("code", [1000, 1001, 1011, 3000, 4999])
async def test_a_close_is_answered_in_kind_and_ends_the_connection(client: WsClient, code: int) -> None:
    await client.send(close(code, b"bye"))
    assert (await client.frame()).code == code
    assert await client.at_end()


async def test_a_close_without_a_code_is_answered(client: WsClient) -> None:
    await client.send(frame(b"", CLOSE))
    assert (await client.frame()).opcode == CLOSE
    assert await client.at_end()


async def test_what_stands_before_a_close_is_still_served(client: WsClient, served: Served) -> None:
    await client.send(frame(call("notify")), frame(STOP), close(1000))
    await until(lambda: STOP in served.door.entered)


async def test_a_ping_that_crosses_a_close_is_no_defect(client: WsClient, served: Served) -> None:
    await client.send(frame(b"", BINARY))
    assert (await client.frame()).code == 1002
    await client.send(frame(b"late", PING), close(1002))
    assert await client.at_end()
    await client.stream.aclose()
    await until(lambda: served.front.connections == 0)
    assert served.front.defects == 0


@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_peer_that_is_gone_ends_its_connection_and_not_what_it_asked_for(
    served: Served, is_reset: bool
) -> None:
    """[TPT-061]"""
    stream = (await served.connect()).stream
    client = await WsClient(stream).opened()
    await client.say(call("wait"))
    await served.door.waiting.wait()
    if is_reset:
        stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    await trio.aclose_forcefully(stream)
    await until(lambda: served.front.connections == 0)
    assert served.front.defects == 0


async def test_a_shutdown_closes_with_1001_what_is_idle(client: WsClient, served: Served) -> None:
    """[TPT-022]"""
    served.front.drain()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.front.finish, 5)
        assert (await client.closed()).code == 1001


async def test_a_shutdown_lets_answers_in_flight_out_first(client: WsClient, served: Served) -> None:
    """[TPT-022]"""
    await client.say(call("wait"))
    await served.door.waiting.wait()
    served.front.drain()
    await client.say(STOP)
    assert await client.text() == STOP, "until the very end a stop is served"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.front.finish, 5)
        served.door.released.set()
        assert await client.text() == call("wait")
        assert (await client.closed()).code == 1001


async def test_a_shutdown_waits_for_no_peer_that_does_not_read_or_answer(
    client: WsClient, served: Served
) -> None:
    """[TPT-022]"""
    await client.say(*[call("large", number, bytes=1_000_000) for number in range(20)])
    await until(lambda: len(served.door.entered) >= 1)
    served.front.drain()
    with trio.fail_after(10):
        await served.front.finish(0.3)
        await until(lambda: served.front.connections == 0)


async def test_sockets_and_requests_share_a_port(client: WsClient, served: Served) -> None:
    http = await served.connect()
    assert isinstance(http, Client)
    assert (await http.post(call())).body == call()
    await client.say(call(request_id=2))
    assert await client.text() == call(request_id=2)


async def test_a_stop_in_a_binary_message_is_served_before_the_connection_is_closed(
    client: WsClient, served: Served
) -> None:
    """[CORE-076, TPT-022]"""
    await client.send(frame(STOP, BINARY), frame(call()))
    assert await client.text() == STOP
    assert served.door.entered == [STOP]
    assert (await client.closed()).code == 1002


@pytest.mark.parametrize("size", [0, 300])
async def test_a_stop_that_is_no_utf8_is_served_before_the_connection_is_closed(
    client: WsClient, served: Served, size: int
) -> None:
    """[CORE-076, TPT-022]"""
    stop = STOP[:-1] + b',"x":"\xff' + b"x" * size + b'"}'
    await client.say(stop)
    assert await client.text() == b'{"error":"parse"}', "so the fake door answers it"
    assert served.door.entered == [stop]
    assert (await client.closed()).code == 1007


@pytest.mark.parametrize("size", [0, 300])
async def test_a_stop_in_front_of_a_violation_is_served_once(
    client: WsClient, served: Served, size: int
) -> None:
    """[CORE-076, PROTO-004, TPT-022]"""
    stop = STOP + b" " * size
    await client.send(frame(stop), frame(b"", 3))
    assert await client.text() == stop
    assert (await client.closed()).code == 1002
    assert served.door.entered == [stop]


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
async def test_a_defect_ends_its_connection_and_is_not_taken_for_something_else(
    client: WsClient, served: Served, monkeypatch: pytest.MonkeyPatch, opcode: int
) -> None:
    """[TPT-022] The library would pass over a KeyError and go on."""

    def begin(*_: object) -> None:
        raise KeyError("nobody has thought of this")

    monkeypatch.setattr(served.door, "begin", begin)
    await client.send(frame(STOP, opcode))
    assert await client.at_end()
    await until(lambda: served.front.connections == 0)
    assert served.front.defects == 1
