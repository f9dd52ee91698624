"""A replay device that has nothing to show does not start, and one that has shows it at any revision."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from mhsd.base.errors import StartError
from mhsd.config import Limits
from mhsd.driver import Driver, DriverFailed, Reading
from mhsd.driver.loader import LoadedDevice, load_target
from mhsd.services.endpoint import open_endpoint
from mhsd.services.recordings import sample
from mhsd.store import open_store

ENDPOINT = "mhs://localhost:7400"
REPLAY = f"{ENDPOINT}/lab/replay-thermal"


class Album(Driver):
    """Shows its revision as a state; the numbers come from the test."""

    revisions: Sequence[int] = ()
    broken = False

    def recorded_revisions(self) -> Sequence[int]:
        return self.revisions

    async def read_recorded(self, revision: int, resource_ids: Sequence[str]) -> Reading:
        return Reading({name: {"setpoint_cel": revision} for name in resource_ids})

    async def read(self, resource_ids: Sequence[str]) -> Reading:
        if self.broken:
            raise DriverFailed("MHS.DEVICE.FAULT", "the album is wet")
        return await self.read_recorded(self.revisions[-1], resource_ids)

    async def halt(self, reason: str) -> bool:
        return True


def album(*revisions: int, broken: bool = False) -> LoadedDevice:
    device = load_target("replay-thermal", backend="fake", options={})
    driver = Album(device.driver.settings)
    driver.revisions, driver.broken = revisions, broken
    return attrs.evolve(device, driver=driver)


async def served(device: LoadedDevice, work: Any = None) -> None:
    """Open an endpoint with the device, do the work with its host, close it again."""
    at = "2026-10-20T07:45:00.000Z"
    async with (
        open_store(None, endpoint_id=ENDPOINT, mhs_version="1.0", created_at=at, inline=True) as store,
        open_endpoint(endpoint_id=ENDPOINT, devices=[device], store=store, limits=Limits()) as endpoint,
    ):
        if work is not None:
            await work(endpoint.devices[REPLAY].host)


async def test_a_recording_without_a_revision_does_not_start() -> None:
    """[PROTO-035a]"""
    with pytest.raises(StartError, match="the recording has no revision") as caught:
        await served(album())
    assert caught.value.exit_code == 1


async def test_a_recording_that_does_not_show_its_newest_frame_does_not_start() -> None:
    """[PROTO-024]"""
    with pytest.raises(StartError, match="the album is wet") as caught:
        await served(album(1, broken=True))
    assert caught.value.exit_code == 1


async def test_a_device_stands_at_its_newest_revision_and_every_read_names_its_own() -> None:
    """[PROTO-024, PROTO-035a]"""

    async def work(host: Any) -> None:
        assert host.revision == 30
        for asked, expected in ((None, 30), (2, 2), (30, 30)):
            revision, reading = await sample(host, "chamber", asked)
            assert (revision, reading.resources["chamber"]) == (expected, {"setpoint_cel": expected})
        assert host.revision == 30

    await served(album(2, 3, 30), work)
