"""The audit log: who changed what and what came of it, with a filter over all of it."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from pdtop.cluster.model import Snapshot
from pdtop.operations.model import LogEntry, View
from pdtop.tui import log_lines
from pdtop.tui.palette import Look
from pdtop.tui.screens.listing import ListingScreen
from pdtop.tui.tones import Line, Tone
from pdtop.tui.widgets.row_list import Row

#: Entries that are read, newest first.
LIMIT = 500


class LogScreen(ListingScreen):
    """Newest first; below, all of the entry under the cursor."""

    DEFAULT_CSS = """
    LogScreen #log-filter { dock: bottom; height: 1; margin: 0 0 1 0; background: $surface; display: none; }
    LogScreen #log-filter.-open { display: block; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", id="log.filter", tooltip="Show only entries with these words"),
        Binding("escape", "leave", "back", id="log.back",
                tooltip="Remove the filter; then back to the screen before"),
        Binding("q,l", "app.back", "back", show=False, id="log.leave", tooltip="Back to the screen before"),
    ]  # fmt: skip

    def __init__(self, look: Look) -> None:
        super().__init__(look)
        self._entries: tuple[LogEntry, ...] = ()
        self._shown: dict[str, LogEntry] = {}
        self._filter = Input(placeholder="worker, user, operation, outcome; all words must match",
                             compact=True, id="log-filter")  # fmt: skip

    def body(self) -> ComposeResult:
        yield from super().body()
        yield self._filter

    def on_mount(self) -> None:
        self._load()

    def take_view(self, view: View) -> None:
        if self.operations_moved():
            self._load()

    def take(self, snapshot: Snapshot) -> None:
        """The log does not come with snapshots."""

    def retake(self) -> None:
        super().retake()
        self._show()

    def _load(self) -> None:
        self.run_worker(self._read(), exclusive=True)

    async def _read(self) -> None:
        gate = self.desk.gate
        self._entries = await asyncio.to_thread(gate.log, LIMIT) if gate is not None else ()
        self._show()

    def _show(self) -> None:
        super().take(self.console_app.shown)

    def listed(self, snapshot: Snapshot, width: int) -> list[Row]:
        found = log_lines.matching(self._entries, self._filter.value)
        self._shown = {entry.id: entry for entry in found}
        if not found:
            words = "no entry has these words" if self._entries else "nothing was changed yet"
            return [("", ((f" {words}", Tone.MUTED),))]
        return [(e.id, log_lines.entry_line(e, width, snapshot.at)) for e in found]

    def detailed(self, key: str, width: int) -> list[Line]:
        entry = self._shown.get(key)
        return log_lines.entry_detail(entry, width) if entry is not None else []

    def action_filter(self) -> None:
        self._filter.add_class("-open")
        self._filter.focus()

    @on(Input.Changed, "#log-filter")
    def _changed(self) -> None:
        self._show()

    @on(Input.Submitted, "#log-filter")
    def _submitted(self) -> None:
        self._filter.set_class(bool(self._filter.value), "-open")
        self.rows.focus()

    def action_leave(self) -> None:
        if self._filter.has_focus or self._filter.value:
            self._filter.value = ""
            self._filter.remove_class("-open")
            self.rows.focus()
        else:
            self.app.pop_screen()
