"""Bundles: their shape, their pages, and the report on them [EVID-001 to EVID-004]."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from mhsd.base.errors import Fault
from mhsd.base.resources import schema_document
from mhsd.config import Limits
from mhsd.services import evidence
from mhsd.store import Store
from mhsd.wire.json_text import MAX_BYTES, MAX_ITEMS, count_items
from mhsd.wire.params import EvidenceExportParams, EvidenceVerifyParams
from mhsd.wire.schema import compile_schema
from tests.store.store_builders import (
    DEVICE,
    OTHER_DEVICE,
    SESSION,
    body,
    final,
    opened,
    put,
    receipt_id,
)

ROOT = Path(__file__).resolve().parents[2]
SERVER = {"name": "mhsd", "version": "1.2.3"}
NOW = "2026-10-20T07:50:00.000Z"
OTHER_SESSION = "mhs_s_01J8ZQ3V6Z"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """Seven receipts; the third and the sixth are of another device and session."""
    async with opened(tmp_path / "state") as store:
        for number in range(1, 8):
            others = {"device_id": OTHER_DEVICE, "session_id": OTHER_SESSION} if number % 3 == 0 else {}
            entry = final(number, body=body(number, **others))
            await put(store, attrs.evolve(entry, device_id=entry.body["device_id"]))
        yield store


async def export(store: Store, *, limits: Limits | None = None, **params: Any) -> dict[str, Any]:
    raw = await evidence.export(
        store, EvidenceExportParams(**params), server=SERVER, created_at=NOW, limits=limits or Limits()
    )
    bundle: dict[str, Any] = json.loads(raw.data)
    shape = compile_schema(schema_document("evidence-bundle"), resolve=schema_document)
    assert shape.errors(bundle) == []
    return bundle


async def report_on(bundle: Any) -> dict[str, Any]:
    report = await evidence.verify(EvidenceVerifyParams(bundle=bundle))
    shape = compile_schema(schema_document("verification-report"), resolve=schema_document)
    assert shape.errors(report) == []
    return report


def seqs(bundle: dict[str, Any]) -> list[int]:
    return [receipt["evidence"]["seq"] for receipt in bundle["receipts"]]


async def test_a_bundle_has_the_whole_chain_and_where_it_comes_from(store: Store) -> None:
    bundle = await export(store)
    assert seqs(bundle) == [1, 2, 3, 4, 5, 6, 7]
    assert {name: value for name, value in bundle.items() if name not in ("receipts", "signature")} == {
        "bundle_version": "1.0.0",
        "endpoint_info": {
            "endpoint_id": "mhs://localhost:7400",
            "mhs_version": "1.0",
            "server": SERVER,
            "genesis": store.genesis,
            "genesis_digest": store.genesis_digest,
        },
        "created_at": NOW,
        "head_digest": store.head()[1],
        "telemetry": [],
        "truncation": None,
    }
    signature = bundle["signature"]
    assert (signature["seq"], signature["digest"]) == store.head()
    assert signature["public_key"] == store.public_key
    report = await report_on(bundle)
    assert (report["valid"], report["checked"], report["head_digest"]) == (True, 7, store.head()[1])


async def test_an_export_goes_on_after_the_receipt_that_it_names(store: Store) -> None:
    bundle = await export(store, since_receipt=receipt_id(5))
    assert seqs(bundle) == [6, 7]
    report = await report_on(bundle)
    assert (report["valid"], report["from_seq"], report["contiguous"]) == (True, 6, True)


async def test_after_the_head_there_is_an_empty_bundle_headed_by_the_genesis(store: Store) -> None:
    bundle = await export(store, since_receipt=receipt_id(7))
    assert seqs(bundle) == []
    assert bundle["head_digest"] == store.genesis_digest
    assert bundle["truncation"] is None
    assert (await report_on(bundle))["valid"]


async def test_a_receipt_that_is_not_known_is_refused(store: Store) -> None:
    with pytest.raises(Fault) as caught:
        await export(store, since_receipt="01J8ZQ3W1B7M2N4P6R8S0NONE0")
    assert caught.value.mhs_code == "MHS.PROTOCOL.INVALID_PARAMS"
    assert caught.value.details is not None
    assert caught.value.details["field"] == "since_receipt"


async def test_a_cut_page_says_how_to_go_on_and_heads_itself(store: Store) -> None:
    limits = attrs.evolve(Limits(), max_export_receipts=3)
    bundle = await export(store, limits=limits)
    assert seqs(bundle) == [1, 2, 3]
    assert bundle["truncation"] == {
        "reason": "page_limit",
        "next_since_receipt": receipt_id(3),
        "remaining": 4,
    }
    assert bundle["head_digest"] == bundle["receipts"][-1]["evidence"]["digest"]
    pages = [bundle]
    while pages[-1]["truncation"]:
        following = pages[-1]["truncation"]["next_since_receipt"]
        pages.append(await export(store, limits=limits, since_receipt=following))
    assert [seqs(page) for page in pages] == [[1, 2, 3], [4, 5, 6], [7]]
    assert all([(await report_on(page))["valid"] for page in pages])


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"device_id": OTHER_DEVICE}, [3, 6]),
        ({"session_id": OTHER_SESSION}, [3, 6]),
        ({"device_id": DEVICE, "session_id": SESSION}, [1, 2, 4, 5, 7]),
        ({"device_id": DEVICE, "since_receipt": receipt_id(3)}, [4, 5, 7]),
    ],
)
async def test_a_selection_says_what_was_chosen_and_is_valid_with_holes(
    store: Store, params: dict[str, Any], expected: list[int]
) -> None:
    bundle = await export(store, **params)
    assert seqs(bundle) == expected
    assert bundle["selection"] == {
        name: value for name, value in params.items() if name in ("device_id", "session_id")
    }
    report = await report_on(bundle)
    assert (report["valid"], report["contiguous"]) == (True, False)


async def test_telemetry_is_an_empty_list_when_asked_for(store: Store) -> None:
    assert (await export(store, include_telemetry=True))["telemetry"] == []


async def test_pages_fit_the_messages_of_their_endpoint_and_a_request_to_verify_them(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        for number in range(1, 61):
            output = {"samples": [0.5] * 900} if number % 2 else {"text": "x" * 40_000}
            await put(store, final(number, body=body(number, output=output)))
        since: dict[str, Any] = {}
        found: list[int] = []
        while True:
            bundle = await export(store, **since)
            request = json.dumps({"id": 1, "method": "mhs.evidence.verify", "params": {"bundle": bundle}})
            assert len(request.encode()) <= MAX_BYTES
            assert count_items(request.encode()) <= MAX_ITEMS
            found += seqs(bundle)
            if bundle["truncation"] is None:
                break
            since = {"since_receipt": bundle["truncation"]["next_since_receipt"]}
    assert found == list(range(1, 61))


@pytest.mark.parametrize(
    "limit", [{"max_request_bytes": size} for size in (6_000, 12_000, 20_000)] + [{"max_json_items": 500}]
)
async def test_small_messages_have_small_pages(tmp_path: Path, limit: dict[str, int]) -> None:
    """[EVID-001] Where one receipt fits, there is a page."""
    limits = attrs.evolve(Limits(), **limit)
    async with opened(tmp_path / "state") as store:
        await put(store, *(final(number) for number in range(1, 41)))
        found: list[int] = []
        since: dict[str, Any] = {}
        while len(found) < 40:
            bundle = await export(store, limits=limits, **since)
            assert len(json.dumps(bundle, separators=(",", ":"))) <= limits.max_request_bytes
            assert count_items(json.dumps(bundle).encode()) <= limits.max_json_items
            found += seqs(bundle)
            since = {"since_receipt": receipt_id(found[-1])}
    assert found == list(range(1, 41))


@pytest.mark.parametrize("limit", [{"max_request_bytes": 20_000}, {"max_json_items": 300}])
async def test_a_receipt_larger_than_a_message_is_refused_and_can_be_passed_over(
    tmp_path: Path, limit: dict[str, int]
) -> None:
    output = {"text": "x" * 30_000, "samples": [0] * 500}
    limits = attrs.evolve(Limits(), **limit)
    async with opened(tmp_path / "state") as store:
        await put(store, final(1), final(2, body=body(2, output=output)), final(3))
        assert seqs(await export(store, limits=limits)) == [1]
        with pytest.raises(Fault) as caught:
            await export(store, limits=limits, since_receipt=receipt_id(1))
        assert caught.value.mhs_code == "MHS.EVIDENCE.EXPORT_TOO_LARGE"
        assert caught.value.details is not None
        assert caught.value.details["receipt_id"] == receipt_id(2)
        assert seqs(await export(store, limits=limits, since_receipt=receipt_id(2))) == [3]


async def test_what_is_not_durable_is_not_exported(store: Store) -> None:
    ticket = store.put(final(8))
    head = store.head()
    assert head[0] == 7
    await ticket.wait()
    assert seqs(await export(store)) == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_an_altered_bundle_is_reported_with_its_place(store: Store) -> None:
    bundle = await export(store)
    bundle["receipts"][3]["output"] = {"tick": 99}
    report = await report_on(bundle)
    assert report["valid"] is False
    assert [(error["seq"], error["mhs_code"]) for error in report["errors"]] == [
        (4, "MHS.EVIDENCE.CHAIN_BROKEN")
    ]


async def test_a_bundle_of_nonsense_is_a_report(store: Store) -> None:
    report = await report_on({"receipts": [None, {"evidence": 7}]})
    assert report["valid"] is False


async def test_a_reference_to_a_bundle_is_refused() -> None:
    with pytest.raises(Fault) as caught:
        await evidence.verify(EvidenceVerifyParams(bundle_ref="bundle-1"))
    assert caught.value.mhs_code == "MHS.PROTOCOL.INVALID_PARAMS"
    assert caught.value.details is not None
    assert caught.value.details["field"] == "bundle_ref"


async def test_other_tasks_run_while_a_bundle_is_checked(store: Store) -> None:
    bundle = await export(store)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await evidence.verify(EvidenceVerifyParams(bundle=bundle))
        nursery.cancel_scope.cancel()
    # The other task may start one turn later.
    assert turns >= len(bundle["receipts"]) - 1


async def run_script(*arguments: str) -> tuple[int, str, str]:
    done = await trio.run_process(
        [sys.executable, "-I", str(ROOT / "scripts" / "verify_evidence.py"), *arguments],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def test_a_third_party_can_check_a_bundle_without_mhsd(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "bundle.json"
    bundle = await export(store)
    path.write_text(json.dumps(bundle))
    assert await run_script(str(path)) == (
        0,
        f"valid: 7 receipts, head {store.head()[1]}\nsigned through seq 7 by {store.public_key}\n",
        "",
    )
    bundle["receipts"][1]["output"] = {"tick": 99}
    del bundle["receipts"][4]
    path.write_text(json.dumps(bundle))
    code, out, err = await run_script(str(path))
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        "seq 2: the receipt does not have the digest that it states",
        "seq 6 follows seq 4",
    ]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"receipts": []}', '{"a": 1, "a": 2}', "[" * 100_000])
async def test_the_script_says_in_one_line_what_is_no_bundle(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bundle.json"
    path.write_text(text)
    code, out, err = await run_script(str(path))
    assert (code, out) == (2, "")
    assert err.startswith(str(path))
    assert err.count("\n") == 1


async def test_the_script_needs_exactly_one_bundle(tmp_path: Path) -> None:
    assert (await run_script())[0] == 2
    assert (await run_script("a", "b"))[0] == 2
    code, _, err = await run_script(str(tmp_path / "missing.json"))
    assert code == 2
    assert "missing.json" in err
