"""Signed evidence from end to end: the key in the descriptor, the bundle's signature, the operator's check."""

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.behaviour.conftest import UNHURRIED, Start
from tests.documents import link
from tests.lab import HttpWire, Lab, running

STEP = "cap.world.step.v1"
MHSCTL = Path(sys.executable).parent / "mhsctl"


def mhsctl(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(MHSCTL), *arguments], capture_output=True, text=True, check=False, timeout=120)


def canonical(value: Any) -> bytes:
    """Good for text and small integers, which is all that a signed head has."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def check_signature(bundle: Any) -> None:
    """As any third party would, from the schema's description alone."""
    signed, info = bundle["signature"], bundle["endpoint_info"]
    text = {name: signed[name] for name in ("seq", "digest", "signed_at")}
    text |= {name: info[name] for name in ("endpoint_id", "genesis_digest")}
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(signed["public_key"]))
    key.verify(base64.b64decode(signed["value"]), canonical({**text, "type": "mhs-signed-head"}))
    last = bundle["receipts"][-1]["evidence"]
    assert (signed["seq"], signed["digest"]) == (last["seq"], last["digest"])


def test_every_export_is_signed_with_the_key_of_the_state_directory(fresh: Start, tmp_path: Path) -> None:
    """[EVID-001, EVID-003]"""
    state = str(tmp_path / "state")
    lab = fresh("--state-dir", state, "--export-page", "3")
    session = lab.open()
    for _ in range(7):
        session.completed(STEP, {"ticks": 1})
    page = lab.call("mhs.evidence.export")
    assert len(page["receipts"]) == 3
    last = lab.call("mhs.evidence.export", since_receipt=session.completed(STEP, {"ticks": 1})["receipt_id"])
    assert (last["receipts"], last["signature"]) == ([], None)
    rest = lab.call("mhs.evidence.export", since_receipt=page["truncation"]["next_since_receipt"])
    rest = lab.call("mhs.evidence.export", since_receipt=rest["truncation"]["next_since_receipt"])
    check_signature(rest)
    report = lab.call("mhs.evidence.verify", bundle=rest)
    assert (report["valid"], report["from_seq"]) == (True, 7)
    assert (report["signature"]["state"], report["signature"]["unsigned_receipts"]) == ("valid", 0)
    rest["signature"]["value"] = base64.b64encode(bytes(64)).decode()
    report = lab.call("mhs.evidence.verify", bundle=rest)
    assert [error["mhs_code"] for error in report["errors"]] == ["MHS.EVIDENCE.SIGNATURE_INVALID"]
    key = rest["signature"]["public_key"]
    lab.kill()

    lab = fresh("--state-dir", state)
    bundle = lab.call("mhs.evidence.export")
    check_signature(bundle)
    assert bundle["signature"]["public_key"] == key
    assert (tmp_path / "state" / "signing-key.json").stat().st_mode & 0o777 == 0o600
    if isinstance(lab.wire, HttpWire):
        _, _, descriptor = lab.wire.get("/.well-known/mhs.json")
        assert json.loads(descriptor)["evidence"] == {"algorithm": "Ed25519", "public_key": key}


def test_without_a_state_directory_nothing_is_signed_and_no_key_is_shown(lab: Lab) -> None:
    assert lab.call("mhs.evidence.export")["signature"] is None
    if isinstance(lab.wire, HttpWire):
        _, _, descriptor = lab.wire.get("/.well-known/mhs.json")
        assert "evidence" not in json.loads(descriptor)


def test_an_operator_backs_up_while_the_endpoint_works_and_notices_a_chain_made_anew(tmp_path: Path) -> None:
    """[EVID-001, EVID-003]"""
    file = tmp_path / "backup.json"
    options = ("--state-dir", str(tmp_path / "state"), "--export-page", "10", *UNHURRIED)
    with running("http", tmp_path, *options) as lab:
        assert isinstance(lab.wire, HttpWire)
        _, _, descriptor = lab.wire.get("/.well-known/mhs.json")
        key = json.loads(descriptor)["evidence"]["public_key"]
        where = ("-e", lab.ready["url"])
        session = lab.open()
        known = [session.completed(STEP, {"ticks": 1}) for _ in range(35)]
        pending = [session.begin(STEP, {"ticks": 1}) for _ in range(60)]
        done = mhsctl("evidence", *where, "-o", str(file), "--verify", "--public-key", key, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        assert [each.result()["status"] for each in pending] == ["completed"] * 60
        said = json.loads(done.stdout)
        bundle = json.loads(file.read_text())
        assert bundle["receipts"][:35] == known
        assert len(bundle["receipts"]) == said["receipts"]
        assert bundle["truncation"] is None
        check_signature(bundle)
        done = mhsctl("evidence", *where, "--verify")
        assert f"signed through receipt 95 by {key}" in done.stdout
    assert mhsctl("evidence", "--file", str(file), "--public-key", key).returncode == 0
    prev = bundle["endpoint_info"]["genesis_digest"]
    bundle["receipts"][3]["output"]["tick"] = 77
    for receipt in bundle["receipts"]:
        own = link(receipt, prev)
        receipt["evidence"] |= {"prev_digest": prev, "digest": own}
        prev = own
    bundle["head_digest"] = prev
    for signature in (bundle["signature"], None):
        file.write_text(json.dumps({**bundle, "signature": signature}))
        done = mhsctl("evidence", "--file", str(file), "--public-key", key)
        assert done.returncode == 1
        assert "MHS.EVIDENCE.SIGNATURE_INVALID" in done.stdout
        assert "CHAIN_BROKEN" not in done.stdout


def test_a_start_does_not_wait_for_the_library_that_signs(tmp_path: Path) -> None:
    """It is loaded for the first signature; only the start that makes the key needs it at once."""

    def loaded(lab: Lab) -> bool:
        return "cryptography" in Path(f"/proc/{lab.process.pid}/maps").read_text()

    options = ("--state-dir", str(tmp_path / "state"))
    with running("http", tmp_path, *options) as lab:
        assert loaded(lab)
    with running("http", tmp_path, *options) as lab:
        assert not loaded(lab)
        lab.open().completed(STEP, {"ticks": 1})
        assert lab.call("mhs.evidence.export")["signature"] is not None
        assert loaded(lab)
