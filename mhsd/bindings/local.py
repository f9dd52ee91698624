"""The local socket: how an endpoint is reached, and stopped, by the users of its machine [MHSD-9a].

Every endpoint opens one, whatever else it serves, so that a person can stop what an agent's host has started. Here is
decided where the socket is and who may connect to it.
"""

from __future__ import annotations

import grp
import os
import secrets
import socket
import stat
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs
import trio

from mhsd.base.errors import StartError
from mhsd.client.local import (
    NAME,
    SUFFIX,
    SYSTEM_DIRECTORY,
    directory_of_user,
    nobody_listens,
    socket_name,
    temporary_directory,
)

MOST_CONNECTIONS = 32
"""Connections of one local socket, and as ever some more that are kept for a stop."""

LOCK_SUFFIX = ".lock"
"""The locks of the daemon's links stand beside its sockets."""

_BACKLOG = 128
_LONGEST_PATH_BYTES = 107
_UNPUBLISHED = ".new-"
_LEFT_OVER_S = 60.0
"""An unpublished socket that is older was left by a process that ended while it started."""


@attrs.frozen
class LocalSocket:
    """A socket that is being listened on."""

    listener: trio.SocketListener
    path: Path


@contextmanager
def local_socket(kind: str, group: str | None, environ: Mapping[str, str]) -> Iterator[LocalSocket]:
    """Listen for the block on a socket in the runtime directory, and remove it afterwards.

    `kind` is `http-PORT`, `stdio` or the like and becomes part of the name. Members of `group` may connect too.
    Raises StartError where there is no directory that only this user (and the group) can reach.
    """
    gid = _gid(group) if group is not None else None
    directory = _prepared(runtime_directory(environ), gid)
    token = secrets.token_hex(4)
    path = directory / socket_name(kind, os.getpid(), token)
    if len(os.fsencode(path)) > _LONGEST_PATH_BYTES:
        raise StartError(
            f"{directory} is too long a path for a socket; name a shorter directory with MHSD_RUNTIME_DIR",
            exit_code=2,
        )
    sock = _published(directory / f"{_UNPUBLISHED}{token}", path, gid)
    try:
        yield LocalSocket(trio.SocketListener(trio.socket.from_stdlib_socket(sock)), path)
    finally:
        sock.close()
        with suppress(OSError):
            path.unlink()


def runtime_directory(environ: Mapping[str, str]) -> Path:
    """The directory of this user's sockets: the one that is named, else the first that suits."""
    if environ.get("MHSD_RUNTIME_DIR"):
        return Path(environ["MHSD_RUNTIME_DIR"]).expanduser().resolve()
    session = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(session) and _is_own(Path(session)):
        return Path(session) / NAME
    if _is_own(SYSTEM_DIRECTORY) or (
        not SYSTEM_DIRECTORY.exists() and os.access(SYSTEM_DIRECTORY.parent, os.W_OK)
    ):
        return SYSTEM_DIRECTORY
    return temporary_directory(environ) / directory_of_user(os.geteuid())


def _is_own(directory: Path) -> bool:
    try:
        status = directory.stat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and os.access(directory, os.W_OK)


def _gid(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise StartError(
            f"--socket-group {group}: there is no such group on this machine", exit_code=2
        ) from None


# The directory


def _prepared(directory: Path, gid: int | None) -> Path:
    """The directory, made where it is missing, with nobody's sockets in it that nobody serves any more.

    It is for this user alone, or may be looked into by the group. One that others may look into and that holds
    anything but sockets and locks is somebody's for something else, and is refused instead of being closed to them.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(directory, error.strerror or "it cannot be opened") from None
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid():
            raise _unusable(directory, "it belongs to another user")
        _sweep(directory)
        names = os.listdir(fd)
        is_shared = gid is not None or any(_is_open_to_group(directory / name) for name in names)
        mode = 0o750 if is_shared else 0o700
        if stat.S_IMODE(status.st_mode) != mode:
            if status.st_mode & 0o027 and not all(_is_ours(name) for name in names):
                raise _unusable(directory, f"others can look into it; mend that with: chmod 700 {directory}")
            os.fchmod(fd, mode)
        if gid is not None and status.st_gid != gid:
            os.fchown(fd, -1, gid)
    except PermissionError as error:
        raise _no_member(directory, error) from None
    except OSError as error:
        raise _unusable(directory, error.strerror or "it cannot be read") from None
    finally:
        os.close(fd)
    return directory


def _unusable(directory: Path, why: str) -> StartError:
    return StartError(
        f"{directory} cannot hold the local socket, by which this endpoint can be stopped: {why};"
        " MHSD_RUNTIME_DIR names another directory",
        exit_code=2,
    )


def _no_member(directory: Path, error: PermissionError) -> StartError:
    return StartError(
        f"{directory} cannot be given to the group of --socket-group ({error.strerror}):"
        " make the user that mhsd runs as a member of it",
        exit_code=2,
    )


def _is_ours(name: str) -> bool:
    return name.endswith((SUFFIX, LOCK_SUFFIX)) or name.startswith(_UNPUBLISHED)


def _is_open_to_group(path: Path) -> bool:
    with suppress(OSError):
        mode = path.lstat().st_mode
        return stat.S_ISSOCK(mode) and bool(mode & 0o060)
    return False


def _sweep(directory: Path) -> None:
    """Remove the sockets that a process left behind when it died."""
    for path in directory.iterdir():
        with suppress(OSError):
            status = path.lstat()
            if not stat.S_ISSOCK(status.st_mode) or not _is_ours(path.name):
                continue
            # What has just been made listens in a moment.
            is_new = path.name.startswith(_UNPUBLISHED) and time.time() - status.st_mtime < _LEFT_OVER_S
            if not is_new and nobody_listens(path):
                path.unlink()


def _published(unpublished: Path, path: Path, gid: int | None) -> socket.socket:
    """A listening socket at `path`, where it appears with its final mode and owner only."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.bind(os.fspath(unpublished))
        unpublished.chmod(0o600)
        if gid is not None:
            os.chown(unpublished, -1, gid)
            unpublished.chmod(0o660)
        sock.listen(_BACKLOG)
        unpublished.rename(path)
    except OSError as error:
        sock.close()
        with suppress(OSError):
            unpublished.unlink()
        raise _unusable(path.parent, error.strerror or "no socket can be made in it") from None
    return sock


def uid_of(stream: trio.SocketStream) -> int:
    """The user at the other end, as the kernel vouches for it."""
    credentials = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return int(uid)
