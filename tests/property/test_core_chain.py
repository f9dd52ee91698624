"""Any chain is valid, any alteration of it is found, and the verifier without mhsd finds the same."""

import copy
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from mhsd.core.chain import genesis_digest, link, verify_bundle

BOUNDED = settings(max_examples=2 * settings().max_examples)
ROOT = Path(__file__).resolve().parents[2]
GENESIS = {"endpoint_id": "mhs://h", "created_at": "2026-10-20T07:45:00.000Z", "mhs_version": "1.0"}


def load_script() -> Any:
    """scripts/verify_evidence.py as a module; it is no part of the package."""
    spec = importlib.util.spec_from_file_location("verify_evidence", ROOT / "scripts" / "verify_evidence.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = load_script()

numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
bodies = st.dictionaries(text.filter(lambda name: name not in ("evidence", "replayed")), values, max_size=4)


def chain(contents: list[dict[str, Any]]) -> dict[str, Any]:
    prev_digest = genesis_digest(GENESIS)
    receipts = []
    for seq, content in enumerate(contents, 1):
        body = {**content, "replayed": False}
        _, digest = link(body, prev_digest)
        receipts.append({**body, "evidence": {"seq": seq, "prev_digest": prev_digest, "digest": digest}})
        prev_digest = digest
    info = {"endpoint_id": "mhs://h", "genesis": GENESIS, "genesis_digest": genesis_digest(GENESIS)}
    return {
        "bundle_version": "1.0.0",
        "endpoint_info": info,
        "receipts": receipts,
        "head_digest": prev_digest,
    }


def is_valid(bundle: Any) -> bool:
    """By the project's own check, of the chain alone; the script must say the same."""
    report = verify_bundle(bundle, lambda receipt: [])
    assert report["valid"] == (list(script.problems(bundle)) == [])
    return bool(report["valid"])


@BOUNDED
@given(values)
def test_the_script_writes_canonical_json_as_rfc8785_does(value: Any) -> None:
    assert script.jcs(value).encode() == rfc8785.dumps(value)


@BOUNDED
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_script_writes_every_number_as_ecmascript_does(value: float) -> None:
    assert script.number(value).encode() == rfc8785.dumps(value)


@pytest.mark.parametrize("value", [2**53, -(2**53), float("nan"), float("inf"), float("-inf")])
def test_the_script_refuses_numbers_without_canonical_form(value: float) -> None:
    with pytest.raises(ValueError, match=r"2\^53-1|canonical"):
        script.number(value)


@BOUNDED
@given(st.lists(bodies, max_size=5), st.data())
def test_every_chain_is_valid_also_from_its_middle_and_after_its_transport(
    contents: list[dict[str, Any]], data: st.DataObject
) -> None:
    bundle = json.loads(json.dumps(chain(contents)))
    assert is_valid(bundle)
    bundle["receipts"] = bundle["receipts"][data.draw(st.integers(0, max(0, len(contents) - 1))) :]
    assert is_valid(bundle)


@BOUNDED
@given(st.lists(bodies, min_size=1, max_size=5), st.data(), text, values)
def test_no_member_can_be_changed_added_or_removed(
    contents: list[dict[str, Any]], data: st.DataObject, name: str, value: Any
) -> None:
    bundle = chain(contents)
    receipt = data.draw(st.sampled_from(bundle["receipts"]))
    original = rfc8785.dumps(receipt)
    if data.draw(st.booleans()):
        del receipt[data.draw(st.sampled_from(sorted(receipt)))]
    else:
        receipt[data.draw(st.sampled_from([name, *sorted(receipt)]))] = value
    # `replayed` tells an answer from its repetition and is chained as false.
    unchanged = isinstance(receipt.get("replayed"), bool) and (
        rfc8785.dumps({**receipt, "replayed": False}) == original
    )
    assert is_valid(bundle) == unchanged


@BOUNDED
@given(st.lists(bodies, min_size=2, max_size=6), st.data())
def test_no_receipt_can_be_left_out_repeated_or_moved(
    contents: list[dict[str, Any]], data: st.DataObject
) -> None:
    bundle = chain(contents)
    receipts = bundle["receipts"]
    # A bundle may begin anywhere, so leaving out the first is no alteration.
    place = data.draw(st.integers(1, len(receipts) - 1))
    match data.draw(st.sampled_from(["left out", "repeated", "moved"])):
        case "left out":
            del receipts[place]
        case "repeated":
            receipts.insert(place, copy.deepcopy(receipts[place]))
        case _:
            receipts.insert(place - 1, receipts.pop(place))
    assert not is_valid(bundle)


@BOUNDED
@given(st.lists(bodies, min_size=1, max_size=6), st.data())
def test_any_choice_of_receipts_is_a_valid_selection_that_is_not_contiguous(
    contents: list[dict[str, Any]], data: st.DataObject
) -> None:
    bundle = chain(contents)
    chosen = data.draw(st.sets(st.sampled_from(range(len(contents))), min_size=1))
    bundle["receipts"] = [bundle["receipts"][index] for index in sorted(chosen)]
    bundle["head_digest"] = bundle["receipts"][-1]["evidence"]["digest"]
    bundle["selection"] = {"session_id": "mhs_s_1"}
    assert is_valid(bundle)
    assert verify_bundle(bundle, lambda receipt: [])["contiguous"] is False
