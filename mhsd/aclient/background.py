"""Tasks that live as long as a block: what they do goes on beside it, and how the block ends is not their affair."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def background() -> AsyncIterator[trio.Nursery]:
    """A nursery whose tasks are cancelled when the block is left.

    An exception of the block leaves it as it is, and not in a group, so that `except MHSError` around the block
    means what it says. The tasks are expected to raise nothing.
    """
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except Exception as problem:
            failure = problem
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


@asynccontextmanager
async def outlasting() -> AsyncIterator[trio.Nursery]:
    """As `background`, with tasks that a cancellation of the block does not end: what the block does on its way out,
    such as closing a session, can still use them."""
    scope, begun = trio.CancelScope(shield=True), trio.Event()
    opened: list[trio.Nursery] = []

    async def keep() -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                opened.append(nursery)
                begun.set()
                await trio.sleep_forever()

    async with background() as outer:
        outer.start_soon(keep)
        with trio.CancelScope(shield=True):
            await begun.wait()
        try:
            yield opened[0]
        finally:
            scope.cancel()
