"""What opens something that is to be closed again, so that `await` and `async with` both do what they look like."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar


class Closed(Protocol):
    """What a block closes."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


Opened = TypeVar("Opened", bound=Closed)


class Pending(Generic[Opened]):
    """Awaited, it is opened and the caller closes it; with `async with` it is open for the block. For one use."""

    def __init__(self, open_it: Callable[[], Coroutine[Any, Any, Opened]]) -> None:
        self._open_it = open_it

    def __await__(self) -> Generator[Any, Any, Opened]:
        return self._open_it().__await__()

    async def __aenter__(self) -> Opened:
        self._opened = await self._open_it()
        return await self._opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.__aexit__(kind, problem, trace)
