"""How the console ends: by key, signal, error or a terminal that is gone; the terminal is always restored.

Textual restores the terminal on a clean exit. This module sees to the other ways: signals, errors in any
thread, a hang-up with SIGHUP ignored (where Textual's input thread would spin for ever), and a terminal that
takes no more output (where Textual's exit would block for ever).
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
import termios
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from pdtop.tui.text import clean

#: Everything a full-screen program switches on, off again; harmless where it is off already. The alternate
#: screen is not in it: leaving it twice moves the cursor.
MODES_OFF = (
    "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"  # mouse, all encodings
    "\x1b[?2004l\x1b[?1004l\x1b[?2048l\x1b[?2026l"  # paste, focus, resize reports, synchronized output
    "\x1b[<u\x1b[?7h\x1b[?25h\x1b[0m"  # keyboard protocol, line wrap, cursor, colours
)
LEAVE_ALTERNATE = "\x1b[?1049l"

#: How long an orderly exit may take before the process ends without it, seconds.
PATIENCE = 3.0

#: The name of Textual's thread that writes to the terminal.
WRITER = "textual-output"

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

#: What ``tcgetattr`` gives: flags, speeds and control characters.
TerminalAttributes = list[Any]

#: Errors of reading or writing a terminal that is no longer there.
_GONE = frozenset({errno.EIO, errno.EPIPE, errno.EBADF, errno.ENXIO, errno.ENOTTY})


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the console ended: the exit code, and a line for the operator (empty: nothing to say)."""

    code: int
    line: str = ""


def terminal_problem(environ: Mapping[str, str], interactive: bool) -> str:
    """Why there can be no screen here; empty if there can."""
    if not interactive:
        return "pdtop: no terminal here; use: pdtop snapshot"
    if environ.get("TERM", "") in ("dumb", "unknown"):
        return f"pdtop: TERM={environ['TERM']} has no screen; use: pdtop snapshot"
    return ""


def output() -> TextIOWrapper | None:
    """Where the screen is drawn: stderr, as Textual does, or stdout where stderr goes elsewhere."""
    for stream in (sys.__stderr__, sys.__stdout__):
        with contextlib.suppress(ValueError):  # a closed one
            if isinstance(stream, TextIOWrapper) and stream.isatty():
                return stream
    return None


def by_signal(number: int) -> Ending:
    return Ending(128 + number, f"pdtop: ended by {signal.Signals(number).name}")


def hung_up() -> Ending:
    return Ending(128 + signal.SIGHUP, "pdtop: the terminal is gone")


def by_error(error: BaseException, state_dir: Path) -> Ending:
    """Note the error in the log; the traceback has no local variables, so no secrets."""
    text = "".join(traceback.format_exception(error))
    path = state_dir / "crash.log"
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("a", encoding="utf-8", errors="backslashreplace") as log:
            path.chmod(0o600)
            log.write(text + "\n")
        where = f"details in {path}"
    except OSError as problem:
        where = f"and no log could be written: {problem.strerror}"
    return Ending(1, f"pdtop: internal error: {type(error).__name__}: {clean(str(error), 160)}; {where}")


class Guard:
    """Watches over one run of the console; use as a context around it.

    ``leave`` asks the console to end, from any thread. The first reason to end is the one that counts.
    """

    def __init__(self, leave: Callable[[], None], state_dir: Path, *, patience: float = PATIENCE) -> None:
        self.ending: Ending | None = None
        self._leave = leave
        self._state_dir = state_dir
        self._patience = patience
        self._finished = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        self._signals: dict[int, object] = {}
        self._attributes: TerminalAttributes | None = None
        self._thread = threading.Thread(target=self._watch, name="pdtop-guard", daemon=True)
        self._old_hook = threading.excepthook

    def __enter__(self) -> Guard:
        with contextlib.suppress(termios.error, OSError):
            self._attributes = termios.tcgetattr(sys.__stdin__.fileno()) if sys.__stdin__ else None
        for number in SIGNALS:
            self._signals[number] = signal.signal(number, self._on_signal)
        threading.excepthook = self._on_thread_error
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finished.set()
        self.wake()
        self._thread.join()
        threading.excepthook = self._old_hook
        for number, handler in self._signals.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        os.close(self._wake_read)
        os.close(self._wake_write)

    def end(self, ending: Ending) -> None:
        """End for this reason, unless there already is one."""
        self.ending = self.ending or ending
        self.wake()

    def fail(self, error: BaseException) -> None:
        """End because of ``error``."""
        if self.ending is None:
            gone = isinstance(error, OSError) and error.errno in _GONE and not _terminal_there()
            self.ending = hung_up() if gone else by_error(error, self._state_dir)
        self.wake()

    def wake(self) -> None:
        """Have the guard look: the console is ending, or has to."""
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"!")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Only a write to a pipe: the main thread may be anywhere, even inside a lock.
        self.ending = self.ending or by_signal(number)
        self.wake()

    def _on_thread_error(self, args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            self.fail(args.exc_value)

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        if sys.__stdin__ is not None:
            poller.register(sys.__stdin__.fileno(), 0)  # hang-ups and errors are always told
        ready = poller.poll()
        if self._finished.is_set():
            return
        if not any(fd == self._wake_read for fd, _ in ready):
            self.ending = self.ending or hung_up()
        self._leave()
        if not self._finished.wait(self._patience):
            ending = self.ending or Ending(1, "pdtop: the terminal took no more output")
            restore(self._attributes, ending.line + "\n")
            os._exit(ending.code)


def _terminal_there() -> bool:
    if sys.__stdin__ is None:
        return False
    poller = select.poll()
    poller.register(sys.__stdin__.fileno(), 0)
    return not poller.poll(0)


def restore(attributes: TerminalAttributes | None, line: str) -> None:
    """Put a terminal back that takes no output, without ever waiting for it, and leave ``line`` on it.

    What it has not taken yet is thrown away to make room; the cut may be inside a sequence, which CAN ends.
    A thread that is blocked in a write holds the terminal's lock: a signal wakes it, and it then finds that
    it must not block any more.
    """
    terminal = output()
    if terminal is None:
        return
    with contextlib.suppress(termios.error, OSError, ValueError):
        descriptor = terminal.fileno()
        if attributes is not None:
            termios.tcsetattr(descriptor, termios.TCSANOW, attributes)
        rest = ("\x18" + LEAVE_ALTERNATE + MODES_OFF + line).encode()
        blocking = os.get_blocking(descriptor)
        os.set_blocking(descriptor, False)
        try:
            for _ in range(20):
                for thread in threading.enumerate():
                    if thread.name == WRITER and thread.ident is not None:
                        signal.pthread_kill(thread.ident, signal.SIGTERM)
                termios.tcflush(descriptor, termios.TCOFLUSH)
                with contextlib.suppress(BlockingIOError):
                    rest = rest[os.write(descriptor, rest) :]
                if not rest:
                    break
                time.sleep(0.02)
        finally:
            os.set_blocking(descriptor, blocking)


def say(text: str) -> None:
    """Write ``text`` to the terminal if it takes it; a stalled one is not waited for."""
    terminal = output()
    if terminal is None:
        return
    with contextlib.suppress(OSError, ValueError):
        descriptor = terminal.fileno()
        blocking = os.get_blocking(descriptor)
        os.set_blocking(descriptor, False)
        try:
            os.write(descriptor, text.encode("utf-8", "replace"))
        finally:
            os.set_blocking(descriptor, blocking)
