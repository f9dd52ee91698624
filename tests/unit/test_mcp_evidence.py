"""How `mhs__evidence` follows a chain: in pages, from where it stopped, and anew where there is another chain."""

import json
from typing import Any, cast

import pytest
import trio
import trio.testing

from mhsd.aclient.client import AsyncClient
from mhsd.base.errors import Fault
from mhsd.client.errors import MHSError, from_answer
from mhsd.core.chain import genesis_digest, link
from mhsd.mcp import evidence
from mhsd.mcp.artifacts import Artifacts
from mhsd.mcp.evidence import EvidenceReader

PAGE = 3
GENESIS = {"endpoint_id": "mhs://x", "created_at": "2026-01-01T00:00:00.000Z", "mhs_version": "1.0"}


class Chain:
    """An endpoint that has nothing but receipts; they are linked rightly and say little."""

    def __init__(self) -> None:
        self.receipts: list[dict[str, Any]] = []
        self.asked: list[str | None] = []
        self.slow_s = 0.0

    def add(self, command_id: str) -> None:
        body = {"receipt_id": f"r{len(self.receipts)}", "command_id": command_id, "replayed": False}
        prev = self.receipts[-1]["evidence"]["digest"] if self.receipts else genesis_digest(GENESIS)
        _, digest = link(body, prev)
        seq = len(self.receipts) + 1
        self.receipts.append({**body, "evidence": {"seq": seq, "prev_digest": prev, "digest": digest}})

    async def call(self, method: str, params: Any = None) -> dict[str, Any]:
        assert method == "mhs.evidence.export"
        since = params.get("since_receipt")
        self.asked.append(since)
        await trio.sleep(self.slow_s)
        known = [receipt["receipt_id"] for receipt in self.receipts]
        if since is not None and since not in known:
            raise from_answer(
                {"code": -32602, "message": "unknown", "data": {"mhs_code": "MHS.PROTOCOL.INVALID_PARAMS"}}
            )
        start = 0 if since is None else known.index(since) + 1
        page = self.receipts[start : start + PAGE]
        head = page[-1]["evidence"]["digest"] if page else None
        more = start + PAGE < len(self.receipts)
        return {
            "bundle_version": "1.0.0",
            "created_at": f"export {len(self.asked)}",
            "endpoint_info": {
                "endpoint_id": "mhs://x",
                "genesis": GENESIS,
                "genesis_digest": genesis_digest(GENESIS),
            },
            "receipts": page,
            "head_digest": head
            or (self.receipts[-1]["evidence"]["digest"] if self.receipts else genesis_digest(GENESIS)),
            "truncation": {"next_since_receipt": page[-1]["receipt_id"]} if more else None,
        }


@pytest.fixture
def chain() -> Chain:
    return Chain()


@pytest.fixture
def artifacts() -> Artifacts:
    return Artifacts()


@pytest.fixture
def reader(chain: Chain, artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch) -> EvidenceReader:
    # What makes a receipt well-formed is shown elsewhere; here it is the chain that counts.
    monkeypatch.setattr(evidence, "receipt_errors", lambda receipt: [])
    return EvidenceReader(cast(AsyncClient, chain), artifacts)


async def test_an_empty_chain_is_valid(reader: EvidenceReader) -> None:
    document = await reader.document({})
    assert (document["count"], document["valid"], document["receipts"]) == (0, True, [])
    assert document["head_digest"] == genesis_digest(GENESIS)


async def test_every_page_is_read_once_and_the_next_call_asks_only_for_news(
    reader: EvidenceReader, chain: Chain
) -> None:
    """TPT-044."""
    for number in range(8):
        chain.add(f"c{number}")
    document = await reader.document({"last_n": 2})
    assert (document["count"], document["valid"]) == (8, True)
    assert [each["command_id"] for each in document["receipts"]] == ["c6", "c7"]
    assert chain.asked == [None, "r2", "r5"]
    chain.add("c8")
    again = await reader.document({})
    assert (again["count"], again["valid"], again["verify"]["checked"]) == (9, True, 9)
    assert chain.asked[3:] == ["r7"]
    assert len(again["receipts"]) == 9


async def test_the_uri_stays_while_nothing_is_new_and_names_the_whole_bundle(
    reader: EvidenceReader, chain: Chain, artifacts: Artifacts
) -> None:
    """TPT-044, TPT-047."""
    for number in range(5):
        chain.add(f"c{number}")
    document = await reader.document({})
    assert (await reader.document({}))["uri"] == document["uri"]
    entry = artifacts.read(document["uri"])
    assert entry is not None
    bundle = json.loads(entry["text"])
    assert bundle["receipts"] == chain.receipts
    assert bundle["truncation"] is None
    assert (await reader.document({"include_bundle": True}))["bundle"] == bundle
    chain.add("c5")
    assert (await reader.document({}))["uri"] != document["uri"]


async def test_a_receipt_that_was_altered_is_found(reader: EvidenceReader, chain: Chain) -> None:
    """EVID-003."""
    for number in range(4):
        chain.add(f"c{number}")
    chain.receipts[1]["command_id"] = "another"
    document = await reader.document({})
    assert document["valid"] is False
    assert [each["seq"] for each in document["verify"]["errors"]] == [2]
    unchecked = await reader.document({"verify": False})
    assert (unchecked["valid"], unchecked["verify"]) == (None, None)


async def test_another_chain_is_read_from_its_beginning(reader: EvidenceReader, chain: Chain) -> None:
    for number in range(4):
        chain.add(f"c{number}")
    await reader.document({})
    chain.receipts.clear()
    chain.add("new")
    chain.receipts[0]["receipt_id"] = "another"
    document = await reader.document({"verify": False})
    assert (document["count"], document["receipts"][0]["command_id"]) == (1, "new")


async def test_a_long_chain_is_checked_whole_and_its_newest_receipts_are_held(
    reader: EvidenceReader, chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TPT-047."""
    monkeypatch.setattr(evidence, "MOST_CHARACTERS", 1000)
    for number in range(20):
        chain.add(f"c{number}")
    document = await reader.document({"last_n": 50})
    assert (document["count"], document["valid"]) == (20, True)
    held = len(document["receipts"])
    assert 0 < held < 20
    assert document["bundle_from_seq"] == 20 - held + 1
    # One that is not held is looked for in the pages.
    (found,) = (await reader.document({"command_id": "c0"}))["receipts"]
    assert found["evidence"]["seq"] == 1
    assert (await reader.document({"command_id": "nobody's"}))["receipts"] == []


async def test_a_result_holds_what_fits_and_says_so(
    reader: EvidenceReader, chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TPT-047."""
    monkeypatch.setattr(evidence, "_SHOWN_CHARACTERS", 1000)
    for number in range(20):
        chain.add(f"c{number}")
    document = await reader.document({"last_n": 20})
    shown = document["truncation"]["shown"]
    assert 0 < shown < 20
    assert [each["command_id"] for each in document["receipts"]] == [f"c{n}" for n in range(20 - shown, 20)]


async def test_a_bundle_that_does_not_fit_is_left_to_its_uri_and_the_verdict_stays(
    reader: EvidenceReader, chain: Chain, artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TPT-044, TPT-047."""
    monkeypatch.setattr("mhsd.mcp.artifacts._MOST_BYTES", 1000)
    for number in range(20):
        chain.add(f"c{number}")
    document = await reader.document({"include_bundle": True})
    assert "bundle" not in document
    assert (document["count"], document["valid"]) == (20, True)
    entry = artifacts.read(document["uri"])
    assert entry is not None
    assert document["truncation"] == {"reason": "frame_limit", "bundle_characters": len(entry["text"])}


async def test_an_endpoint_that_takes_too_long_is_not_waited_for_and_nothing_is_lost(
    reader: EvidenceReader, chain: Chain, autojump_clock: trio.testing.MockClock
) -> None:
    """TPT-042."""
    for number in range(7):
        chain.add(f"c{number}")
    chain.slow_s = 0.4 * evidence.PATIENCE_S
    with pytest.raises(Fault) as refusal:
        await reader.document({})
    assert (refusal.value.mhs_code, refusal.value.retryable) == ("MHS.OUTCOME.TIMEOUT", True)
    document = await reader.document({})
    assert (document["count"], document["valid"]) == (7, True)
    assert chain.asked == [None, "r2", "r5", "r5"]


@pytest.mark.parametrize(
    "change",
    [
        {"receipts": None},
        {"receipts": {}},
        {"receipts": [7]},
        {"receipts": [{}]},
        {"receipts": [{"receipt_id": "r", "command_id": 7, "evidence": {}}]},
        {"truncation": {"next_since_receipt": 7}},
    ],
)
async def test_what_is_no_evidence_is_an_error_of_the_endpoint(
    reader: EvidenceReader, chain: Chain, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    """TPT-039."""
    chain.add("c")
    asked = chain.call

    async def call(method: str, params: Any = None) -> dict[str, Any]:
        return {**await asked(method, params), **change}

    monkeypatch.setattr(chain, "call", call)
    with pytest.raises(MHSError) as problem:
        await reader.document({})
    assert problem.value.mhs_code == "MHS.PROTOCOL.INVALID_REQUEST"
