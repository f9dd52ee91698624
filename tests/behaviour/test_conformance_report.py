"""`mhs.conformance.report`: the stored report, or an honest one of a run that never was [CORE-190]."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import Start
from tests.documents import digest
from tests.lab import CONVEYOR, Lab

ENDPOINT = "mhs://localhost:7400"


def sealed(report: dict[str, Any]) -> dict[str, Any]:
    body = {name: value for name, value in report.items() if name != "digest"}
    return {**body, "digest": digest(body)}


def test_an_endpoint_that_was_not_tested_says_so(lab: Lab) -> None:
    """[CORE-190, PROTO-019]"""
    report = lab.call("mhs.conformance.report")
    assert report == sealed(report)
    assert report["subject"]["id"] == ENDPOINT
    assert report["mhs_version"] == "1.0"
    assert report["level_achieved"] == "CL0"
    assert report["coverage"]["passed"] == report["coverage"]["failed"] == 0
    assert report["coverage"]["skipped"] == report["coverage"]["total"] == len(report["tests"])
    assert {(test["verdict"], test["detail"]) for test in report["tests"]} == {("skip", "not_run")}
    assert report["disclaimers"] == ["not_certified", "self_issued"]
    asked = lab.call("mhs.conformance.report", profile="bench", level="CL4")
    assert (asked["profile"], asked["level_achieved"]) == ("bench", "CL0")
    assert lab.hello()["conformance"] == []


@pytest.mark.parametrize(
    ("member", "value"), [("level", "CL5"), ("level", 4), ("profile", ""), ("session_id", "mhs_s_x")]
)
def test_a_parameter_that_is_none_of_them_is_refused(lab: Lab, member: str, value: Any) -> None:
    """[PROTO-042]"""
    refused = lab.refused("mhs.conformance.report", **{member: value})
    assert refused.code == "MHS.PROTOCOL.INVALID_PARAMS"
    assert refused.details["field"] == member


def test_a_stored_report_is_shown_verbatim_until_it_is_altered(fresh: Start, tmp_path: Path) -> None:
    """It survives a restart; one that does not recompute, or speaks of another endpoint, is not shown. [CORE-190]"""
    file = tmp_path / "state" / "conformance-report.json"
    lab = fresh("--state-dir", str(tmp_path / "state"))
    report = lab.call("mhs.conformance.report")
    report |= {"subject": {"id": CONVEYOR}, "level_achieved": "CL1", "capping": ["OP-001"]}
    report["tests"][0] = {"id": "PROTO-001", "verdict": "pass"}
    stored = sealed(report)
    file.write_text(json.dumps(stored, indent=2))
    assert lab.call("mhs.conformance.report", profile="another") == stored
    lab.kill()

    lab = fresh("--state-dir", str(tmp_path / "state"))
    assert lab.call("mhs.conformance.report") == stored
    for altered in (
        {**stored, "level_achieved": "CL4"},
        sealed({**stored, "subject": {"id": "mhs://elsewhere:7400"}}),
        sealed({**stored, "level_achieved": "CL9"}),
        [],
    ):
        file.write_text(json.dumps(altered))
        assert lab.call("mhs.conformance.report")["level_achieved"] == "CL0"
    file.write_text("{")
    assert lab.call("mhs.conformance.report")["level_achieved"] == "CL0"
    assert lab.stderr().count("conformance-report.json is not shown") == 5
