"""Whether what an endpoint says is well-formed, judged from the shipped schemas and tables alone.

Digests and the chain are computed here once more, with hashlib and rfc8785, as any third party would.
"""

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import rfc8785
from jsonschema import Draft7Validator
from referencing import Registry, Resource

SPEC = Path(__file__).parent.parent / "spec"

RESULTS = {
    "mhs.hello": "server-info",
    "mhs.devices.list": "device-list",
    "mhs.devices.get": "device",
    "mhs.schema.get": "schema-result",
    "mhs.session.open": "session-grant",
    "mhs.session.heartbeat": "session-extension",
    "mhs.session.close": "session-summary",
    "mhs.resource.read": "state-document",
    "mhs.resource.write": "receipt",
    "mhs.command": "receipt",
    "mhs.operations.get": "receipt",
    "mhs.operations.list": "operation-list",
    "mhs.operations.cancel": "receipt",
    "mhs.subscribe": "subscription-grant",
    "mhs.unsubscribe": "subscription-end",
    "mhs.snapshot": "snapshot",
    "mhs.restore": "receipt",
    "mhs.safety.status": "safety-status",
    "mhs.safety.estop": "receipt",
    "mhs.safety.reset": "receipt",
    "mhs.safety.permit": "permit",
    "mhs.evidence.export": "evidence-bundle",
    "mhs.evidence.verify": "verification-report",
    "mhs.conformance.report": "conformance-report",
}
"""The schema of each served method's result."""


@cache
def methods() -> dict[str, dict[str, Any]]:
    """The rows of spec/methods.toml."""
    rows: dict[str, dict[str, Any]] = tomllib.loads((SPEC / "methods.toml").read_text())["methods"]
    return rows


@cache
def error_numbers() -> dict[str, int]:
    """The JSON-RPC number of every code of spec/errors.toml."""
    table = tomllib.loads((SPEC / "errors.toml").read_text())
    return {
        code: row.get("json_rpc", table["groups"].get(code.split(".")[1]))
        for code, row in table["codes"].items()
    }


@cache
def schema_names() -> tuple[str, ...]:
    return tuple(sorted(file.name for file in (SPEC / "schemas").glob("*.json")))


@cache
def schema(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((SPEC / "schemas" / name).read_text())
    return document


@cache
def _validator(name: str) -> Draft7Validator:
    shipped = [(schema(each)["$id"], Resource.from_contents(schema(each))) for each in schema_names()]
    registry = Registry().with_resources(shipped).crawl()
    return Draft7Validator(schema(f"{name}.schema.json"), registry=registry)


def check(name: str, document: Any) -> None:
    """Fail with every violation of the shipped schema `name`."""
    problems = [f"{each.json_path}: {each.message[:200]}" for each in _validator(name).iter_errors(document)]
    assert not problems, f"not a valid {name}: {problems}"


def check_result(method: str, result: Any) -> None:
    """The result of a served method against its schema; other methods have none."""
    name = RESULTS.get(method)
    if name == "receipt":
        check_receipt(result)
    elif name is not None:
        check(name, result)


def check_error(error: Mapping[str, Any]) -> None:
    """A JSON-RPC error object of this protocol [PROTO-040, PROTO-041]."""
    assert set(error) == {"code", "message", "data"}, error
    check("error", error["data"])
    assert error["code"] == error_numbers()[error["data"]["mhs_code"]], error


def check_receipt(receipt: Mapping[str, Any]) -> None:
    """The receipt schema, and that the error in it is a JSON-RPC error too."""
    check("receipt", receipt)
    if "error" in receipt:
        error = receipt["error"]
        check_error({name: error[name] for name in ("code", "message", "data")})
        repeated = {name: value for name, value in error.items() if name not in ("code", "message", "data")}
        assert repeated == error["data"], error


def digest(value: Any) -> str:
    """sha256 over the RFC 8785 bytes of `value`."""
    return "sha256:" + hashlib.sha256(rfc8785.dumps(value)).hexdigest()


def input_digest(capability_id: str, resource: str | None, value: Any) -> str:
    return digest({"capability_id": capability_id, "resource": resource, "input": value})


def link(receipt: Mapping[str, Any], prev_digest: str) -> str:
    """The digest of a receipt in its chain: over its canonical bytes and the previous digest's text."""
    body = {name: value for name, value in receipt.items() if name != "evidence"} | {"replayed": False}
    return "sha256:" + hashlib.sha256(rfc8785.dumps(body) + prev_digest.encode()).hexdigest()


def check_chain(receipts: Iterable[Mapping[str, Any]], prev_digest: str, *, first_seq: int = 1) -> str:
    """Recompute every link from `prev_digest` on; the digest of the last one."""
    for seq, receipt in enumerate(receipts, first_seq):
        evidence = receipt["evidence"]
        assert evidence["seq"] == seq
        assert evidence["prev_digest"] == prev_digest
        assert evidence["digest"] == link(receipt, prev_digest), f"receipt {seq} does not hash to its digest"
        prev_digest = evidence["digest"]
    return prev_digest
