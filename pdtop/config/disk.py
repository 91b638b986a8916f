"""Replace a file as a whole or not at all: same-folder temporary file, flush, rename; the old bytes else.

A symlink stays a link and its target is replaced; mode, owner and extended attributes (ACLs) are kept. At no
moment is the file missing, empty or half written, whatever fails and whenever the process dies.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of renameat2(2)
_STALE_S = 60.0  # a temporary file this old belongs to a process that was killed


class Disk:
    """The file operations of a save, one method a step; tests replace single steps."""

    def read(self, path: Path) -> bytes:
        return read_regular(path)

    def writable(self, path: Path) -> bool:
        """Whether this user may write; for the effective user, as the kernel will decide."""
        effective = os.access in os.supports_effective_ids
        return os.access(path, os.W_OK, effective_ids=effective)

    def create(self, path: Path) -> int:
        """A new file for this user alone; descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def append(self, path: Path) -> int:
        """A file of our own, made if need be, whose every write goes to its end; descriptor."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(path, flags, 0o600)

    def write(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def replace(self, new: Path, old: Path) -> None:
        """One takes the place of the other; where the system can do it, what was there then has the new name,
        so that it can be seen what was replaced."""
        if not _exchanged(new, old):
            new.replace(old)

    def unlink(self, path: Path) -> None:
        path.unlink()


def read_regular(path: Path) -> bytes:
    """All of a regular file; OSError for anything else: reading a pipe or a device might never end."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
        return file.read()


class Unwritable(Exception):
    """The file cannot be replaced; the message says why. Nothing was changed."""


class ChangedMeanwhile(Exception):
    """The file is no longer what the save started from. Nothing was changed."""


def target_of(path: Path) -> Path:
    """The file behind all links."""
    return Path(os.path.realpath(path))


def why_not_writable(path: Path, disk: Disk) -> str | None:
    """Why a save of this file cannot work, known before anything is typed; None if it can."""
    target = target_of(path)
    folder = target.parent
    with contextlib.suppress(OSError):
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            return f"read-only file system: no permission to write in {folder}"
    if not folder.is_dir():
        return f"the folder {folder} does not exist"
    if not disk.writable(folder):
        return f"permission denied: the folder {folder} is not writable for this user"
    if target.exists() and not disk.writable(target):
        return f"permission denied: {target} is not writable for this user"
    return None


def replace_file(path: Path, data: bytes, expected: bytes | None, disk: Disk) -> None:
    """Put ``data`` in place of ``expected`` (None: there was no file).

    Raises:
        Unwritable: not possible; the old file is untouched and no other file is left.
        ChangedMeanwhile: the file holds something else than ``expected``.
    """
    target = target_of(path)
    blocked = why_not_writable(path, disk)
    if blocked is not None:
        raise Unwritable(blocked)
    remove_stale(target.parent, _stem(target), disk)
    try:
        with _temporary(target, disk) as (new, descriptor):
            disk.write(descriptor, data)
            _keep_attributes(target, descriptor)
            disk.sync(descriptor)
            _expect(target, expected, disk)
            disk.replace(new, target)
            if expected is not None and _content(new, expected, disk) != expected:
                disk.replace(new, target)  # somebody was there in the last instant: back again
                raise ChangedMeanwhile(f"{target} was changed by someone else")
        sync_folder(target.parent, disk)
    except OSError as error:
        raise Unwritable(_in_words(error, target)) from None


def _exchanged(one: Path, other: Path) -> bool:
    """Let two files change places; False where that is not possible: nothing has happened."""
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # Linux
    if rename is None:
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def _content(path: Path, unless: bytes, disk: Disk) -> bytes | None:
    """What has been replaced; ``unless`` the system does not show it."""
    try:
        return disk.read(path)
    except FileNotFoundError:
        return unless
    except OSError:
        return None


def put_file(path: Path, data: bytes, disk: Disk) -> None:
    """Put a file of our own, for this user alone, over whatever was there.

    Raises:
        Unwritable: not possible; the old file is untouched.
    """
    remove_stale(path.parent, _stem(path), disk)
    try:
        with _temporary(path, disk) as (new, descriptor):
            disk.write(descriptor, data)
            disk.sync(descriptor)
            disk.replace(new, path)
        sync_folder(path.parent, disk)
    except OSError as error:
        raise Unwritable(_in_words(error, path)) from None


@contextlib.contextmanager
def _temporary(target: Path, disk: Disk) -> Iterator[tuple[Path, int]]:
    """A new file beside the target, gone again whatever it holds by then."""
    new = target.parent / f"{_stem(target)}{os.getpid()}.{os.urandom(4).hex()}"
    descriptor = disk.create(new)
    try:
        try:
            yield new, descriptor
        finally:
            os.close(descriptor)
    finally:
        with contextlib.suppress(OSError):
            disk.unlink(new)


def _stem(target: Path) -> str:
    return f".{target.name}.pdtop-"


def _expect(target: Path, expected: bytes | None, disk: Disk) -> None:
    try:
        current: bytes | None = disk.read(target)
    except FileNotFoundError:
        current = None
    if current != expected:
        raise ChangedMeanwhile(f"{target} was changed by someone else")


def _keep_attributes(target: Path, descriptor: int) -> None:
    """Mode, owner and extended attributes of the old file; a new file gets what the umask says."""
    try:
        old = target.stat()
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        os.fchmod(descriptor, 0o666 & ~umask)
        return
    new = os.fstat(descriptor)
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        try:
            os.fchown(descriptor, old.st_uid, old.st_gid)
        except PermissionError:
            reason = (
                f"permission denied: a replaced file could not keep its owner ({old.st_uid}:{old.st_gid})"
            )
            raise PermissionError(errno.EPERM, reason) from None
    with contextlib.suppress(OSError):  # not on every file system
        for name in os.listxattr(target):
            os.setxattr(descriptor, name, os.getxattr(target, name))
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def sync_folder(folder: Path, disk: Disk) -> None:
    """The rename survives a power cut only then; a file system that cannot do it is no failure."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            disk.sync(descriptor)
        finally:
            os.close(descriptor)


def remove_stale(folder: Path, stem: str, disk: Disk) -> None:
    """Temporary files whose name begins so that a killed process left."""
    now = time.time()
    for found in folder.glob(f"{stem}*"):
        with contextlib.suppress(OSError):
            if now - found.stat().st_mtime > _STALE_S:
                disk.unlink(found)


def _in_words(error: OSError, target: Path) -> str:
    reason = (error.strerror or str(error)).lower()
    if error.errno in (errno.EACCES, errno.EPERM) and "permission" not in reason:
        reason = f"permission denied: {reason}"
    return f"{reason}: {target} is as it was"
