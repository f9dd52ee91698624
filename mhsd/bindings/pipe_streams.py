"""Trio streams on the protocol's descriptors, whatever they are: pipes, sockets, terminals, files."""

from __future__ import annotations

import os
import stat

import trio

from mhsd.bindings.pipes import Pipes

_READ_BYTES = 65536


def open_streams(pipes: Pipes) -> tuple[trio.abc.ReceiveStream, trio.abc.SendStream]:
    """Streams on the protocol's descriptors."""
    receive: trio.abc.ReceiveStream = (
        _ThreadedInput(pipes.read_fd)
        if _needs_thread(pipes.read_fd)
        else trio.lowlevel.FdStream(pipes.read_fd)
    )
    send: trio.abc.SendStream = (
        _ThreadedOutput(pipes.write_fd)
        if _needs_thread(pipes.write_fd)
        else trio.lowlevel.FdStream(pipes.write_fd)
    )
    return receive, send


def _needs_thread(fd: int) -> bool:
    """Whether making this descriptor non-blocking would not work, or would hurt somebody who shares it.

    The flag belongs to the open file, not to the descriptor: a terminal shares it with the shell, and a log on the
    same socket would lose lines.
    """
    mine, log_file = os.fstat(fd), os.fstat(2)
    if not (stat.S_ISFIFO(mine.st_mode) or stat.S_ISSOCK(mine.st_mode)):
        return True
    return os.path.samestat(mine, log_file)


class _ThreadedInput(trio.abc.ReceiveStream):
    """Reads a terminal or a file, in a thread that is left behind when it is stuck at the end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._limiter = trio.CapacityLimiter(1)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await trio.to_thread.run_sync(
            os.read, self._fd, max_bytes or _READ_BYTES, abandon_on_cancel=True, limiter=self._limiter
        )

    async def aclose(self) -> None:
        """Leaves the descriptor open: a thread may still be using it."""
        await trio.lowlevel.checkpoint()


class _ThreadedOutput(trio.abc.SendStream):
    """Writes a terminal or a file, in a thread that is left behind when it is stuck at the end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._limiter = trio.CapacityLimiter(1)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.to_thread.run_sync(self._write, bytes(data), abandon_on_cancel=True, limiter=self._limiter)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Leaves the descriptor open: a thread may still be using it."""
        await trio.lowlevel.checkpoint()
