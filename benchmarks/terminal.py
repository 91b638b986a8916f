"""Run a terminal program under a pty and account for it: CPU, memory, bytes written, frames.

Shared by the other benchmarks. The screen is rebuilt by pyte (``pip install pyte``), so "first data" means
that a person would have seen it.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyte

TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Usage:
    """Counters of one process at one moment. CPU in seconds, memory in bytes."""

    cpu_s: float
    rss: int


def usage(pid: int) -> Usage:
    """User and system time and resident memory of ``pid``; raises FileNotFoundError when it has gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return Usage((int(fields[11]) + int(fields[12])) / TICKS, int(fields[21]) * PAGE_BYTES)


@dataclass(slots=True)
class Terminal:
    """A child on a pty of ``columns`` x ``rows``; ``pump`` must be called for time to pass."""

    command: list[str]
    columns: int = 160
    rows: int = 50
    term: str = "xterm-256color"
    pid: int = 0
    fd: int = -1
    bytes_out: int = 0
    started: float = 0.0
    screen: pyte.Screen = field(init=False)
    stream: pyte.ByteStream = field(init=False)

    def __post_init__(self) -> None:
        self.screen = pyte.Screen(self.columns, self.rows)
        self.stream = pyte.ByteStream(self.screen)

    def start(self) -> None:
        self.started = time.perf_counter()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM=self.term, COLUMNS=str(self.columns), LINES=str(self.rows))
            os.environ.pop("COLORTERM", None)
            os.execvp(self.command[0], self.command)  # noqa: S606 - a list, no shell
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", self.rows, self.columns, 0, 0))

    def pump(self, seconds: float, until: Callable[[], bool] | None = None, draw: bool = True) -> bool:
        """Read what the program writes for ``seconds`` or until ``until()`` holds; True if it did."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            ready, _, _ = select.select([self.fd], [], [], min(left, 0.05))
            if ready:
                try:
                    data = os.read(self.fd, 65536)
                except OSError:
                    return False
                if not data:
                    return False
                self.bytes_out += len(data)
                if draw:
                    # pyte does not know private parameters of CSI > u, t and friends; they draw nothing.
                    self.stream.feed(re.sub(rb"\x1b\[[<>=?][0-9;]*[a-zA-Z$]+", b"", data))
            if until is not None and until():
                return True
        return False

    def send(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def text(self) -> str:
        return "\n".join(self.screen.display)

    def usage(self) -> Usage:
        return usage(self.pid)

    def stop(self) -> None:
        """End the child: SIGTERM, then SIGKILL after five seconds."""
        try:
            os.kill(self.pid, signal.SIGTERM)
            for _ in range(100):
                self.pump(0.05, draw=False)
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    break
            else:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self.fd)
