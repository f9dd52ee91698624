"""One daemon per instrument: a link that a device is driven over is locked while the daemon lives [MHSD-9a].

Two programs that command one instrument would each believe what it read last, and the stop of one would not hold the
other. A lock is a name in the machine's abstract socket namespace: it holds among the daemons of all users, leaves no
file behind, and is gone with its process. Containers with a network of their own have such a namespace of their own.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from hashlib import sha256
from urllib.parse import urlsplit

import trio

from mhsd.base.errors import StartError
from mhsd.driver.loader import LoadedDevice

LINK = "link"
"""The driver option that says where an instrument is."""

_ANSWER_S = 1.0
"""How long the holder of a lock is asked who it is; the kernel answers for it, unless too many have asked."""


@asynccontextmanager
async def held_links(devices: Sequence[LoadedDevice]) -> AsyncIterator[None]:
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
                held.enter_context(_locked(place, f"{path}: {link}"))
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


def _locked(place: str, what: str) -> socket.socket:
    """A socket that holds the lock until it is closed, however the process ends."""
    name = f"\0mhsd-link-{sha256(place.encode()).hexdigest()[:32]}"
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(name)
        lock.listen()
    except OSError as error:
        lock.close()
        if error.errno != errno.EADDRINUSE:
            raise StartError(f"{what} cannot be locked: {error.strerror}", exit_code=1) from None
        raise StartError(f"{what} is in use by {_holder(name)}", exit_code=1) from None
    return lock


def _holder(name: str) -> str:
    """Who has bound this name, as the kernel says."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(_ANSWER_S)
        try:
            asking.connect(name)
            credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return "another process"
    pid, _, _ = struct.unpack("3i", credentials)
    return f"process {pid}"
