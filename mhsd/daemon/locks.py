"""One daemon per instrument: a link that a device is driven over is locked while the daemon lives [MHSD-9a].

Two programs that command one instrument would each believe what it read last, and the stop of one would not hold the
other. The locks are advisory and stand in the runtime directory, so they hold among the daemons of one user.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import trio

from mhsd.base.errors import StartError
from mhsd.bindings.local import LOCK_SUFFIX
from mhsd.driver.loader import LoadedDevice

LINK = "link"
"""The driver option that says where an instrument is."""


@asynccontextmanager
async def held_links(devices: Sequence[LoadedDevice], directory: Path) -> AsyncIterator[None]:
    """Lock the links of all hardware for the block; StartError where one is taken, by another process or twice."""
    takers: dict[str, str] = {}
    with ExitStack() as held:
        for device in devices:
            link = device.driver.settings.options.get(LINK)
            if device.backend != "hardware" or not isinstance(link, str):
                continue
            path = device.manifest.path
            for place in await _places(link):
                if place in takers:
                    raise StartError(
                        f"{path}: {link} is the link of {takers[place]} already; each device needs its own",
                        exit_code=2,
                    )
                takers[place] = path
                held.callback(os.close, _locked(directory, place, f"{path}: {link}"))
        yield


async def _places(link: str) -> list[str]:
    """What a link names in the end, so that two spellings of one place exclude each other."""
    scheme, _, rest = link.partition("://")
    if scheme.lower() == "serial":
        return [f"serial://{await trio.Path(rest).resolve()}"]
    try:
        parts = urlsplit(link)
        if parts.hostname is None or parts.port is None:
            return [link]
        found = await trio.socket.getaddrinfo(parts.hostname, parts.port, type=trio.socket.SOCK_STREAM)
    except (OSError, ValueError):
        return [link]  # Whether there is such a place is for the driver to find out.
    return sorted({f"{scheme.lower()}://{':'.join(map(str, address[:2]))}" for *_, address in found})


def _locked(directory: Path, place: str, what: str) -> int:
    """A descriptor that holds the lock until it is closed, however the process ends."""
    path = directory / f"link-{sha256(place.encode()).hexdigest()[:32]}{LOCK_SUFFIX}"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StartError(f"{what} cannot be locked: {path}: {error.strerror}", exit_code=1) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        if not isinstance(error, BlockingIOError):
            raise StartError(f"{what} cannot be locked: {path}: {error.strerror}", exit_code=1) from None
        who = f"process {holder}" if holder.isdigit() else "another process"
        raise StartError(f"{what} is in use by {who}", exit_code=1) from None
    # The file stays when the lock is given up: removing it would let two processes lock two files.
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
