"""Folders and files of the cache that only this user can access.  Links are never followed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from loaderx.errors import FileError

try:
    import fcntl
except ImportError:  # Windows
    HAS_LOCKS = False
else:
    HAS_LOCKS = True

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_FILE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
READ, WRITE = os.O_RDONLY, os.O_RDWR | os.O_CREAT


def is_own(status: os.stat_result) -> bool:
    """True if it belongs to this user or to root."""
    return not hasattr(os, "geteuid") or status.st_uid in (os.geteuid(), 0)


@contextlib.contextmanager
def own_folder(path: str, at: int | None = None) -> Iterator[int]:
    """A descriptor of a folder, created for this user only if it does not exist."""
    opened = None
    while opened is None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700, dir_fd=at)
        opened = _open_folder(path, at)
    try:
        if not is_own(os.fstat(opened)):
            raise FileError(
                f"{path} in the cache folder belongs to another user. Give another folder with "
                "`cache=`, or set LOADERX_CACHE."
            )
        yield opened
    finally:
        os.close(opened)


def _open_folder(path: str, at: int | None) -> int | None:
    try:
        return os.open(path, _FOLDER, dir_fd=at)
    except FileNotFoundError:  # another process just removed it to make room
        return None
    except OSError as error:
        raise FileError(f"{path} in the cache folder is no folder of its own: {error}.") from error


def open_own(name: str, flags: int, at: int) -> int | None:
    """A descriptor of this user's own regular file; None if it does not exist."""
    try:
        opened = os.open(name, flags | _FILE, 0o600, dir_fd=at)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileError(
                f"{name} in the cache folder is a link, which is not followed."
            ) from None
        raise
    status = os.fstat(opened)
    if stat.S_ISREG(status.st_mode) and is_own(status):
        return opened
    os.close(opened)
    raise FileError(f"{name} in the cache folder belongs to another user, or is no regular file.")


def lock(descriptor: int, *, shared: bool) -> None:
    """Waits for the lock of a file, exclusive or shared."""
    fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


@contextlib.contextmanager
def locked(name: str, at: int) -> Iterator[None]:
    """Holds the lock of a file that exists only for that; if the disk has no locks, holds none."""
    with contextlib.ExitStack() as held:
        while True:
            opened = open_own(name, WRITE, at)
            assert opened is not None
            held.callback(os.close, opened)
            with contextlib.suppress(OSError):  # Lustre without flock, some NFS
                lock(opened, shared=False)
            if is_linked(opened, name, at):
                break
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=at)  # who waits for it looks whether it is still there
                fcntl.flock(opened, fcntl.LOCK_UN)  # a forked process may have the descriptor, too


def try_lock(descriptor: int) -> bool:
    """Takes the exclusive lock of a file if it is free; an `OSError` if there are no locks."""
    if not HAS_LOCKS:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def is_linked(descriptor: int, name: str, at: int) -> bool:
    """True if it still has this name: another process may have renamed or removed it."""
    try:
        named = os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


def try_lock_range(descriptor: int, first: int, stop: int) -> bool:
    """Takes the record lock of these bytes, if no other process holds any of them."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, stop - first, first)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def unlock_range(descriptor: int, first: int, stop: int) -> None:
    """Releases the record lock of these bytes."""
    fcntl.lockf(descriptor, fcntl.LOCK_UN, stop - first, first)
