"""The shipped documents are found in a checkout and in an installed wheel."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mhsd.base import resources

PACKAGE = Path(resources.__file__).resolve().parent.parent


def test_a_checkout_has_spec_and_drivers_beside_the_package() -> None:
    assert resources.spec_file("errors.toml") == PACKAGE.parent / "spec" / "errors.toml"
    assert resources.spec_file("schemas", "receipt.schema.json").is_file()
    assert resources.drivers_dir() == PACKAGE.parent / "drivers"


def test_an_installed_package_reads_what_it_carries(tmp_path: Path) -> None:
    """The wheel's layout: `_spec` and `_drivers` inside the package win over anything beside it."""
    package = tmp_path / "mhsd"
    shutil.copytree(PACKAGE / "base", package / "base", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "__init__.py").write_text("")
    shutil.copytree(resources.spec_file(), package / "_spec")
    (package / "_drivers").mkdir()
    (tmp_path / "spec").mkdir()
    program = (
        "import json; from mhsd.base import errors, resources;"
        "print(json.dumps([str(resources.spec_file('errors.toml')), str(resources.drivers_dir()),"
        "len(errors.ERRORS), resources.schema_document('receipt')['title']]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    spec, drivers, codes, title = json.loads(run.stdout)
    assert Path(spec).resolve() == (package / "_spec" / "errors.toml").resolve()
    assert Path(drivers).resolve() == (package / "_drivers").resolve()
    assert codes == len(resources.ERROR_TABLE["codes"])
    assert title == "MHS receipt"


def test_reading_says_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="line 1"):
        resources.read_json(bad)
    with pytest.raises(tomllib.TOMLDecodeError):
        resources.read_toml(bad)
    with pytest.raises(FileNotFoundError):
        resources.read_toml(tmp_path / "nothing.toml")


def test_the_method_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        resources.METHODS["mhs.extra"] = resources.METHODS["mhs.hello"]  # type: ignore[index]
