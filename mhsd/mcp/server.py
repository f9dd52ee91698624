"""The MCP server of one endpoint: which methods there are, and what each of them answers [TPT-043 to TPT-045].

It acts through a client of the endpoint and nothing else, so that a local and a remote endpoint are one case, and no
check of the endpoint is skipped [TPT-046].
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from mhsd import __version__
from mhsd.aclient.client import AsyncClient
from mhsd.base.errors import Fault
from mhsd.client.errors import MHSError, TransportError
from mhsd.client.naming import devices_of
from mhsd.mcp import artifacts, resources
from mhsd.mcp.artifacts import Artifacts, within_frame
from mhsd.mcp.calls import Calls
from mhsd.mcp.fixed import FIXED
from mhsd.mcp.fixed_calls import FixedCalls
from mhsd.mcp.host import Job, McpHost, Refused, contained
from mhsd.mcp.leases import Leases
from mhsd.mcp.naming import PREFIX
from mhsd.mcp.pages import FRAME_BYTES, BadCursor, page
from mhsd.mcp.policy import Policy
from mhsd.mcp.projection import Projection
from mhsd.mcp.reach import Reach
from mhsd.mcp.results import error_result, fault_result, json_line
from mhsd.mcp.session import INTERNAL_ERROR, INVALID_PARAMS, MAX_FRAME_BYTES

log = logging.getLogger("mhsd.mcp")

RESOURCE_NOT_FOUND = -32002
_INSTRUCTIONS = (
    "These tools act on laboratory instruments and machines. Start with mhs__devices, and read mhs__inspect before the"
    " first command to a device. A command answers a receipt: completed is the only status that says that it was done;"
    " rejected says why it was not and nothing happened; running goes on and is followed with mhs__operations; unknown"
    " means that the state must be read before anything else. Never work around a refusal. mhs__estop stops a device at"
    " once, at any time; only a person releases it."
)
_LONGEST_NAME = 128
_KEPT_CHARACTERS = 1 << 24
"""What is kept of artifacts; beyond it the oldest can be read no more."""

Answer = Mapping[str, Any]


class EndpointServer:
    """Serves one connection."""

    def __init__(
        self,
        client: AsyncClient,
        policy: Policy,
        *,
        url: str | None = None,
        named: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`url` is where the endpoint is, None for one of this process; `named` is told how the MCP client calls
        itself."""
        self.silent_after_cancel = policy.cancel_response == "none"
        self.reach = Reach(client, policy, url=url)
        self._client = client
        self._policy = policy
        self._is_remote = url is not None
        self._named = named
        self._artifacts = Artifacts(_KEPT_CHARACTERS)
        self._client_name = "unknown"
        self._leases = Leases(client, lambda: self._client_name)
        self._fixed = FixedCalls(client, self._leases, self.reach, self._artifacts)
        self._table: Mapping[str, Callable[[Job], Awaitable[Answer]]] = {
            "initialize": self._initialize,
            "logging/setLevel": self._set_level,
            "tools/list": self._tools,
            "tools/call": self._call,
            "resources/list": self._resources,
            "resources/templates/list": self._templates,
            "resources/read": self._read,
        }

    @asynccontextmanager
    async def running(self, host: McpHost) -> AsyncIterator[None]:
        """Keeps asking for an endpoint that is away."""
        self._host = host
        async with trio.open_nursery() as nursery:
            self._calls = Calls(
                self._client,
                self._leases,
                nursery,
                external_sessions=self._policy.allow_external_sessions,
            )
            nursery.start_soon(contained, self.reach.keep, self._tools_changed)
            try:
                yield
            finally:
                nursery.cancel_scope.cancel()

    async def close(self) -> None:
        """End the sessions of this connection; what runs in them is cancelled to the safe state [TPT-008]."""
        await self._leases.close()

    def _tools_changed(self) -> None:
        self._host.notify("notifications/tools/list_changed")
        self._host.tell("notice", f"the endpoint {self.reach.projection.endpoint_id} can be reached")

    async def answer(self, job: Job) -> Answer:
        """The result of a call; Refused for a JSON-RPC error."""
        return await self._table[job.call.method](job)

    # The connection

    async def _initialize(self, job: Job) -> Answer:
        host = self._host
        self._client_name = job.client_name
        self._named(job.client_name)
        try:
            await self.reach.sure()
        except (MHSError, Fault) as problem:
            log.info("initialized without the endpoint: %s", problem)
        endpoint_id = self.reach.projection.endpoint_id
        return {
            "protocolVersion": host.session.version,
            "capabilities": {
                "tools": {"listChanged": True} if self._is_remote else {},
                "resources": {},
                "logging": {},
            },
            "serverInfo": {
                "name": f"mhs-mcp:{endpoint_id}",
                "title": f"MHS devices of {endpoint_id}",
                "version": __version__,
            },
            "instructions": _INSTRUCTIONS,
        }

    async def _set_level(self, job: Job) -> Answer:
        self._host.session.log_level = job.call.params["level"]
        return {}

    # Tools

    async def _tools(self, job: Job) -> Answer:
        version = self._host.session.version
        assert version is not None  # Nothing is listed before initialize.
        tools = self.reach.projection.listed(version)
        # Many hosts never ask for a second page and would not know of the tools on it; only the frame bounds this one.
        return _page("tools", tools, job, most_items=len(tools), most_bytes=FRAME_BYTES)

    async def _call(self, job: Job) -> Answer:
        """A tool's result; what went wrong with the call itself is one too [TPT-038, TPT-039]."""
        name = job.call.params["name"]
        try:
            result = await self._carry_out(job, name)
        except Fault as fault:
            result = fault_result(fault)
        except MHSError as problem:
            self._note(problem)
            result = error_result(problem.message, _data(problem))
        return within_frame(result, self._artifacts, MAX_FRAME_BYTES)

    async def _carry_out(self, job: Job, name: str) -> dict[str, Any]:
        projection = self.reach.projection
        refusal = projection.refusal(name)
        if refusal is not None:
            raise refusal
        arguments = _arguments(job, name)
        if name in FIXED:
            return await self._fixed.call(job, FIXED[name], arguments)
        if name not in projection.tools and name.startswith(PREFIX):
            # It may be a tool of an endpoint that has not been reached so far.
            projection = await self.reach.sure()
        tool = projection.tools.get(name)
        if tool is None:
            raise _no_such_tool(name)
        return await self._calls.call(job, tool, arguments)

    # Resources

    async def _resources(self, job: Job) -> Answer:
        projection = await self._sure()
        return _page("resources", resources.listed(projection.endpoint_id, projection.manifests), job)

    async def _templates(self, job: Job) -> Answer:
        projection = await self._sure()
        return _page("resourceTemplates", resources.templates(projection.endpoint_id), job)

    async def _read(self, job: Job) -> Answer:
        uri = job.call.params["uri"]
        if uri.startswith(artifacts.SCHEME):
            piece = self._artifacts.read(uri)
            if piece is None:
                raise _no_such_resource(uri)
            return {"contents": [piece]}
        projection = await self._sure()
        target = resources.target_of(uri, projection.endpoint_id, projection.manifests)
        if target is None:
            raise _no_such_resource(uri)
        try:
            document = await self._document(projection, target)
        except (MHSError, Fault) as problem:
            raise self._refused(problem) from None
        content = {"uri": uri, "mimeType": artifacts.MEDIA_TYPE, "text": json_line(document)}
        return {"contents": [content]}

    async def _document(self, projection: Projection, target: resources.Target) -> Mapping[str, Any]:
        if target.kind == "state":
            return await self._fixed.state(projection, target.device_id, target.resource_id)
        if target.kind == "device":
            return await self._fixed.manifest(projection, {"device_id": target.device_id})
        listed = await self._client.call("mhs.devices.list")
        shown = [each for each in devices_of(listed) if each["device_id"] in projection.manifests]
        return {**listed, "devices": shown}

    async def _sure(self) -> Projection:
        try:
            return await self.reach.sure()
        except (MHSError, Fault) as problem:
            raise self._refused(problem) from None

    def _refused(self, problem: MHSError | Fault) -> Refused:
        """An MHS error where no tool's result can carry it [TPT-039]."""
        if isinstance(problem, MHSError):
            self._note(problem)
            return Refused(INTERNAL_ERROR, str(problem), _data(problem))
        return Refused(INTERNAL_ERROR, f"{problem.mhs_code}: {problem.message}", problem.data())

    def _note(self, problem: MHSError) -> None:
        if isinstance(problem, TransportError) and self._is_remote:
            self.reach.lost()


def _page(name: str, items: list[dict[str, Any]], job: Job, **most: int) -> Answer:
    try:
        taken, cursor = page(items, job.call.params.get("cursor"), **most)
    except BadCursor as problem:
        raise Refused(INVALID_PARAMS, str(problem)) from None
    return {name: taken} if cursor is None else {name: taken, "nextCursor": cursor}


def _arguments(job: Job, name: str) -> Mapping[str, Any]:
    arguments = job.call.params.get("arguments")
    if isinstance(arguments, dict):
        return arguments
    if arguments is None or job.call.is_urgent:
        return {}
    raise Refused(INVALID_PARAMS, f"the arguments of {name[:_LONGEST_NAME]} must be an object")


def _no_such_tool(name: str) -> Refused:
    fault = Fault(
        "MHS.CAPABILITY.UNKNOWN", f"there is no tool {name[:_LONGEST_NAME]!r}; tools/list has them all"
    )
    return Refused(INVALID_PARAMS, f"Unknown tool: {name[:_LONGEST_NAME]}", fault.data())


def _no_such_resource(uri: str) -> Refused:
    return Refused(RESOURCE_NOT_FOUND, "Resource not found", {"uri": uri[:1024]})


def _data(problem: MHSError) -> dict[str, Any]:
    """The data object of an MHS error, complete where a foreign endpoint left members out [TPT-039]."""
    needed = {
        "mhs_code": problem.mhs_code,
        "retryable": problem.retryable,
        "remediation": problem.remediation or "Look at the endpoint's log.",
    }
    return {**needed, **{name: value for name, value in problem.data.items() if value != ""}}
