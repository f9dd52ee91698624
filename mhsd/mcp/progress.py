"""How far an operation is, told to the client while its call is open, if it asked for that [TPT-040]."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import trio

from mhsd.aclient.events import AsyncSubscription
from mhsd.aclient.session import AsyncSession
from mhsd.client.errors import MHSError
from mhsd.mcp.host import Job, contained

log = logging.getLogger("mhsd.mcp")

_POLL_S = 0.5
"""Where the endpoint has no events, it is asked this often."""
_SUBSCRIBE_S = 2.0
"""The command does not wait longer for the events of its progress."""


@asynccontextmanager
async def following(
    nursery: trio.Nursery, job: Job, session: AsyncSession, command_id: str
) -> AsyncIterator[None]:
    """Progress of this command goes to the client while the block runs.

    The events are subscribed to before the block begins, so that none of the command's is missed. `nursery` outlives
    the block: nobody waits for the subscription's end.
    """
    if job.call.progress_token is None:
        yield
        return
    scope, ready = trio.CancelScope(), trio.Event()
    nursery.start_soon(contained, _follow, job, session, command_id, scope, ready)
    await ready.wait()
    try:
        yield
    finally:
        scope.cancel()


async def _follow(
    job: Job, session: AsyncSession, command_id: str, scope: trio.CancelScope, ready: trio.Event
) -> None:
    with scope:
        try:
            subscription = await _subscribed(session)
        finally:
            ready.set()
        try:
            if subscription is not None:
                async with subscription:
                    async for event in subscription:
                        if event["payload"].get("command_id") == command_id:
                            tell(job, event["payload"], event["payload"].get("status"))
        except MHSError as problem:
            log.info("the progress events have ended: %s", problem)
        await _poll(job, session, command_id)


async def _subscribed(session: AsyncSession) -> AsyncSubscription | None:
    """A subscription to what goes on in this session; None where the endpoint has no events, or not in time."""
    try:
        with trio.move_on_after(_SUBSCRIBE_S):
            return await session.subscribe("progress")
    except MHSError as problem:
        log.info("no progress events: %s", problem)
    return None


async def _poll(job: Job, session: AsyncSession, command_id: str) -> None:
    while True:
        await trio.sleep(_POLL_S)
        try:
            found = await session.look_up(command_id)
        except MHSError:
            continue  # The call itself is told what is wrong.
        if found is not None:
            tell(job, found.get("progress"), found.status)


def tell(job: Job, progress: object, status: object) -> None:
    """One progress as MHS states it: percent and a message; the ticks or the status where the device says nothing."""
    if not isinstance(progress, Mapping):
        return
    percent, message, ticks = (progress.get(name) for name in ("percent", "message", "ticks"))
    if isinstance(percent, int | float) and not isinstance(percent, bool):
        if message is None:
            message = str(status) if ticks is None else f"{ticks} ticks"
        job.progress(percent, 100, message)
