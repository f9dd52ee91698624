"""Storing the conformance report of an endpoint [CORE-190]."""

import json
from pathlib import Path
from typing import Any

import pytest

from mhsd.config import Limits
from mhsd.core.conformance import report_digest
from mhsd.driver.loader import load_target
from mhsd.services.conformance import conformance_report, record_conformance_report
from mhsd.services.endpoint import Endpoint, open_endpoint
from mhsd.store import open_store
from mhsd.wire.params import ConformanceReportParams

ENDPOINT = "mhs://localhost:7400"
NOW = "2026-10-20T07:45:00.000Z"


async def shown(endpoint: Endpoint) -> Any:
    return json.loads((await conformance_report(endpoint, ConformanceReportParams(), created_at=NOW)).data)


@pytest.mark.parametrize("kept", [True, False])
async def test_a_report_is_stored_only_when_it_is_true_to_itself(tmp_path: Path, kept: bool) -> None:
    state = tmp_path / "state" if kept else None
    device = load_target("conveyor-workcell", backend="fake", options={})
    async with (
        open_store(state, endpoint_id=ENDPOINT, mhs_version="1.0", created_at=NOW) as store,
        open_endpoint(endpoint_id=ENDPOINT, devices=[device], store=store, limits=Limits()) as endpoint,
    ):
        report = await shown(endpoint)
        assert report["level_achieved"] == "CL0"
        with pytest.raises(ValueError, match="digest does not recompute"):
            await record_conformance_report(endpoint, {**report, "level_achieved": "CL3"})
        assert await shown(endpoint) == report
        better = {**report, "level_achieved": "CL3"}
        better["digest"] = report_digest(better)
        await record_conformance_report(endpoint, better)
        assert await shown(endpoint) == better
        assert not list(store.directory.glob("*.partial"))
