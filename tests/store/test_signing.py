"""The signed heads of the chain: who can tell that it was made anew [MHSD-5, EVID-003]."""

import base64
import copy
import importlib.util
import json
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from mhsd.base.errors import StartError
from mhsd.base.resources import schema_document
from mhsd.config import Limits
from mhsd.core.chain import SIGNATURE_INVALID, link, verify_bundle
from mhsd.services import evidence
from mhsd.store import Store
from mhsd.store.heads import SIGN_EVERY
from mhsd.wire.params import EvidenceExportParams
from mhsd.wire.schema import compile_schema
from tests.store.store_builders import AT, final, intent, opened, put, rejected, run_commands

ROOT = Path(__file__).resolve().parents[2]
SERVER = {"name": "mhsd", "version": "0.1.0"}


def script() -> Any:
    spec = importlib.util.spec_from_file_location("verify_evidence", ROOT / "scripts" / "verify_evidence.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(tmp_path / "state") as store:
        await run_commands(store, range(1, 6))
        yield store


async def export(store: Store, **params: Any) -> Any:
    wanted = EvidenceExportParams(**params)
    bundle = json.loads(
        (await evidence.export(store, wanted, server=SERVER, created_at=AT, limits=Limits())).data
    )
    assert compile_schema(schema_document("evidence-bundle"), resolve=schema_document).errors(bundle) == []
    return bundle


def found(bundle: Any, public_key: str | None = None) -> tuple[str, list[str]]:
    """The state of the signature and the errors, on which both verifiers agree."""
    report = verify_bundle(bundle, public_key=public_key)
    module = script()
    wrong, _ = module.signature(bundle, public_key)
    problems = [*module.problems(bundle), *([wrong] if wrong else [])]
    assert report["valid"] is (problems == [])
    return report["signature"]["state"], [error["mhs_code"] for error in report["errors"]]


def made_anew(bundle: Any) -> Any:
    """The bundle with its first receipt altered and every digest after it computed again, as a forger would."""
    forged = copy.deepcopy(bundle)
    digest = forged["endpoint_info"]["genesis_digest"]
    forged["receipts"][0]["output"]["tick"] = 99
    for receipt in forged["receipts"]:
        body = {name: value for name, value in receipt.items() if name != "evidence"}
        _, own = link(body, digest)
        receipt["evidence"] |= {"prev_digest": digest, "digest": own}
        digest = own
    forged["head_digest"] = digest
    return forged


async def test_an_export_is_signed_through_its_last_receipt(store: Store) -> None:
    bundle = await export(store)
    signature = bundle["signature"]
    assert (signature["seq"], signature["digest"]) == store.head()
    assert signature["public_key"] == store.public_key
    assert found(bundle) == found(bundle, store.public_key) == ("valid", [])
    report = verify_bundle(bundle)
    assert report["signature"]["unsigned_receipts"] == 0
    assert (await export(store))["signature"] == signature, "nothing new is signed where nothing is new"


async def test_a_chain_that_was_made_anew_is_noticed(store: Store) -> None:
    """Every digest recomputes: only the signature tells. [EVID-003]"""
    forged = made_anew(await export(store))
    assert list(script().problems(forged)) == []
    assert found(forged) == ("invalid", [SIGNATURE_INVALID])


async def test_a_forger_who_leaves_the_signature_out_is_noticed_by_whoever_knows_the_key(
    store: Store,
) -> None:
    forged = made_anew(await export(store)) | {"signature": None}
    assert found(forged) == ("none", [])
    assert found(forged, store.public_key) == ("none", [SIGNATURE_INVALID])


async def test_a_forger_with_a_key_of_his_own_is_noticed_by_whoever_knows_the_key(
    store: Store, tmp_path: Path
) -> None:
    bundle = await export(store)
    async with opened(tmp_path / "forger") as other:
        await put(other, *(final(number, body=_other_body(number)) for number in range(1, 6)))
        forged = await export(other)
    assert found(forged) == ("valid", [])
    assert found(forged, store.public_key)[1] == [SIGNATURE_INVALID]
    assert found(bundle, other.public_key)[1] == [SIGNATURE_INVALID]


def _other_body(number: int) -> dict[str, Any]:
    return {**final(number).body, "output": {"tick": 99}}


async def test_receipts_behind_a_genuine_signature_are_noticed_by_whoever_knows_the_key(store: Store) -> None:
    bundle = await export(store)
    await put(store, final(6))
    longer = {**await export(store), "signature": bundle["signature"]}
    assert found(longer) == ("valid", [])
    assert verify_bundle(longer)["signature"]["unsigned_receipts"] == 1
    assert found(longer, store.public_key) == ("valid", [SIGNATURE_INVALID])


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("value", base64.b64encode(bytes(64)).decode()),
        ("value", "no base64"),
        ("public_key", base64.b64encode(bytes(32)).decode()),
        ("signed_at", "2027-01-01T00:00:00.000Z"),
        ("seq", 4),
        ("seq", 9),
        ("digest", "sha256:" + "0" * 64),
    ],
)
async def test_an_altered_signature_is_invalid(store: Store, member: str, value: Any) -> None:
    bundle = await export(store)
    bundle["signature"][member] = value
    report = verify_bundle(bundle)
    assert report["signature"]["state"] == "invalid"
    assert [error["mhs_code"] for error in report["errors"]] == [SIGNATURE_INVALID]


@pytest.mark.parametrize("signature", ["signed", {"algorithm": "RS256"}, {"algorithm": "Ed25519", "seq": -1}])
async def test_a_signature_of_another_form_is_said_to_be_unchecked(store: Store, signature: Any) -> None:
    bundle = {**await export(store), "signature": signature}
    report = verify_bundle(bundle)
    assert (report["valid"], report["signature"]["state"]) == (True, "unchecked")
    assert not verify_bundle(bundle, public_key=store.public_key)["valid"]


async def test_without_cryptography_a_signature_is_said_to_be_unchecked(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = await export(store)
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    report = verify_bundle(bundle)
    assert (report["valid"], report["signature"]["state"]) == (True, "unchecked")
    wrong, said = script().signature(bundle, None)
    assert wrong is None
    assert "not checked" in said
    assert not verify_bundle(bundle, public_key=store.public_key)["valid"]
    assert script().signature(bundle, store.public_key)[0] is not None


async def test_a_selection_is_not_signed_and_a_store_in_memory_signs_nothing(store: Store) -> None:
    assert (await export(store, device_id=final(1).device_id))["signature"] is None
    async with opened(None) as memory:
        await put(memory, final(1))
        assert memory.public_key is None
        assert (await export(memory))["signature"] is None


async def test_the_head_is_signed_under_load_in_quiet_and_at_the_end(tmp_path: Path) -> None:
    def signed() -> list[int]:
        with sqlite3.connect(tmp_path / "state" / "receipts.db") as db:
            seqs = [row[0] for row in db.execute("SELECT seq FROM signed_heads ORDER BY seq")]
        db.close()
        return seqs

    async with opened(tmp_path / "state") as store:
        await put(store, *(rejected(number) for number in range(1, 3 * SIGN_EVERY)))
        under_load = signed()
        assert under_load
        assert max(under_load) < 3 * SIGN_EVERY
        await put(store, rejected(3 * SIGN_EVERY))
        with trio.fail_after(30):
            while (head := store.page(3 * SIGN_EVERY - 1).head) is None or head.seq != 3 * SIGN_EVERY:
                await trio.lowlevel.checkpoint()
        await put(store, intent(1), final(1))
    assert signed()[-1] == 3 * SIGN_EVERY + 1
    assert len(signed()) < 10


async def test_the_key_is_private_stays_and_is_told_from_another(tmp_path: Path) -> None:
    file = tmp_path / "state" / "signing-key.json"
    async with opened(tmp_path / "state") as store:
        key = store.public_key
        assert file.stat().st_mode & 0o777 == 0o600
    async with opened(tmp_path / "state") as store:
        assert store.public_key == key
    file.unlink()
    async with opened(tmp_path / "state") as store:
        await put(store, final(1))
        assert store.public_key != key
        assert found(await export(store)) == ("valid", [])


@pytest.mark.parametrize(
    "text", ["", "{}", '{"algorithm": "Ed25519", "private_key": "AA==", "public_key": "AA=="}', "[]"]
)
async def test_a_key_that_is_none_is_a_start_error_in_one_line(tmp_path: Path, text: str) -> None:
    async with opened(tmp_path / "state"):
        pass
    (tmp_path / "state" / "signing-key.json").write_text(text)
    with pytest.raises(StartError, match=r"signing-key\.json is not a usable signing key") as caught:
        async with opened(tmp_path / "state"):
            pass
    assert "\n" not in caught.value.message
    (tmp_path / "state" / "signing-key.json").chmod(0o644)
    with pytest.raises(StartError, match="chmod 600"):
        async with opened(tmp_path / "state"):
            pass


async def test_two_keys_that_do_not_belong_together_cost_the_signature_and_no_receipt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "state" / "signing-key.json"
    async with opened(tmp_path / "state"):
        key = json.loads(file.read_text())
    file.write_text(json.dumps({**key, "public_key": base64.b64encode(bytes(32)).decode()}))
    async with opened(tmp_path / "state") as store:
        await put(store, *(final(number) for number in range(1, SIGN_EVERY + 10)))
        bundle = await export(store)
        assert (len(bundle["receipts"]), bundle["signature"]) == (SIGN_EVERY + 9, None)
        await put(store, final(1000))
        assert store.failure is None
    (message,) = [record.getMessage() for record in caplog.records if "nothing is signed" in record.message]
    assert "signing-key.json" in message
    assert "restore the key file" in message
