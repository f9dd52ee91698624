"""How long an answer may be [TPT-006; MHSD-9a]."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mhsd.config import Limits
from mhsd.protocol.answers import LEAST_BYTES, NOTHING, Exchange, joined, reply
from mhsd.wire.jsonrpc import Request
from tests.documents import check_error
from tests.unit.events_lab import CONVEYOR, Client, served

MOST = 4000
READ, COMMAND = "mhs.resource.read", "mhs.command"


def answer(method: str, size: int, request_id: str | int = "a") -> Exchange:
    return reply(Request(request_id, method, {}), "x" * size, MOST)


def decoded(exchange: Exchange) -> Any:
    assert exchange.body is not None
    return json.loads(exchange.body)


def is_refused(element: Any) -> bool:
    if "error" not in element:
        return False
    check_error(element["error"])
    assert element["error"]["data"]["mhs_code"] == "MHS.LIMIT.PAYLOAD_TOO_LARGE"
    assert element["error"]["data"]["details"] == {"reason": "answer_bytes", "limit": MOST}
    return True


def test_an_answer_that_is_longer_than_a_message_is_refused_under_its_id() -> None:
    """[TPT-006]"""
    size = MOST - len(answer(READ, 0).body or b"")
    assert decoded(answer(READ, size))["result"] == "x" * size
    refused = decoded(answer(READ, size + 1))
    assert refused["id"] == "a"
    assert is_refused(refused)


@pytest.mark.parametrize(
    "method", [COMMAND, "mhs.resource.write", "mhs.operations.cancel", "mhs.safety.permit"]
)
def test_what_has_happened_is_told_however_long(method: str) -> None:
    """[TPT-006]"""
    assert decoded(answer(method, 2 * MOST))["result"] == "x" * 2 * MOST


def test_of_a_batch_that_is_too_long_the_longest_answers_are_refused_and_no_more_than_must_be() -> None:
    """[TPT-006]"""
    sizes = [100, 2400, 300, 2300, 2200]
    replies = [answer(READ, size, number) for number, size in enumerate(sizes)]
    told = joined(replies, MOST)
    assert len(told.body or b"") <= MOST
    assert [is_refused(element) for element in decoded(told)] == [False, True, False, True, False]
    assert [element["id"] for element in decoded(told)] == [0, 1, 2, 3, 4]
    assert not any(map(is_refused, decoded(joined(replies, 10 * MOST))))


def test_a_receipt_in_a_batch_is_told_and_the_reads_beside_it_make_room() -> None:
    """[TPT-006]"""
    told = decoded(joined([answer(READ, 1900, 1), answer(COMMAND, 2800, 2), answer(READ, 0, 3)], MOST))
    assert [is_refused(element) for element in told] == [True, False, False]


def test_answers_that_would_not_get_shorter_stay() -> None:
    replies = [answer(READ, 1, number) for number in range(100)]
    assert joined(replies, 10).body == joined(replies, 10_000_000).body
    assert joined([NOTHING, NOTHING], MOST) is NOTHING


async def test_no_batch_is_answered_by_more_than_a_message() -> None:
    """[TPT-006, TPT-015]"""
    async with served(limits=Limits(max_batch=100)) as endpoint:
        client = Client(endpoint)
        batch = [
            {"jsonrpc": "2.0", "id": number, "method": "mhs.devices.get", "params": {"device_id": CONVEYOR}}
            for number in range(100)
        ]
        (one,) = json.loads(await client.send(batch[:1]) or b"")
        assert 100 * len(json.dumps(one)) > LEAST_BYTES
        body = await client.send(batch)
        assert body is not None
        assert len(body) <= LEAST_BYTES
        told = json.loads(body)
        assert sorted(element["id"] for element in told) == list(range(100))
        assert 0 < sum("error" in element for element in told) < 50
