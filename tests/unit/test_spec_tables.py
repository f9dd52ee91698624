"""The error and method tables are complete, and say what MHS-002 says."""

import re
from pathlib import Path

import pytest

from mhsd.base.errors import ERRORS
from mhsd.base.resources import ERROR_TABLE, METHODS

ROOT = Path(__file__).resolve().parents[2]
GROUPS = {
    "AUTH": -32001,
    "SESSION": -32002,
    "CAPABILITY": -32003,
    "RESOURCE": -32004,
    "OPERATION": -32005,
    "CONFLICT": -32006,
    "MODE": -32007,
    "OUTCOME": -32008,
    "DEVICE": -32009,
    "SAFETY": -32010,
    "LIMIT": -32011,
    "EVIDENCE": -32012,
    "TRANSPORT": -32013,
    "ADAPTER": -32014,
    "INTERNAL": -32603,
}
PROTOCOL = {
    "PARSE_ERROR": -32700,
    "INVALID_REQUEST": -32600,
    "VERSION_UNSUPPORTED": -32600,
    "BATCH_TOO_LARGE": -32600,
    "BATCH_NOT_ATOMIC": -32600,
    "METHOD_NOT_FOUND": -32601,
    "INVALID_PARAMS": -32602,
    "DEADLINE_INVALID": -32602,
}
RETRYABLE = {
    "MHS.DEVICE.BUSY",
    "MHS.SESSION.EXPIRED",
    "MHS.SESSION.UNKNOWN",
    "MHS.SESSION.CLOSED",
    "MHS.TRANSPORT.UNAVAILABLE",
    "MHS.SAFETY.INTERLOCK_OPEN",
    "MHS.SAFETY.ESTOP_LATCHED",
    "MHS.CONFLICT.REVISION",
}


def _is_sentence(text: str) -> bool:
    """One sentence for a person: it starts with a capital, ends with a period and has no other."""
    return bool(re.fullmatch(r"[A-Z].*[^.]\.", text)) and not re.search(r"[.!?] [A-Z]", text)


@pytest.mark.parametrize("mhs_code", ERRORS)
def test_an_error_row_is_complete(mhs_code: str) -> None:
    row = ERRORS[mhs_code]
    assert re.fullmatch(r"MHS\.[A-Z]+\.[A-Z_]+", mhs_code)
    group, name = mhs_code.split(".")[1:]
    assert row.json_rpc == (PROTOCOL[name] if group == "PROTOCOL" else GROUPS[group])
    assert _is_sentence(row.remediation)
    assert row.meaning.endswith(".")
    for reason, change in row.reasons.items():
        assert re.fullmatch(r"[a-z][a-z_]*", reason)
        assert change.remediation is None or _is_sentence(change.remediation)


def test_the_groups_of_the_table_are_the_known_ones() -> None:
    assert ERROR_TABLE["groups"] == GROUPS
    for row in ERROR_TABLE["codes"].values():
        assert set(row) <= {"json_rpc", "retryable", "meaning", "remediation", "reasons"}


def test_only_refusals_without_an_effect_are_retryable() -> None:
    limits = {code for code in ERRORS if code.startswith("MHS.LIMIT.")} - {"MHS.LIMIT.PAYLOAD_TOO_LARGE"}
    assert {code for code, row in ERRORS.items() if row.retryable} == RETRYABLE | limits
    assert ERRORS["MHS.OUTCOME.TIMEOUT"].reasons["deadline_exceeded_before_dispatch"].retryable is True


def test_every_code_that_the_program_names_has_a_row() -> None:
    unknown = {
        f"{path.relative_to(ROOT)}: {code}"
        for folder in ("mhsd", "drivers", "scripts", "spec")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".toml", ".json", ".md")
        for code in re.findall(r"\bMHS\.[A-Z]+\.[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8"))
        if code not in ERRORS
    }
    assert unknown == set()


FLAGS = """
    mhs.hello               M            - - -
    mhs.devices.list        M            - - -
    mhs.devices.get         M            - - -
    mhs.schema.get          M            - - -
    mhs.session.open        M            - - -
    mhs.session.heartbeat   S            - - -
    mhs.session.close       M            - - -
    mhs.resource.read       M            D - -
    mhs.resource.write      S            D I R
    mhs.command             M            D I R
    mhs.operations.get      M            D - R
    mhs.operations.list     S            - - -
    mhs.operations.cancel   M            D - R
    mhs.subscribe           M            D - -
    mhs.unsubscribe         M            - - -
    mhs.snapshot            S            D - -
    mhs.restore             S            D I R
    mhs.safety.status       M            D - -
    mhs.safety.estop        S (M CL3+)   - - R
    mhs.safety.reset        S (M CL3+)   D - R
    mhs.safety.permit       S (M gated)  - - -
    mhs.evidence.export     M            - - -
    mhs.evidence.verify     S            - - -
    mhs.conformance.report  S            - - -
    mhs.composition.run     O            D I R
    mhs.registry.search     none         - - -
"""
"""Flags of MHS-002 section 3: level, deadline_ms, idempotent by command_id, receipt."""


def test_the_26_methods_have_the_flags_of_the_protocol() -> None:
    table = [re.split(r" {2,}| (?=[-DIR](?: |$))", line.strip()) for line in FLAGS.strip().splitlines()]
    assert len(table) == 26
    assert [
        [row.name, row.level, *(letter if on else "-" for letter, on in zip("DIR", flags, strict=True))]
        for row in METHODS.values()
        for flags in [(row.deadline, row.idempotent, row.receipt)]
    ] == table


def test_every_mandatory_method_is_served() -> None:
    """[PROTO-016]"""
    assert not [row.name for row in METHODS.values() if row.level.startswith("M") and not row.served]


def test_a_notification_of_these_methods_is_dropped() -> None:
    assert {name for name, row in METHODS.items() if row.effectful} == {
        "mhs.command",
        "mhs.resource.write",
        "mhs.restore",
        "mhs.safety.reset",
        "mhs.safety.permit",
        "mhs.composition.run",
    }


def test_every_method_row_uses_the_known_words() -> None:
    assert {row.rate for row in METHODS.values()} == {"normal", "exempt", "status"}
    assert {row.role for row in METHODS.values()} == {"reader", "client", "operator"}
    assert {name for name, row in METHODS.items() if row.rate == "exempt"} == {
        "mhs.safety.estop",
        "mhs.operations.cancel",
        "mhs.session.heartbeat",
        "mhs.session.close",
    }
    assert all(row.result for row in METHODS.values())


def test_whoever_may_call_anything_may_stop_the_machine() -> None:
    assert METHODS["mhs.safety.estop"].role == "reader"
    assert METHODS["mhs.safety.status"].role == "reader"
