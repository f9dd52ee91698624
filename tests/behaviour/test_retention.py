"""Retention of a running endpoint: what is old goes, and the operator's check starts from the signed checkpoint."""

import base64
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.behaviour.conftest import UNHURRIED
from tests.lab import HttpWire, ask_until, running, stop

STEP = "cap.world.step.v1"
LONG_AGO = "2020-01-01T00:00:00.000Z"
MHSCTL = Path(sys.executable).parent / "mhsctl"


def date_back(state: Path) -> None:
    """Sign the newest head once more, as it would have been signed long ago."""
    key = json.loads((state / "signing-key.json").read_text())
    private = Ed25519PrivateKey.from_private_bytes(base64.b64decode(key["private_key"]))
    with sqlite3.connect(state / "receipts.db") as db:
        seq, digest = db.execute("SELECT seq, digest FROM signed_heads ORDER BY seq DESC LIMIT 1").fetchone()
        (genesis,) = db.execute("SELECT value FROM meta WHERE name = 'genesis'").fetchone()
        (first,) = db.execute("SELECT prev_digest FROM receipts WHERE seq = 1").fetchone()
        text = {
            "type": "mhs-signed-head",
            "endpoint_id": json.loads(genesis)["endpoint_id"],
            "genesis_digest": first,
            "seq": seq,
            "digest": digest,
            "signed_at": LONG_AGO,
        }
        value = private.sign(json.dumps(text, sort_keys=True, separators=(",", ":")).encode())
        db.execute("UPDATE signed_heads SET signed_at = ?, value = ? WHERE seq = ?", (LONG_AGO, value, seq))
    db.close()


def test_receipts_older_than_the_retention_go_and_the_chain_stays_checkable(tmp_path: Path) -> None:
    """[EVID-001, EVID-003, OP-001, OP-006]"""
    state = tmp_path / "state"
    options = ("--state-dir", str(state), "--retention-days", "1", *UNHURRIED)
    with running("http", tmp_path, *options) as lab:
        session = lab.open()
        old = [session.completed(STEP, {"ticks": 1}) for _ in range(5)]
        assert stop(lab.process) == 0
    date_back(state)
    with running("http", tmp_path, *options) as lab:
        assert isinstance(lab.wire, HttpWire)
        assert lab.hello()["limits"]["receipt_retention_days"] == 1
        session = lab.open()
        new = [session.completed(STEP, {"ticks": 1}) for _ in range(2)]
        bundle = ask_until(
            lambda: lab.call("mhs.evidence.export"), lambda bundle: "checkpoint" in bundle["endpoint_info"]
        )
        assert bundle["receipts"] == new
        checkpoint = bundle["endpoint_info"]["checkpoint"]
        assert (checkpoint["seq"], checkpoint["digest"]) == (5, old[-1]["evidence"]["digest"])
        report = lab.call("mhs.evidence.verify", bundle=bundle)
        assert (report["valid"], report["from_seq"]) == (True, 6)
        assert (report["signature"]["state"], report["signature"]["checkpoint"]) == ("valid", "valid")
        refused = lab.refused("mhs.evidence.export", since_receipt=old[0]["receipt_id"])
        assert refused.details["reason"] == "unknown_receipt"
        key = bundle["signature"]["public_key"]
        done = subprocess.run(
            [str(MHSCTL), "evidence", "-e", lab.ready["url"], "--verify", "--public-key", key],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0
        assert "begins at receipt 6 of the chain" in done.stdout
