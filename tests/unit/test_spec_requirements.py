"""The requirement table answers the list of ids, and what it claims to be done exists."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mhsd.base.resources import read_toml, spec_file

ROOT = Path(__file__).resolve().parents[2]
IDS = spec_file("requirement_ids.txt").read_text(encoding="utf-8").split()
ROWS: dict[str, dict[str, Any]] = read_toml(spec_file("requirements.toml"))

MEMBERS = {
    "done": {"text", "status", "where", "tests"},
    "open": {"text", "status"},
    "not observable": {"text", "status", "why"},
}
ID_IN_TEXT = re.compile(
    r"\b(?:PROTO|SESS|OP|EVT|EVID|COMP|SAFE|CORE|TPT|ADPT|CAP)-[0-9]{3}[a-z]?\b|\b(?:MHSD|STG)-[0-9]+a?-[0-9]{2}\b"
)


@cache
def _tests_of(path: Path) -> frozenset[str]:
    """The tests that pytest collects from a file, as `test_name` or `TestClass::test_name`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))

    def names(body: list[ast.stmt], prefix: str) -> list[str]:
        found: list[str] = []
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.append(prefix + node.name)
            elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
                found += names(node.body, f"{node.name}::")
        return found

    return frozenset(names(tree.body, ""))


def _defects(requirement_id: str, row: dict[str, Any]) -> list[str]:
    """What is wrong with a row, as sentences."""
    status = row.get("status")
    if status not in MEMBERS:
        return [f"{requirement_id}: status {status!r} is none of {sorted(MEMBERS)}"]
    defects = []
    if set(row) != MEMBERS[status]:
        defects.append(f"{requirement_id}: a row that is {status} has the members {sorted(MEMBERS[status])}")
    defects += [f"{requirement_id}: {name} is empty" for name, value in row.items() if not value]
    for where in row.get("where", []):
        if not (ROOT / where).is_file():
            defects.append(f"{requirement_id}: no file {where}")
    for test in row.get("tests", []):
        file_name, _, name = test.partition("::")
        path = ROOT / file_name
        if not path.is_file() or name not in _tests_of(path):
            defects.append(f"{requirement_id}: no test {test}")
    return defects


def test_every_id_is_listed_once() -> None:
    assert len(IDS) == len(set(IDS))
    assert len(IDS) > 400


def test_every_id_has_a_row_and_every_row_an_id() -> None:
    assert set(IDS) == set(ROWS)
    assert list(ROWS) == IDS


@pytest.mark.parametrize("requirement_id", IDS)
def test_what_a_row_claims_is_there(requirement_id: str) -> None:
    assert _defects(requirement_id, ROWS[requirement_id]) == []


_GOOD = {
    "text": "The table is checked.",
    "status": "done",
    "where": ["mhsd/base/errors.py"],
    "tests": ["tests/unit/test_spec_requirements.py::test_every_id_is_listed_once"],
}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"tests": []}, "tests is empty"),
        ({"where": []}, "where is empty"),
        ({"text": ""}, "text is empty"),
        ({"status": "open"}, "a row that is open"),
        ({"status": "not observable"}, "a row that is not observable"),
        ({"status": "finished"}, "is none of"),
        ({"where": ["mhsd/nothing.py"]}, "no file"),
        ({"tests": ["tests/unit/test_nothing.py::test_x"]}, "no test"),
        ({"tests": ["tests/unit/test_spec_requirements.py::test_that_is_not_here"]}, "no test"),
        ({"tests": ["tests/unit/test_spec_requirements.py"]}, "no test"),
        ({"note": "x"}, "has the members"),
    ],
)
def test_a_row_that_claims_too_much_is_caught(change: dict[str, Any], complaint: str) -> None:
    assert _defects("X-001", _GOOD) == []
    assert any(complaint in defect for defect in _defects("X-001", {**_GOOD, **change}))


def test_every_id_that_the_code_names_is_in_the_list() -> None:
    unknown = {
        f"{path.relative_to(ROOT)}: {match}"
        for folder in ("mhsd", "drivers", "scripts", "tests")
        for path in (ROOT / folder).rglob("*.py")
        for match in ID_IN_TEXT.findall(path.read_text(encoding="utf-8"))
        if match not in ROWS
    }
    assert unknown == set()
