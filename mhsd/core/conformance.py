"""Conformance reports: what a stored one must fulfil to be shown, and what is said where there is none [CORE-190].

Decides what a report may claim. Who runs the tests, and where a report lies, is for others.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from mhsd.base.resources import read_toml, schema_document, spec_file
from mhsd.wire.canonical import NotCanonical, digest
from mhsd.wire.schema import Validator, compile_schema

REPORT_VERSION = "1.0.0"
PROFILE = "core"
"""The profile of a report where nobody asks for another one."""
_SUITE = ("PROTO-", "SESS-", "OP-", "EVT-", "EVID-", "SAFE-", "TPT-", "CORE-")
"""The requirements of the wire protocol and its bindings, and the core rules that they quote."""


def report_digest(report: Mapping[str, Any]) -> str:
    """The digest that a report must state: that of everything but its `digest`. NotCanonical where it has none."""
    return digest({name: value for name, value in report.items() if name != "digest"})


def report_defects(report: Any, subjects: Collection[str]) -> list[str]:
    """What keeps a report from being shown as that of one of the `subjects`, one sentence each; empty for none."""
    if not isinstance(report, Mapping):
        return ["it is no JSON object"]
    faults = [f"{error['path'] or '/'}: {error['message']}" for error in _report_schema().errors(report)]
    if faults:
        return faults
    found = []
    try:
        if report_digest(report) != report["digest"]:
            found.append("its digest does not recompute")
    except NotCanonical as error:
        found.append(f"it has no canonical form: {error}")
    if report["subject"]["id"] not in subjects:
        found.append(f"its subject {report['subject']['id']} is neither this endpoint nor a device of it")
    return found


def not_run(
    endpoint_id: str, *, profile: str, server: Mapping[str, str], versions: tuple[str, str], created_at: str
) -> dict[str, Any]:
    """The honest report of an endpoint that nobody has tested: every test skipped, level CL0.

    `versions` are (mhs_version, spec_version).
    """
    tests = suite_tests()
    report = {
        "report_version": REPORT_VERSION,
        "profile": profile,
        "subject": {"id": endpoint_id, "kind": "endpoint", "implementation": dict(server)},
        "mhs_version": versions[0],
        "spec_version": versions[1],
        "runner": dict(server),
        "created_at": created_at,
        "level_achieved": "CL0",
        "coverage": {"total": len(tests), "passed": 0, "failed": 0, "warned": 0, "skipped": len(tests)},
        "tests": [{"id": test, "verdict": "skip", "detail": "not_run"} for test in tests],
        "capping": [],
        "disclaimers": ["not_certified", "self_issued"],
    }
    return {**report, "digest": report_digest(report)}


@cache
def suite_tests() -> Sequence[str]:
    """The ids of the suite's tests: every requirement of the protocol that a client can observe."""
    rows = read_toml(spec_file("requirements.toml"))
    return tuple(
        requirement_id
        for requirement_id, row in rows.items()
        if requirement_id.startswith(_SUITE) and row["status"] != "not observable"
    )


@cache
def _report_schema() -> Validator:
    return compile_schema(schema_document("conformance-report"), resolve=schema_document)
