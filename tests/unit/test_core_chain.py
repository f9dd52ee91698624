"""The chain: what a digest covers, and which alterations of a bundle are found [EVID-003, EVID-004]."""

import copy
import hashlib
from typing import Any

import pytest
import rfc8785

from mhsd.core.chain import MOST_ERRORS, genesis_digest, link, receipt_errors, verify_bundle
from mhsd.wire.canonical import NotCanonical

ENDPOINT = "mhs://localhost:7400"
GENESIS = {"endpoint_id": ENDPOINT, "created_at": "2026-10-20T07:45:00.000Z", "mhs_version": "1.0"}
BROKEN, INVALID = "MHS.EVIDENCE.CHAIN_BROKEN", "MHS.EVIDENCE.RECEIPT_INVALID"


def sha256(*parts: bytes) -> str:
    return "sha256:" + hashlib.sha256(b"".join(parts)).hexdigest()


def a_body(number: int, **members: Any) -> dict[str, Any]:
    return {
        "receipt_id": f"01J8ZQ3W1B7M2N4P6R8S0{number:05d}",
        "command_id": f"01J8ZQ3V6Y7M2N4P6R8S0{number:05d}",
        "session_id": "mhs_s_01J8ZQ3V6Y",
        "endpoint_id": ENDPOINT,
        "device_id": f"{ENDPOINT}/lab/conveyor-workcell",
        "capability_id": "cap.world.step.v1",
        "input_digest": "sha256:" + 64 * "0",
        "status": "completed",
        "mode": "simulated",
        "accepted_at": "2026-10-20T07:46:58.900Z",
        "output": {"tick": number},
        "replayed": False,
        **members,
    }


def a_bundle(count: int, *, first: int = 1) -> dict[str, Any]:
    """Receipts `first` to `count` of a chain, made without the code under test."""
    prev_digest = sha256(rfc8785.dumps(GENESIS))
    receipts = []
    for seq in range(1, count + 1):
        body = a_body(seq)
        digest = sha256(rfc8785.dumps(body), prev_digest.encode())
        receipts.append({**body, "evidence": {"seq": seq, "prev_digest": prev_digest, "digest": digest}})
        prev_digest = digest
    return {
        "bundle_version": "1.0.0",
        "endpoint_info": {
            "endpoint_id": ENDPOINT,
            "mhs_version": "1.0",
            "server": {"name": "another", "version": "7"},
            "genesis": GENESIS,
            "genesis_digest": sha256(rfc8785.dumps(GENESIS)),
        },
        "created_at": "2026-10-20T07:50:00.000Z",
        "receipts": receipts[first - 1 :],
        "head_digest": prev_digest,
        "telemetry": [],
        "truncation": None,
        "signature": None,
    }


def findings(bundle: Any) -> list[tuple[int | None, str]]:
    report = verify_bundle(bundle)
    assert report["valid"] is (report["errors"] == [])
    return [(error["seq"], error["mhs_code"]) for error in report["errors"]]


def test_a_link_is_the_digest_of_the_canonical_receipt_and_the_digest_before_it() -> None:
    body = a_body(1)
    data, digest = link(body, "sha256:" + 64 * "a")
    assert data == rfc8785.dumps(body)
    assert digest == sha256(rfc8785.dumps(body), b"sha256:" + 64 * b"a")


def test_the_genesis_digest_is_that_of_its_record() -> None:
    assert genesis_digest(GENESIS) == sha256(rfc8785.dumps(GENESIS))


@pytest.mark.parametrize(
    "members", [{"evidence": {}}, {"replayed": True}, {"replayed": None}], ids=["evidence", "true", "null"]
)
def test_a_body_that_is_an_answer_and_no_chain_entry_is_not_linked(members: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="replayed false"):
        link(a_body(1, **members), "sha256:" + 64 * "0")


def test_a_body_without_canonical_form_is_not_linked() -> None:
    with pytest.raises(NotCanonical):
        link(a_body(1, output={"tick": 2**53}), "sha256:" + 64 * "0")


def test_a_bundle_made_by_another_program_is_valid() -> None:
    bundle = a_bundle(5)
    assert verify_bundle(bundle) == {
        "valid": True,
        "checked": 5,
        "head_digest": bundle["head_digest"],
        "errors": [],
        "from_seq": 1,
        "contiguous": True,
        "signature": {
            "state": "none",
            "detail": "there is no signature",
            "seq": None,
            "public_key": None,
            "unsigned_receipts": 5,
            "checkpoint": "none",
        },
    }


def test_a_bundle_that_starts_later_is_valid_and_says_from_where() -> None:
    report = verify_bundle(a_bundle(5, first=3))
    assert report["valid"]
    assert (report["checked"], report["from_seq"], report["contiguous"]) == (3, 3, True)


def test_an_empty_bundle_is_headed_by_the_genesis() -> None:
    bundle = a_bundle(0)
    report = verify_bundle(bundle)
    assert report["valid"]
    assert (report["checked"], report["from_seq"]) == (0, None)
    assert report["head_digest"] == bundle["endpoint_info"]["genesis_digest"]


def test_the_answer_to_a_repeated_command_is_the_receipt_that_was_chained() -> None:
    bundle = a_bundle(2)
    bundle["receipts"][1]["replayed"] = True
    assert findings(bundle) == []


def test_a_genesis_record_beside_the_digest_is_optional() -> None:
    bundle = a_bundle(2)
    del bundle["endpoint_info"]["genesis"]
    assert findings(bundle) == []


def test_every_alteration_of_one_receipt_is_one_error_at_its_place() -> None:
    for member in a_body(2):
        bundle = a_bundle(3)
        del bundle["receipts"][1][member]
        assert (2, BROKEN) in findings(bundle), member
        assert {seq for seq, _ in findings(bundle)} == {2}, member


def test_a_receipt_with_a_recomputed_digest_breaks_the_link_after_it() -> None:
    bundle = a_bundle(3)
    altered = bundle["receipts"][1]
    altered["output"] = {"tick": 99}
    body = {name: value for name, value in altered.items() if name != "evidence"}
    evidence = altered["evidence"]
    evidence["digest"] = sha256(rfc8785.dumps(body), evidence["prev_digest"].encode())
    assert findings(bundle) == [(3, BROKEN)]


def test_a_removed_receipt_is_found() -> None:
    bundle = a_bundle(4)
    del bundle["receipts"][1]
    assert findings(bundle) == [(3, BROKEN)]
    assert verify_bundle(bundle)["contiguous"] is False


def test_receipts_in_another_order_are_found() -> None:
    bundle = a_bundle(4)
    bundle["receipts"][1:3] = reversed(bundle["receipts"][1:3])
    assert (3, BROKEN) in findings(bundle)
    assert (2, BROKEN) in findings(bundle)


def test_a_cut_end_is_found_by_the_head() -> None:
    bundle = a_bundle(4)
    del bundle["receipts"][-1]
    assert findings(bundle) == [(3, BROKEN)]


def test_a_chain_on_another_genesis_is_found() -> None:
    bundle = a_bundle(2)
    bundle["endpoint_info"]["genesis"] = {**GENESIS, "created_at": "2026-10-20T07:45:00.001Z"}
    assert findings(bundle) == [(None, BROKEN)]
    bundle["endpoint_info"]["genesis_digest"] = genesis_digest(bundle["endpoint_info"]["genesis"])
    assert findings(bundle) == [(1, BROKEN)]


def test_an_endpoint_that_is_not_that_of_the_genesis_is_found() -> None:
    bundle = a_bundle(1)
    bundle["endpoint_info"]["endpoint_id"] = "mhs://elsewhere:7400"
    assert findings(bundle) == [(None, BROKEN)]


def test_a_number_without_canonical_form_is_a_broken_receipt_and_no_crash() -> None:
    bundle = a_bundle(3)
    bundle["receipts"][1]["output"] = {"tick": 2**53}
    assert (2, BROKEN) in findings(bundle)


def a_selection() -> dict[str, Any]:
    bundle = a_bundle(7)
    bundle["receipts"] = [bundle["receipts"][index] for index in (0, 2, 3, 6)]
    bundle["selection"] = {"session_id": "mhs_s_01J8ZQ3V6Y"}
    return bundle


def test_a_selection_with_holes_is_valid_and_not_contiguous() -> None:
    report = verify_bundle(a_selection())
    assert report["valid"]
    assert report["contiguous"] is False
    assert report["checked"] == 4


def test_an_altered_receipt_in_a_selection_is_found() -> None:
    bundle = a_selection()
    bundle["receipts"][3]["output"] = {"tick": 99}
    assert findings(bundle) == [(7, BROKEN)]


def test_a_selection_in_another_order_is_found() -> None:
    bundle = a_selection()
    bundle["receipts"][1:3] = reversed(bundle["receipts"][1:3])
    assert findings(bundle) == [(3, BROKEN)]


def test_neighbours_in_a_selection_must_still_be_linked() -> None:
    bundle = a_selection()
    bundle["receipts"][2]["evidence"]["prev_digest"] = "sha256:" + 64 * "0"
    assert set(findings(bundle)) == {(4, BROKEN)}


def test_holes_without_the_mark_of_a_selection_are_broken() -> None:
    bundle = a_selection()
    del bundle["selection"]
    assert findings(bundle) == [(3, BROKEN), (7, BROKEN)]


def test_a_receipt_against_its_schema_is_reported_apart_from_the_chain() -> None:
    prev_digest = genesis_digest(GENESIS)
    body = a_body(1, status="finished")
    _, digest = link(body, prev_digest)
    bundle = a_bundle(0)
    bundle["receipts"] = [{**body, "evidence": {"seq": 1, "prev_digest": prev_digest, "digest": digest}}]
    bundle["head_digest"] = digest
    report = verify_bundle(bundle)
    assert [(error["seq"], error["mhs_code"]) for error in report["errors"]] == [(1, INVALID)]
    assert "/status" in report["errors"][0]["detail"]
    assert report["valid"] is False
    assert report["contiguous"] is True


def test_the_schema_of_receipts_is_the_shipped_one() -> None:
    assert receipt_errors(a_body(1)) == []
    assert receipt_errors({**a_body(1), "made_up": 1}) != []


@pytest.mark.parametrize("bundle", [None, 7, "bundle", [], [{}]])
def test_what_is_no_object_is_a_report_and_no_exception(bundle: Any) -> None:
    report = verify_bundle(bundle)
    assert report["valid"] is False
    assert [error["mhs_code"] for error in report["errors"]] == [INVALID]
    assert (report["checked"], report["head_digest"], report["from_seq"]) == (0, None, None)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("bundle_version",), "2.0.0"),
        (("receipts",), {"0": {}}),
        (("endpoint_info",), None),
        (("endpoint_info", "genesis"), [1]),
        (("endpoint_info", "genesis_digest"), "md5:1"),
        (("endpoint_info", "genesis_digest"), 5),
        (("head_digest",), None),
        (("receipts", 1), "receipt"),
        (("receipts", 1, "evidence"), {"pending": True}),
        (("receipts", 1, "evidence", "seq"), "2"),
        (("receipts", 1, "evidence", "seq"), True),
        (("receipts", 1, "evidence", "seq"), 10**400),
        (("receipts", 1, "evidence", "seq"), 2.5),
        (("receipts", 1, "evidence", "digest"), "sha256:" + 64 * "G"),
        (("receipts", 1, "evidence", "prev_digest"), ["sha256"]),
    ],
)
def test_a_malformed_bundle_is_not_valid_and_never_an_exception(path: tuple[Any, ...], value: Any) -> None:
    bundle = a_bundle(3)
    place: Any = bundle
    for step in path[:-1]:
        place = place[step]
    if path[-1] == "genesis":
        place["genesis"] = value
    else:
        place[path[-1]] = value
    assert findings(bundle) != []


def test_a_whole_number_written_as_a_float_is_the_same_seq() -> None:
    bundle = a_bundle(3)
    bundle["receipts"][1]["evidence"]["seq"] = 2.0
    assert findings(bundle) == []


def test_a_report_lists_a_bounded_number_of_errors_and_counts_the_rest() -> None:
    bundle = a_bundle(1)
    bundle["receipts"] = [copy.deepcopy(bundle["receipts"][0]) for _ in range(MOST_ERRORS + 10)]
    report = verify_bundle(bundle)
    assert len(report["errors"]) == MOST_ERRORS + 1
    assert report["errors"][-1]["detail"] == "9 further errors are not listed"
    assert report["checked"] == MOST_ERRORS + 10
