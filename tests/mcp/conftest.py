"""Servers of the MCP tests: started by a test, stopped at its end."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.lab import Lab, running
from tests.mcp.wire import UNHURRIED, McpProcess, started, stopped

Start = Callable[..., Awaitable[McpProcess]]


@pytest.fixture
async def start(nursery: trio.Nursery, tmp_path: Path) -> AsyncIterator[Start]:
    """Start `mhsd --mcp` with arguments, initialized unless `initialize` is false."""
    servers: list[McpProcess] = []

    async def begin(*arguments: str, initialize: bool = True, **more: Any) -> McpProcess:
        server = await started(nursery, tmp_path, *UNHURRIED, *arguments, **more)
        servers.append(server)
        if initialize:
            await server.initialize()
        return server

    yield begin
    for server in servers:
        await stopped(server.process)


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Lab]:
    """An endpoint that runs already and is reached over HTTP."""
    (tmp_path / "endpoint").mkdir()
    with running("http", tmp_path / "endpoint", *UNHURRIED) as lab:
        yield lab
