"""What the supervisor and its engine say, line by line, harmless and without keys, never waited for.

A terminal that stands still must not hold up the connections that pass through this process: a thread
writes, and when it cannot follow, lines are left out and counted.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import TextIO

from pdtop.cluster.words import clean
from pdtop.config.masking import MASK, Masker

_COLOURS = re.compile(r"\x1b\[[0-9;:]*[A-Za-z]")
_TROUBLE = re.compile(r"error|panic", re.IGNORECASE)
_NO_TROUBLE = re.compile(r"\b(?:WARN|INFO|DEBUG|TRACE)\b")  # whatever it speaks of
_LINE = 4000
_WAITING = 10_000
_TAIL = 20


class Output:
    """``secrets``: texts that are never to be shown. Close it to see the last lines written."""

    def __init__(
        self,
        stream: TextIO,
        secrets: Iterable[str] = (),
        *,
        clock: Callable[[], float] = time.time,
        waiting: int = _WAITING,
    ) -> None:
        self._stream = stream
        self._secrets: list[str] = []
        self.hide(secrets)
        self._mask = Masker()
        self._clock = clock
        self._lines: queue.Queue[str | None] = queue.Queue(waiting)
        self._left_out = 0
        self._thread = threading.Thread(target=self._write, name="pdtop-output", daemon=True)
        self._thread.start()

    def hide(self, secrets: Iterable[str]) -> None:
        """Further texts that are not to be shown from now on."""
        self._secrets = sorted({*self._secrets, *(text for text in secrets if text)}, key=len, reverse=True)

    def say(self, words: str) -> None:
        """A line of the supervisor's own."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(self._clock()))
        self._put(f"{stamp} pdtop | {self.harmless(words)}")

    def passed_on(self, who: str, line: str) -> str:
        """A line of the engine's; as it is shown, without who said it."""
        line = self.harmless(line)
        self._put(f"{who} | {line}")
        return line

    def harmless(self, text: str) -> str:
        """Text as it may be shown."""
        text = _COLOURS.sub("", text)
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return clean(self._mask(text[:_LINE])).rstrip()

    def close(self, wait_s: float = 1.0) -> None:
        """Write what is waiting, if that is possible in time."""
        try:
            self._lines.put(None, timeout=wait_s)
        except queue.Full:
            return
        self._thread.join(wait_s)

    def _put(self, line: str) -> None:
        try:
            if self._left_out:
                self._lines.put_nowait(f"pdtop | {self._left_out} lines left out: nobody takes them")
                self._left_out = 0
            self._lines.put_nowait(line)
        except queue.Full:
            self._left_out += 1

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line + "\n")
                if self._lines.empty():
                    self._stream.flush()
            except (OSError, ValueError):  # closed: nobody reads any more
                return


class Tail:
    """The last lines that a process said."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, line: str) -> None:
        if line.strip():
            self._lines = [*self._lines[1 - _TAIL :], line]

    @property
    def last(self) -> str:
        return self._lines[-1] if self._lines else ""

    @property
    def error(self) -> str:
        """The last line that says why it ended; "" if none does."""
        return next(
            (one for one in reversed(self._lines) if _TROUBLE.search(one) and not _NO_TROUBLE.search(one)), ""
        )
