"""A bench supply on a real TCP port of 127.0.0.1: the twin, with a network that can misbehave."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from mhsd.driver.lines import received_lines
from mhsd.driver.loader import LoadedDevice, load_target

MUTE = "mute"


class Supply:
    """`twin` is the instrument; `trouble` maps a query to what becomes of its reply."""

    def __init__(self, twin: Any) -> None:
        self.twin = twin
        self.port = 0
        self.seen: list[tuple[int, str]] = []
        self.connections = 0
        self.trouble: dict[str, Any] = {}

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        number = self.connections
        try:
            async for line in received_lines(stream):
                self.seen.append((number, line))
                await self._answer(stream, line)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await trio.aclose_forcefully(stream)

    async def _answer(self, stream: trio.SocketStream, line: str) -> None:
        reply = self.twin.answer(line)
        trouble = self.trouble.get(line)
        if reply is None or trouble == MUTE:
            return
        data = f"{reply}\r\n".encode()
        if isinstance(trouble, bytes):
            data = trouble
        if isinstance(trouble, float):
            await trio.sleep(trouble)
        middle = len(data) // 2 if trouble == "split" else len(data)
        await stream.send_all(data[:middle])
        if data[middle:]:
            await trio.sleep(0.2)
            await stream.send_all(data[middle:])

    def lines_of(self, number: int) -> list[str]:
        return [line for of, line in self.seen if of == number]


@pytest.fixture
def clock() -> trio.testing.MockClock:
    """The test clock, which waits a moment for the kernel to deliver before it jumps ahead."""
    return trio.testing.MockClock(autojump_threshold=0.02)


Opened = Callable[..., Awaitable[tuple[Supply, LoadedDevice]]]


@pytest.fixture
def open_supply(nursery: trio.Nursery) -> Opened:
    """Starts a supply and opens the real driver on it, over TCP."""

    async def start(**options: Any) -> tuple[Supply, LoadedDevice]:
        supply = Supply(load_target("scpi-psu", backend="fake", options={}).driver.twin)  # type: ignore[attr-defined]
        serve = partial(trio.serve_tcp, supply.serve, 0, host="127.0.0.1")
        listeners = await nursery.start(serve)
        supply.port = listeners[0].socket.getsockname()[1]
        given = {"link": f"tcp://127.0.0.1:{supply.port}", "idn": "mhsd,PSU-1,", **options}
        device = load_target("scpi-psu", backend="hardware", options=given)
        await device.driver.open(nursery)
        return supply, device

    return start
