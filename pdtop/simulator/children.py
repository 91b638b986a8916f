"""Child processes that end with their parent, and the sockets they are given.

A child's standard input is a pipe that nobody writes to: when the parent is gone, however it went, the
child reads the end of it and stops. Listening sockets are opened by the parent and handed over, so a port
is never free for somebody else between choosing and using it.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pdtop.gateway.lifecycle import FOLLOW_PARENT

_STOP_S = 5.0  # a supervisor ends its engine first


def listening(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    sock.listen(512)
    return sock


class FolderTaken(Exception):
    """Children of somebody else run in the folder."""


class Children:
    """Processes of this package, started together and stopped together; a context manager.

    Their folder is theirs alone: a router follows the config.toml in it, and with that of another cluster
    would send its load to the other's workers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lock: int | None = None

    def __enter__(self) -> Children:
        """Raises :class:`FolderTaken`."""
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise FolderTaken from None
        self._lock = lock
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def start(
        self, name: str, module: str, args: Sequence[str], sockets: Sequence[socket.socket] = ()
    ) -> None:
        """``python -m module args``; output and errors go to ``NAME.log``. The sockets become the child's."""
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", module, *args],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[s.fileno() for s in sockets],
                env={**os.environ, FOLLOW_PARENT: "1"},
                start_new_session=True,  # Ctrl+C is for the parent, which then ends its children
            )
        for sock in sockets:
            sock.close()

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._processes.items()}

    def ended(self) -> dict[str, int]:
        """Children that have ended, with their exit codes."""
        codes = {name: process.poll() for name, process in self._processes.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def stop(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self._processes.values():
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()
