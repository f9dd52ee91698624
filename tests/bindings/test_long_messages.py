"""Messages that are too long: searched for stops as they come, within bounds, and refused [CORE-076, TPT-006]."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from mhsd.bindings import limits
from mhsd.protocol.auth import TokenFiles
from tests.bindings.conftest import Serve, Served
from tests.bindings.fakes import STOP, Answer, Client, call, until
from tests.bindings.test_stdio import MAX_LINE, Session, session

__all__ = ["session"]

MAX_BODY = 100_000
HEAD = b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
FILLER = b'{"x":"' + b"x" * 120_000 + b'"},'
FOUND = {"found": [{}]}
"""What the fake door tells of one stop without parameters."""


def details(answer: Answer) -> Any:
    return json.loads(answer.body)["error"]["data"].get("details")


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


# HTTP


@pytest.mark.parametrize("body", [b"[" + FILLER + STOP + b"]", b"[" + STOP + b"," + FILLER + b"{}]"])
async def test_a_stop_in_a_body_of_declared_length_is_found(client: Client, body: bytes) -> None:
    answer = await client.post(body)
    assert (answer.status, answer.mhs_code) == (413, "MHS.LIMIT.PAYLOAD_TOO_LARGE")
    assert details(answer) == FOUND
    assert await client.at_end()


async def test_a_stop_in_a_chunked_body_is_found(client: Client, served: Served) -> None:
    body = b"[" + FILLER + STOP + b"]"
    await client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, 1000))
    answer = await client.answer()
    assert (answer.status, details(answer)) == (413, FOUND)
    assert served.door.searches[0].fed == body


async def test_a_stop_behind_too_many_small_chunks_is_found(client: Client) -> None:
    body = b"[" + b" " * 3000 + STOP + b"]"
    await client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, 1))
    answer = await client.answer()
    assert (answer.status, details(answer)) == (400, FOUND)


async def test_a_stop_is_served_before_the_body_has_ended(client: Client, served: Served) -> None:
    await client.send(HEAD + b"Content-Length: 300000\r\n\r\n[" + STOP)
    await until(lambda: bool(served.door.searches) and served.door.searches[0].has_found)
    assert served.door.entered == []


async def test_a_stop_that_was_found_is_told_of_although_the_front_drains(
    client: Client, served: Served
) -> None:
    await client.send(HEAD + b"Content-Length: 300000\r\n\r\n[" + STOP)
    await until(lambda: bool(served.door.searches) and served.door.searches[0].has_found)
    served.front.drain()
    answer = await client.answer()
    assert (answer.status, details(answer)) == (413, FOUND)


async def test_a_body_without_a_stop_is_refused_and_what_follows_it_never_served(served: Served) -> None:
    client = await served.connect()
    answer = await client.post(b"[" + FILLER + b"{}]" + HEAD + b"Content-Length: 2\r\n\r\n{}")
    assert (answer.status, details(answer)) == (413, {"reason": "bytes", "limit": MAX_BODY})
    assert await client.at_end()
    assert served.door.entered == []


async def test_a_body_that_stops_coming_is_searched_as_far_as_it_came(client: Client, served: Served) -> None:
    await client.send(HEAD + b'Content-Length: 300000\r\n\r\n{"method":"mhs.safety.estop","x":"')
    answer = await client.answer()
    assert (answer.status, details(answer)) == (413, FOUND)
    assert served.door.searches[0].was_cut


async def test_a_body_is_searched_no_further_than_the_bound(client: Client, served: Served) -> None:
    beyond = MAX_BODY + limits.SEARCH_BYTES + 1_000_000
    body = b"[" + b" " * beyond + STOP + b"]"
    await client.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(body))

    async def send() -> None:
        with suppress(trio.BrokenResourceError):
            await client.send(body)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        answer = await client.answer()
        nursery.cancel_scope.cancel()
    assert (answer.status, details(answer)) == (413, {"reason": "bytes", "limit": MAX_BODY})
    assert len(served.door.searches[0].fed) < beyond


async def test_a_client_that_asks_first_is_refused_and_sends_nothing(client: Client, served: Served) -> None:
    await client.send(HEAD + b"Expect: 100-continue\r\nContent-Length: 300000\r\n\r\n")
    assert (await client.answer()).status == 413
    assert served.door.searches == []


async def test_the_stop_lane_serves_a_stop_in_a_long_body_and_refuses_any_other(serve: Serve) -> None:
    served = await serve(max_connections=1)
    await served.connect()
    for body, status in ((b"[" + FILLER + STOP + b"]", 413), (b"[" + FILLER + b"{}]", 503)):
        client = await served.connect()
        await until(lambda: served.front.connections == 2)
        answer = await client.post(body)
        assert answer.status == status
        assert await client.at_end()
        await until(lambda: served.front.connections == 1)


async def test_nobody_is_searched_without_a_credential(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("a-token-of-some-length\n")
    path.chmod(0o600)
    served = await serve(tokens=TokenFiles.load(path, None))
    client = await served.connect()
    assert (await client.post(b"[" + FILLER + STOP + b"]")).status == 401
    assert served.door.searches == []


# stdio


async def test_a_stop_in_a_long_line_is_found_while_it_comes(session: Session) -> None:
    await session.send_raw(b"[" + b'"' + b"x" * 2 * MAX_LINE + b'",' + STOP)
    await until(lambda: bool(session.door.searches) and session.door.searches[0].has_found)
    await session.send_raw(b"," * MAX_LINE + b"\n" + call() + b"\n")
    lines = await session.lines(2)
    assert call() in lines
    (refusal,) = [line for line in lines if line != call()]
    assert json.loads(refusal)["error"]["data"]["details"] == FOUND


async def test_a_long_line_of_many_pieces_is_searched_whole_and_one_line_later_as_another(
    session: Session,
) -> None:
    for line in (b"[" + FILLER + STOP + b"]", b"[" + FILLER + b"{}]"):
        for start in range(0, len(line), 7000):
            await session.send_raw(line[start : start + 7000])
        await session.send_raw(b"\n")
    first, second = [json.loads(line)["error"]["data"]["details"] for line in await session.lines(2)]
    assert (first, second) == (FOUND, {"reason": "bytes", "limit": MAX_LINE})
    assert [bytes(search.fed[-len(STOP) - 1 :]) == STOP + b"]" for search in session.door.searches] == [
        True,
        False,
    ]


async def test_half_a_long_line_at_the_end_keeps_nobody_waiting(session: Session) -> None:
    await session.send_raw(b"[" + FILLER + b'{"method":"mhs.safety.estop"')
    await session.close_input()
    with trio.fail_after(10):
        await session.binding.ended.wait()
    assert not session.door.searches[0].has_found


async def test_a_stop_in_half_a_long_line_at_the_end_is_told_of(session: Session) -> None:
    """[CORE-076, TPT-008]"""
    await session.send_raw(b"[" + FILLER + STOP)
    await session.close_input()
    (refusal,) = await session.lines(1)
    assert json.loads(refusal)["error"]["data"]["details"] == FOUND
