"""Loads targets: finds the driver directory, reads its manifest, imports its class, builds the driver.

Nothing here talks to a device; `Driver.open` does that later. Every failure is one StartError that names the
file and what would be right.
"""

import importlib
import inspect
import re
import sys
import tomllib
from collections.abc import Mapping
from hashlib import sha256
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

from mhsd.base.errors import StartError
from mhsd.base.resources import drivers_dir, read_json, read_toml
from mhsd.driver.building import build_manifest
from mhsd.driver.checks import Invalid
from mhsd.driver.classes import capability_known, directory_classes, spec_classes
from mhsd.driver.contract import DESCRIBE, Backend, Driver, Settings
from mhsd.driver.errors import OptionInvalid
from mhsd.driver.manifest import Manifest, Option
from mhsd.wire.schema import compile_schema

__all__ = ["LoadedDevice", "capability_known", "fixture_names", "load_target"]

ESTOP = "cap.motion.estop.v1"
ANSWERED_BY_ENDPOINT = frozenset({DESCRIBE, ESTOP})
"""Classes that no driver has a command for."""


@attrs.frozen(eq=False)
class LoadedDevice:
    """A device that can be opened: its manifest on the chosen backend and its driver."""

    manifest: Manifest
    driver: Driver
    backend: Backend
    directory: Path


def fixture_names() -> list[str]:
    """The names of the reference drivers that ship with the program, as a TARGET spells them."""
    return sorted(file.parent.name.replace("_", "-") for file in drivers_dir().glob("*/driver.py"))


def load_target(
    target: str, *, backend: Backend, options: Mapping[str, Any], path: str | None = None
) -> LoadedDevice:
    """The device of a fixture's name or a driver directory; `path` replaces the manifest's own.

    `options` are the values given at start, as text where they come from a command line. StartError: 2 for a
    missing or invalid file or option, 1 for a driver that does not load.
    """
    directory = _directory(target)
    file, source = _source(directory)
    classes = {**spec_classes(), **directory_classes(directory)}
    try:
        manifest = build_manifest(source, backend=backend, classes=classes, path=path)
    except Invalid as problem:
        raise StartError(f"{file}: {problem}") from problem
    settings = Settings(backend=backend, options=_options(manifest, backend, options), path=manifest.path)
    driver_class = _driver_class(directory)
    _check_commands(driver_class, manifest, directory / "driver.py")
    _check_promises(driver_class, manifest, directory / "driver.py")
    return LoadedDevice(manifest, _build_driver(driver_class, settings, directory), backend, directory)


def _directory(target: str) -> Path:
    """A fixture's name wins over a directory of that name, which `./` makes unmistakable."""
    if target in fixture_names():
        return drivers_dir() / target.replace("-", "_")
    directory = Path(target)
    try:
        if directory.joinpath("driver.py").is_file():
            return directory.resolve()
        is_directory = directory.is_dir()
    except OSError as error:
        raise StartError(f"{target}: cannot be looked into: {error.strerror}") from error
    if is_directory:
        raise StartError(f"{target}: a driver directory holds a driver.py, and this one does not")
    raise StartError(
        f"{target}: no such driver; a TARGET is a driver directory or one of {', '.join(fixture_names())}"
    )


def _source(directory: Path) -> tuple[Path, dict[str, Any]]:
    readers = {"manifest.toml": read_toml, "manifest.json": read_json}
    found = [directory / name for name in readers if directory.joinpath(name).is_file()]
    if len(found) != 1:
        raise StartError(f"{directory}: a driver directory holds one of {' and '.join(readers)}")
    file = found[0]
    try:
        source = readers[file.name](file)
    except (OSError, ValueError, tomllib.TOMLDecodeError) as error:
        raise StartError(f"{file}: cannot be read: {error}") from error
    if not isinstance(source, dict):
        raise StartError(f"{file}: must hold one object")
    return file, source


def _options(manifest: Manifest, backend: Backend, given: Mapping[str, Any]) -> dict[str, Any]:
    known = ", ".join(manifest.options) or "none"
    for name in given:
        if name not in manifest.options:
            raise StartError(f"{manifest.path}: option {name} is unknown; the driver's options: {known}")
    values: dict[str, Any] = {}
    for name, option in manifest.options.items():
        if name in given:
            values[name] = _option_value(manifest.path, option, given[name])
        elif option.has_default:
            values[name] = option.default
        elif backend in option.backends:
            raise StartError(
                f"{manifest.path}: option {name} is required on the {backend} backend;"
                f" set it with --option {manifest.path}:{name}=VALUE"
            )
    return values


_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def _option_value(path: str, option: Option, given: Any) -> Any:
    """The value, which a command line gives as text, in the type that the option's schema wants."""
    value: Any = given
    wanted = option.schema.get("type")
    if isinstance(given, str) and wanted in ("number", "integer") and _NUMBER.fullmatch(given):
        value = int(given) if given.lstrip("-").isdigit() else float(given)
    elif wanted == "boolean" and given in ("true", "false"):
        value = given == "true"
    errors = compile_schema(option.schema).errors(value)
    if errors:
        raise StartError(f"{path}: option {option.name}: {errors[0]['message']}")
    return value


def _package(directory: Path) -> str:
    """The name of a package whose modules are the directory's files, so that a driver can import its twin."""
    name = f"mhsd_driver_{directory.name}_{sha256(str(directory).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(directory)]
        sys.modules[name] = module_from_spec(spec)
    return name


def _driver_class(directory: Path) -> type[Driver]:
    file = directory / "driver.py"
    try:
        module = importlib.import_module(f"{_package(directory)}.driver")
    # A driver is a stranger's code: whatever it raises while it loads is told in one line.
    except (Exception, SystemExit) as error:
        raise StartError(f"{file}: does not load: {type(error).__name__}: {error}", exit_code=1) from error
    found: list[type[Driver]] = [each for each in vars(module).values() if _is_driver_of(each, module)]
    if len(found) != 1:
        names = ", ".join(each.__name__ for each in found) or "none"
        raise StartError(
            f"{file}: must define one subclass of mhsd.driver.Driver; it has: {names}", exit_code=1
        )
    return found[0]


def _is_driver_of(value: object, module: ModuleType) -> bool:
    return inspect.isclass(value) and issubclass(value, Driver) and value.__module__ == module.__name__


def _check_commands(driver_class: type[Driver], manifest: Manifest, file: Path) -> None:
    bound = {binding.capability_id for binding in manifest.bindings} - ANSWERED_BY_ENDPOINT
    missing = sorted(bound - set(driver_class.commands))
    if missing:
        raise StartError(f"{file}: commands has no method for {missing[0]}, which is bound", exit_code=1)
    unbound = sorted(set(driver_class.commands) - bound)
    if unbound:
        raise StartError(f"{file}: commands has {unbound[0]}, which the manifest does not bind", exit_code=1)


def _check_promises(driver_class: type[Driver], manifest: Manifest, file: Path) -> None:
    """What the manifest promises beside commands has a method of the driver's own [PROTO-034, PROTO-035a]."""
    promised: tuple[str, ...] = ()
    if manifest.mode == "simulated" and manifest.fidelity["snapshot_restore"]:
        why, promised = "fidelity.snapshot_restore = true", ("restore",)
    elif manifest.mode == "replay":
        why, promised = "the mode replay", ("recorded_revisions", "read_recorded")
    for name in promised:
        if inspect.getattr_static(driver_class, name) is vars(Driver)[name]:
            raise StartError(f"{file}: has no {name}, which {why} of the manifest promises", exit_code=1)


def _build_driver(driver_class: type[Driver], settings: Settings, directory: Path) -> Driver:
    try:
        return driver_class(settings)
    except OptionInvalid as error:
        raise StartError(f"{settings.path}: {error}") from error
    # The constructor is the driver author's code, as above.
    except Exception as error:
        file = directory / "driver.py"
        raise StartError(f"{file}: does not load: {type(error).__name__}: {error}", exit_code=1) from error
