"""`registry`: the index file and the installed drivers, found by words and shown with the command that uses them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mhsd.driver.loader import fixture_names
from tests.cli.conftest import ctl
from tests.cli.shapes import has_shape, shapes
from tests.cli.shell import Shell, shells

INDEX = {
    "entries": [
        {
            "name": "stage",
            "kind": "driver",
            "summary": "Our XY stage",
            "target": "./stage",
            "tags": ["motion"],
        },
        {
            "name": "hall-2",
            "kind": "device",
            "summary": "Supply of hall 2",
            "endpoint": "bench",
            "device": "/bench/psu",
            "vendor": "Acme",
            "capabilities": ["cap.electrical.output.v1"],
        },
        {"name": "scpi-psu", "kind": "driver", "summary": "The site's own word", "target": "scpi-psu"},
    ]
}


@pytest.fixture
def shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Shell]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MHS_REGISTRY_FILE", raising=False)
    yield from shells(monkeypatch, capsys)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    file = tmp_path / "registry.json"
    file.write_text(json.dumps(INDEX))
    return file


@pytest.mark.parametrize("words", [("registry",), ("registry", "list")], ids=" ".join)
def test_without_an_index_the_installed_drivers_are_listed(shell: Shell, words: tuple[str, ...]) -> None:
    """[TPT-050] The group alone lists too."""
    done = shell(*words, "--json")
    assert done.code == 0
    has_shape(done.json, shapes()["registry list, registry search"])
    assert [entry["name"] for entry in done.json["entries"]] == fixture_names()
    assert {entry["source"] for entry in done.json["entries"]} == {"installed"}
    assert done.json["file"] is None


def test_the_index_comes_first_and_its_word_counts(shell: Shell, index: Path) -> None:
    """[MHSD-8-14]"""
    entries = shell("registry", "--file", str(index), "--json").json["entries"]
    assert [entry["name"] for entry in entries][:3] == ["stage", "hall-2", "scpi-psu"]
    assert [entry["name"] for entry in entries].count("scpi-psu") == 1
    assert entries[2]["summary"] == "The site's own word"
    assert entries[0]["target"] == str(index.parent / "stage")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("hall",), ["hall-2"]),
        (("ACME", "cap.electrical"), ["hall-2"]),
        (("motion",), ["stage", "conveyor-workcell"]),
        (("acme", "motion"), []),
    ],
)
def test_every_word_must_occur(shell: Shell, index: Path, words: tuple[str, ...], names: list[str]) -> None:
    done = shell("registry", "search", *words, "--file", str(index), "--json")
    assert (done.code, [entry["name"] for entry in done.json["entries"]]) == (0, names)
    assert shell("registry", "search", *words, "--file", str(index)).code == 0


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("hall-2", "mhsctl describe /bench/psu -e bench"),
        ("stage", "mhsd {directory}/stage"),
        ("thermal-chamber", "mhsd thermal-chamber"),
    ],
)
def test_an_entry_is_shown_with_the_command_that_uses_it(
    shell: Shell, index: Path, name: str, use: str
) -> None:
    assert use.format(directory=index.parent) in shell("registry", "show", name, "--file", str(index)).out
    has_shape(shell("registry", "show", name, "--file", str(index), "--json").json, shapes()["registry show"])


def test_a_name_that_is_not_there_is_a_usage_error_with_those_that_are(shell: Shell, index: Path) -> None:
    done = shell("registry", "show", "psu", "--file", str(index))
    assert (done.code, done.out) == (2, "")
    assert "scpi-psu" in done.err


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[]", "holds a list"),
        ('{"entries": [{"name": "x"}]}', "/entries/0"),
        ('{"entries": [{"name": "x", "kind": "toy"}]}', "/entries/0/kind"),
        ('{"entries": [{"name": "x", "kind": "driver"}, {"name": "x", "kind": "device"}]}', "name x"),
    ],
)
def test_an_invalid_index_is_a_usage_error_that_names_file_and_key(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, named: str
) -> None:
    file = tmp_path / "index.json"
    file.write_text(text)
    monkeypatch.setenv("MHS_REGISTRY_FILE", str(file))
    done = shell("registry")
    assert done.code == 2
    assert str(file) in done.err
    assert named in done.err
    monkeypatch.setenv("MHS_REGISTRY_FILE", str(tmp_path / "nothing.json"))
    assert shell("registry").code == 2


def test_an_index_is_a_document_that_can_be_validated(index: Path) -> None:
    assert ctl("validate", str(index), "--json").json["kind"] == "registry"
