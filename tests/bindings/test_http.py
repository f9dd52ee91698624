"""How the HTTP binding serves, lets stops pass, and lets go of clients [TPT-010, TPT-012, TPT-020]."""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing

from tests.bindings.conftest import SCHEMA, Serve, Served
from tests.bindings.fakes import STOP, Client, call, until

BODY = call()


async def connect_until_full(served: Served, connections: int) -> list[Client]:
    """This many clients that the endpoint has accepted for sure, each with one answered request."""
    clients = []
    for _ in range(connections):
        clients.append(await served.connect())
        assert (await clients[-1].post(BODY)).status == 200
    return clients


async def test_requests_of_one_connection_are_answered_one_after_the_other(
    served: Served, client: Client
) -> None:
    for number in range(3):
        body = call(request_id=number)
        answer = await client.post(body)
        assert (answer.status, answer.body) == (200, body)
        assert answer.headers["content-type"] == "application/json"
        assert "connection" not in answer.headers


async def test_requests_sent_ahead_are_answered_in_order(served: Served, client: Client) -> None:
    bodies = [call(request_id=number) for number in range(20)]
    head = b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    await client.send(b"".join(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body) for body in bodies))
    assert [(await client.answer()).body for _ in bodies] == bodies
    assert served.door.entered == bodies


async def test_a_request_sent_ahead_of_an_answer_that_waits_is_not_lost(
    served: Served, client: Client
) -> None:
    bodies = [call("wait"), call(request_id=2)]
    head = b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    await client.send(head + b"Content-Length: %d\r\n\r\n%b" % (len(bodies[0]), bodies[0]))
    await served.door.waiting.wait()
    await client.send(head + b"Content-Length: %d\r\n\r\n%b" % (len(bodies[1]), bodies[1]))
    await trio.testing.wait_all_tasks_blocked(0.05)
    served.door.released.set()
    assert [(await client.answer()).body for _ in bodies] == bodies


async def test_connection_close_is_honoured(client: Client) -> None:
    answer = await client.post(BODY, "Connection: close")
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert await client.at_end()


async def test_a_message_without_an_answer_is_204_and_a_parse_error_keeps_its_status(client: Client) -> None:
    answer = await client.post(call("notify"))
    assert (answer.status, answer.body) == (204, b"")
    assert (await client.post(b"{")).status == 400
    assert (await client.post(BODY)).status == 200


async def test_a_refused_rate_is_429_with_whole_seconds_to_wait(client: Client) -> None:
    answer = await client.post(call("fast"))
    assert (answer.status, answer.headers["retry-after"]) == (429, "2")


async def test_ordinary_messages_take_the_gate_and_stops_do_not(served: Served, client: Client) -> None:
    await client.post(BODY)
    await client.post(STOP)
    assert served.door.gate_was_held == [True, False]


async def test_a_stop_does_not_wait_for_the_gate(served: Served, client: Client) -> None:
    stopper = await served.connect()
    async with served.door.gate, trio.open_nursery() as nursery:
        nursery.start_soon(client.post, BODY)
        assert (await stopper.post(STOP)).status == 200
        assert served.door.entered == [STOP]
        nursery.cancel_scope.cancel()


async def test_the_descriptor_is_served(client: Client) -> None:
    answer = await client.get("/.well-known/mhs.json?x=y")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert json.loads(answer.body)["descriptor_version"] == "1.0.0"
    assert (await client.post(BODY)).status == 200


async def test_a_schema_is_served_with_its_digest_and_not_again_to_who_has_it(client: Client) -> None:
    answer = await client.get("/mhs/v1/schema/receipt")
    etag = f'"{SCHEMA.digest}"'
    assert (answer.status, answer.body, answer.headers["etag"]) == (200, SCHEMA.body, etag)
    assert answer.headers["content-type"] == "application/schema+json"
    for tag in (etag, f'"other", W/{etag}', "*"):
        answer = await client.get("/mhs/v1/schema/%72eceipt", f"If-None-Match: {tag}")
        assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", etag)
    assert (await client.get("/mhs/v1/schema/receipt", 'If-None-Match: "other"')).status == 200


@pytest.mark.parametrize("ref", ["absent", "..%2f..%2fetc%2fpasswd", "%ff", ""])
async def test_a_schema_that_is_not_there_is_404(client: Client, ref: str) -> None:
    answer = await client.get(f"/mhs/v1/schema/{ref}")
    assert (answer.status, answer.mhs_code) == (404, "MHS.PROTOCOL.INVALID_PARAMS")


async def test_the_body_of_a_get_is_never_read_as_a_request(served: Served, client: Client) -> None:
    smuggled = b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    await client.send(
        b"GET /.well-known/mhs.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(smuggled)
        + smuggled
    )
    answer = await client.answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert await client.at_end()
    assert served.door.entered == []


async def test_a_client_that_resets_its_connection_is_not_waited_for(served: Served, client: Client) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.post, call("wait"))
        await served.door.waiting.wait()
        nursery.cancel_scope.cancel()
    client.stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    await client.stream.aclose()
    with trio.fail_after(5):
        await served.door.left.wait()


async def test_a_client_that_closes_half_still_gets_its_answer(served: Served, client: Client) -> None:
    body = call("wait")
    head = b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    await client.send(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    await client.stream.send_eof()
    await served.door.waiting.wait()
    await trio.testing.wait_all_tasks_blocked(0.05)
    served.door.released.set()
    assert (await client.answer()).body == body
    assert await client.at_end()


async def test_a_client_that_closed_half_is_waited_for_only_so_long(serve: Serve) -> None:
    served = await serve(socket_timeout_s=0.2)
    client = await served.connect()
    body = call("wait")
    head = b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    await client.send(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    await client.stream.send_eof()
    with trio.fail_after(5):
        await served.door.left.wait()


async def test_a_client_that_does_not_read_its_answer_is_cut(serve: Serve) -> None:
    served = await serve(socket_timeout_s=0.3)
    client = await served.connect()
    body = call("large", bytes=20_000_000)
    head = b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    await client.send(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    received = 0
    with trio.fail_after(10):
        await until(lambda: not served.front.connections)
        try:
            while data := await client.stream.receive_some(1 << 20):
                received += len(data)
        except trio.BrokenResourceError:
            pass
    assert received < 20_000_000


async def test_a_defect_ends_one_connection_and_no_other(served: Served, client: Client) -> None:
    neighbour = await served.connect()
    assert (await neighbour.post(BODY)).status == 200
    await client.send(
        b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(call("defect")), call("defect"))
    )
    assert await client.at_end()
    assert served.front.defects == 1
    assert (await neighbour.post(BODY)).status == 200


# The stop lane


async def test_beyond_the_limit_only_a_stop_is_served(serve: Serve) -> None:
    served = await serve(max_connections=2)
    await connect_until_full(served, 2)
    refused = await served.connect()
    answer = await refused.post(BODY)
    assert (answer.status, answer.mhs_code) == (503, "MHS.LIMIT.CONNECTION_LIMIT")
    assert answer.headers["retry-after"] == "1"
    assert await refused.at_end()
    assert (await (await served.connect()).get("/.well-known/mhs.json")).status == 503
    stopper = await served.connect()
    answer = await stopper.post(STOP)
    assert (answer.status, answer.body, answer.headers["connection"]) == (200, STOP, "close")
    assert await stopper.at_end()


async def test_a_large_message_is_not_read_in_the_stop_lane(serve: Serve) -> None:
    served = await serve(max_connections=1)
    await connect_until_full(served, 1)
    client = await served.connect()
    await client.send(
        b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 99999\r\n\r\n"
    )
    assert (await client.answer()).status == 503


async def test_a_place_that_is_given_back_is_an_ordinary_one_again(serve: Serve) -> None:
    served = await serve(max_connections=1)
    (first,) = await connect_until_full(served, 1)
    assert (await (await served.connect()).post(BODY)).status == 503
    await first.stream.aclose()
    await until(lambda: not served.front.connections)
    assert (await (await served.connect()).post(BODY)).status == 200


async def test_clients_that_sit_in_the_stop_lane_make_room_for_a_stop(serve: Serve) -> None:
    served = await serve(max_connections=1)
    await connect_until_full(served, 1)
    sitting = [await served.connect() for _ in range(16)]
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert (await (await served.connect()).post(STOP)).status == 200
    assert await sitting[0].at_end()


async def test_stops_that_are_being_served_are_not_sent_away(serve: Serve) -> None:
    served = await serve(max_connections=1)
    await connect_until_full(served, 1)
    waiting_stop = call("wait", reason="mhs.safety.estop")
    clients = [await served.connect() for _ in range(16)]
    answers: list[int] = []

    async def stop(client: Client) -> None:
        answers.append((await client.post(waiting_stop)).status)

    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(stop, client)
        await until(lambda: served.door.entered.count(waiting_stop) == 16)
        late = await served.connect()
        assert await late.at_end()
        served.door.released.set()
    assert answers == [200] * 16


# The end


async def test_draining_closes_idle_clients_and_lets_a_request_in_flight_be_answered(served: Served) -> None:
    idle, busy = await served.connect(), await served.connect()
    assert (await idle.post(BODY)).status == 200
    answers: list[bytes] = []

    async def wait() -> None:
        answer = await busy.post(call("wait"))
        answers.append(answer.body)
        assert answer.headers["connection"] == "close"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await served.door.waiting.wait()
        served.front.drain()
        assert await idle.at_end()
        with pytest.raises(OSError, match="connect"):
            await served.connect()
        served.door.released.set()
        with trio.fail_after(5):
            await served.front.finish(patience_s=4)
    assert answers == [call("wait")]


async def test_the_front_ends_although_a_client_never_reads_and_another_never_sends(served: Served) -> None:
    silent, deaf = await served.connect(), await served.connect()
    await silent.send(b"POST /mhs/v1/rpc HTTP/1.1\r\n")
    body = call("large", bytes=20_000_000)
    await deaf.send(
        b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    await until(lambda: bool(served.door.entered))
    served.front.drain()
    with trio.fail_after(5):
        await served.front.finish(patience_s=0.1)
    await until(lambda: not served.front.connections)


async def test_a_body_that_is_on_its_way_when_the_front_drains_is_refused(
    served: Served, client: Client
) -> None:
    await client.send(
        b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n{"
    )
    await trio.testing.wait_all_tasks_blocked(0.05)
    served.front.drain()
    answer = await client.answer()
    assert (answer.status, answer.mhs_code) == (503, "MHS.TRANSPORT.UNAVAILABLE")
    assert served.door.entered == []
