"""The latch on disk: what was durable is found, and where nothing can be read everything is latched."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from mhsd.base.errors import StartError
from mhsd.store.latch import SLOT_BYTES, LatchRecord, open_latch
from tests.store.store_builders import AT, DEVICE, OTHER_DEVICE, final, opened, put

FIRE = {"reason": "fire", "engaged_at": AT}
FLOOD = {"reason": "flood", "engaged_at": AT}


async def test_a_new_store_has_no_latch(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        assert dict(store.latched) == {}


async def test_the_last_latches_are_found_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        assert await store.write_latch({DEVICE: FIRE})
        assert await store.write_latch({DEVICE: FIRE, OTHER_DEVICE: FLOOD})
    async with opened(tmp_path / "state") as store:
        assert store.latched == {DEVICE: LatchRecord(**FIRE), OTHER_DEVICE: LatchRecord(**FLOOD)}
        assert await store.write_latch({})
    async with opened(tmp_path / "state") as store:
        assert store.latched == {}


async def test_of_many_writes_at_once_the_last_one_stands(tmp_path: Path) -> None:
    outcomes: list[bool] = []

    async with opened(tmp_path / "state") as store:

        async def write(number: int) -> None:
            outcomes.append(await store.write_latch({DEVICE: {"reason": f"{number}", "engaged_at": AT}}))

        async with trio.open_nursery() as nursery:
            for number in range(20):
                # Started one by one: Trio starts the tasks of one tick in any order.
                nursery.start_soon(write, number)
                await trio.testing.wait_all_tasks_blocked()
    assert outcomes == [True] * 20
    async with opened(tmp_path / "state") as store:
        assert store.latched[DEVICE].reason == "19"


async def test_a_stop_that_is_no_longer_waited_for_is_written_all_the_same(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.write_latch({DEVICE: FIRE})
        assert scope.cancelled_caught
    async with opened(tmp_path / "state") as store:
        assert store.latched[DEVICE].reason == "fire"


async def test_latches_are_written_in_the_event_loop_too(tmp_path: Path) -> None:
    async with opened(tmp_path / "state", inline=True) as store:
        assert await store.write_latch({DEVICE: FIRE})
    async with opened(tmp_path / "state", inline=True) as store:
        assert store.latched[DEVICE].reason == "fire"


async def test_a_failed_write_is_not_durable_and_is_never_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path / "state") as store:
        assert await store.write_latch({DEVICE: FIRE})

        def fail(fd: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr("mhsd.store.latch.os.fdatasync", fail)
            assert not await store.write_latch({})
        assert not await store.write_latch({})
        # The receipts have a file of their own.
        await put(store, final(1))
        assert store.failure is None


@pytest.mark.parametrize(
    "remove", [Path.unlink, lambda path: path.with_name("signing-key.json").replace(path)]
)
async def test_a_latch_in_a_file_that_is_gone_is_not_durable(
    tmp_path: Path, remove: Callable[[Path], object]
) -> None:
    async with opened(tmp_path / "state") as store:
        assert await store.write_latch({})
        remove(tmp_path / "state" / "latch")
        assert not await store.write_latch({DEVICE: FIRE})
    async with opened(tmp_path / "state") as store:
        assert DEVICE in store.latched


async def test_a_stop_is_durable_however_long_its_reason_is(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        assert await store.write_latch({DEVICE: {"reason": "smoke " * 20_000, "engaged_at": AT}})
    async with opened(tmp_path / "state") as store:
        assert set(store.latched) == {DEVICE}
        assert store.latched[DEVICE].reason.startswith("smoke smoke")


async def test_more_latches_than_the_file_names_latch_every_device(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        assert await store.write_latch({f"{DEVICE}{n}": FIRE for n in range(2000)})
    async with opened(tmp_path / "state", device_ids=[OTHER_DEVICE]) as store:
        assert store.latched[f"{DEVICE}7"].engaged_at == AT
        assert OTHER_DEVICE in dict(store.latched)


async def test_a_closed_store_writes_no_latch(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as store:
        pass
    with trio.fail_after(30):
        assert not await store.write_latch({DEVICE: FIRE})


def write_two(path: Path) -> None:
    """Slot 1 then holds FIRE (sequence 3), slot 0 FLOOD (sequence 2)."""
    file = open_latch(path, fresh=True, now=AT)
    file.write({DEVICE: FLOOD})
    file.write({DEVICE: FIRE})
    file.close()


@pytest.mark.parametrize("cut_at", [0, 7, 12, 51, 60, 120])
def test_a_torn_write_leaves_what_was_durable_before(tmp_path: Path, cut_at: int) -> None:
    path = tmp_path / "latch"
    write_two(path)
    data = bytearray(path.read_bytes())
    slot = data[SLOT_BYTES:]
    data[SLOT_BYTES:] = slot[:cut_at] + bytes(len(slot) - cut_at)
    path.write_bytes(data)
    file = open_latch(path, fresh=False, now=AT)
    assert file.latched == {DEVICE: LatchRecord(**FLOOD)}
    file.write({})
    file.close()
    assert open_latch(path, fresh=False, now=AT).latched == {}


def removed(path: Path) -> None:
    path.unlink()


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(2 * SLOT_BYTES))


def one_bit_in_each_slot(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[52] ^= 1  # the first byte after the header
    data[SLOT_BYTES + 52] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [removed, emptied, zeroed, one_bit_in_each_slot])
async def test_where_the_latch_cannot_be_read_every_device_is_latched(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    async with opened(tmp_path / "state") as store:
        await put(store, final(1))
        await store.write_latch({})
    damage(tmp_path / "state" / "latch")
    for _ in range(2):  # a restart alone does not change that
        async with opened(tmp_path / "state", device_ids=[OTHER_DEVICE]) as store:
            assert set(store.latched) == {DEVICE, OTHER_DEVICE}
            assert len(store.latched) == 2
            for device_id in (DEVICE, OTHER_DEVICE, "mhs://localhost:7400/never/seen"):
                assert device_id in store.latched
                assert "cannot be read" in store.latched[device_id].reason
    async with opened(tmp_path / "state") as store:
        assert await store.write_latch({DEVICE: FIRE})
    async with opened(tmp_path / "state") as store:
        assert store.latched == {DEVICE: LatchRecord(**FIRE)}


async def test_a_damaged_latch_file_is_kept_for_whoever_looks_into_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "state"):
        pass
    (tmp_path / "state" / "latch").write_bytes(b"scorched")
    async with opened(tmp_path / "state"):
        assert (tmp_path / "state" / "latch.damaged").read_bytes() == b"scorched"


def test_a_latch_file_that_cannot_be_made_is_a_start_error(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="latch file"):
        open_latch(tmp_path / "missing" / "latch", fresh=True, now=AT)


async def test_without_a_state_directory_no_latch_is_durable() -> None:
    async with opened(None) as store:
        assert not await store.write_latch({DEVICE: FIRE})
        assert dict(store.latched) == {}
