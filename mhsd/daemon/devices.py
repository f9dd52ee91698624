"""Which devices a start asks for, and whether it may have them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from mhsd.base.errors import StartError
from mhsd.base.resources import drivers_dir, read_json, read_toml
from mhsd.config import Config, DeviceEntry
from mhsd.driver.contract import Backend
from mhsd.driver.loader import LoadedDevice, fixture_names, load_target
from mhsd.driver.site_limits import narrowed

log = logging.getLogger("mhsd.daemon")


def load_devices(config: Config, *, operator_configured: bool) -> list[LoadedDevice]:
    """Load every device of this start; nothing is opened yet.

    Raises StartError for hardware that is not allowed (exit 4, MHS.AUTH.HARDWARE_DISABLED) or has no state
    directory, for two devices with one path, for `--option` and `--arm` that name no device, and for site limits that
    would allow more than a manifest.
    """
    backends = [_backend(entry, config) for entry in config.devices]
    _check_hardware(config, backends, operator_configured=operator_configured)
    devices = [
        load_target(entry.target, backend=backend, options=_options(entry, config), path=entry.path)
        for entry, backend in zip(config.devices, backends, strict=True)
    ]
    paths = [device.manifest.path for device in devices]
    for path in paths:
        if paths.count(path) > 1:
            raise StartError(
                f"two devices have the path {path}; give one another with NAME@/path", exit_code=2
            )
    for option in config.option:
        _check_path(option.path, paths, "--option")
    for path in config.arm if isinstance(config.arm, tuple) else ():
        _check_path(path, paths, "--arm")
    return devices if config.site_limits is None else narrowed(devices, config.site_limits)


def armed_paths(config: Config) -> frozenset[str] | Literal[True]:
    """True for every device, else the paths of the armed ones."""
    return True if config.arm is True else frozenset(config.arm or ())


def _backend(entry: DeviceEntry, config: Config) -> Backend:
    return "hardware" if (entry.backend or config.backend) == "hardware" else "fake"


def _check_hardware(config: Config, backends: Sequence[Backend], *, operator_configured: bool) -> None:
    if "hardware" not in backends:
        return
    if not config.allow_hardware:
        raise StartError(
            "the hardware backend needs --allow-hardware, which says that the devices may be touched",
            exit_code=4,
            mhs_code="MHS.AUTH.HARDWARE_DISABLED",
        )
    if config.state_dir is None:
        raise StartError(
            "the hardware backend needs --state-dir, where receipts and the e-stop latch outlive the daemon",
            exit_code=2,
        )
    if not operator_configured:
        log.warning(
            "no operator has a credential (--operator-token-file):"
            " an e-stop of these devices cannot be reset and no permit can be given"
        )


def _options(entry: DeviceEntry, config: Config) -> Mapping[str, Any]:
    """The driver options of one device: the table's, and over them those of `--option`."""
    options = dict(entry.options)
    if config.option:
        path = entry.path or _path_of(entry.target)
        options |= {option.name: option.text for option in config.option if option.path == path}
    return options


def _path_of(target: str) -> Any:
    """The path in a target's manifest; None where there is none to be read, which the loader then explains."""
    known = target in fixture_names()
    directory = drivers_dir() / target.replace("-", "_") if known else Path(target)
    for name, read in (("manifest.toml", read_toml), ("manifest.json", read_json)):
        try:
            source = read(directory / name)
        except (OSError, ValueError):
            continue
        return source.get("path") if isinstance(source, dict) else None
    return None


def _check_path(path: str, paths: Sequence[str], where: str) -> None:
    if path not in paths:
        raise StartError(f"{where}: no device at {path} is served; there are {', '.join(paths)}", exit_code=2)
