"""The MCP server as a process, and what any client sees of it: lines, judged by the models of the official SDK.

A client here is only as clever as a test needs: it writes lines, sorts what comes back by id, and checks each message
against the shapes that `mcp-types` has for the revision that was negotiated.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio
from mcp_types import methods

from tests.documents import check_result
from tests.lab import ulid

MHSD = Path(sys.executable).parent / "mhsd"
PATIENCE_S = 60.0
REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
LATEST = REVISIONS[-1]
CONVEYOR = "mhs://localhost:7400/lab/conveyor-workcell"
NAMED = "mhs__lab_conveyor_workcell__"
UNHURRIED = ("--rate-per-s", "100000", "--rate-burst", "100000", "--log-level", "warning")


class McpError(Exception):
    """A JSON-RPC error; `error` is the error object."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.error = error


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    """What a server of a test is started with: a runtime directory of its own."""
    return {**os.environ, "MHSD_RUNTIME_DIR": str(tmp_path / "run"), **more}


class McpProcess:
    """One `mhsd --mcp`; every line of its output is checked when it arrives."""

    def __init__(self, process: trio.Process, stderr: Path, revision: str) -> None:
        self.process = process
        self.stderr_file = stderr
        self.revision = revision
        self.messages: list[dict[str, Any]] = []
        """Everything that the server has written, in order."""
        self.initialized: dict[str, Any] = {}
        self._asked: dict[str | int, str] = {}
        self._last_id = 0
        self._arrived = trio.lowlevel.ParkingLot()
        self._ended = False

    # Writing

    async def send_line(self, line: bytes) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(line + b"\n")

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        await self.send_line(
            json.dumps(message if params is None else {**message, "params": params}).encode()
        )

    def asking(self, request_id: str | int, method: str, **members: Any) -> bytes:
        """The line of a request; what comes back for it is then checked as the result of this method."""
        self._asked[request_id] = method
        return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, **members}).encode()

    async def begin(
        self, method: str, params: Any = None, *, request_id: str | int | None = None
    ) -> str | int:
        """Send a request and go on; answers its id."""
        if request_id is None:
            self._last_id += 1
            request_id = self._last_id
        await self.send_line(
            self.asking(request_id, method, **({} if params is None else {"params": params}))
        )
        return request_id

    # Reading

    async def read(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take in lines until the output ends."""
        assert self.process.stdout is not None
        task_status.started()
        rest = b""
        async for chunk in self.process.stdout:
            *lines, rest = (rest + bytes(chunk)).split(b"\n")
            for line in lines:
                self._take(line)
        assert rest == b"", f"the output ends in the middle of a line: {rest[:200]!r}"
        self._ended = True
        self._arrived.unpark_all()

    def _take(self, line: bytes) -> None:
        """stdout carries nothing but messages, one a line that every reader sees as one [TPT-005]."""
        text = line.decode()
        assert len(text.splitlines()) == 1, text[:200]
        assert len(line) < 4 << 20
        message = json.loads(text)
        assert message["jsonrpc"] == "2.0"
        self.messages.append(message)
        self._check(message)
        self._arrived.unpark_all()

    def _check(self, message: dict[str, Any]) -> None:
        if "method" in message:
            assert "id" not in message, "this server asks its client nothing"
            methods.parse_server_notification(message["method"], self.revision, message.get("params"))
        elif "result" in message:
            assert message.keys() == {"jsonrpc", "id", "result"}
            method = self._asked[message["id"]]
            methods.validate_server_result(method, self.revision, message["result"])
        else:
            assert message.keys() == {"jsonrpc", "id", "error"}
            assert type(message["error"]["code"]) is int
            assert type(message["error"]["message"]) is str

    def responses(self, request_id: str | int | None) -> list[dict[str, Any]]:
        """What has been answered to an id so far."""
        return [
            message
            for message in self.messages
            if "method" not in message
            and message["id"] == request_id
            and type(message["id"]) is type(request_id)
        ]

    def notified(self, method: str) -> list[dict[str, Any]]:
        """The params of the notifications of one method so far."""
        return [message.get("params", {}) for message in self.messages if message.get("method") == method]

    async def until(self, holds: Any) -> Any:
        """Wait for messages until `holds()` is true, and answer what it is."""
        with trio.fail_after(PATIENCE_S):
            while not (found := holds()):
                assert not self._ended, f"the server has ended; stderr: {self.stderr()}"
                await self._arrived.park()
        return found

    async def response(self, request_id: str | int | None) -> dict[str, Any]:
        """The response to an id, which must be the only one."""
        (response,) = await self.until(lambda: self.responses(request_id))
        assert isinstance(response, dict)
        return response

    async def answer(self, request_id: str | int) -> dict[str, Any]:
        """The result of a request; McpError for its error."""
        response = await self.response(request_id)
        if "error" in response:
            raise McpError(response["error"])
        result: dict[str, Any] = response["result"]
        return result

    async def request(self, method: str, params: Any = None) -> dict[str, Any]:
        return await self.answer(await self.begin(method, params))

    async def refused(self, method: str, params: Any = None) -> dict[str, Any]:
        """The error object that the request must end in."""
        response = await self.response(await self.begin(method, params))
        assert "error" in response, response
        error: dict[str, Any] = response["error"]
        return error

    def stderr(self) -> str:
        return self.stderr_file.read_text()

    # MCP

    async def initialize(self, *, name: str = "tests") -> dict[str, Any]:
        self.initialized = await self.request(
            "initialize",
            {
                "protocolVersion": self.revision,
                "capabilities": {},
                "clientInfo": {"name": name, "version": "1"},
            },
        )
        await self.notify("notifications/initialized")
        return self.initialized

    async def begin_call(self, name: str, arguments: Any = None, **meta: Any) -> str | int:
        params: dict[str, Any] = {"name": name, "arguments": arguments or {}}
        return await self.begin("tools/call", {**params, "_meta": meta} if meta else params)

    async def call(self, name: str, arguments: Any = None, **meta: Any) -> dict[str, Any]:
        """The result of a tool."""
        return await self.answer(await self.begin_call(name, arguments, **meta))

    async def receipt(self, name: str, arguments: Any = None, **meta: Any) -> dict[str, Any]:
        """The receipt of a capability of the conveyor."""
        return receipt_of(await self.call(f"{NAMED}{name}", arguments, **meta))

    async def document(self, name: str, arguments: Any = None) -> dict[str, Any]:
        """The document of a fixed tool, which must be its text too."""
        result = await self.call(name, arguments)
        assert result["isError"] is False, result
        document: dict[str, Any] = result["structuredContent"]
        assert json.loads(result["content"][0]["text"]) == document
        return document

    async def end(self) -> int:
        """Close the server's input and wait for its end."""
        assert self.process.stdin is not None
        await self.process.stdin.aclose()
        with trio.fail_after(PATIENCE_S):
            code = await self.process.wait()
        await self.until_ended()
        return code

    async def until_ended(self) -> None:
        with trio.fail_after(PATIENCE_S):
            while not self._ended:
                await self._arrived.park()


def receipt_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """The receipt of a result: checked against its schema, and the whole of it in the first text block [TPT-037]."""
    assert result["isError"] is False, result
    structured = result["structuredContent"]
    receipt: dict[str, Any] = structured["receipt"]
    assert structured["mhs_error"] is None
    check_result("mhs.command", receipt)
    first, second = (block["text"] for block in result["content"])
    assert json.loads(first) == receipt
    assert second.startswith(receipt["status"])
    assert ("operation" in structured) == ("operation_id" in receipt)
    return receipt


def mhs_error_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """The MHS error of a result that is none, whose text must start with its code [TPT-039]."""
    assert result["isError"] is True, result
    error: dict[str, Any] = result["structuredContent"]["mhs_error"]
    assert error.keys() >= {"mhs_code", "retryable", "remediation"}
    assert result["content"][0]["text"].startswith(f"{error['mhs_code']}: ")
    return error


async def started(
    nursery: trio.Nursery,
    tmp_path: Path,
    *arguments: str,
    revision: str = LATEST,
    program: Sequence[str] = (str(MHSD),),
    **environ: str,
) -> McpProcess:
    """A server that has been started and nothing else."""
    stderr = tmp_path / f"stderr-{ulid()}.txt"
    with stderr.open("wb") as log:
        process = await trio.lowlevel.open_process(
            [*program, "--mcp", *arguments],
            stdin=-1,
            stdout=-1,
            stderr=log.fileno(),
            cwd=tmp_path,
            env=environment(tmp_path, **environ),
        )
    server = McpProcess(process, stderr, revision)
    await nursery.start(server.read)
    return server


async def stopped(process: trio.Process) -> None:
    """End a server by its process id and wait for it."""
    with trio.CancelScope(shield=True):
        if process.returncode is None:
            process.terminate()
        with trio.move_on_after(PATIENCE_S):
            await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
