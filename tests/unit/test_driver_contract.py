"""What the base class gives every driver: its commands by table, and a stop that ends them."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from mhsd.driver import Call, Cancelled, Driver, DriverFailed, Outcome, Reading, Settings


class Sleeper(Driver):
    async def read(self, resource_ids: Sequence[str]) -> Reading:
        return Reading({})

    async def halt(self, reason: str) -> bool:
        self.end_commands()
        return True

    async def wait(self, call: Call) -> Outcome:
        if call.input["for_ever"]:
            await trio.sleep_forever()
        return Outcome({"waited": True})

    commands = {"cap.world.step.v1": wait}  # noqa: RUF012


def call(**given: Any) -> Call:
    return Call(
        "cap.world.step.v1", "world", given, "01J8ZQ3V6Y7M2N4P6R8S0T2V4Y", 1000, lambda *_, **__: None
    )


@pytest.fixture
def sleeper() -> Sleeper:
    return Sleeper(Settings("fake", {}, "/lab/sleeper"))


async def test_a_command_is_carried_out_by_the_method_in_the_table(sleeper: Sleeper) -> None:
    assert await sleeper.invoke(call(for_ever=False)) == Outcome({"waited": True})


async def test_a_stop_ends_a_running_command_as_cancelled(sleeper: Sleeper, nursery: trio.Nursery) -> None:
    ended: list[bool | None] = []

    async def run() -> None:
        with pytest.raises(Cancelled) as caught:
            await sleeper.invoke(call(for_ever=True))
        ended.append(caught.value.safe_state_achieved)

    nursery.start_soon(run)
    await trio.testing.wait_all_tasks_blocked()
    assert await sleeper.estop("test")
    await trio.testing.wait_all_tasks_blocked()
    assert ended == [None]
    assert await sleeper.invoke(call(for_ever=False)) == Outcome({"waited": True})


async def test_a_cancellation_from_outside_stays_a_cancellation(sleeper: Sleeper) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await sleeper.invoke(call(for_ever=True))
    assert scope.cancelled_caught


def test_a_failure_with_a_code_that_does_not_exist_is_a_mistake_of_the_driver() -> None:
    with pytest.raises(ValueError, match=r"MHS\.DEVICE\.FALT is no MHS code"):
        DriverFailed("MHS.DEVICE.FALT", "x")
