"""JSON that a person types, read strictly."""

import io
from pathlib import Path

import pytest

from mhsd.cli.boundary import UsageProblem
from mhsd.cli.inputs import json_object
from mhsd.cli.link import read_token


def test_an_object_comes_from_the_words_a_file_or_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "input.json"
    file.write_text('{"b": 2}')
    monkeypatch.setattr("sys.stdin", io.StringIO('{"c": 3}'))
    assert json_object('{"a": 1}', "--input") == {"a": 1}
    assert json_object(f"@{file}", "--input") == {"b": 2}
    assert json_object("@-", "--input") == {"c": 3}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "3",
        "null",
        "{",
        '{"a": 1, "a": 2}',
        '{"a": NaN}',
        '{"a": -Infinity}',
        "@",
        "@/nonexistent",
        "[" * 5000,
        '{"a": 1e999}',
        '{"a": "\udcff"}',
        "@-",
    ],
)
def test_anything_else_is_a_usage_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"a": "\xff"}'), encoding="utf-8"))
    with pytest.raises(UsageProblem):
        json_object(text, "--input")


@pytest.mark.parametrize("content", ["s3cret", "s3cret\n", "\n  s3cret  \nmore\n"])
def test_a_token_is_the_first_line_of_its_file(content: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    file.chmod(0o600)
    assert read_token(file) == "s3cret"


@pytest.mark.parametrize("content", ["", "\n\n", "two words", "tök", "[[token]]\nsha256 = 1\n", "# tokens\n"])
def test_a_file_without_a_token_is_a_usage_error(content: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(UsageProblem):
        read_token(file)


def test_a_missing_token_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="No such file"):
        read_token(tmp_path / "token")


def test_a_token_file_that_others_can_read_is_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret")
    file.chmod(0o644)
    read_token(file)
    assert f"chmod 600 {file}" in capsys.readouterr().err
    file.chmod(0o600)
    read_token(file)
    assert capsys.readouterr().err == ""
