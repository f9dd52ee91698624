"""Plays the steps of a program, and brings what they leave to an end."""

import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import trio
import trio.testing

from tests.property.model import steps
from tests.property.model.checks import check_history
from tests.property.model.history import Ask
from tests.property.model.lives import QUIET_S
from tests.property.model.programs import Program
from tests.property.model.record import pick
from tests.property.model.steps import MOVE, Step
from tests.property.model.world import World

QUIET_WAIT_MS = 100

MEMORY = Path("/dev/shm")
"""Where there is one, the state directories are on a disk that is none: the flushes would take most of the time."""


def play(program: Program, order: int) -> World:
    """Run one program from its first step to a quiet end. `order` is that of tasks that could run in any."""
    # Trio's own source of randomness, which Hypothesis makes repeatable; here it also has to vary.
    trio._core._run._r.seed(order)
    fast = str(MEMORY) if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="mhsd-model-", dir=fast) as directory:
        world = World(Path(directory) / "state")
        mhsd = logging.getLogger("mhsd")
        mhsd.addHandler(world.alarms)
        try:
            trio.run(_play, world, program, clock=trio.testing.MockClock(autojump_threshold=0))
        finally:
            mhsd.removeHandler(world.alarms)
    return world


def faults_of(program: Program, order: int) -> list[str]:
    """What was wrong in one run of a program; nothing may be."""
    try:
        world = play(program, order)
    except Exception as error:
        # What a task raised took the endpoint with it.
        return [f"{type(error).__name__}: {error} {getattr(error, 'exceptions', '')}"]
    return [*world.faults, *world.alarms.heard]


async def _play(world: World, program: Program) -> None:
    rest = list(program)
    while True:
        async with world.alive():
            for principal in (1, 0, 0):
                await world.open(principal, 600, (0, 1))
            restart = await _live(world, rest)
            if restart is not None and restart.how == "drain":
                await _drain(world)
            if restart is None and not world.disk.full:
                await _finish(world)
                await check_history(world)
                await _drain(world)
                break


async def _live(world: World, rest: list[Step]) -> steps.Restart | None:
    """Play up to the next restart or the end, taking the steps out of `rest`."""
    while rest:
        step = rest.pop(0)
        if isinstance(step, steps.Restart):
            return step
        await _do(world, step)
    return None


async def _do(world: World, step: Step) -> None:
    for listener in world.listeners:
        listener.read()
    match step:
        case steps.Open(principal, ttl_s, devices):
            await world.open(principal, ttl_s, devices)
        case steps.Command():
            params = world.order(step)
            if params is not None:
                order = world.orders[-1]
                world.ask(order.principal, order.method, params)
        case steps.Again():
            found = world.again(step)
            if found is not None:
                order, params, principal = found
                world.ask(principal, order.method, params)
        case steps.Batch():
            world.batch(step)
        case steps.Permit():
            world.permit(step)
        case steps.Stop():
            world.stop(step)
        case steps.Gate(device, state):
            world.touch(device, "gate", state)
        case steps.Conduct(device, part, how):
            world.touch(device, part, how)
        case steps.DiskFull():
            world.disk.full = True
            world.full_lives.add(world.life)
        case steps.Lose(of):
            _lose(world, of)
        case steps.Wait(ms):
            await _wait(world, ms)
        case _:
            _call(world, step)


def _call(world: World, step: Any) -> None:
    """A call in a session of some method that is no command."""
    if isinstance(step, steps.Status):
        params = {"device_id": world.device_id(step.device), "deadline_ms": 1000}
        world.ask(1, "mhs.safety.status", params)
        return
    session = pick(world.sessions, step.session)
    if session is None:
        return
    named = {"session_id": session.session_id}
    match step:
        case steps.Heartbeat():
            ask = world.ask(session.principal, "mhs.session.heartbeat", named)
            if not session.over(ask.sent.mono_s) and session.closing is None:
                session.expires_mono_s = ask.sent.mono_s + session.ttl_s
        case steps.Close():
            ask = world.ask(session.principal, "mhs.session.close", named)
            session.closing = session.closing or ask.sent
        case steps.Read(_, device, deadline_ms):
            named |= {"device_id": world.device_id(device), "resource_id": "axis"}
            world.ask(session.principal, "mhs.resource.read", {**named, "deadline_ms": deadline_ms})
        case steps.Reset(device, _, deadline_ms):
            world.reset(device, session, deadline_ms)
        case steps.Get(of, _, by_command):
            order = pick(world.orders, of)
            if order is None:
                return
            known = None if by_command else world.operations.get(order.command_id)
            which = (
                {"operation_id": known}
                if known is not None
                else {"command_id": order.command_id, "device_id": order.params["device_id"]}
            )
            world.ask(session.principal, "mhs.operations.get", {**named, **which, "deadline_ms": 1000})
        case steps.Cancel(of, _, deadline_ms):
            order = pick(world.orders, of)
            known = None if order is None else world.operations.get(order.command_id)
            if known is not None:
                params = {**named, "operation_id": known, "deadline_ms": deadline_ms}
                world.ask(session.principal, "mhs.operations.cancel", params)


def _lose(world: World, of: int) -> None:
    waiting = [ask for ask in world.asks if ask.life == world.life and ask.answered is None and not ask.lost]
    ask: Ask | None = pick(waiting, of)
    if ask is not None:
        for each in waiting:
            each.lost = each.lost or each.scope is ask.scope
        ask.scope.cancel()


async def _wait(world: World, ms: int) -> None:
    if ms == 0:
        await trio.lowlevel.checkpoint()
        return
    await trio.sleep(ms / 1000)
    if ms >= QUIET_WAIT_MS:
        await trio.testing.wait_all_tasks_blocked()
        world.note_quiet()


async def _drain(world: World) -> None:
    world.drained.add(world.life)
    # What hangs is waited for only so long: the next start accounts for it.
    if all("hang" not in body.conduct.values() for body in world.bodies):
        world.settled.add(world.life)
    await world.endpoint.drain()


async def _finish(world: World) -> None:
    """Mend everything, let everything end, and show that the endpoint serves as it should."""
    for device in range(len(world.bodies)):
        world.touch(device, "gate", "closed")
        for part in ("read", "stop", "reset"):
            world.touch(device, part, "ok")
    await trio.sleep(QUIET_S)
    await trio.testing.wait_all_tasks_blocked()
    world.note_quiet()
    operator = await world.open(0, 600, (0, 1))
    client = await world.open(1, 600, (0, 1))
    assert operator is not None
    assert client is not None
    for device in range(len(world.bodies)):
        await _reset(world, device, operator)
        await _move(world, device)
    await _ask_again(world)
    await _look_up(world)
    for session in (operator, client):
        ask = world.ask(session.principal, "mhs.session.close", {"session_id": session.session_id})
        await world.until_answered(ask)
    await trio.sleep(QUIET_S)
    await trio.testing.wait_all_tasks_blocked()
    world.note_quiet()
    # Each live session has a timer.
    known = world.tasks_at_rest + len(world.endpoint.sessions.live_sessions())
    tasks = trio.lowlevel.current_statistics().tasks_living
    world.expect(tasks == known, f"{tasks} tasks live on, not {known}")


async def _reset(world: World, device: int, operator: Any) -> None:
    host = world.endpoint.devices[world.device_id(device)].host
    world.expect(world.calm(device), f"rig {device} does not come to rest")
    world.expect(host.latched <= world.bodies[device].stopped, f"rig {device} is latched and was let go")
    if host.latched or host.unconfirmed is not None:
        ask = world.reset(device, operator, 5000)
        await world.until_answered(ask)
        done = ask.result is not None and ask.result["status"] == "completed"
        world.expect(done, f"rig {device} could not be reset: {ask.reply}")


async def _move(world: World, device: int) -> None:
    """What is served as it should be does what it is asked."""
    revision = world.endpoint.devices[world.device_id(device)].host.revision
    params = world.order(steps.Command(MOVE, 1, device, expected=0))
    assert params is not None
    ask = world.ask(0, "mhs.command", params)
    await world.until_answered(ask)
    receipt = ask.result
    moved = receipt is not None and (receipt["status"], receipt.get("state_revision_after")) == (
        "completed",
        revision + 1,
    )
    world.expect(moved, f"rig {device} does not move: {ask.reply}")


async def _ask_again(world: World) -> None:
    """Every command once more, as it was first sent: nothing runs that has run."""
    world.seq_before_last, _ = world.store.head()
    for back in range(len(world.orders)):
        found = world.again(steps.Again(len(world.orders) - 1 - back, deadline_ms=60_000))
        assert found is not None
        order, params, principal = found
        ask = world.ask(principal, order.method, params)
        await world.until_answered(ask)
        world.last_asks.append(ask)
    await trio.sleep(QUIET_S)


async def _look_up(world: World) -> None:
    """Every operation that anybody was told of is still known to its owner [PROTO-030]."""
    for operation_id, (command_id, owner) in list(world.told.items()):
        own = [visit for visit in world.sessions[-2:] if visit.principal == owner]
        params = {"session_id": own[0].session_id, "operation_id": operation_id, "deadline_ms": 1000}
        ask = world.ask(own[0].principal, "mhs.operations.get", params)
        await world.until_answered(ask)
        known = ask.result is not None and ask.result["command_id"] == command_id
        world.expect(known, f"operation {operation_id} is not known any more: {ask.reply}")
