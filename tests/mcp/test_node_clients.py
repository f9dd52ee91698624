"""Clients of another language: the MCP Inspector's command line and the official conformance suite [TPT-045].

Both are npm packages, so they are looked for where MHSD_MCP_NODE names a directory in which somebody has run
`npm install @modelcontextprotocol/inspector@2.12.0 @modelcontextprotocol/conformance@0.2.0-alpha.12 node@22.23.3`.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.bridge import bridged
from tests.mcp.wire import MHSD, NAMED, PATIENCE_S, UNHURRIED, environment

DIRECTORY = Path(os.environ.get("MHSD_MCP_NODE", "/nowhere"))
MODULES = DIRECTORY / "node_modules"
NODE = MODULES / "node" / "bin" / "node"
INSPECTOR = MODULES / "@modelcontextprotocol" / "inspector" / "clients" / "launcher" / "build" / "index.js"
CONFORMANCE = MODULES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"

pytestmark = pytest.mark.skipif(
    not (NODE.is_file() and INSPECTOR.is_file() and CONFORMANCE.is_file()),
    reason="MHSD_MCP_NODE names no directory with the npm packages that the module's docstring lists",
)

SERVER = [str(MHSD), "--mcp", *UNHURRIED]


def run(tmp_path: Path, *command: str | Path) -> "subprocess.CompletedProcess[str]":
    env = environment(tmp_path, HOME=str(tmp_path), PATH=f"{NODE.parent}:{os.environ['PATH']}")
    return subprocess.run(
        [NODE, *command], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
    )


def inspect(tmp_path: Path, *arguments: str) -> tuple[int, Any]:
    """The exit code and the result that the Inspector prints."""
    done = run(tmp_path, INSPECTOR, "--cli", *SERVER, *arguments)
    return done.returncode, json.loads(done.stdout)


def test_the_inspector_finds_no_fault_with_the_tools(tmp_path: Path) -> None:
    """[TPT-033, TPT-045]"""
    code, listed = inspect(tmp_path, "--method", "tools/list", "--strict")
    assert code == 0
    assert f"{NAMED}world_step" in {tool["name"] for tool in listed["tools"]}


def test_the_inspector_calls_a_tool(tmp_path: Path) -> None:
    """[TPT-036, TPT-038]"""
    call = ("--method", "tools/call", "--tool-name", f"{NAMED}world_step", "--tool-arg")
    code, result = inspect(tmp_path, *call, "ticks=3")
    assert code == 0
    assert result["structuredContent"]["receipt"]["output"]["tick"] == 3
    code, result = inspect(tmp_path, *call, "ticks=0")
    assert code == 5
    assert result["isError"] is True


@pytest.mark.parametrize("method", ["initialize", "resources/list", "resources/templates/list"])
def test_the_inspector_asks_what_there_is(tmp_path: Path, method: str) -> None:
    """[TPT-043, TPT-045]"""
    code, result = inspect(tmp_path, "--method", method)
    assert code == 0
    assert result


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
@pytest.mark.parametrize(
    "scenario", ["server-initialize", "ping", "logging-set-level", "tools-list", "resources-list"]
)
def test_the_conformance_suite_passes(tmp_path: Path, scenario: str, revision: str) -> None:
    """[TPT-045]"""
    with (
        (tmp_path / "stderr.txt").open("wb") as log,
        bridged(SERVER, stderr=log, env=environment(tmp_path), cwd=tmp_path) as url,
    ):
        asked = ("--url", url, "--scenario", scenario, "--spec-version", revision)
        done = run(tmp_path, CONFORMANCE, "server", *asked, "-o", str(tmp_path / "results"))
    assert done.returncode == 0, done.stdout + done.stderr
    (checks,) = (tmp_path / "results").rglob("checks.json")
    verdicts = {check["id"]: check["status"] for check in json.loads(checks.read_text())}
    assert "SUCCESS" in verdicts.values()
    assert "FAILURE" not in verdicts.values(), verdicts
