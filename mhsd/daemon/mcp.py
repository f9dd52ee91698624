"""The MCP projection: a binding of this daemon, or a process of its own for an endpoint that runs elsewhere [TPT-053].

Decides who acts for the model: in this process an agent of the role client, an operator on simulated devices only
where the policy has operator tools; elsewhere whoever the token is for.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import trio

from mhsd.aclient import open_client
from mhsd.aclient.client import AsyncClient
from mhsd.base.errors import StartError
from mhsd.bindings.pipe_streams import open_streams
from mhsd.bindings.pipes import Pipes
from mhsd.client.endpoint import BadEndpoint
from mhsd.client.errors import AuthError, MHSError
from mhsd.client.token_file import BadTokenFile, read_token
from mhsd.config import Config
from mhsd.daemon.ready import announce_projection
from mhsd.daemon.signals import StopRequest
from mhsd.mcp.host import McpHost
from mhsd.mcp.leases import agent_of
from mhsd.mcp.policy import Policy, checked_policy, read_policy
from mhsd.mcp.server import EndpointServer

if TYPE_CHECKING:
    from mhsd.protocol.dispatch import Dispatch

log = logging.getLogger("mhsd.daemon")

_NAME = "mhs-mcp"
_UNNAMED = "unknown"

_CLOSE_S = 12.0
"""How long the end may take to bring the operations of this connection to their safe state."""

_ANSWERS_S = 2.0


def policy_of(config: Config) -> Policy:
    """The host policy: the file's, with what the command line adds [TPT-053, CORE-130]."""
    policy = Policy(allow_hardware=config.allow_hardware)
    if config.mcp_config is not None:
        policy = read_policy(config.mcp_config)
    return checked_policy(
        attrs.evolve(
            policy,
            operator_tools=policy.operator_tools or config.operator_tools,
            allow_external_sessions=policy.allow_external_sessions or config.allow_external_sessions,
        ),
        str(config.mcp_config or "the command line"),
    )


@asynccontextmanager
async def projection(config: Config, door: Dispatch, pipes: Pipes) -> AsyncIterator[McpHost]:
    """The binding of an endpoint of this process; StartError where its devices cannot be projected [TPT-032]."""
    # A projection of an endpoint that runs elsewhere does not load one.
    from mhsd.protocol.peer import Peer, Principal

    policy = policy_of(config)
    # No credential stands behind it, so that it is no operator of hardware whatever the policy says.
    peer = Peer(
        Principal(agent_of(_UNNAMED), "agent"),
        "operator" if policy.operator_tools else "client",
        "mcp",
        rate_exempt=True,
    )

    def named(client_name: str) -> None:
        peer.principal = Principal(agent_of(client_name), "agent")

    async with open_client(door, peer=peer, name=_NAME) as client:
        server = EndpointServer(client, policy, named=named)
        try:
            await server.reach.load()
        except MHSError as problem:
            raise StartError(problem.message, exit_code=1, mhs_code=problem.mhs_code) from None
        yield McpHost(server, *open_streams(pipes))


def run_remote(config: Config, pipes: Pipes) -> int:
    """Project the endpoint of `-e`, until the input ends or a signal comes; returns the exit code."""
    policy = policy_of(config)
    try:
        token = read_token(config.token_file) if config.token_file is not None else None
    except BadTokenFile as problem:
        raise StartError(str(problem), exit_code=2) from None
    return trio.run(_Remote(config, policy, token, pipes).main)


class _Remote:
    def __init__(self, config: Config, policy: Policy, token: str | None, pipes: Pipes) -> None:
        assert config.endpoint is not None
        self._url = config.endpoint
        self._policy = policy
        self._token = token
        self._pipes = pipes
        self._stop = StopRequest()

    async def main(self) -> int:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._stop.watch_signals)
            with self._stop.starting:
                try:
                    async with open_client(self._url, token=self._token, name=_NAME) as client:
                        await self._serve(client)
                except BadEndpoint as problem:
                    raise StartError(str(problem), exit_code=2) from None
                except AuthError as problem:
                    raise StartError(problem.message, exit_code=4, mhs_code=problem.mhs_code) from None
                except MHSError as problem:
                    raise StartError(problem.message, exit_code=1, mhs_code=problem.mhs_code) from None
            nursery.cancel_scope.cancel()
        return 128 + (self._stop.signum or 0) if self._stop.starting.cancelled_caught else 0

    async def _serve(self, client: AsyncClient) -> None:
        server = EndpointServer(client, self._policy, url=self._url)
        await server.reach.start()
        host = McpHost(server, *open_streams(self._pipes))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.serve)
            nursery.start_soon(self._stop.ask_after, host.ended, "the input has ended")
            self._stop.started()
            announce_projection(server.reach.projection.endpoint_id, len(server.reach.projection.manifests))
            await self._stop.wait()
            log.info("stopping: %s", self._stop.reason)
            await self._take_down(host, server)
            nursery.cancel_scope.cancel()

    @staticmethod
    async def _take_down(host: McpHost, server: EndpointServer) -> None:
        """What this connection has started is cancelled to the safe state, then the answers go out [TPT-008]."""
        host.drain()
        host.cancel_all()
        with trio.move_on_after(_CLOSE_S) as patience:
            await server.close()
        if patience.cancelled_caught:
            log.error("the endpoint did not end the sessions in time; it does when they expire")
        await host.finish(_ANSWERS_S)
