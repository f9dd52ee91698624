"""Limits that a site narrows hold as the manifest's do, and are told [MHSD-3, MHSD-9a]."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mhsd.wire.canonical import digest
from tests.behaviour.conftest import Start
from tests.behaviour.safety import CONFIGURE, CONVEY, DESCRIBE, code_of
from tests.lab import CONVEYOR, MHSD, PATIENCE_S, Lab, running

PATH = "/lab/conveyor-workcell"
EFFECTIVE = "x-mhs-effective-limits"
SITE = {CONVEY: {"speed_mm_s": {"min": 50, "max": 300}}, CONFIGURE: {"speed_mm_s": {"max": 200}}}


def written(directory: Path, content: Any, name: str = "site.json") -> str:
    path = directory / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.fixture
def limited(fresh: Start, tmp_path: Path) -> Lab:
    """A daemon whose conveyor may convey from 50 to 300 mm/s, and whose belt may be set to 200."""
    return fresh("--site-limits", written(tmp_path, {"devices": {PATH: SITE}}))


def convey(lab: Lab, speed_mm_s: Any) -> Any:
    return lab.open().command(CONVEY, {"distance_mm": 1, "speed_mm_s": speed_mm_s})


@pytest.mark.parametrize("speed_mm_s", [50, 50.0, 300, 300.0])
def test_the_bounds_are_inside(limited: Lab, speed_mm_s: Any) -> None:
    """[MHSD-3]"""
    assert convey(limited, speed_mm_s)["status"] == "completed"


@pytest.mark.parametrize(
    ("speed_mm_s", "limit"), [(300.0000001, 300), (301, 300), (500, 300), (49.999, 50), (1, 50)]
)
def test_what_the_manifest_allows_and_the_site_does_not_is_refused(
    limited: Lab, speed_mm_s: Any, limit: int
) -> None:
    """[MHSD-3, MHSD-9a]"""
    receipt = convey(limited, speed_mm_s)
    assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.SAFETY.ENVELOPE_VIOLATION")
    details = {"field": "speed_mm_s", "value": speed_mm_s, "limit": limit, "unit": "mm/s", "source": "site"}
    assert receipt["error"]["details"] == details
    assert "site" in receipt["error"]["message"]


def test_a_side_that_the_site_leaves_alone_is_the_manifests(fresh: Start, tmp_path: Path) -> None:
    """[MHSD-9a]"""
    entry = {"devices": {PATH: {CONVEY: {"speed_mm_s": {"min": 50}}}}}
    lab = fresh("--site-limits", written(tmp_path, entry))
    assert convey(lab, 501)["error"]["details"]["source"] == "manifest"
    assert convey(lab, 49)["error"]["details"]["source"] == "site"


def test_a_write_keeps_within_the_limits_of_configuring(limited: Lab) -> None:
    """[MHSD-3]"""
    session = limited.open()
    assert session.write("belt", {"speed_mm_s": 200})["status"] == "completed"
    refused = session.write("belt", {"speed_mm_s": 201})
    assert refused["error"]["details"]["source"] == "site"
    assert session.read("belt")["state"]["speed_mm_s"] == 200


def test_the_manifest_shows_what_holds_and_its_digest_covers_it(limited: Lab) -> None:
    """[MHSD-9a, PROTO-021]"""
    (listed,) = limited.call("mhs.devices.list", detail="full")["devices"]
    got = limited.call("mhs.devices.get", device_id=CONVEYOR)
    for manifest in (listed, got):
        bindings = {binding["capability_id"]: binding for binding in manifest["bindings"]}
        assert bindings[CONVEY]["limits"] == {"speed_mm_s": {"max": 500, "unit": "mm/s"}}
        assert bindings[CONVEY][EFFECTIVE] == {
            "speed_mm_s": {
                "min": 50,
                "min_source": "site",
                "max": 300,
                "max_source": "site",
                "unit": "mm/s",
            }
        }
        body = {name: value for name, value in manifest.items() if name not in ("digest", "instance_id")}
        body["resources"] = [
            {name: value for name, value in resource.items() if name != "state"}
            for resource in manifest["resources"]
        ]
        assert digest(body) == manifest["digest"]
    described = limited.open().completed(DESCRIBE, {})
    assert described["output"]["digest"] == got["digest"]


def test_limits_of_the_manifest_are_shown_as_such(lab: Lab) -> None:
    """[MHSD-9a]"""
    bindings = lab.call("mhs.devices.get", device_id=CONVEYOR)["bindings"]
    shown = {binding["capability_id"]: binding.get(EFFECTIVE) for binding in bindings}
    assert shown[CONVEY] == {"speed_mm_s": {"max": 500, "max_source": "manifest", "unit": "mm/s"}}
    assert shown["cap.world.step.v1"] is None


def test_mhsctl_describes_the_limits_that_hold(tmp_path: Path) -> None:
    """[TPT-050]"""
    options = ("--site-limits", written(tmp_path, {"devices": {PATH: SITE}}))
    with running("http", tmp_path, *options) as lab:
        done = subprocess.run(
            [MHSD.with_name("mhsctl"), "describe", "-e", lab.ready["url"]],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
    assert "limit 50 to 300 mm/s (set by the site)" in done.stdout
    assert "limit 0 to 200 mm/s (set by the site)" in done.stdout


def test_a_device_at_another_path_is_limited_there(fresh: Start, tmp_path: Path) -> None:
    """[MHSD-9a] As TOML, and named by the environment."""
    text = f'[devices."/lab/second"."{CONVEY}"]\nspeed_mm_s = {{ max = 300 }}\n'
    lab = fresh(
        targets=("conveyor-workcell", "conveyor-workcell@/lab/second"),
        MHSD_SITE_LIMITS=written(tmp_path, text, "site.toml"),
    )
    for path, status in ((PATH, "completed"), ("/lab/second", "rejected")):
        session = lab.open(device_id=f"mhs://localhost:7400{path}")
        assert session.command(CONVEY, {"distance_mm": 1, "speed_mm_s": 400})["status"] == status


@pytest.mark.parametrize(
    ("site", "message"),
    [
        ({PATH: {CONVEY: {"speed_mm_s": {"max": 900}}}}, "900 mm/s is above the manifest's 500 mm/s"),
        ({"/lab/none": {}}, "/lab/none: there is no such device"),
    ],
)
def test_a_file_that_does_not_narrow_refuses_the_start_in_one_line(
    tmp_path: Path, site: Any, message: str
) -> None:
    """[MHSD-3, TPT-052]"""
    path = written(tmp_path, {"devices": site})
    done = subprocess.run(
        [MHSD, "--stdio", "--site-limits", path],
        env={**os.environ, "MHSD_RUNTIME_DIR": str(tmp_path / "run")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"mhsd: {path}: devices.")
    assert message in line
