"""The console on a fake source as a process of its own, for tests that need a real terminal.

``python -m tests.tui.console_process STATE_DIR [--no-mouse] [--workers N] [--changing PART] [--every S]``.
A line ``ready`` is written to STATE_DIR/events when the first snapshot has been published. SIGUSR1 lets the
source's thread fail, SIGUSR2 publishes a snapshot that the screen cannot draw.
"""

from __future__ import annotations

import argparse
import gc
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from pdtop.tui.app import run
from pdtop.tui.options import ConsoleOptions
from tests.tui import fakes


class TickingSource(fakes.FakeSource):
    """Publishes a snapshot every ``every`` seconds from a thread, as the engine does."""

    def __init__(self, workers: int, changing: float, every: float, events: Path) -> None:
        self._make = self._few if workers == 7 else self._many(workers, changing)
        super().__init__(replace(self._make(100), at=time.time()))
        self._every = every
        self._events = events
        self._number = 100
        self._ended = threading.Event()
        self._fail = self._break = False
        self._thread = threading.Thread(target=self._loop, name="source", daemon=True)

    @staticmethod
    def _few(number: int) -> Any:
        return fakes.moment(number)

    @staticmethod
    def _many(workers: int, changing: float) -> Any:
        prefills = workers * 3 // 7
        rounds = [fakes.calm(n, prefills, workers - prefills, changing) for n in range(100, 140)]
        gc.freeze()  # forty snapshots at once are this process's own: no collection need walk them
        return lambda number: replace(rounds[number % len(rounds)], number=number)

    def start(self) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "_fail", True))
        signal.signal(signal.SIGUSR2, lambda *_: setattr(self, "_break", True))
        self._thread.start()

    def note(self, word: str) -> None:
        with self._events.open("a", encoding="utf-8") as out:
            out.write(word + "\n")

    def _loop(self) -> None:
        due = time.monotonic()
        while not self._ended.is_set():
            if self._fail:
                raise RuntimeError("poller failed [/x]")
            self._number += 1
            snapshot = replace(self._make(self._number), at=time.time())
            if self._break:
                snapshot = replace(snapshot, workers=cast(Any, (None,)))
            self.push(snapshot)
            self.note("ready" if self.callbacks else "waiting")
            due += self._every
            self._ended.wait(max(0.0, due - time.monotonic()))

    def stop(self) -> None:
        super().stop()
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self.note("stopped")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("state_dir", type=Path)
    parser.add_argument("--no-mouse", action="store_true")
    parser.add_argument("--workers", type=int, default=7)
    parser.add_argument("--changing", type=float, default=1.0)
    parser.add_argument("--every", type=float, default=0.1)
    arguments = parser.parse_args()
    source = TickingSource(
        arguments.workers, arguments.changing, arguments.every, arguments.state_dir / "events"
    )
    source.start()
    return run(source, ConsoleOptions(mouse=not arguments.no_mouse, state_dir=arguments.state_dir))


if __name__ == "__main__":
    sys.exit(main())
