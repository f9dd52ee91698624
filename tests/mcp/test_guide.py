"""spec/guide/mcp.md: its snippets are valid, its lists are complete, and its first session can be copied."""

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest

from mhsd.mcp.fixed import FIXED
from mhsd.mcp.policy import Policy, parse_policy
from mhsd.mcp.session import VERSIONS
from tests.mcp.wire import MHSD, PATIENCE_S, environment

PAGE = (Path(__file__).parents[2] / "spec/guide/mcp.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_every_configuration_starts_the_projection() -> None:
    configurations = [json.loads(block) for block in blocks("json")]
    assert len(configurations) == 3
    for configuration in configurations:
        (servers,) = configuration.values()
        (server,) = servers.values()
        assert server["command"].endswith("/mhsd")
        assert server["args"][0] == "--mcp"
        done = subprocess.run([MHSD, *server["args"], "--help"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", "".join(blocks("sh")).splitlines())
def test_every_command_line_is_well_formed(line: str) -> None:
    words = line.partition("  #")[0].split()
    assert words[0] == "mhsd"
    assert subprocess.run([MHSD, *words[1:], "--help"], capture_output=True).returncode == 0


def test_the_table_has_every_fixed_tool() -> None:
    """TPT-044."""
    rows = dict(re.findall(r"^\| `(mhs__[a-z]+)` \|.*\| (.*) \|$", PAGE, re.MULTILINE))
    assert rows == {
        name: "with `operator_tools`" if tool.for_operators else "always" for name, tool in FIXED.items()
    }


def test_the_policy_has_every_key_with_its_default() -> None:
    """CORE-130."""
    (text,) = blocks("toml")
    written = tomllib.loads(text)
    names = {field.name for field in attrs.fields(Policy)}
    assert written.keys() == names | {"enabled"}
    defaults = attrs.asdict(Policy())
    for name in names - {"capabilities", "devices"}:
        assert written[name] == defaults[name]
    assert parse_policy(text, "the guide").devices == ("/lab/*",)


def test_the_revisions_are_the_ones_that_are_spoken() -> None:
    """TPT-045."""
    spoken = PAGE.partition("## Revisions")[2]
    assert tuple(re.findall(r"\d{4}-\d{2}-\d{2}", spoken))[: len(VERSIONS)] == VERSIONS


def test_the_first_session_can_be_copied(tmp_path: Path) -> None:
    """TPT-008, TPT-037."""
    (text,) = blocks("jsonl")
    done = subprocess.run(
        [MHSD, "--mcp"],
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(tmp_path),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    answers: dict[int, Any] = {each["id"]: each["result"] for each in messages if "id" in each}
    assert list(answers) == list(range(1, 9))
    statuses = [answers[number]["structuredContent"]["receipt"]["status"] for number in (4, 5, 6)]
    assert statuses == ["completed", "rejected", "completed"]
    assert "MHS.SAFETY.ENVELOPE_VIOLATION" in answers[5]["content"][0]["text"]
    assert any(each.get("method") == "notifications/progress" for each in messages)
    assert answers[7]["structuredContent"]["state"]["position_mm"] == 100
    assert len(answers[8]["structuredContent"]["receipts"]) == 3
