"""Targets: which directory a name means, what the driver is given, and how a bad one ends the start."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mhsd.base.errors import StartError
from mhsd.base.resources import drivers_dir
from mhsd.driver.loader import LoadedDevice, capability_known, fixture_names, load_target

DRIVER = """
from mhsd.driver import Driver, Outcome
from .helper import STATE

class Lamp(Driver):
    async def read(self, resource_ids):
        return None
    async def halt(self, reason):
        return True
    async def step(self, call):
        return Outcome({})
    commands = {"cap.world.step.v1": step}
"""

MANIFEST: dict[str, Any] = {
    "path": "/lab/lamp",
    "display_name": "Lamp",
    "profile": {"title": "Lamp", "tags": []},
    "modes": {"fake": "simulated", "hardware": "hardware"},
    "options": {
        "link": {"schema": {"type": "string", "minLength": 3}, "backends": ["hardware"]},
        "gain": {"schema": {"type": "number", "minimum": 0, "x-mhs-unit": "1"}, "default": 1.5},
        "loud": {"schema": {"type": "boolean"}, "default": False},
        "count": {"schema": {"type": "integer", "x-mhs-unit": "1"}, "default": 3},
    },
    "risk_class": "R0",
    "fidelity": {"determinism": "exact", "gaps": [], "snapshot_restore": False},
    "resources": [
        {
            "resource_id": "lamp",
            "kind": "lamp",
            "state_schema": {"type": "object", "additionalProperties": False, "properties": {}},
        }
    ],
    "bindings": [{"capability_id": "cap.world.step.v1", "resource": "lamp"}],
    "safety": {
        "estop": {"kind": "none", "latching": True, "latency_ms": 100},
        "interlocks": [],
        "safe_state": {"description": "Off.", "achieved_by": ["driver.stop"]},
        "notes": "There is nothing to stop.",
    },
}


@pytest.fixture
def lamp(tmp_path: Path) -> Path:
    directory = tmp_path / "lamp"
    directory.mkdir()
    directory.joinpath("driver.py").write_text(DRIVER)
    directory.joinpath("helper.py").write_text("STATE = {}\n")
    directory.joinpath("manifest.json").write_text(json.dumps(MANIFEST))
    return directory


def load(directory: Path, **given: Any) -> LoadedDevice:
    return load_target(str(directory), **{"backend": "fake", "options": {}, **given})


def refusal(directory: Path, **given: Any) -> StartError:
    with pytest.raises(StartError) as caught:
        load(directory, **given)
    assert "\n" not in caught.value.message
    return caught.value


def test_a_fixture_is_found_by_its_name_with_dashes() -> None:
    device = load_target("conveyor-workcell", backend="fake", options={})
    assert device.manifest.path == "/lab/conveyor-workcell"
    assert device.directory == drivers_dir() / "conveyor_workcell"
    assert {"conveyor-workcell", "scpi-psu"} <= set(fixture_names())


def test_a_driver_directory_is_loaded_with_the_modules_beside_its_driver(lamp: Path) -> None:
    device = load(lamp)
    assert type(device.driver).__name__ == "Lamp"
    assert device.driver.settings.path == "/lab/lamp"


def test_two_devices_of_one_directory_are_two_drivers_of_one_class(lamp: Path) -> None:
    first, second = load(lamp), load(lamp, path="/lab/second")
    assert type(first.driver) is type(second.driver)
    assert first.driver is not second.driver
    assert second.driver.settings.path == second.manifest.path == "/lab/second"


def test_directories_of_one_name_do_not_share_their_modules(lamp: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "lamp"
    shutil.copytree(lamp, other)
    assert type(load(lamp).driver) is not type(load(other).driver)


def test_options_have_their_defaults_and_take_text_in_the_type_of_their_schema(lamp: Path) -> None:
    assert load(lamp).driver.settings.options == {"gain": 1.5, "loud": False, "count": 3}
    given = {"gain": "2", "loud": "true", "count": "-4", "link": "tcp"}
    device = load(lamp, backend="hardware", options=given)
    assert device.driver.settings.options == {"gain": 2, "loud": True, "count": -4, "link": "tcp"}


def test_an_option_of_the_other_backend_may_be_set_all_the_same(lamp: Path) -> None:
    assert load(lamp, options={"link": "tcp"}).driver.settings.options["link"] == "tcp"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"colour": "red"},
            "/lab/lamp: option colour is unknown; the driver's options: link, gain, loud, count",
        ),
        ({"gain": "loud"}, "/lab/lamp: option gain: must be of type number"),
        ({"gain": "-1"}, "/lab/lamp: option gain: must be at least 0"),
        ({"gain": "1e999"}, "/lab/lamp: option gain: must be a finite JSON value"),
        ({"gain": True}, "/lab/lamp: option gain: must be of type number"),
        ({"loud": "yes"}, "/lab/lamp: option loud: must be of type boolean"),
        ({"count": "1.5"}, "/lab/lamp: option count: must be of type integer"),
        ({"link": "x"}, "/lab/lamp: option link: must have at least 3 characters"),
    ],
)
def test_an_option_that_cannot_be_is_a_usage_error(lamp: Path, options: Any, expected: str) -> None:
    error = refusal(lamp, options=options)
    assert (error.message, error.exit_code) == (expected, 2)


def test_a_required_option_that_is_missing_is_named_with_how_to_set_it(lamp: Path) -> None:
    error = refusal(lamp, backend="hardware")
    assert error.exit_code == 2
    assert error.message == (
        "/lab/lamp: option link is required on the hardware backend; set it with --option /lab/lamp:link=VALUE"
    )


def test_an_unknown_target_is_answered_with_the_known_ones() -> None:
    with pytest.raises(StartError) as caught:
        load_target("no-such-thing", backend="fake", options={})
    assert caught.value.exit_code == 2
    assert "no-such-thing: no such driver" in caught.value.message
    assert "conveyor-workcell" in caught.value.message


def test_a_directory_without_a_driver_is_named(tmp_path: Path) -> None:
    error = refusal(tmp_path)
    assert (error.exit_code, "holds a driver.py" in error.message) == (2, True)


def test_a_directory_that_may_not_be_looked_into_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", denied)
    with pytest.raises(StartError, match="cannot be looked into: Permission denied") as refused:
        load(tmp_path)
    assert refused.value.exit_code == 2


def test_a_directory_needs_exactly_one_manifest(lamp: Path) -> None:
    lamp.joinpath("manifest.toml").write_text("")
    assert refusal(lamp).exit_code == 2
    lamp.joinpath("manifest.toml").unlink()
    lamp.joinpath("manifest.json").unlink()
    error = refusal(lamp)
    assert (error.exit_code, error.message) == (
        2,
        f"{lamp}: a driver directory holds one of manifest.toml and manifest.json",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [("{", "manifest.json: cannot be read: "), ("[]", "manifest.json: must hold one object")],
)
def test_a_manifest_that_is_no_document_is_named(lamp: Path, text: str, expected: str) -> None:
    lamp.joinpath("manifest.json").write_text(text)
    error = refusal(lamp)
    assert (error.exit_code, expected in error.message) == (2, True)


def test_a_manifest_that_is_refused_is_named_with_file_and_key(lamp: Path) -> None:
    lamp.joinpath("manifest.json").write_text(json.dumps({**MANIFEST, "risk_class": "R9"}))
    error = refusal(lamp)
    assert error.exit_code == 2
    assert error.message.startswith(f"{lamp}/manifest.json: risk_class: must be one of")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("raise RuntimeError('boom')", "does not load: RuntimeError: boom"),
        ("import sys; sys.exit(3)", "does not load: SystemExit: 3"),
        ("def (", "does not load: SyntaxError"),
        ("import no_such_module_at_all", "does not load: ModuleNotFoundError"),
        ("", "must define one subclass of mhsd.driver.Driver; it has: none"),
        (DRIVER.replace("class Lamp", "class Other(Driver): pass\nclass Lamp"), "it has: Other, Lamp"),
        (DRIVER.replace('"cap.world.step.v1": step', ""), "commands has no method for cap.world.step.v1"),
        (
            DRIVER.replace('": step}', '": step, "cap.motion.convey.v1": step}'),
            "commands has cap.motion.convey.v1, which the manifest does not bind",
        ),
        (
            DRIVER.replace(
                "    async def step", "    def __init__(self, settings): 1 / 0\n    async def step"
            ),
            "does not load: ZeroDivisionError",
        ),
    ],
)
def test_a_driver_that_does_not_load_ends_in_one_line_and_exit_1(
    lamp: Path, text: str, expected: str
) -> None:
    lamp.joinpath("driver.py").write_text(text)
    with pytest.raises(StartError) as caught:
        load(lamp)
    assert caught.value.exit_code == 1
    assert caught.value.message.startswith(f"{lamp}/driver.py: ")
    assert expected in caught.value.message
    assert "\n" not in caught.value.message


def test_an_option_that_the_driver_itself_refuses_is_a_usage_error() -> None:
    for options in ({"link": "tcp://nowhere"}, {"link": "tcp://h:1/x"}, {"link": "tcp://h:1", "idn": "("}):
        with pytest.raises(StartError) as caught:
            load_target("scpi-psu", backend="hardware", options=options)
        assert caught.value.exit_code == 2
        assert caught.value.message.startswith("/bench/psu: ")


RESTORE = "\n    async def restore(self, resources):\n        pass\n"
REVISIONS = "\n    def recorded_revisions(self):\n        return [1]\n"
RECORDED = "\n    async def read_recorded(self, revision, resource_ids):\n        pass\n"


@pytest.mark.parametrize(
    ("changes", "method", "expected"),
    [
        ({"fidelity": {**MANIFEST["fidelity"], "snapshot_restore": True}}, RESTORE, "has no restore"),
        ({"modes": {"fake": "replay"}}, REVISIONS + RECORDED, "has no recorded_revisions"),
    ],
    ids=["snapshot_restore", "replay"],
)
def test_what_a_manifest_promises_the_driver_has(
    lamp: Path, changes: dict[str, Any], method: str, expected: str
) -> None:
    """[PROTO-034, PROTO-035a]"""
    changed = {**MANIFEST, **changes, "options": {}}
    lamp.joinpath("manifest.json").write_text(json.dumps(changed))
    error = refusal(lamp)
    assert error.exit_code == 1
    assert error.message.startswith(f"{lamp}/driver.py: {expected}, which ")
    # Another directory: a module is loaded once.
    keeping = lamp.with_name("keeping")
    shutil.copytree(lamp, keeping)
    keeping.joinpath("driver.py").write_text(DRIVER + method)
    assert load(keeping).manifest.path == "/lab/lamp"


def test_a_replay_device_need_not_restore(lamp: Path) -> None:
    """[PROTO-035a]"""
    fidelity = {**MANIFEST["fidelity"], "snapshot_restore": True}
    changed = {**MANIFEST, "modes": {"fake": "replay"}, "options": {}, "fidelity": fidelity}
    lamp.joinpath("manifest.json").write_text(json.dumps(changed))
    lamp.joinpath("driver.py").write_text(DRIVER + REVISIONS)
    assert "has no read_recorded, which the mode replay" in refusal(lamp).message
    whole = lamp.with_name("whole")
    shutil.copytree(lamp, whole)
    whole.joinpath("driver.py").write_text(DRIVER + REVISIONS + RECORDED)
    assert load(whole).manifest.mode == "replay"


def class_document(**changes: Any) -> dict[str, Any]:
    return {
        "capability_id": "x-cap.lamp.blink.v1",
        "version": "1.0.0",
        "title": "Blink",
        "summary": "Blinks.",
        "description": "Blinks once.",
        "risk_class": "R0",
        "effects": [],
        "input_schema": {"type": "object", "additionalProperties": False},
        "output_schema": {"type": "object"},
        **changes,
    }


def write_class(lamp: Path, document: dict[str, Any], name: str = "x-cap.lamp.blink.v1.json") -> None:
    lamp.joinpath("capabilities").mkdir(exist_ok=True)
    lamp.joinpath("capabilities", name).write_text(json.dumps(document))


def test_a_class_of_a_directory_becomes_known_and_can_be_bound(lamp: Path) -> None:
    assert not capability_known("x-cap.lamp.blink.v1")
    write_class(lamp, class_document())
    bindings = [*MANIFEST["bindings"], {"capability_id": "x-cap.lamp.blink.v1", "resource": "lamp"}]
    lamp.joinpath("manifest.json").write_text(json.dumps({**MANIFEST, "bindings": bindings}))
    lamp.joinpath("driver.py").write_text(DRIVER.replace('": step}', '": step, "x-cap.lamp.blink.v1": step}'))
    device = load(lamp)
    assert device.manifest.binding("x-cap.lamp.blink.v1", "lamp") is not None
    assert capability_known("x-cap.lamp.blink.v1")


def test_the_classes_of_the_catalogue_are_known_and_no_others() -> None:
    assert capability_known("cap.world.step.v1")
    assert not capability_known("cap.world.step.v2")
    assert not capability_known("cap.internal.restore.v1")


@pytest.mark.parametrize(
    ("changes", "name", "expected"),
    [
        (
            {"capability_id": "cap.lamp.blink.v1"},
            "cap.lamp.blink.v1.json",
            "may only add classes named x-cap.",
        ),
        ({}, "blink.json", "must be named x-cap.lamp.blink.v1.json"),
        ({"version": "2.0.0"}, "x-cap.lamp.blink.v1.json", "version: must begin with 1"),
        ({"risk_class": "R7"}, "x-cap.lamp.blink.v1.json", "risk_class: must be one of"),
        (
            {"output_schema": {"type": "object", "properties": {"lux": {"type": "number"}}}},
            "x-cap.lamp.blink.v1.json",
            "output_schema.properties.lux: a number needs x-mhs-unit",
        ),
        ({"input_schema": {"typ": "object"}}, "x-cap.lamp.blink.v1.json", "input_schema.typ: is no keyword"),
    ],
)
def test_a_bad_class_document_is_named_with_file_and_key(
    lamp: Path, changes: dict[str, Any], name: str, expected: str
) -> None:
    write_class(lamp, class_document(**changes), name)
    error = refusal(lamp)
    assert error.exit_code == 2
    assert error.message.startswith(f"{lamp}/capabilities/{name}: ")
    assert expected in error.message


def test_two_directories_cannot_mean_different_things_by_one_class(lamp: Path, tmp_path: Path) -> None:
    for directory, title in ((lamp, "One"), (tmp_path / "other", "Other")):
        if directory is not lamp:
            shutil.copytree(lamp, directory)
        document = class_document(capability_id="x-cap.lamp.dim.v1", title=title)
        write_class(directory, document, "x-cap.lamp.dim.v1.json")
        if directory is lamp:
            load(directory)
        else:
            assert "brought a different x-cap.lamp.dim.v1" in refusal(directory).message
