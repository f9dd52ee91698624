"""Evidence: the chain that the endpoint exports, recomputed here, and what it finds in an altered one."""

import copy
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import BENCH, BENCH_TARGET, LIMITS, UNHURRIED, Start
from tests.documents import check_chain, digest, link
from tests.lab import CONVEYOR, Lab, Session, running, ulid

STEP = "cap.world.step.v1"
CHAIN_BROKEN = "MHS.EVIDENCE.CHAIN_BROKEN"
RECEIPT_INVALID = "MHS.EVIDENCE.RECEIPT_INVALID"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Lab, Session, list[Any]]]]:
    """For each binding a daemon with a receipt of every kind, its session, and the receipts as answered."""
    found = {}
    with ExitStack() as stack:
        for binding in ("stdio", "http"):
            lab = stack.enter_context(running(binding, tmp_path_factory.mktemp(binding), *UNHURRIED))
            session = lab.open()
            found[binding] = (lab, session, record(session))
        yield found


def record(session: Session) -> list[Any]:
    """One receipt of every terminal kind, and an interim one."""
    receipts = [session.completed(STEP, {"ticks": 1}), session.command(STEP, {"ticks": 0})]
    for kind in ("fail", "outcome_unknown", "busy", "hang"):
        receipts.append(session.completed("x-cap.sim.fault.v1", {"kind": kind, "times": 1}))
        if kind != "hang":
            receipts.append(session.command(STEP, {"ticks": 1}))
    interim = session.command(STEP, {"ticks": 1}, deadline_ms=1000)
    receipts += [interim, session.cancel(interim["operation_id"])]
    session.command(STEP, {"ticks": 1}, command_id=receipts[0]["command_id"])  # A replay adds nothing.
    receipts.append(session.completed("cap.device.describe.v1", {}))
    return receipts


@pytest.fixture
def lab(binding: str, recorded: dict[str, tuple[Lab, Session, list[Any]]]) -> Lab:
    return recorded[binding][0]


@pytest.fixture
def bundle(lab: Lab) -> Any:
    """The whole chain in one bundle."""
    bundle = lab.call("mhs.evidence.export")
    assert bundle["truncation"] is None
    return bundle


def verify(lab: Lab, bundle: Any) -> Any:
    return lab.call("mhs.evidence.verify", bundle=bundle)


# mhs.evidence.export


def test_the_chain_recomputes_from_its_genesis_to_its_head(bundle: Any) -> None:
    """[EVID-001, PROTO-012]"""
    info = bundle["endpoint_info"]
    assert info["genesis"].keys() == {"endpoint_id", "created_at", "mhs_version"}
    assert (info["endpoint_id"], info["mhs_version"]) == ("mhs://localhost:7400", "1.0")
    assert info["genesis_digest"] == digest(info["genesis"])
    assert check_chain(bundle["receipts"], info["genesis_digest"]) == bundle["head_digest"]
    assert bundle["head_digest"] == bundle["receipts"][-1]["evidence"]["digest"]


def test_every_kind_of_receipt_is_in_the_chain_as_it_was_answered(
    binding: str, recorded: dict[str, tuple[Lab, Session, list[Any]]], bundle: Any
) -> None:
    """[EVID-001, PROTO-029, OP-001, OP-002]"""
    answered = recorded[binding][2]
    assert bundle["receipts"] == answered
    statuses = [receipt["status"] for receipt in answered]
    assert set(statuses) == {"completed", "rejected", "failed", "unknown", "cancelled"}
    assert all(receipt["replayed"] is False for receipt in bundle["receipts"])
    receipt_ids = [receipt["receipt_id"] for receipt in bundle["receipts"]]
    assert len(set(receipt_ids)) == len(receipt_ids)


def test_export_needs_no_session(lab: Lab) -> None:
    """[EVID-002]"""
    assert lab.call("mhs.evidence.export")["receipts"]


def test_no_device_has_telemetry_and_nothing_is_signed_yet(lab: Lab) -> None:
    """[EVID-001]"""
    bundle = lab.call("mhs.evidence.export", include_telemetry=True)
    assert (bundle["telemetry"], bundle["signature"]) == ([], None)


def test_an_export_goes_on_after_the_receipt_that_is_named(lab: Lab, bundle: Any) -> None:
    """[EVID-001]"""
    for index, receipt in enumerate(bundle["receipts"]):
        rest = lab.call("mhs.evidence.export", since_receipt=receipt["receipt_id"])
        assert rest["receipts"] == bundle["receipts"][index + 1 :]
        assert rest["head_digest"] in (bundle["head_digest"], rest["endpoint_info"]["genesis_digest"])
        assert verify(lab, rest)["valid"] is True


@pytest.mark.parametrize("since", [ulid(), "x", ""])
def test_an_export_after_an_unknown_receipt_is_refused(lab: Lab, since: str) -> None:
    """[EVID-001]"""
    refused = lab.refused("mhs.evidence.export", since_receipt=since)
    assert (refused.code, refused.details["field"]) == ("MHS.PROTOCOL.INVALID_PARAMS", "since_receipt")


@pytest.mark.parametrize("device_id", [CONVEYOR + "x", "conveyor", "a b"])
def test_an_export_of_an_unknown_device_is_refused(lab: Lab, device_id: str) -> None:
    """[EVID-001]"""
    assert lab.refused("mhs.evidence.export", device_id=device_id).code == "MHS.DEVICE.UNKNOWN"


@pytest.mark.parametrize("session_id", ["x", "mhs_s_", "mhs_s_a b", CONVEYOR])
def test_an_export_of_what_is_no_session_is_refused(lab: Lab, session_id: str) -> None:
    """[EVID-001]"""
    refused = lab.refused("mhs.evidence.export", session_id=session_id)
    assert (refused.code, refused.details["field"]) == ("MHS.PROTOCOL.INVALID_PARAMS", "session_id")


def test_pages_join_to_the_whole_chain(limited: Lab) -> None:
    """[EVID-001, PROTO-043]"""
    size = LIMITS["max_export_receipts"]
    session = limited.open(ttl_s=60)
    receipts = [session.completed(STEP, {"ticks": 1}) for _ in range(2 * size + 1)]
    session.close()
    pages = [limited.call("mhs.evidence.export")]
    while pages[-1]["truncation"] is not None:
        truncation = pages[-1]["truncation"]
        assert truncation["reason"] == "page_limit"
        assert truncation["next_since_receipt"] == pages[-1]["receipts"][-1]["receipt_id"]
        pages.append(limited.call("mhs.evidence.export", since_receipt=truncation["next_since_receipt"]))
    sizes = [len(page["receipts"]) for page in pages]
    assert set(sizes[:-1]) == {size}
    left = sum(sizes)
    for page in pages:
        left -= len(page["receipts"])
        assert (page["truncation"] or {"remaining": 0})["remaining"] == left
    assert [receipt for page in pages for receipt in page["receipts"]][-len(receipts) :] == receipts
    digest_so_far, seq = pages[0]["endpoint_info"]["genesis_digest"], 1
    for page in pages:
        digest_so_far = check_chain(page["receipts"], digest_so_far, first_seq=seq)
        assert page["head_digest"] == digest_so_far
        report = verify(limited, page)
        assert (report["valid"], report["from_seq"], report["contiguous"]) == (True, seq, True)
        seq += len(page["receipts"])


def test_an_empty_chain_ends_at_its_genesis(fresh: Start) -> None:
    """[EVID-001, EVID-003]"""
    lab = fresh("--endpoint-id", "mhs://elsewhere:7400")
    bundle = lab.call("mhs.evidence.export")
    assert bundle["receipts"] == []
    assert bundle["head_digest"] == bundle["endpoint_info"]["genesis_digest"]
    report = verify(lab, bundle)
    assert (report["valid"], report["checked"]) == (True, 0)


def test_a_filter_marks_the_bundle_and_verify_says_that_it_has_holes(pair: Lab) -> None:
    """[EVID-001, EVID-003]"""
    conveyor, bench = pair.open(), pair.open(device_id=BENCH)
    for _ in range(2):
        conveyor.completed(STEP, {"ticks": 1})
        bench.completed("x-cap.test.identify.v1", {})
    for selection in ({"device_id": BENCH}, {"session_id": conveyor.id}):
        bundle = pair.call("mhs.evidence.export", **selection)
        assert bundle["selection"] == selection
        assert len(bundle["receipts"]) >= 2
        for receipt in bundle["receipts"]:
            assert all(receipt[name] == value for name, value in selection.items())
            assert receipt["evidence"]["digest"] == link(receipt, receipt["evidence"]["prev_digest"])
        report = verify(pair, bundle)
        assert (report["valid"], report["contiguous"], report["errors"]) == (True, False, [])

        bundle["receipts"][0]["status"] = "failed"
        report = verify(pair, bundle)
        assert report["valid"] is False
        assert report["errors"][0]["seq"] == bundle["receipts"][0]["evidence"]["seq"]
    for session in (conveyor, bench):
        session.close()


# mhs.evidence.verify


def test_an_unaltered_bundle_is_valid(lab: Lab, bundle: Any) -> None:
    """[EVID-003, EVID-004]"""
    assert verify(lab, bundle) == {
        "valid": True,
        "checked": len(bundle["receipts"]),
        "head_digest": bundle["head_digest"],
        "errors": [],
        "from_seq": 1,
        "contiguous": True,
        "signature": {
            "state": "none",
            "detail": "there is no signature",
            "seq": None,
            "public_key": None,
            "unsigned_receipts": len(bundle["receipts"]),
            "checkpoint": "none",
        },
    }


def test_any_endpoint_verifies_any_bundle(bundle: Any, pair: Lab) -> None:
    """[EVID-003]"""
    assert verify(pair, bundle)["valid"] is True


def test_a_receipt_that_was_answered_as_a_replay_verifies(lab: Lab, bundle: Any) -> None:
    """[EVID-003, OP-003]"""
    bundle["receipts"][0]["replayed"] = True
    assert verify(lab, bundle)["valid"] is True


def body(bundle: Any) -> None:
    bundle["receipts"][2]["accepted_at"] = "2020-01-01T00:00:00.000Z"


def output(bundle: Any) -> None:
    bundle["receipts"][0]["output"]["tick"] += 1


def missing(bundle: Any) -> None:
    del bundle["receipts"][2]


def swapped(bundle: Any) -> None:
    bundle["receipts"][2], bundle["receipts"][3] = bundle["receipts"][3], bundle["receipts"][2]


def twice(bundle: Any) -> None:
    bundle["receipts"].insert(2, copy.deepcopy(bundle["receipts"][2]))


def number(bundle: Any) -> None:
    bundle["receipts"][2]["evidence"]["seq"] += 100


def prev_digest(bundle: Any) -> None:
    bundle["receipts"][2]["evidence"]["prev_digest"] = "sha256:" + "0" * 64


def own_digest(bundle: Any) -> None:
    bundle["receipts"][2]["evidence"]["digest"] = "sha256:" + "0" * 64


def head(bundle: Any) -> None:
    bundle["head_digest"] = "sha256:" + "0" * 64


def cut_end(bundle: Any) -> None:
    del bundle["receipts"][-1]


def genesis(bundle: Any) -> None:
    bundle["endpoint_info"]["genesis"]["created_at"] = "2020-01-01T00:00:00.000Z"


def added(bundle: Any) -> None:
    """A link that was forged well, but whose body says something else than its digest."""
    last = bundle["receipts"][-1]
    forged = {**last, "receipt_id": ulid(), "evidence": {**last["evidence"]}}
    forged["evidence"] |= {
        "seq": last["evidence"]["seq"] + 1,
        "prev_digest": last["evidence"]["digest"],
        "digest": link(last, last["evidence"]["digest"]),
    }
    bundle["receipts"].append(forged)
    bundle["head_digest"] = forged["evidence"]["digest"]


ALTERATIONS = [
    body,
    output,
    missing,
    swapped,
    twice,
    number,
    prev_digest,
    own_digest,
    head,
    cut_end,
    genesis,
    added,
]


@pytest.mark.parametrize("alter", ALTERATIONS, ids=lambda function: function.__name__)
def test_an_altered_bundle_is_a_broken_chain(lab: Lab, bundle: Any, alter: Any) -> None:
    """[EVID-003, PROTO-012]"""
    alter(bundle)
    report = verify(lab, bundle)
    assert report["valid"] is False
    assert {error["mhs_code"] for error in report["errors"]} == {CHAIN_BROKEN}


def test_the_report_names_the_receipt_that_was_altered(lab: Lab, bundle: Any) -> None:
    """[EVID-003]"""
    body(bundle)
    assert [error["seq"] for error in verify(lab, bundle)["errors"]] == [3]


def rechained(bundle: Any) -> Any:
    """The bundle with every link computed anew, as somebody would who cheats and knows how."""
    prev = bundle["endpoint_info"]["genesis_digest"]
    for receipt in bundle["receipts"]:
        receipt["evidence"]["prev_digest"] = prev
        prev = receipt["evidence"]["digest"] = link(receipt, prev)
    bundle["head_digest"] = prev
    return bundle


def test_a_receipt_that_violates_its_schema_is_told_apart_from_a_broken_chain(lab: Lab, bundle: Any) -> None:
    """[EVID-004]"""
    bundle["receipts"][1]["colour"] = "blue"
    report = verify(lab, rechained(bundle))
    assert report["valid"] is False
    assert [(error["seq"], error["mhs_code"]) for error in report["errors"]] == [(2, RECEIPT_INVALID)]
    assert "colour" in report["errors"][0]["detail"]


def test_both_kinds_of_failure_are_reported_for_one_receipt(lab: Lab, bundle: Any) -> None:
    """[EVID-003, EVID-004]"""
    bundle["receipts"][1]["colour"] = "blue"
    found = {(error["seq"], error["mhs_code"]) for error in verify(lab, bundle)["errors"]}
    assert found == {(2, RECEIPT_INVALID), (2, CHAIN_BROKEN)}


@pytest.mark.parametrize("bundle_", [{}, {"receipts": []}, {"receipts": [1, "x", None]}], ids=str)
def test_what_is_no_bundle_is_not_valid(lab: Lab, bundle_: Any) -> None:
    """[EVID-003]"""
    report = verify(lab, bundle_)
    assert report["valid"] is False
    assert report["errors"]


def test_a_reference_to_a_bundle_that_is_not_kept_is_refused(lab: Lab) -> None:
    """[EVID-003]"""
    refused = lab.refused("mhs.evidence.verify", bundle_ref="sha256:" + "0" * 64)
    assert (refused.code, refused.details["field"]) == ("MHS.PROTOCOL.INVALID_PARAMS", "bundle_ref")
    assert lab.refused("mhs.evidence.verify").code == "MHS.PROTOCOL.INVALID_PARAMS"


# Redaction.


def test_what_the_manifest_redacts_is_never_recorded_nor_answered(binding: str, tmp_path: Path) -> None:
    """[EVID-002, PROTO-042]"""
    options = ("--state-dir", str(tmp_path / "state"))
    with running(binding, tmp_path, *options, targets=(BENCH_TARGET,)) as lab:
        session = lab.open(device_id=BENCH)
        receipt = session.completed("x-cap.test.identify.v1", {})
        assert receipt["output"]["model"] == "bench"
        assert receipt["redacted_fields"] == ["/output/serial"]
        bundle = lab.call("mhs.evidence.export")
        assert bundle["receipts"] == [receipt]
        assert check_chain(bundle["receipts"], bundle["endpoint_info"]["genesis_digest"])
        assert "secret-4711" not in json.dumps([receipt, bundle])
        lab.kill()
        stored = b"".join(file.read_bytes() for file in (tmp_path / "state").iterdir() if file.is_file())
        assert b"secret-4711" not in stored
        assert b"secret-4711" not in (tmp_path / lab.stderr_file.name).read_bytes()


def test_the_conveyor_is_named_in_its_receipts(bundle: Any) -> None:
    """[PROTO-036]"""
    assert {receipt["device_id"] for receipt in bundle["receipts"]} == {CONVEYOR}
