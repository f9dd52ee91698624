"""Taking a snapshot between two mutations: what begins or ends while the state is read."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from mhsd.base.errors import Fault
from mhsd.config import Limits
from mhsd.core.snapshots import Origin
from mhsd.driver import Reading
from mhsd.driver.loader import load_target
from mhsd.services.device_host import DeviceHost
from mhsd.services.endpoint import open_endpoint
from mhsd.services.served_device import ServedDevice
from mhsd.services.snapshots import restore_binding, take_snapshot
from mhsd.store import open_store
from tests.documents import check

ENDPOINT = "mhs://localhost:7400"
CONVEYOR = f"{ENDPOINT}/lab/conveyor-workcell"


async def on_the_conveyor(work: Callable[[ServedDevice], Any]) -> None:
    """Do the work with a served conveyor whose store needs no thread."""
    at = "2026-10-20T07:45:00.000Z"
    device = load_target("conveyor-workcell", backend="fake", options={})
    async with (
        open_store(None, endpoint_id=ENDPOINT, mhs_version="1.0", created_at=at, inline=True) as store,
        open_endpoint(endpoint_id=ENDPOINT, devices=[device], store=store, limits=Limits()) as endpoint,
    ):
        await work(endpoint.devices[CONVEYOR])


def reads_meanwhile(host: DeviceHost, happens: Callable[[], None], times: int) -> list[int]:
    """Make something happen while each of the next reads is under way; the list has the revisions that were read."""
    read, seen = host.driver.read, []

    async def reading(resource_ids: Sequence[str]) -> Reading:
        seen.append(host.revision)
        shown = await read(resource_ids)
        if len(seen) <= times:
            happens()
        return shown

    host.driver.read = reading  # type: ignore[method-assign]
    return seen


def _advance(host: DeviceHost) -> Callable[[], None]:
    def advance() -> None:
        host.revision += 1

    return advance


@pytest.mark.parametrize("times", [0, 1, 2])
async def test_a_state_is_read_again_when_a_mutation_ended_meanwhile(times: int) -> None:
    """[PROTO-034]"""

    async def work(device: ServedDevice) -> None:
        seen = reads_meanwhile(device.host, _advance(device.host), times)
        taken = await take_snapshot(device.host, device.executions)
        check("snapshot", taken)
        assert taken["revision"] == seen[-1] == device.host.revision == times
        assert len(seen) == times + 1

    await on_the_conveyor(work)


async def test_a_device_that_never_holds_still_is_busy() -> None:
    """[PROTO-034]"""

    async def work(device: ServedDevice) -> None:
        reads_meanwhile(device.host, _advance(device.host), 99)
        with pytest.raises(Fault) as caught:
            await take_snapshot(device.host, device.executions)
        assert caught.value.mhs_code == "MHS.DEVICE.BUSY"
        assert caught.value.retryable is True

    await on_the_conveyor(work)


async def test_a_command_that_takes_the_slot_while_the_state_is_read_makes_it_busy() -> None:
    """[PROTO-034]"""

    async def work(device: ServedDevice) -> None:
        held: Any = object()

        def hold() -> None:
            device.host.slot.take_or_queue(held)

        reads_meanwhile(device.host, hold, 1)
        with pytest.raises(Fault) as caught:
            await take_snapshot(device.host, device.executions)
        assert caught.value.mhs_code == "MHS.DEVICE.BUSY"
        device.host.slot.release(held)
        assert (await take_snapshot(device.host, device.executions))["device_id"] == CONVEYOR

    await on_the_conveyor(work)


async def test_a_state_without_canonical_form_is_no_snapshot() -> None:
    """[PROTO-012, PROTO-034]"""

    async def work(device: ServedDevice) -> None:
        async def reading(resource_ids: Sequence[str]) -> Reading:
            return Reading({name: {"tick": 2**60} for name in resource_ids})

        device.host.driver.read = reading  # type: ignore[method-assign]
        with pytest.raises(Fault) as caught:
            await take_snapshot(device.host, device.executions)
        assert caught.value.mhs_code == "MHS.ADAPTER.SHIM_FAILED"
        assert caught.value.details == {"reason": "state_unusable"}

    await on_the_conveyor(work)


async def test_a_device_is_the_origin_of_its_snapshots() -> None:
    """[PROTO-034]"""

    async def work(device: ServedDevice) -> None:
        origin: Origin = device.host.origin
        assert origin.identity()["instance_id"] == device.described["instance_id"]
        assert origin.states.keys() == origin.exclusions.keys() == {"world", "belt", "valve"}

    await on_the_conveyor(work)


def test_a_restore_is_guarded_by_every_hard_interlock_and_by_no_soft_one() -> None:
    """[PROTO-035]"""
    manifest = load_target("conveyor-workcell", backend="fake", options={}).manifest
    door = manifest.safety.interlocks["door_closed"]
    both = {"door_closed": door, "cover": attrs.evolve(door, id="cover", hard=False)}
    binding = restore_binding(attrs.evolve(manifest, safety=attrs.evolve(manifest.safety, interlocks=both)))
    assert binding.interlocks == ("door_closed",)
    assert binding.actuating
    assert not binding.simulation_control
    assert (binding.permit, binding.long_running) == ("none", False)
