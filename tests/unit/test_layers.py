"""The direction of imports, and that the rules of the protocol reach no input or output."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PURE = ("base", "wire", "core")
# Loading any of these means that some module opens a door to the world, whoever imports it.
IMPURE = {"trio", "asyncio", "subprocess", "socket", "ssl", "http.client", "urllib.request", "h11", "sqlite3"}


def modules(package: str) -> list[str]:
    """Dotted names of all modules below mhsd.<package>."""
    paths = sorted((ROOT / "mhsd" / package).rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names]


def imports(path: Path) -> set[str]:
    """Every module named by an import statement of the file, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_imports_point_one_way() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_contracts_notice_an_import_against_the_arrows(tmp_path: Path) -> None:
    """The contracts are not vacuous: one wrong module in a copy of the package breaks two of them."""
    for source in (ROOT / "mhsd").rglob("*.py"):
        copy = tmp_path / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (tmp_path / "mhsd" / "core" / "wrong.py").write_text("import socket\nimport mhsd.services\n")
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache", "--no-logo"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "mhsd.core.wrong -> mhsd.services" in done.stdout
    assert "mhsd.core.wrong -> socket" in done.stdout


@pytest.mark.parametrize("package", PURE)
def test_pure_modules_load_without_any_door_to_the_world(package: str) -> None:
    # The ulid package brings uuid and with it socket, of which it uses nothing; that is not our door.
    program = (
        "import sys, importlib, ulid\n"
        "for name in ('socket', 'subprocess'): sys.modules.pop(name, None)\n"
        f"for name in {modules(package)!r}: importlib.import_module(name)\n"
        f"print(*sorted({IMPURE!r} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_a_driver_sees_only_what_a_driver_author_sees() -> None:
    seen = {}
    for path in (ROOT / "drivers").rglob("*.py"):
        if "tests" not in path.parts:
            ours = {name for name in imports(path) if name == "mhsd" or name.startswith("mhsd.")}
            inside = {name for name in ours if name != "mhsd.driver" and not name.startswith("mhsd.driver.")}
            seen[str(path.relative_to(ROOT))] = inside
    assert seen
    assert {path: names for path, names in seen.items() if names} == {}
