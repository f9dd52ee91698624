"""Where the local sockets of this machine's endpoints are; the standard library alone, for `estop` and `status`.

Every endpoint opens one [MHSD-9a], in the first of the directories that suits it. Who looks for endpoints looks in
all of them, those of other users included as far as they may be read.
"""

import os
import pwd
import re
import socket
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

SYSTEM_DIRECTORY = Path("/run/mhsd")
"""Where a service manager makes the directory of a system service."""

USERS_DIRECTORIES = Path("/run/user")
SHARED_DIRECTORIES = (Path("/tmp"),)  # noqa: S108 - a directory there counts only where its owner is the one in its name.
NAME = "mhsd"
SUFFIX = ".sock"

_OF_USER = re.compile(rf"{NAME}-([0-9]+)")


class LocalSocket(NamedTuple):
    """The socket of one endpoint. `owner` is the user it runs as, `port` the TCP port that it serves too."""

    path: Path
    owner: str
    port: int | None


def temporary_directory(environ: Mapping[str, str]) -> Path:
    """Where temporary files go."""
    named = environ.get("TMPDIR", "")
    return Path(named) if os.path.isabs(named) else SHARED_DIRECTORIES[0]


def directory_of_user(uid: int) -> str:
    """The name of a user's directory in a place that all users share."""
    return f"{NAME}-{uid}"


def socket_name(kind: str, pid: int, token: str) -> str:
    """`http-7400-812-9f3a.sock` of an endpoint that serves port 7400 too, `stdio-812-9f3a.sock` of one on stdio."""
    return f"{kind}-{pid}-{token}{SUFFIX}"


def directories(environ: Mapping[str, str]) -> list[Path]:
    """Every directory in which an endpoint of this machine may have its socket."""
    found = [Path(environ["MHSD_RUNTIME_DIR"])] if environ.get("MHSD_RUNTIME_DIR") else []
    if environ.get("XDG_RUNTIME_DIR"):
        found.append(Path(environ["XDG_RUNTIME_DIR"], NAME))
    found.append(SYSTEM_DIRECTORY)
    found += [directory / NAME for directory in _entries(USERS_DIRECTORIES)]
    for shared in dict.fromkeys((temporary_directory(environ), *SHARED_DIRECTORIES)):
        found += [directory for directory in _entries(shared) if _is_users_own(directory)]
    return list({os.path.realpath(directory): directory for directory in found}.values())


def _entries(directory: Path) -> list[Path]:
    """What is in a directory, as far as it may be read."""
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _is_users_own(directory: Path) -> bool:
    """Whether a directory in a place that all users share belongs to the user that its name says."""
    match = _OF_USER.fullmatch(directory.name)
    if match is None:
        return False
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == int(match[1])


class Found(NamedTuple):
    """The sockets there are, and the directories that may hold more but may not be read."""

    sockets: list[LocalSocket]
    unreadable: list[Path]


def find_sockets(environ: Mapping[str, str]) -> Found:
    """Every socket in all of the directories, whether or not somebody still answers there."""
    sockets: list[LocalSocket] = []
    unreadable: list[Path] = []
    for directory in directories(environ):
        try:
            names = sorted(os.listdir(directory))
        except OSError as problem:
            # One that is hidden in what another user has closed may as well not be there.
            if isinstance(problem, PermissionError) and os.path.lexists(directory):
                unreadable.append(directory)
            continue
        sockets += _sockets(directory, names)
    return Found(sockets, unreadable)


def _sockets(directory: Path, names: Iterable[str]) -> Iterable[LocalSocket]:
    for name in names:
        if not name.endswith(SUFFIX) or name.startswith("."):
            continue
        try:
            status = os.lstat(directory / name)
        except OSError:
            continue  # Its endpoint has just ended.
        if stat.S_ISSOCK(status.st_mode):
            port = re.match(r"http-([0-9]+)-", name)
            yield LocalSocket(directory / name, user_name(status.st_uid), int(port[1]) if port else None)


def nobody_listens(path: Path) -> bool:
    """Whether the process that made this socket has ended without removing it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:
            return False
    return False


def user_name(uid: int) -> str:
    """The name of a user; the number where no database knows it, as in a container."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
