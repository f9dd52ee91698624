"""What a network does to requests: bytes come late, singly, twice or not at all [TPT-011, TPT-012, TPT-061]."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.bindings.conftest import Served
from tests.bindings.fakes import Client, Sent, call, until
from tests.bindings.proxy import Proxy, open_proxy
from tests.lab import HttpWire, Lab, Session, running

BODY = call()


async def through(proxy: Proxy) -> Client:
    return Client(await trio.open_tcp_stream("127.0.0.1", proxy.port))


@pytest.mark.parametrize("split", [1, 7])
async def test_requests_and_answers_in_single_bytes_are_whole(served: Served, split: int) -> None:
    async with open_proxy(served.port) as proxy:
        proxy.to_endpoint.split = proxy.to_client.split = split
        client = await through(proxy)
        for number in range(3):
            body = call(request_id=number)
            answer = await client.post(body)
            assert (answer.status, answer.body) == (200, body)
        assert served.door.entered == [call(request_id=number) for number in range(3)]


async def test_what_is_held_back_is_served_when_it_comes(served: Served) -> None:
    async with open_proxy(served.port) as proxy, trio.open_nursery() as nursery:
        client = await through(proxy)
        await client.post(BODY)
        proxy.hold()
        nursery.start_soon(client.post, call(request_id=2))
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert served.door.entered == [BODY]
        proxy.release()
        await until(lambda: served.door.entered == [BODY, call(request_id=2)])


async def test_a_request_whose_bytes_come_twice_is_two_requests_and_never_a_third_thing(
    served: Served,
) -> None:
    async with open_proxy(served.port) as proxy:
        proxy.to_endpoint.copies = 2
        client = await through(proxy)
        assert (await client.post(BODY)).body == BODY
        assert (await client.answer()).body == BODY
        assert served.door.entered == [BODY, BODY]


@pytest.mark.parametrize("copies_of", [1, 5])
async def test_a_request_of_doubled_bytes_is_refused_and_not_served(served: Served, copies_of: int) -> None:
    async with open_proxy(served.port) as proxy:
        proxy.to_endpoint.split, proxy.to_endpoint.copies = copies_of, 2
        client = await through(proxy)
        assert (await client.post(BODY)).status in (400, 403, 404)
        assert served.door.entered == []
        assert served.front.defects == 0


@pytest.mark.parametrize("cut_after", [0, 1, 20, 100, 150, 190])
async def test_a_request_that_is_cut_is_not_served_and_leaves_nothing_behind(
    served: Served, cut_after: int
) -> None:
    async with open_proxy(served.port) as proxy:
        proxy.to_endpoint.cut_after = cut_after
        client = await through(proxy)
        with pytest.raises((EOFError, trio.BrokenResourceError)):
            await client.post(BODY, "X-Padding: " + "x" * 60)
        await proxy.until_idle()
        assert served.door.entered == []
        await until(lambda: not served.front.connections)
        assert served.front.defects == 0


async def test_a_client_whose_answer_is_cut_finds_the_endpoint_as_it_was(served: Served) -> None:
    async with open_proxy(served.port) as proxy:
        proxy.to_client.cut_after = 10
        client = await through(proxy)
        with pytest.raises((EOFError, trio.BrokenResourceError)):
            await client.post(BODY)
        proxy.to_client.cut_after = None
        assert (await (await through(proxy)).post(BODY)).status == 200
        assert served.door.entered == [BODY, BODY]


async def test_who_is_cut_off_while_an_answer_is_awaited_is_not_waited_for(served: Served) -> None:
    async with open_proxy(served.port) as proxy:
        client = await through(proxy)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expect_the_end, client, call("wait"))
            await served.door.waiting.wait()
            proxy.cut()
        with trio.fail_after(5):
            await served.door.left.wait()


async def _expect_the_end(client: Client, body: bytes) -> None:
    with pytest.raises((EOFError, trio.BrokenResourceError)):
        await client.post(body)


# Streams of events


async def test_a_stream_in_single_bytes_is_whole(served: Served) -> None:
    async with open_proxy(served.port) as proxy:
        proxy.to_endpoint.split = proxy.to_client.split = 1
        client = await through(proxy)
        assert (await client.events()).status == 200
        assert await client.block() == "retry: 3000"
        events = [Sent("sub_A", seq, b'{"seq":%d}' % seq) for seq in range(20)]
        served.door.streams.opened[0].push(*events)
        for event in events:
            assert (await client.block()).endswith(f'data: {{"seq":{event.seq}}}')


async def test_a_stream_that_is_cut_is_given_back_at_once(served: Served) -> None:
    async with open_proxy(served.port) as proxy:
        client = await through(proxy)
        assert (await client.events()).status == 200
        proxy.cut()
        await until(lambda: served.door.streams.open_now == 0 and not served.front.connections)
        assert served.front.defects == 0


async def test_a_stream_that_is_held_on_its_way_stays_open_and_goes_on(served: Served) -> None:
    async with open_proxy(served.port) as proxy:
        client = await through(proxy)
        assert (await client.events()).status == 200
        assert await client.block() == "retry: 3000"
        proxy.hold()
        served.door.streams.opened[0].push(Sent("sub_A", 1, b"{}"))
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert served.door.streams.open_now == 1
        proxy.release()
        assert (await client.block()).startswith("id: sub_A:1\n")


STEPS = 40


async def resumed(lab: Lab, session: Session, start: int) -> list[int]:
    """The seqs of all events, read through connections that are cut again and again."""
    assert isinstance(lab.wire, HttpWire)
    rng = random.Random(6)
    seqs = [start - 1]
    last = "Accept: */*"
    async with open_proxy(int(lab.wire.port)) as proxy:
        with trio.fail_after(60):
            while seqs[-1] < start + STEPS - 1:
                # An answer's head, and a few events; the cut may be anywhere in one.
                proxy.to_client.cut_after = 250 + rng.randrange(2500)
                proxy.to_client.split = rng.choice([None, 1, 50])
                client = await through(proxy)
                async with client.stream:
                    try:
                        assert (await client.events(f"?session_id={session.id}", last)).status == 200
                        while seqs[-1] < start + STEPS - 1:
                            fields = dict(line.split(": ", 1) for line in (await client.block()).split("\n"))
                            if "id" in fields:
                                last = f"Last-Event-ID: {fields['id']}"
                                seqs.append(json.loads(fields["data"])["params"]["seq"])
                    except (EOFError, trio.BrokenResourceError):
                        continue
    assert proxy.connections > 3
    return seqs[1:]


def test_who_is_cut_off_again_and_again_gets_every_event_once(tmp_path: Path) -> None:
    """TPT-018, TPT-061, TPT-063: the session lives on, and Last-Event-ID leaves out and repeats nothing."""
    with running("http", tmp_path, "--rate-per-s", "100000", "--rate-burst", "100000") as lab:
        session = lab.open()
        streams = [{"stream": "state", "resource_id": "world"}]
        start = session.call("mhs.subscribe", streams=streams, deadline_ms=5000)["seq_start"]
        for _ in range(STEPS):
            session.completed("cap.world.step.v1", {"ticks": 1})
        seqs = trio.run(partial(resumed, lab, session, start))
    assert seqs == list(range(start, start + STEPS))
