"""Which conformance reports may be shown, and what the one of a run that never was says."""

import copy
from typing import Any

import pytest

from mhsd.core.conformance import not_run, report_defects, report_digest, suite_tests

ENDPOINT = "mhs://localhost:7400"
DEVICE = f"{ENDPOINT}/lab/conveyor-workcell"
SERVER = {"name": "mhsd", "version": "0.1.0"}


@pytest.fixture
def report() -> dict[str, Any]:
    return copy.deepcopy(
        not_run(
            ENDPOINT,
            profile="core",
            server=SERVER,
            versions=("1.0", "0.9"),
            created_at="2026-10-20T07:45:00.000Z",
        )
    )


def sealed(report: dict[str, Any]) -> dict[str, Any]:
    return {**report, "digest": report_digest(report)}


def test_a_run_that_never_was_claims_nothing(report: dict[str, Any]) -> None:
    """[CORE-190]"""
    assert report_defects(report, {ENDPOINT}) == []
    assert report["level_achieved"] == "CL0"
    assert report["coverage"] == {
        "total": len(suite_tests()),
        "passed": 0,
        "failed": 0,
        "warned": 0,
        "skipped": len(suite_tests()),
    }
    assert {(test["verdict"], test["detail"]) for test in report["tests"]} == {("skip", "not_run")}
    assert {"not_certified", "self_issued"} <= set(report["disclaimers"])


def test_the_suite_has_a_test_for_each_requirement_that_can_be_observed() -> None:
    tests = suite_tests()
    assert len(set(tests)) == len(tests) > 150
    assert {
        "PROTO-001",
        "SESS-001",
        "OP-014",
        "EVT-010",
        "EVID-004",
        "SAFE-004",
        "TPT-008",
        "CORE-190",
    } <= set(tests)
    assert not [test for test in tests if test.startswith(("STG-", "MHSD-", "I"))]


@pytest.mark.parametrize("subject", [ENDPOINT, DEVICE])
def test_a_report_of_the_endpoint_or_of_a_device_is_shown(report: dict[str, Any], subject: str) -> None:
    report["subject"] = {"id": subject}
    assert report_defects(sealed(report), {ENDPOINT, DEVICE}) == []


@pytest.mark.parametrize(
    ("member", "value", "said"),
    [
        ("level_achieved", "CL4", "digest does not recompute"),
        ("subject", {"id": "mhs://elsewhere:7400"}, "neither this endpoint nor a device"),
        ("level_achieved", "CL9", "level_achieved"),
        ("tests", [{"id": "PROTO-001", "verdict": "not_run"}], "tests/0/verdict"),
        ("disclaimers", [], "disclaimers"),
    ],
)
def test_a_report_that_is_not_what_it_says_is_not_shown(
    report: dict[str, Any], member: str, value: Any, said: str
) -> None:
    """[CORE-190]"""
    altered = {**report, member: value}
    (defect,) = report_defects(altered if member == "level_achieved" else sealed(altered), {ENDPOINT, DEVICE})
    assert said in defect


def test_what_is_no_object_is_no_report() -> None:
    assert report_defects([], {ENDPOINT}) == ["it is no JSON object"]
