"""One daemon per state directory: an advisory lock that ends with the process, however that ends."""

import fcntl
import os
from pathlib import Path

from mhsd.base.errors import StartError

LOCK_FILE = "lock"


class DirectoryLock:
    """The lock on a directory, from `take_lock` until `release`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        """Give the directory free; the file stays, because removing it would let two processes lock two files."""
        os.close(self._fd)


def take_lock(directory: Path) -> DirectoryLock:
    """Lock `directory` for this process; StartError with the holder's pid where another one has it."""
    path = directory / LOCK_FILE
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(f"state directory {directory} cannot be used: {path}: {error.strerror}", 2) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        who = f"process {holder}" if holder.isdigit() else "another process"
        raise StartError(f"state directory {directory} is in use by {who}", 1) from None
    except OSError as error:
        os.close(fd)
        raise StartError(f"state directory {directory} cannot be locked: {error.strerror}", 2) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return DirectoryLock(fd)


def try_lock(directory: Path) -> DirectoryLock | None:
    """The lock, or None where another process has it or the directory cannot be locked."""
    try:
        return take_lock(directory)
    except StartError:
        return None
