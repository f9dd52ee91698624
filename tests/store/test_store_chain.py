"""The order and the bytes of what is stored."""

import hashlib
import json
from pathlib import Path

import pytest
import rfc8785
import trio

from mhsd.core.chain import verify_bundle
from mhsd.store import Store
from mhsd.wire.canonical import NotCanonical
from tests.store.store_builders import (
    AT,
    ENDPOINT,
    body,
    command_id,
    final,
    intent,
    opened,
    put,
    rejected,
    run_commands,
)

GENESIS = {"endpoint_id": ENDPOINT, "created_at": AT, "mhs_version": "1.0"}


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def bundle_of(store: Store) -> dict[str, object]:
    return {
        "bundle_version": "1.0.0",
        "endpoint_info": {
            "endpoint_id": ENDPOINT,
            "genesis": dict(store.genesis),
            "genesis_digest": store.genesis_digest,
        },
        "receipts": [receipt.as_dict() for receipt in store.page(0).receipts],
        "head_digest": store.head()[1],
    }


async def test_receipts_are_chained_to_the_genesis_byte_for_byte(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        await run_commands(store, range(1, 4))
        assert store.genesis == GENESIS
        prev_digest = sha256(rfc8785.dumps(GENESIS))
        assert store.genesis_digest == prev_digest
        for number, receipt in enumerate(store.page(0).receipts, 1):
            digest = sha256(rfc8785.dumps(body(number)) + prev_digest.encode())
            assert (receipt.seq, receipt.prev_digest, receipt.digest) == (number, prev_digest, digest)
            prev_digest = digest
        assert store.head() == (3, prev_digest)
        assert verify_bundle(bundle_of(store))["valid"]


async def test_an_empty_store_is_headed_by_its_genesis(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        assert store.head() == (0, store.genesis_digest)


async def test_the_order_of_the_calls_is_the_order_of_the_chain(tmp_path: Path) -> None:
    order: list[str] = []

    async def command(store: Store, number: int) -> None:
        await store.put(intent(number)).wait()
        ticket = store.put(final(number))
        order.append(ticket.receipts[0].receipt_id)
        await ticket.wait()

    async with opened(tmp_path / "state") as store:
        async with trio.open_nursery() as nursery:
            for number in range(1, 151):
                nursery.start_soon(command, store, number)
        assert [receipt.receipt_id for receipt in store.page(0).receipts] == order
        assert len(order) == 150
        assert verify_bundle(bundle_of(store))["valid"]


async def test_places_in_the_chain_are_known_at_once_and_the_head_is_only_what_is_durable(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "state") as store:
        ticket = store.put(rejected(1), rejected(2))
        assert [receipt.seq for receipt in ticket.receipts] == [1, 2]
        assert store.head()[0] == 0
        assert await ticket.wait() == ticket.receipts
        assert store.head() == (2, ticket.receipts[-1].digest)


async def test_entries_of_one_put_are_added_together_or_not_at_all(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        with pytest.raises(NotCanonical):
            store.put(intent(1), rejected(2), final(3, body=body(3, output={"tick": 2**60})))
        assert store.find_command(intent(1).device_id, command_id(1)) is None
        (receipt,) = await store.put(rejected(4)).wait()
        assert receipt.seq == 1
        assert store.failure is None


@pytest.mark.parametrize("missing", ["receipt_id", "input_digest", "session_id", "replayed"])
async def test_a_receipt_of_the_wrong_shape_is_refused_before_it_takes_a_place(
    tmp_path: Path, missing: str
) -> None:
    incomplete = {name: value for name, value in body(1).items() if name != missing}
    async with opened(tmp_path / "state") as store:
        with pytest.raises(ValueError, match=missing):
            store.put(final(1, body=incomplete))
        assert (await store.put(rejected(1)).wait())[0].seq == 1


async def test_the_answer_is_the_chained_receipt_with_its_evidence(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        (receipt,) = await store.put(final(1)).wait()
        evidence = {"seq": 1, "prev_digest": store.genesis_digest, "digest": receipt.digest}
        assert json.loads(receipt.wire().data) == {**body(1), "evidence": evidence}
        assert receipt.as_dict() == {**body(1), "evidence": evidence}
        assert receipt.body == body(1)


async def test_a_repetition_differs_from_the_answer_in_replayed_alone(tmp_path: Path) -> None:
    nested = {"replayed": False, "text": '"replayed":false', 'x"replayed': False}
    async with opened(tmp_path / "state") as store:
        for number, output in enumerate(({"tick": 1}, nested), 1):
            (receipt,) = await store.put(final(number, body=body(number, output=output))).wait()
            assert receipt.as_dict(replayed=True) == {**receipt.as_dict(), "replayed": True}


async def test_a_whole_float_is_stored_and_answered_as_the_integer_that_was_hashed(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        (receipt,) = await store.put(final(1, body=body(1, output={"tick": 1.0}))).wait()
        assert b'"output":{"tick":1}' in receipt.wire().data


async def test_later_changes_of_a_body_do_not_reach_the_chain(tmp_path: Path) -> None:
    mine = body(1)
    async with opened(tmp_path / "state") as store:
        ticket = store.put(final(1, body=mine))
        mine["output"]["tick"] = 99
        (receipt,) = await ticket.wait()
        assert receipt.body == body(1)


async def test_a_receipt_is_found_by_its_id(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        await put(store, rejected(1), final(2))
        second = final(2).body["receipt_id"]
        assert store.seq_of(second) == 2
        receipt = store.receipt(second)
        assert receipt is not None
        assert receipt.body == body(2)
        assert store.seq_of("01J8ZQ3W1B7M2N4P6R8S0NONE0") is None


async def test_a_store_in_the_event_loop_writes_the_same_bytes(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as store:
        await run_commands(store, range(1, 4))
        threaded = store.page(0)
    async with opened(tmp_path / "b", inline=True) as store:
        await run_commands(store, range(1, 4))
        assert store.page(0) == threaded
        assert await store.read_page(0) == threaded
