"""The state folder of one cluster: where it is, for this user alone, and how a file gets into it.

Audit log, lock, backups of config.toml and specs of drained workers live here. What cannot be recorded here
must not happen: every write that fails raises, and the operation it belongs to is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from pdtop.cluster.targets import Targets
from pdtop.config.disk import Disk, Unwritable, put_file, sync_folder

ROOT_VARIABLE = "PDTOP_STATE_DIR"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class StateUnwritable(Exception):
    """The state folder cannot be written; the message says why, in words for the operator."""


def state_root(environ: Mapping[str, str]) -> Path:
    """``$PDTOP_STATE_DIR``, else where the system keeps state of this user."""
    if given := environ.get(ROOT_VARIABLE):
        return Path(given).expanduser().absolute()
    from platformdirs import user_state_path

    return user_state_path("pdtop")


def folder_name(cluster: str, config_path: Path | None, router: str) -> str:
    """Readable, and one for each file: clusters may share a name, consoles may reach one by two links."""
    what = router if config_path is None else str(_real(config_path))
    name = _UNSAFE.sub("-", cluster).strip("-.")[:40] or "cluster"
    return f"{name}-{hashlib.sha256(os.fsencode(what)).hexdigest()[:8]}"


def _real(path: Path) -> Path:
    """The file behind all links, except those that a ConfigMap swaps with every change (``..data``)."""
    real = Path(os.path.realpath(path))
    if any(part.startswith("..") for part in real.parts):
        return Path(os.path.realpath(path.absolute().parent)) / path.name
    return real


class StateFolder:
    """The folder of one cluster, made at the first write: 0700, its files 0600."""

    def __init__(
        self,
        root: Path,
        cluster: str,
        config_path: Path | None = None,
        router: str = "",
        *,
        disk: Disk | None = None,
    ) -> None:
        self.cluster = cluster
        self.path = root / "clusters" / folder_name(cluster, config_path, router)
        self.disk = disk if disk is not None else Disk()

    @property
    def blocked(self) -> str | None:
        """Why nothing can be recorded here, to be said before anything is tried; None if it can."""
        try:
            self.ready()
        except StateUnwritable as error:
            return str(error)
        return None

    def ready(self, inner: str = "") -> Path:
        """The folder, or one inside it; made if it is not there.

        Raises:
            StateUnwritable: it cannot be made, or is not ours alone.
        """
        with self._in_words():
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in dict.fromkeys((self.path, self.path / inner)):
                folder.mkdir(mode=0o700, exist_ok=True)
                self._for_us_alone(folder)
        return self.path / inner

    def read(self, name: str) -> bytes | None:
        """Bytes of a file in the folder; None if there is none, or it cannot be read."""
        try:
            return self.disk.read(self.path / name)
        except OSError:
            return None

    def put(self, name: str, data: bytes) -> None:
        """Replace a file of the folder, whole or not at all.

        Raises:
            StateUnwritable: not possible; the old one is untouched.
        """
        path = self.path / name
        self.ready(str(Path(name).parent))
        with self._in_words():
            put_file(path, data, self.disk)

    def append(self, name: str, line: bytes) -> None:
        """One line at the end of a file with one write, on disk when this returns.

        A line that somebody was killed over, or that did not fit, stays behind alone: the next begins anew.

        Raises:
            StateUnwritable: the line may be there in part, or whole but not safe from a power cut.
        """
        path = self.ready() / name
        with self._in_words():
            descriptor = self.disk.append(path)
            try:
                size = os.fstat(descriptor).st_size
                torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                self.disk.write(descriptor, (b"\n" if torn else b"") + line + b"\n")
                self.disk.sync(descriptor)
            finally:
                os.close(descriptor)
            if size == 0:
                sync_folder(path.parent, self.disk)

    def _for_us_alone(self, folder: Path) -> None:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise StateUnwritable(f"the state folder {folder} is no folder but a link or a file")
        if found.st_uid != os.geteuid() != 0:
            raise StateUnwritable(f"permission denied: the state folder {folder} belongs to another user")
        if stat.S_IMODE(found.st_mode) & 0o077:
            folder.chmod(0o700)
        if not self.disk.writable(folder):
            raise StateUnwritable(f"permission denied: the state folder {folder} is not writable")

    @contextlib.contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except Unwritable as error:
            raise StateUnwritable(f"the state folder cannot be written: {error}") from None
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            where = error.filename if isinstance(error.filename, str) else self.path
            raise StateUnwritable(f"the state folder cannot be written: {reason}: {where}") from None


def folder_of(targets: Targets, path: Path | None, root: Path | None = None) -> StateFolder:
    """The folder of a watched cluster. ``path``: its config.toml; ``root`` None: this user's."""
    router = next((target.address.base_url for target in targets.routers), "")
    return StateFolder(root if root is not None else state_root(os.environ), targets.cluster, path, router)
