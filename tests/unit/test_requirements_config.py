"""Which configuration file is read where none is named."""

from pathlib import Path

import pytest

from mhsd.config import Config, sources


def test_the_file_of_the_directory_comes_before_that_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[MHSD-9a-12]"""
    assert [str(path) for path in sources._SEARCH] == ["mhsd.toml", "/etc/mhsd/mhsd.toml"]
    machine, here = tmp_path / "etc.toml", tmp_path / "mhsd.toml"
    monkeypatch.setattr(sources, "_SEARCH", (Path("mhsd.toml"), machine))
    assert Config.load({}, {}, tmp_path).config is None
    machine.write_text("port = 1\n")
    assert Config.load({}, {}, tmp_path).port == 1
    here.write_text("port = 2\n")
    assert Config.load({}, {}, tmp_path).port == 2
    assert Config.load({"config": str(machine)}, {}, tmp_path).port == 1, "one that is named is the only one"
