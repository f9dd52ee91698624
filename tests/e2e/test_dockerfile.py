"""The container image's recipe: linted, and with the properties that its operators rely on, by reading it."""

import json
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from mhsd.config import OPTIONS, Config

ROOT = Path(__file__).resolve().parents[2]
HADOLINT = Path(sys.executable).with_name("hadolint")


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's (INSTRUCTION, arguments), with continued lines joined and comments left out."""
    text = "\n".join(
        line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")
    )
    joined = re.sub(r"\\\n\s*", " ", text)
    return [
        (word, rest.strip())
        for word, _, rest in (line.partition(" ") for line in joined.splitlines())
        if word
    ]


def final_stage() -> dict[str, list[str]]:
    """The last stage's instructions, by name."""
    every = instructions()
    last = max(index for index, (word, _) in enumerate(every) if word == "FROM")
    stage: dict[str, list[str]] = {}
    for word, rest in every[last:]:
        stage.setdefault(word, []).append(rest)
    return stage


def environment() -> dict[str, str]:
    """The final stage's environment variables."""
    return dict(pair.split("=", 1) for line in final_stage()["ENV"] for pair in line.split())


def test_the_linter_finds_nothing() -> None:
    done = subprocess.run(
        [HADOLINT, "--failure-threshold", "info", ROOT / "Dockerfile"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_the_image_is_built_in_a_stage_of_its_own() -> None:
    stages = [rest for word, rest in instructions() if word == "FROM"]
    assert len(stages) == 2
    assert "AS build" in stages[0]
    copied = final_stage()["COPY"]
    assert copied == ["--from=build /opt/mhsd /opt/mhsd"], "nothing but the environment goes into the image"


def test_both_stages_use_one_python_that_the_package_allows() -> None:
    images = {rest.split()[0] for word, rest in instructions() if word == "FROM"}
    assert len(images) == 1
    version = re.fullmatch(r"python:3\.(\d+)-slim", images.pop())
    assert version is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert int(version[1]) >= int(project["requires-python"].rpartition(".")[2])


def test_it_runs_as_a_numbered_user_who_owns_the_state_volume() -> None:
    stage = final_stage()
    (user,) = stage["USER"]
    assert user.isdigit()
    assert int(user) > 0
    (volume,) = stage["VOLUME"]
    (created,) = stage["RUN"]
    assert f"--uid {user}" in created
    assert re.search(rf"install -d -m 0700 -o mhsd -g mhsd {volume}\s", created)
    assert environment()["MHSD_STATE_DIR"] == volume


def test_it_starts_without_arguments_and_stops_on_sigterm() -> None:
    stage = final_stage()
    assert json.loads(stage["ENTRYPOINT"][0]) == ["mhsd"]
    assert "CMD" not in stage
    assert stage["STOPSIGNAL"] == ["SIGTERM"]
    assert stage["EXPOSE"] == [str(Config().port)]


def test_health_is_what_the_programs_own_status_says() -> None:
    """Without -e it asks the local sockets, so that it works whatever tokens and certificates are mounted."""
    (health,) = final_stage()["HEALTHCHECK"]
    assert re.search(r"--timeout=\d+s", health)
    assert json.loads(health[health.index(" CMD ") + 5 :]) == ["mhsctl", "status", "--json"]
    (created,) = final_stage()["RUN"]
    assert re.search(r"install -d -m 0700 -o mhsd -g mhsd .*/run/mhsd(\s|$)", created)


def test_every_mhsd_variable_is_an_option() -> None:
    options = {f"MHSD_{option.key.upper()}" for option in OPTIONS}
    named = {name for name in environment() if name.startswith("MHSD_")}
    assert named
    assert named <= options


def test_installation_is_pinned() -> None:
    installs = [
        part
        for word, rest in instructions()
        if word == "RUN"
        for part in rest.split("&&")
        if "pip install" in part
    ]
    assert len(installs) == 2
    for install in installs:
        assert "--constraint constraints.txt" in install


@pytest.mark.parametrize(
    "path", ["pyproject.toml", "constraints.txt", "README.md", "LICENSE", "mhsd", "spec", "drivers"]
)
def test_the_builder_gets_what_the_recipe_copies(path: str) -> None:
    copied = [word for word, rest in instructions() for word in [rest] if path in rest.split()]
    assert copied, f"{path} is not copied"
    assert f"!{path}" in (ROOT / ".dockerignore").read_text().splitlines()


@pytest.mark.parametrize("path", [".git", ".venv", "state", "tokens.toml", "mhsd.toml", ".env"])
def test_the_builder_never_gets_state_or_secrets(path: str) -> None:
    rules = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    sent = False
    for rule in rules:
        if fnmatch(path, rule.lstrip("!")):
            sent = rule.startswith("!")
    assert not sent
