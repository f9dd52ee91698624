"""The endpoint's conformance report: the one that was stored last, or one that says that nothing was run [CORE-190].

The report is one file of the state directory, so that it survives restarts and an operator may put the output of a
conformance run there. Whatever lies there is checked before it is shown.
"""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from mhsd import MHS_VERSION, SPEC_VERSION
from mhsd.base.errors import Fault
from mhsd.config import Limits
from mhsd.core.conformance import PROFILE, not_run, report_defects
from mhsd.services.endpoint import SERVER, Endpoint
from mhsd.store.directories import sync_directory
from mhsd.wire.json_text import Raw, decode, encode
from mhsd.wire.params import ConformanceReportParams

log = logging.getLogger("mhsd.conformance")

REPORT_FILE = "conformance-report.json"


async def record_conformance_report(endpoint: Endpoint, report: Mapping[str, Any]) -> None:
    """Store a report as the one that this endpoint shows, durably where it has a state directory.

    Its digest must recompute and its subject be this endpoint or one of its devices; ValueError says what does not
    hold, OSError that it cannot be written. The former report stays until the new one is whole.
    """
    data = encode(report)
    subjects, limits = _subjects(endpoint), endpoint.limits
    await trio.to_thread.run_sync(_record, endpoint.store.directory, data, subjects, limits)


async def conformance_report(endpoint: Endpoint, params: ConformanceReportParams, *, created_at: str) -> Raw:
    """The stored report, verbatim, whatever is asked for; without one the report of a run that never was."""
    return await trio.to_thread.run_sync(
        _report, endpoint.store.directory, _subjects(endpoint), endpoint.limits, params, created_at
    )


def _subjects(endpoint: Endpoint) -> frozenset[str]:
    return frozenset((endpoint.endpoint_id, *endpoint.devices))


def _report(
    directory: Path,
    subjects: frozenset[str],
    limits: Limits,
    params: ConformanceReportParams,
    created_at: str,
) -> Raw:
    path = directory / REPORT_FILE
    try:
        return Raw(encode(_checked(path.read_bytes(), subjects, limits)))
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        log.warning("%s is not shown: %s", path, error)
    endpoint_id = min(subjects, key=len)  # A device's id is the endpoint's and a path.
    versions = (MHS_VERSION, SPEC_VERSION)
    profile = params.profile or PROFILE
    return Raw(
        encode(not_run(endpoint_id, profile=profile, server=SERVER, versions=versions, created_at=created_at))
    )


def _checked(data: bytes, subjects: frozenset[str], limits: Limits) -> Any:
    """The report that these bytes are; ValueError for one that must not be shown."""
    try:
        report = decode(data, max_bytes=limits.max_request_bytes, max_items=limits.max_json_items)
    except Fault as fault:
        raise ValueError(fault.message) from None
    defects = report_defects(report, subjects)
    if defects:
        raise ValueError("; ".join(defects))
    return report


def _record(directory: Path, data: bytes, subjects: frozenset[str], limits: Limits) -> None:
    _checked(data, subjects, limits)
    path = directory / REPORT_FILE
    partial = path.with_suffix(".partial")
    try:
        with partial.open("wb") as file:
            file.write(data + b"\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise
    sync_directory(directory)
