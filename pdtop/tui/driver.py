"""The terminal driver: Textual's, plus knowing when the terminal does not keep up or is gone."""

from __future__ import annotations

from typing import Any

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

from pdtop.tui.lifecycle import output

#: Writes waiting for the terminal at which new frames are left out. Textual's queue takes 30 and then
#: blocks the whole app; a frame is at most three writes.
BEHIND = 6


class ConsoleDriver(LinuxDriver):
    """Never blocks on a terminal that nobody reads any more."""

    def __init__(
        self,
        app: App[Any],
        *,
        debug: bool = False,
        mouse: bool = True,
        size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._file = output() or self._file

    @property
    def behind(self) -> bool:
        """Whether the terminal has not taken the last frames yet."""
        writer = self._writer_thread
        return writer is not None and writer._queue.qsize() >= BEHIND

    def write(self, data: str) -> None:
        # The writer thread ends when the terminal is gone; its queue would then fill up and block.
        if self._writer_thread is not None and self._writer_thread.is_alive():
            super().write(data)

    def close(self) -> None:
        if self._writer_thread is not None and self._writer_thread.is_alive():
            super().close()
