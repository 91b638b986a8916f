"""One pdtop at a time operates on a cluster: an advisory lock, with who holds it and since when.

The kernel's lock on a file (``flock``) decides, so it is free at once when its holder dies, however it dies.
What the file says about the holder is shown; that it is a service lets others write config.toml beside it,
one at a time by a lock of their own (``BESIDE``). It holds between processes of one user on one host, and on
NFS between hosts where the server has locks; on a file system that has none, nothing can be operated.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pdtop.operations.model import LockHolder
from pdtop.operations.origin import origin
from pdtop.operations.state import StateFolder, StateUnwritable

_NAME = "lock"
BESIDE = "console.lock"
_TRIES = 3  # somebody who only looks at the holder has the lock for some microseconds
_PAUSE_S = 0.002
_LIMIT = 4096  # bytes of the file that are looked at


class OperatorLock:
    """The lock of one cluster. One object holds it or does not; taking it twice is taking it once.

    ``service``: what the file is to say of us.
    """

    def __init__(
        self,
        folder: StateFolder,
        *,
        name: str = _NAME,
        service: bool = False,
        clock: Callable[[], float] = time.time,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._folder, self._clock, self._environ = folder, clock, environ
        self._name, self._service = name, service
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object has it."""
        return self._descriptor is not None

    def acquire(self) -> LockHolder | None:
        """Take it, without waiting; None = it is ours, else who has it.

        Raises:
            StateUnwritable: the folder cannot be written, or has no locks.
        """
        if self.held:
            return None
        path = self._folder.ready() / self._name
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise _unwritable(error, path) from None
        try:
            if not _locked(descriptor, fcntl.LOCK_EX, path):
                holder = _read(descriptor)
                os.close(descriptor)
                return holder
            self._say(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise _unwritable(error, path) from None
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return None

    def release(self) -> None:
        """Give it back, if we have it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)

    def holder(self) -> LockHolder | None:
        """Who operates now: another pdtop or this one; None = nobody. Takes and makes nothing."""
        path = self._folder.path / self._name
        if self._descriptor is not None:
            return _read(self._descriptor)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            return None if _locked(descriptor, fcntl.LOCK_SH, path) else _read(descriptor)
        except StateUnwritable:
            return None
        finally:
            os.close(descriptor)

    def _say(self, descriptor: int) -> None:
        who = origin(self._environ)
        data = {
            "user": who.user,
            "host": who.host,
            "pid": who.pid,
            "since": round(self._clock(), 3),
            "service": self._service,
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(data).encode() + b"\n", 0)


def _locked(descriptor: int, kind: int, path: Path) -> bool:
    """Take the lock if it is free now."""
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                raise _unwritable(error, path) from None
            if left:
                time.sleep(_PAUSE_S)
        else:
            return True
    return False


def _read(descriptor: int) -> LockHolder:
    """What the holder has written; a file that cannot be read has a holder all the same."""
    since = os.fstat(descriptor).st_mtime
    try:
        found = json.loads(os.pread(descriptor, _LIMIT, 0))
        user, host, pid, at = (found[key] for key in ("user", "host", "pid", "since"))
        service = found.get("service") is True
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return LockHolder("somebody", "unknown host", 0, since)
    good_time = isinstance(at, int | float) and math.isfinite(at) and 0 <= at < 1e11
    pid = pid if isinstance(pid, int) else 0
    return LockHolder(str(user), str(host), pid, at if good_time else since, service)


def _unwritable(error: OSError, path: Path) -> StateUnwritable:
    reason = (error.strerror or str(error)).lower()
    return StateUnwritable(f"the lock of this cluster cannot be taken: {reason}: {path}")
