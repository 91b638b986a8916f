"""The last versions of config.toml, byte for byte, each kept before a write of ours.

A version is named by its content, so that the same bytes are kept once and an old entry of the audit log
finds them as long as they are there. A backup holds what the file held, a key that somebody wrote into it
included; so it is for this user alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from pdtop.config.disk import remove_stale
from pdtop.config.load import digest_of
from pdtop.operations.state import StateFolder

_FOLDER = "backups"
_OURS = re.compile(r"config\.([0-9a-f]{16})\.toml\Z")


class Backups:
    """Versions of one cluster's config.toml; beyond ``keep`` the oldest go."""

    def __init__(
        self, folder: StateFolder, keep: int = 20, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder, self._most, self._clock = folder, keep, clock

    def keep(self, raw: bytes, digest: str) -> str:
        """Keep these bytes, whose SHA-256 is ``digest``; the name to find them by.

        Raises:
            StateUnwritable: they could not be kept.
        """
        name = f"config.{digest[:16]}.toml"
        if self.read(name) is None:
            self._folder.put(f"{_FOLDER}/{name}", raw)
        now = self._clock()
        with contextlib.suppress(OSError):
            os.utime(self._path / name, (now, now))
        self._prune(name)
        return name

    def read(self, name: str) -> bytes | None:
        """The bytes; None if they are gone or damaged, or no backup has this name."""
        ours = _OURS.match(name)
        raw = self._folder.read(f"{_FOLDER}/{name}") if ours else None
        return raw if ours and raw is not None and digest_of(raw).startswith(ours[1]) else None

    @property
    def _path(self) -> Path:
        return self._folder.path / _FOLDER

    def _prune(self, newest: str) -> None:
        """Nothing but old versions, and what a killed pdtop left, goes."""
        found: list[tuple[float, Path]] = []
        for path in self._path.glob("*"):
            if _OURS.match(path.name) and path.name != newest and path.is_file() and not path.is_symlink():
                with contextlib.suppress(OSError):
                    found.append((path.stat().st_mtime, path))
        for _, path in sorted(found, reverse=True)[max(0, self._most - 1) :]:
            with contextlib.suppress(OSError):
                self._folder.disk.unlink(path)
        remove_stale(self._path, ".config.", self._folder.disk)
