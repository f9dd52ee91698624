"""The official Python SDK's client, which none of us wrote, works with the projection [TPT-045].

It offers revision 2025-11-25 in a handshake (`legacy`), or asks for a later era first and falls back (`auto`).
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from mcp import Client, StdioServerParameters
from mcp_types import TextContent, TextResourceContents

from tests.lab import Lab
from tests.mcp.wire import MHSD, NAMED, PATIENCE_S, UNHURRIED, environment, receipt_of

MODES = ("legacy", "auto")


@asynccontextmanager
async def connected(tmp_path: Path, mode: Any, *arguments: str) -> AsyncIterator[Client]:
    server = StdioServerParameters(
        command=str(MHSD),
        args=["--mcp", *UNHURRIED, *arguments],
        env=environment(tmp_path),
        cwd=tmp_path,
    )
    with trio.fail_after(PATIENCE_S):
        async with Client(server, mode=mode) as client:
            yield client


def receipt_from(result: Any) -> dict[str, Any]:
    return receipt_of(result.model_dump(by_alias=True, exclude_none=False, mode="json"))


@pytest.mark.parametrize("mode", MODES)
async def test_a_first_session(tmp_path: Path, mode: str) -> None:
    """[TPT-036, TPT-037, TPT-045]"""
    async with connected(tmp_path, mode) as client:
        assert client.protocol_version == "2025-11-25"
        assert client.server_info is not None
        assert client.server_info.name == "mhs-mcp:mhs://localhost:7400"
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        convey = tools[f"{NAMED}motion_convey"]
        assert convey.annotations is not None
        assert convey.annotations.destructive_hint is True
        assert convey.meta is not None
        assert convey.meta["x-mhs"]["mode"] == "simulated"
        receipt = receipt_from(await client.call_tool(f"{NAMED}world_step", {"ticks": 5}))
        assert receipt["output"]["tick"] == 5
        devices = await client.call_tool("mhs__devices", {})
        assert isinstance(devices.content[0], TextContent)
        assert json.loads(devices.content[0].text) == devices.structured_content


@pytest.mark.parametrize("mode", MODES)
async def test_resources(tmp_path: Path, mode: str) -> None:
    """[TPT-043]"""
    async with connected(tmp_path, mode) as client:
        listed = await client.list_resources()
        for resource in listed.resources:
            (content,) = (await client.read_resource(resource.uri)).contents
            assert isinstance(content, TextResourceContents)
            assert json.loads(content.text)
        assert (await client.list_resource_templates()).resource_templates


async def test_progress(tmp_path: Path) -> None:
    """[TPT-040]"""
    told: list[tuple[float, float | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total))

    async with connected(tmp_path, "legacy") as client:
        result = await client.call_tool(
            f"{NAMED}motion_convey", {"distance_mm": 200, "speed_mm_s": 400}, progress_callback=hear
        )
        assert receipt_from(result)["status"] == "completed"
    assert told
    assert all(total == 100 for _, total in told)


async def test_a_cancelled_call_leaves_the_connection_usable(tmp_path: Path) -> None:
    """[TPT-041]"""
    moves = trio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        moves.set()

    async with connected(tmp_path, "legacy") as client:
        async with trio.open_nursery() as nursery:

            async def convey() -> None:
                await client.call_tool(
                    f"{NAMED}motion_convey",
                    {"distance_mm": 100_000, "speed_mm_s": 100},
                    progress_callback=hear,
                )

            nursery.start_soon(convey)
            await moves.wait()
            nursery.cancel_scope.cancel()
        belt = await client.call_tool("mhs__read", {"resource_id": "belt"})
        assert belt.structured_content is not None
        assert belt.structured_content["state"]["running"] is False
        evidence = await client.call_tool("mhs__evidence", {"last_n": 1})
        assert evidence.structured_content is not None
        assert evidence.structured_content["receipts"][0]["status"] == "cancelled"


async def test_an_endpoint_over_http(tmp_path: Path, endpoint: Lab) -> None:
    """[TPT-046]"""
    async with connected(tmp_path, "auto", "-e", endpoint.ready["url"]) as client:
        assert receipt_from(await client.call_tool(f"{NAMED}world_step", {"ticks": 2}))["output"]["tick"] == 2
