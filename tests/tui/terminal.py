"""A pseudo terminal with a program in it: what it wrote, how it ended, what it left the terminal in."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from fcntl import ioctl
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Terminal:
    """Runs ``python -m MODULE ARGUMENTS`` in a new pseudo terminal of ``size`` columns and rows."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        size: tuple[int, int] = (120, 40),
        environ: Mapping[str, str] | None = None,
        ignore: Sequence[signal.Signals] = (),
    ) -> None:
        self.master, slave = pty.openpty()
        columns, rows = size
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.output = b""
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)}
        for name in ("NO_COLOR", "TMUX", "STY"):
            env.pop(name, None)
        env.update(environ or {})

        def in_child() -> None:
            os.setsid()
            ioctl(0, termios.TIOCSCTTY, 0)
            for number in ignore:
                signal.signal(number, signal.SIG_IGN)

        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], stdin=slave, stdout=slave, stderr=slave,
            cwd=ROOT, env=env, preexec_fn=in_child,
        )  # fmt: skip
        self.slave = slave

    def read(self, seconds: float) -> bytes:
        """Read for at most ``seconds``, until nothing comes for a moment."""
        new = b""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([self.master], [], [], min(left, 0.2))
            if not ready:
                if new:
                    break
                continue
            try:
                part = os.read(self.master, 65536)
            except OSError:
                break
            if not part:
                break
            new += part
        self.output += new
        return new

    def read_until(self, pattern: bytes, seconds: float = 15.0) -> None:
        """Read until the whole output matches ``pattern``; raises TimeoutError else."""
        end = time.monotonic() + seconds
        while re.search(pattern, self.output, re.DOTALL) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"{pattern!r} not in {self.output[-2000:]!r}")
            self.read(0.5)

    def send(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def wait(self, seconds: float = 15.0) -> int:
        """The exit code, reading meanwhile so that the program is never held up by a full terminal."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            if time.monotonic() > end:
                raise TimeoutError("the program does not end")
            self.read(0.2)
        self.read(0.3)
        return self.process.returncode

    def attributes(self) -> list[object]:
        return list(termios.tcgetattr(self.slave))

    def hang_up(self) -> None:
        """The terminal goes away: the window is closed, the line is dropped."""
        os.close(self.slave)
        os.close(self.master)
        self.slave = self.master = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for descriptor in (self.master, self.slave):
            if descriptor >= 0:
                os.close(descriptor)


def modes(output: bytes) -> dict[str, bool]:
    """The private modes as the output left them: number -> on."""
    state: dict[str, bool] = {}
    for match in re.finditer(rb"\x1b\[\?([\d;]+)([hl])", output):
        for number in match[1].decode().split(";"):
            state[number] = match[2] == b"h"
    return state
