"""Whatever a driver returns, raises or reports, the receipt that comes of it fits the schema and overstates nothing."""

from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from mhsd.base.errors import ERRORS, Fault
from mhsd.core import receipts
from mhsd.core.operations import (
    EndingKind,
    Failed,
    Interrupted,
    Lost,
    Native,
    Returned,
    conclude,
)
from mhsd.core.receipts import Change
from mhsd.wire.canonical import stays_canonical
from tests.unit.core_builders import (
    ENDPOINT,
    EVIDENCE,
    JUDGE,
    LATER,
    MOVE,
    RECEIPT,
    ZEROS,
    attempt,
    capability,
    ending,
    operation,
)

OUTPUT = capability().output
SHARED = receipts.command_members(attempt(), ENDPOINT, "simulated")

TEXTS = st.text(st.characters(), max_size=8) | st.just("long" * 2000)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OUTPUTS = ANYTHING | st.fixed_dictionaries({"position_mm": ANYTHING})
EFFECTS = st.none() | st.lists(
    st.just(MOVE) | st.just({**MOVE, "severity": "R9"}) | ANYTHING, max_size=2
).map(tuple)
DETAILS = st.none() | st.dictionaries(TEXTS, ANYTHING, max_size=2)
FAULTS = st.builds(
    lambda code, message, details: Fault(code, message, details=details, retryable=False),
    st.sampled_from(sorted(ERRORS)),
    TEXTS,
    DETAILS,
)
LOST = st.builds(
    lambda message, details: Fault("MHS.OUTCOME.UNKNOWN", message, details=details), TEXTS, DETAILS
)
NATIVES = (
    st.builds(Returned, OUTPUTS, EFFECTS)
    | st.builds(Failed, FAULTS)
    | st.builds(Lost, LOST)
    | st.just(Interrupted())
)
KINDS = st.none() | st.sampled_from(get_args(EndingKind))
CHANGES = st.sampled_from([Change(4, 4, ZEROS), Change(4, 5, ZEROS), Change(4, 5, None)])
REPORTS = st.lists(st.tuples(ANYTHING, ANYTHING, ANYTHING), max_size=6)


def fits(body: dict[str, Any]) -> bool:
    return stays_canonical(body) and JUDGE.is_valid({**body, "evidence": EVIDENCE})


@given(NATIVES, KINDS, st.booleans(), CHANGES, REPORTS)
def test_every_end_of_an_execution_makes_a_receipt_that_the_chain_can_keep(
    native: Native, kind: Any, safe: bool, change: Change, reports: list[tuple[Any, Any, Any]]
) -> None:
    if isinstance(native, Interrupted) and kind is None:
        return
    run = operation(ending=ending(kind) if kind is not None else None)
    for report in reports:
        run.report(*report)
    conclusion = conclude(native, run.ending, safe, OUTPUT)
    body = receipts.final(SHARED, run, conclusion, change, (MOVE,), LATER)
    assert fits(body)
    if body["status"] == "completed":
        assert isinstance(native, Returned)
        assert kind not in ("estop", "interlock")
        assert body["output"] == native.output
        assert body["effects"]
    if body["status"] == "cancelled":
        assert body["cancellation"]["safe_state_achieved"] is safe


@given(FAULTS, st.integers(0, 2**53 - 1))
def test_every_refusal_makes_a_receipt_that_the_chain_can_keep(fault: Fault, revision: int) -> None:
    body = receipts.rejected(SHARED, RECEIPT, fault, revision, LATER)
    assert fits(body)
    assert body["state_revision_after"] == body["state_revision_before"] == revision
    assert body["effects"] == []


@given(REPORTS)
def test_progress_never_falls_and_every_snapshot_fits_the_schema(reports: list[tuple[Any, Any, Any]]) -> None:
    run, percent, ticks = operation(), 0, 0
    for report in reports:
        run.report(*report)
        assert 0 <= percent <= run.progress["percent"] <= 100
        assert ticks <= run.progress.get("ticks", 0)
        percent, ticks = run.progress["percent"], run.progress.get("ticks", 0)
        snapshot = receipts.running(SHARED, run)
        assert stays_canonical(snapshot)
        assert JUDGE.is_valid(snapshot)


@given(st.lists(st.sampled_from(get_args(EndingKind)), min_size=1))
def test_the_first_ending_is_reported_unless_an_emergency_stop_is_among_them(kinds: list[EndingKind]) -> None:
    run = operation()
    for second, kind in enumerate(kinds):
        run.end(ending(kind), float(second))
    first = kinds.index("estop") if "estop" in kinds else 0
    assert run.ending is not None
    assert run.ending.kind == kinds[first]
    assert run.ending_mono_s == first
