"""Every revision is spoken as its own clients know it, judged by raw lines [TPT-045].

`tests.mcp.wire` checks every message against the official models; here stands what they do not say.
"""

import json
from typing import Any

import pytest

from tests.mcp.conftest import Start
from tests.mcp.wire import CONVEYOR, LATEST, MHSD, NAMED, REVISIONS, McpProcess, receipt_of

ENDPOINT = "mhs://localhost:7400"


@pytest.fixture(params=REVISIONS)
async def server(request: pytest.FixtureRequest, start: Start) -> McpProcess:
    return await start(revision=request.param)


async def test_a_revision_is_negotiated_and_shim_and_endpoint_are_named(server: McpProcess) -> None:
    """[TPT-045]"""
    assert server.initialized["protocolVersion"] == server.revision
    assert server.initialized["serverInfo"]["name"] == f"mhs-mcp:{ENDPOINT}"
    assert server.initialized["capabilities"].keys() >= {"tools", "resources"}


async def test_tools_have_the_members_that_the_revision_knows(server: McpProcess) -> None:
    """[TPT-030, TPT-034, TPT-035]"""
    tools = {tool["name"]: tool for tool in (await server.request("tools/list"))["tools"]}
    convey = tools[f"{NAMED}motion_convey"]
    assert ("annotations" in convey) == (server.revision >= "2025-03-26")
    assert ("title" in convey) == (server.revision >= "2025-06-18")
    assert ("_meta" in convey) == (server.revision >= "2025-06-18")
    assert convey["x-mhs"]["risk_class"] == "R1"
    assert convey["inputSchema"]["properties"]["speed_mm_s"]["x-mhs-unit"] == "mm/s"
    assert convey["inputSchema"]["required"] == ["distance_mm", "speed_mm_s"]
    assert "Mode: simulated." in convey["description"]
    assert "mhs__reset" not in tools


async def test_a_command_answers_its_receipt(server: McpProcess) -> None:
    """[TPT-036, TPT-037]"""
    result = await server.call(f"{NAMED}world_step", {"ticks": 3})
    receipt = receipt_of(result)
    assert receipt["status"] == "completed"
    assert receipt["output"]["tick"] == 3
    assert receipt["principal"]["id"] == "agent:mcp/tests"
    assert {block["type"] for block in result["content"]} == {"text"}


async def test_resources_are_listed_and_read(server: McpProcess) -> None:
    """[TPT-043]"""
    listed = (await server.request("resources/list"))["resources"]
    uris = [resource["uri"] for resource in listed]
    device = f"{ENDPOINT}/devices/lab/conveyor-workcell"
    assert uris[:2] == [f"{ENDPOINT}/devices", device]
    read = await server.request("resources/read", {"uri": f"{device}/resources/belt"})
    (content,) = read["contents"]
    assert content["mimeType"] == "application/json"
    assert json.loads(content["text"])["state"]["running"] is False
    manifest = json.loads((await server.request("resources/read", {"uri": device}))["contents"][0]["text"])
    assert manifest["device_id"] == CONVEYOR
    templates = (await server.request("resources/templates/list"))["resourceTemplates"]
    assert all(template["uriTemplate"].startswith(("mhs://", "mhs+artifact://")) for template in templates)


async def test_what_every_server_must_answer(server: McpProcess) -> None:
    """[TPT-045]"""
    assert await server.request("ping") == {}
    assert await server.request("logging/setLevel", {"level": "warning"}) == {}
    for method in ("prompts/list", "completion/complete", "resources/subscribe", "nothing"):
        assert (await server.refused(method, {}))["code"] == -32601


BAD_PARAMS: tuple[tuple[str, Any], ...] = (
    ("tools/call", {"name": "mhs__nothing"}),
    ("tools/call", {"arguments": {}}),
    ("tools/call", {"name": "mhs__devices", "arguments": [1]}),
    ("tools/list", {"cursor": "nowhere"}),
    ("resources/list", {"cursor": "nowhere"}),
    ("resources/templates/list", {"cursor": 7}),
    ("logging/setLevel", {"level": "loud"}),
)
BAD_LINES = (
    (b"{", -32700),
    (b"\xff\xfe", -32700),
    (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', -32700),
    (b"[]", -32600),
    (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
    (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
    (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
    (b"7", -32600),
)
NOTHING_ASKED = (
    b"",
    b"\r",
    b'{"jsonrpc":"2.0","method":"notifications/nothing"}',
    b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"mhs__devices"}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled"}',
    b'{"jsonrpc":"2.0","id":5,"result":{}}',
    b'{"jsonrpc":"2.0","id":5,"error":{"code":1,"message":"m"}}',
)


async def test_bad_params_are_an_error_of_the_protocol(start: Start) -> None:
    server = await start()
    for method, params in BAD_PARAMS:
        assert (await server.refused(method, params))["code"] == -32602, (method, params)


async def test_an_unknown_resource_is_named_in_its_error(start: Start) -> None:
    """[TPT-043]"""
    server = await start()
    for uri in (f"{ENDPOINT}/devices/lab/nothing", "mhs+artifact://sha256:00", "http://127.0.0.1:9/", ""):
        error = await server.refused("resources/read", {"uri": uri})
        assert (error["code"], error["data"]["uri"]) == (-32002, uri)


async def test_whoever_asks_for_another_revision_is_offered_the_latest(start: Start) -> None:
    """[TPT-045]"""
    server = await start(initialize=False)
    for asked in ("2026-07-28", "2023-01-01", "", None, 7):
        params = {"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        assert (await server.request("initialize", params))["protocolVersion"] == LATEST


async def test_a_client_of_the_next_era_is_told_at_once_to_fall_back(start: Start) -> None:
    """[TPT-045]"""
    server = await start(initialize=False)
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    assert (await server.refused("server/discover", {"_meta": meta}))["code"] == -32601
    assert (await server.initialize())["protocolVersion"] == LATEST


async def test_an_id_comes_back_as_it_was(start: Start) -> None:
    server = await start()
    for request_id in (0, "", "7", -3, 2**53 + 1, "ü\u2028"):
        await server.begin("ping", request_id=request_id)
        assert (await server.response(request_id))["result"] == {}


async def test_a_bad_line_is_answered_once_and_the_next_is_served(start: Start) -> None:
    server = await start()
    for count, (line, code) in enumerate(BAD_LINES, start=1):
        await server.send_line(line)
        assert await server.request("ping") == {}
        assert len(server.responses(None)) == count, line
        assert server.responses(None)[-1]["error"]["code"] == code, line


async def test_bad_json_is_answered_under_its_id(start: Start) -> None:
    """What some hosts write when they cut a text in the middle of a character."""
    server = await start()
    params = b'{"name":"mhs__read","arguments":{"resource_id":"\\ud83d"}}'
    await server.send_line(b'{"jsonrpc":"2.0","id":"cut","method":"tools/call","params":%b}' % params)
    assert (await server.response("cut"))["error"]["code"] == -32700


async def test_what_asks_for_nothing_is_answered_by_nothing(start: Start) -> None:
    server = await start()
    for line in NOTHING_ASKED:
        before = len(server.messages)
        await server.send_line(line)
        assert await server.request("ping") == {}
        assert len(server.messages) == before + 1, line


async def test_a_line_that_ends_as_on_windows_is_a_line(start: Start) -> None:
    server = await start()
    await server.send_line(server.asking(77, "ping") + b"\r")
    assert (await server.response(77))["result"] == {}


async def test_null_is_as_good_as_absent(start: Start) -> None:
    server = await start()
    for request_id, absent in (("null", {"params": None}), ("absent", {})):
        await server.send_line(server.asking(request_id, "tools/list", **absent))
        assert (await server.response(request_id))["result"]["tools"]
    result = await server.request("tools/call", {"name": "mhs__devices", "arguments": None})
    assert result["isError"] is False


async def test_nothing_but_the_handshake_comes_first(start: Start) -> None:
    server = await start(initialize=False)
    assert await server.request("ping") == {}
    error = await server.refused("tools/list")
    assert "initialize" in error["message"]
    assert (await server.initialize())["protocolVersion"] == LATEST


async def test_a_host_that_asks_for_no_second_page_has_every_tool(start: Start) -> None:
    """[TPT-031, TPT-047]"""
    server = await start(*[f"conveyor-workcell@/lab/cell-{number}" for number in range(30)])
    listed = await server.request("tools/list")
    assert len(listed["tools"]) == 7 + 30 * 8
    assert "nextCursor" not in listed


async def test_a_line_over_the_frame_is_refused_unread_and_the_next_is_served(start: Start) -> None:
    """[TPT-047]"""
    server = await start()
    await server.send_line(server.asking("large", "tools/call", params={"name": "x" * (4 << 20)}))
    assert await server.request("ping") == {}
    (response,) = server.responses(None)
    assert response["error"]["data"]["mhs_code"] == "MHS.LIMIT.PAYLOAD_TOO_LARGE"


@pytest.mark.parametrize("program", ["mhs", "mhsctl", "openmhs"])
async def test_serve_with_mcp_is_the_same_server(start: Start, program: str) -> None:
    """[TPT-053]"""
    server = await start(program=(str(MHSD.with_name(program)), "serve"))
    assert server.initialized["serverInfo"]["name"] == f"mhs-mcp:{ENDPOINT}"
    assert (await server.receipt("world_step", {"ticks": 1}))["status"] == "completed"
    assert await server.end() == 0
