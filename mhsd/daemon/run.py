"""The composition root: which parts there are, in which nursery each lives, and the order in which they stop.

Stop order: accept nothing more, bring the devices to their safe state, let the answers in flight out, flush the
store, close what is left. Nobody at the other end of a connection can hold any of it up [TPT-008, TPT-009].
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING

import trio

from mhsd import MHS_VERSION
from mhsd.base.clock import rfc3339
from mhsd.bindings.pipes import Pipes
from mhsd.config import Config, Limits
from mhsd.daemon.devices import armed_paths, load_devices
from mhsd.daemon.files import allow_files, needed_files
from mhsd.daemon.locks import held_links
from mhsd.daemon.ready import announce
from mhsd.daemon.signals import LastResort, StopRequest
from mhsd.daemon.systemd import Notifier
from mhsd.driver.loader import LoadedDevice
from mhsd.protocol.auth import TokenFiles
from mhsd.protocol.dispatch import Dispatch
from mhsd.services.endpoint import Endpoint, open_endpoint
from mhsd.store import Store, open_store

if TYPE_CHECKING:
    from mhsd.bindings.front import Front, Listener
    from mhsd.bindings.local import LocalSocket
    from mhsd.bindings.stdio import Stdio
    from mhsd.bindings.tls import Listening
    from mhsd.mcp.host import McpHost

log = logging.getLogger("mhsd.daemon")

_ANSWERS_S = 2.0
"""How long a client may take to read the answers in flight at the end."""

_DRAIN_MARGIN_S = 5.0
"""What a stop may take beyond the grace of cancelling and the grace of halting; then it is given up."""

_LEAVE_S = 3.0
"""How long a driver may still take to end when all else has been stopped and stored; then it is left behind."""

LONGEST_STOP_MARGIN_S = _DRAIN_MARGIN_S + _ANSWERS_S + _LEAVE_S
"""A stop takes twice the stop grace and this, at most."""


def run(config: Config, pipes: Pipes | None, environ: MutableMapping[str, str]) -> int:
    """Serve until told to stop; returns the exit code. Raises StartError, alone or in a group."""
    for name in config.unknown_variables:
        log.warning("%s is no option of mhsd and has no effect", name)
    tokens = TokenFiles.load(config.token_file, config.operator_token_file)
    devices = load_devices(config, operator_configured=tokens.operator_configured)
    allow_files(needed_files(0 if config.on_pipes else config.max_connections, len(devices)))
    return trio.run(_Daemon(config, tokens, devices, pipes, environ).main)


class _Daemon:
    def __init__(
        self,
        config: Config,
        tokens: TokenFiles,
        devices: Sequence[LoadedDevice],
        pipes: Pipes | None,
        environ: MutableMapping[str, str],
    ) -> None:
        self._config = config
        self._tokens = tokens
        self._devices = devices
        self._pipes = pipes
        self._environ = environ
        self._notifier = Notifier.of(environ)
        self._wants_hints = environ.get("MHSD_HINTS") == "1"
        self._stop = StopRequest()
        self._last_resort = LastResort(_LEAVE_S)
        self._exit_code = 0

    async def main(self) -> int:
        """The daemon's life; returns its exit code."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._stop.watch_signals)
            with self._stop.starting:
                listening = await self._listen()
                with self._open_socket(listening) as local:
                    async with (
                        held_links(self._devices),
                        self._open_store() as store,
                        self._open_endpoint(store) as endpoint,
                    ):
                        await self._serve(endpoint, listening, local)
                        self._last_resort.start()
                log.info("stopped")
            nursery.cancel_scope.cancel()
        self._last_resort.cancel()
        if self._stop.starting.cancelled_caught:
            return 128 + (self._stop.signum or 0)
        return self._exit_code

    # Parts

    async def _listen(self) -> Listening | None:
        """The listening sockets, taken before any device is touched; none with --stdio and --mcp."""
        config = self._config
        if config.on_pipes:
            return None
        from mhsd.bindings import tls

        addresses = await tls.resolve(config.host)
        tls.check_exposure(config, addresses, tokens_configured=self._tokens.configured)
        context = None
        if config.tls_cert is not None:
            context = tls.server_context(config.tls_cert, config.tls_key, config.client_ca)
        listeners = await tls.listen(addresses, config.port, context)
        ws_listeners: list[Listener] = []
        if config.has_ws_listener and config.ws_port is not None:
            ws_listeners = await tls.listen(addresses, config.ws_port, context)
        return tls.Listening(addresses, listeners, ws_listeners)

    def _open_socket(self, listening: Listening | None) -> AbstractContextManager[LocalSocket]:
        """The local socket, by which the users of this machine reach every endpoint."""
        from mhsd.bindings import local, tls

        kind = self._binding if listening is None else f"http-{tls.port_of(listening.http)}"
        return local.local_socket(kind, self._config.socket_group, self._environ)

    def _open_store(self) -> AbstractAsyncContextManager[Store]:
        return open_store(
            self._config.state_dir,
            endpoint_id=self._config.endpoint_id,
            mhs_version=MHS_VERSION,
            created_at=rfc3339(time.time()),
            retention_days=self._config.retention_days,
            device_ids=[self._config.endpoint_id + device.manifest.path for device in self._devices],
        )

    def _open_endpoint(self, store: Store) -> AbstractAsyncContextManager[Endpoint]:
        config = self._config
        return open_endpoint(
            endpoint_id=config.endpoint_id,
            devices=self._devices,
            store=store,
            limits=Limits.of(config),
            features=(*(("http", "sse", "ws") if self._pipes is None else (self._binding,)), "batch"),
            armed=armed_paths(config),
            operator_configured=self._tokens.operator_configured,
            stop_grace_s=config.stop_grace_s,
        )

    @property
    def _binding(self) -> str:
        """What serves on stdin and stdout."""
        return "mcp" if self._config.mcp else "stdio"

    @asynccontextmanager
    async def _open_binding(
        self, door: Dispatch, listening: Listening | None
    ) -> AsyncIterator[Front | Stdio | McpHost]:
        config = self._config
        if self._pipes is None:
            from mhsd.bindings.http import open_http

            assert listening is not None
            yield open_http(config, door, self._tokens, listening)
        elif config.mcp:
            from mhsd.daemon.mcp import projection

            async with projection(config, door, self._pipes) as host:
                yield host
        else:
            from mhsd.bindings.stdio import open_stdio

            yield open_stdio(door, self._tokens.local, self._pipes, max_line_bytes=config.max_request_bytes)

    # Life

    async def _serve(self, endpoint: Endpoint, listening: Listening | None, socket: LocalSocket) -> None:
        from mhsd.bindings.http import open_local

        door = Dispatch(endpoint)
        async with self._open_binding(door, listening) as binding, trio.open_nursery() as nursery:
            urls = binding.url, binding.ws_url
            local = open_local(self._config, door, self._tokens, socket, urls=urls)
            nursery.start_soon(local.serve)
            nursery.start_soon(binding.serve)
            nursery.start_soon(self._watchdog)
            nursery.start_soon(self._stop.ask_after, binding.ended, "the input has ended")
            self._stop.started()
            announce(*urls, endpoint, wants_hints=self._wants_hints)
            log.info("the local socket is %s", socket.path)
            self._notifier.ready(
                f"serving {len(endpoint.devices)} device(s) at {binding.url or self._binding}"
            )
            # What exists now lives as long as the daemon; the collector need not look at it again.
            gc.freeze()
            await self._stop.wait()
            await self._take_down(endpoint, binding, local)
            nursery.cancel_scope.cancel()

    async def _take_down(self, endpoint: Endpoint, binding: Front | Stdio | McpHost, local: Front) -> None:
        log.info("stopping: %s", self._stop.reason)
        self._notifier.stopping()
        binding.drain()
        with trio.move_on_after(2 * self._config.stop_grace_s + _DRAIN_MARGIN_S) as patience:
            try:
                await endpoint.drain()
            except Exception:
                # Whatever failed, the receipts that there are must still reach the disk.
                log.exception("the stop failed: devices may not be in their safe state")
                self._exit_code = 1
        if patience.cancelled_caught:
            log.error("the stop took too long and was given up: devices may not be in their safe state")
            self._exit_code = 1
        # Until here somebody at the machine could still stop what does not get there by itself.
        local.drain()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(binding.finish, _ANSWERS_S)
            nursery.start_soon(local.finish, _ANSWERS_S)

    async def _watchdog(self) -> None:
        """Tell the service manager that the loop turns; a loop that hangs tells nothing."""
        interval_s = self._notifier.watchdog_interval_s
        while interval_s is not None:
            self._notifier.alive()
            await trio.sleep(interval_s)
