"""The directories a store lives in: the operator's state directory, or a private temporary one."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from mhsd.base.errors import StartError
from mhsd.store.lock import LOCK_FILE, DirectoryLock, take_lock, try_lock

_SCRATCH_PREFIX = "mhsd-store-"
_ATTEMPTS = 8


def open_state_dir(path: Path) -> DirectoryLock:
    """Make `path` (0700) where it is missing, and lock it; StartError in one line where it cannot be used."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        raise StartError(f"state directory {path} is not a directory", 2) from None
    except OSError as error:
        raise StartError(f"state directory {path} cannot be made: {error.strerror}", 2) from None
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise StartError(f"state directory {path} is not readable and writable for this user", 2)
    return take_lock(path)


def sync_directory(path: Path) -> None:
    """Make the names of new files in `path` durable, and its own where the parent may be opened."""
    _sync(path)
    with suppress(PermissionError):
        _sync(path.parent)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_scratch_dir() -> tuple[Path, DirectoryLock]:
    """A new private directory (0700), locked; those that dead processes of this user left are removed first."""
    _sweep(Path(tempfile.gettempdir()))
    for _ in range(_ATTEMPTS):
        try:
            path = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX))
        except OSError as error:
            raise StartError(f"no temporary directory can be made: {error.strerror}", 2) from None
        lock = try_lock(path)
        # Another process that starts now may have swept the directory before it was locked.
        if lock is not None and (path / LOCK_FILE).exists():
            return path, lock
        if lock is not None:
            lock.release()
    raise StartError(f"no temporary directory below {tempfile.gettempdir()} stays in place", 2)


def remove_scratch_dir(path: Path, lock: DirectoryLock) -> None:
    """Remove the directory while it is still locked, so that a sweep cannot meet it half removed."""
    shutil.rmtree(path, ignore_errors=True)
    lock.release()


def _sweep(parent: Path) -> None:
    for path in parent.glob(f"{_SCRATCH_PREFIX}*"):
        try:
            status = path.lstat()
        except OSError:
            continue
        if status.st_uid != os.getuid() or path.is_symlink() or not path.is_dir():
            continue
        lock = try_lock(path)
        if lock is not None:
            remove_scratch_dir(path, lock)
