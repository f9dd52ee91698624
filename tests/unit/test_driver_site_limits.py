"""Site limits narrow, or the start is refused with the file, the key and both values [MHSD-3, MHSD-9a]."""

import json
from pathlib import Path
from typing import Any

import pytest

from mhsd.base.errors import StartError
from mhsd.driver.loader import LoadedDevice, load_target
from mhsd.driver.manifest import EFFECTIVE, Limit
from mhsd.driver.site_limits import narrowed

BELT = "/lab/conveyor-workcell"
PSU = "/bench/psu"
CONVEY = "cap.motion.convey.v1"
CONFIGURE = "cap.device.configure.v1"


def devices() -> list[LoadedDevice]:
    return [load_target(name, backend="fake", options={}) for name in ("conveyor-workcell", "scpi-psu")]


def written(directory: Path, content: Any) -> Path:
    path = directory / "limits.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def of_belt(capability_id: str = CONVEY, **fields: Any) -> dict[str, Any]:
    return {"devices": {BELT: {capability_id: fields}}}


def limits(found: list[LoadedDevice], capability_id: str, path: str = BELT) -> dict[str, Limit]:
    (device,) = [device for device in found if device.manifest.path == path]
    (binding,) = device.manifest.bindings_of(capability_id)
    return dict(binding.limits)


def refusal(directory: Path, content: Any) -> str:
    path = written(directory, content)
    with pytest.raises(StartError) as refused:
        narrowed(devices(), path)
    message = refused.value.message
    assert refused.value.exit_code == 2
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_a_limit_is_narrowed_on_the_side_that_is_named(tmp_path: Path) -> None:
    found = narrowed(devices(), written(tmp_path, of_belt(speed_mm_s={"min": 50, "max": 300})))
    assert limits(found, CONVEY) == {"speed_mm_s": Limit(50, 300, "mm/s", "site", "site")}
    found = narrowed(devices(), written(tmp_path, of_belt(speed_mm_s={"min": 50})))
    assert limits(found, CONVEY) == {"speed_mm_s": Limit(50, 500, "mm/s", "site", "manifest")}


def test_what_the_file_does_not_name_stays_as_it_was(tmp_path: Path) -> None:
    found = narrowed(devices(), written(tmp_path, of_belt(speed_mm_s={"max": 300})))
    assert limits(found, CONFIGURE) == limits(devices(), CONFIGURE)
    assert found[1].manifest is not None
    assert found[1].manifest.document == devices()[1].manifest.document


def test_a_number_without_a_limit_gets_one(tmp_path: Path) -> None:
    found = narrowed(devices(), written(tmp_path, of_belt(distance_mm={"max": 1000})))
    assert limits(found, CONVEY)["distance_mm"] == Limit(None, 1000, "mm", "manifest", "site")


@pytest.mark.parametrize(
    "speed", [{"max": 500}, {"max": 500.0}, {"min": 1}, {"min": 500}, {"max": 1, "unit": "mm/s"}]
)
def test_the_manifests_own_bound_is_not_wider(tmp_path: Path, speed: dict[str, Any]) -> None:
    assert limits(narrowed(devices(), written(tmp_path, of_belt(speed_mm_s=speed))), CONVEY)


def test_toml_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(f'[devices."{BELT}"."{CONVEY}"]\nspeed_mm_s = {{ max = 300 }}\n')
    assert limits(narrowed(devices(), path), CONVEY)["speed_mm_s"].maximum == 300


def test_the_served_manifest_shows_both_what_it_declares_and_what_holds(tmp_path: Path) -> None:
    found = narrowed(devices(), written(tmp_path, of_belt(speed_mm_s={"max": 300})))
    entries = {entry["capability_id"]: entry for entry in found[0].manifest.document["bindings"]}
    assert entries[CONVEY]["limits"] == {"speed_mm_s": {"max": 500, "unit": "mm/s"}}
    assert entries[CONVEY][EFFECTIVE] == {"speed_mm_s": {"max": 300, "max_source": "site", "unit": "mm/s"}}
    assert entries[CONFIGURE][EFFECTIVE]["speed_mm_s"]["max_source"] == "manifest"
    assert EFFECTIVE not in entries["cap.world.step.v1"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            of_belt(speed_mm_s={"max": 600}),
            f"devices.{BELT}.{CONVEY}.speed_mm_s.max: 600 mm/s is above the manifest's 500 mm/s;"
            " site limits can only narrow what a device allows",
        ),
        (of_belt(speed_mm_s={"max": 500.001}), "500.001 mm/s is above the manifest's 500 mm/s"),
        (of_belt(speed_mm_s={"min": 0.5}), "0.5 mm/s is below the input schema's 1 mm/s"),
        (of_belt(distance_mm={"max": 100_001}), "100001 mm is above the input schema's 100000 mm"),
        (of_belt(speed_mm_s={"min": 501}), "leaves no value: from 501 mm/s (site) to 500 mm/s (manifest)"),
        (of_belt(speed_mm_s={"min": 9, "max": 8}), "leaves no value: from 9 mm/s (site) to 8 mm/s (site)"),
        (of_belt(speed_mm_s={"max": 0.5}), "leaves no value: from 1 mm/s (input schema) to 0.5 mm/s (site)"),
        (of_belt(speed_mm_s={"max": 0.3, "unit": "m/s"}), "unit: is 'm/s'; the device takes this number in mm/s"),
        (of_belt(speed_mm_s={}), "speed_mm_s: needs min, max or both"),
        (of_belt(speed_mm_s={"unit": "mm/s"}), "speed_mm_s: needs min, max or both"),
        (of_belt(speed_mm_s={"maximum": 3}), "speed_mm_s.maximum: there is no such key; there is: min, max, unit"),
        (of_belt(speed_mm_s=300), "speed_mm_s: must be a table with min, max or both, not 300"),
        (of_belt(speed_mm_s={"max": "300"}), "speed_mm_s.max: must be a number within 2^53, not '300'"),
        (of_belt(speed_mm_s={"max": True}), "must be a number within 2^53, not True"),
        (of_belt(speed_mm_s={"max": None}), "must be a number within 2^53, not None"),
        (of_belt(speed_mm_s={"min": -(10**20)}), "must be a number within 2^53, not -100000000000000000000"),
        (of_belt(speed_mm_s={"max": [3]}), "must be a number within 2^53, not a list"),
        (
            of_belt(speed={"max": 3}),
            f"{CONVEY}.speed: there is no such number in the input; there is: distance_mm, speed_mm_s",
        ),
        (of_belt("cap.actuation.valve.v1", open={}), "open: there is no such number in the input; there is: none"),
        (of_belt("cap.motion.convoy.v1"), "cap.motion.convoy.v1: there is no such capability of the device"),
        ({"devices": {BELT: []}}, f"devices.{BELT}: must be a table of capabilities, not a list"),
        ({"devices": {BELT: {CONVEY: 3}}}, f"{CONVEY}: must be a table of input fields, not 3"),
        ({"devices": {"/lab/belt": {}}}, f"devices./lab/belt: there is no such device; there is: {BELT}, {PSU}"),
        ({"devices": []}, "devices: must be a table of devices by path, not a list"),
        ({"device": {}}, "device: there is no such key; there is: devices"),
        ([], "must be a table, not a list"),
        ('{"devices": {}', "is no JSON document"),
        ('{"devices": {}, "devices": {}}', "is no JSON document: An object of the message has the key 'devices' twice"),
        (json.dumps(of_belt(speed_mm_s={"max": float("nan")})), "has NaN, which is no JSON"),
    ],
)  # fmt: skip
def test_anything_else_refuses_the_start(tmp_path: Path, content: Any, message: str) -> None:
    assert message in refusal(tmp_path, content)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devices = [", "is no TOML: "),
        (
            '[devices."/lab/conveyor-workcell"."cap.motion.convey.v1"]\nspeed_mm_s = { max = nan }\n',
            "within 2^53, not nan",
        ),
        (
            '[devices."/lab/conveyor-workcell"."cap.motion.convey.v1"]\nspeed_mm_s = { max = inf }\n',
            "within 2^53, not inf",
        ),
        (
            '[devices."/lab/conveyor-workcell".cap.motion.convey.v1]\nspeed_mm_s = { max = 3 }\n',
            "cap: there is no such capability of the device; there is: cap.world.step.v1, ",
        ),
        (
            '[devices."/lab/conveyor-workcell".cap.motion.convey.v1]\nspeed_mm_s = { max = 3 }\n',
            "; in TOML a name with dots or slashes stands in quotation marks",
        ),
    ],
)
def test_toml_is_refused_for_the_same_reasons(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(text)
    with pytest.raises(StartError) as refused:
        narrowed(devices(), path)
    assert refused.value.exit_code == 2
    assert str(path) in refused.value.message
    assert message in refused.value.message


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"no-such\.json: cannot be read: No such file or directory"):
        narrowed(devices(), tmp_path / "no-such.json")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(StartError, match="is no UTF-8 text"):
        narrowed(devices(), tmp_path / "bytes.toml")
