"""One worker: who it is, its charts, queues, ranks, latencies, routers' opinions; raw series a key away."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from pdtop.cluster.model import Role, Snapshot, Worker
from pdtop.operations.model import LogEntry, View
from pdtop.tui import log_lines
from pdtop.tui.palette import Look
from pdtop.tui.screens.operating import OperatingScreen
from pdtop.tui.screens.raw_series import RawSeriesScreen
from pdtop.tui.widgets.line_page import LinePage
from pdtop.tui.worker_page import page
from pdtop.tui.worker_view import WorkerView, neighbour, walk


class WorkerScreen(OperatingScreen):
    """A page about one worker. The screen belongs to the worker: if that vanishes, it says so and stays."""

    ABOUT_WORKERS = True

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left_square_bracket,left", "step(-1)", "previous", key_display="[", id="worker.previous",
                tooltip="The worker before this one"),
        Binding("right_square_bracket,right", "step(1)", "next", key_display="]", id="worker.next",
                tooltip="The worker after this one"),
        Binding("slash,r", "raw", "raw series", id="worker.raw", tooltip="Search the worker's metrics page"),
        Binding("escape,q", "app.back", "back", id="worker.back", tooltip="Back to the screen before"),
    ]  # fmt: skip

    def __init__(self, look: Look, key: str) -> None:
        super().__init__(look)
        self.key = key
        self._page = LinePage(look, id="worker-page")
        self._place = 0  # where in the walk the worker was when last seen
        self._view: WorkerView | None = None
        self._log: tuple[LogEntry, ...] = ()

    def body(self) -> ComposeResult:
        yield self._page

    def on_mount(self) -> None:
        self._page.focus()
        self._load_log()

    def selected_worker(self) -> Worker | None:
        return self._view.worker if self._view is not None else None

    def take(self, snapshot: Snapshot) -> None:
        if not self.size.width:
            return
        self._view = self._view_of(snapshot)
        width, height = self._page.size
        self._page.show(page(self._with_operations(self._view), width - 1, height))

    def take_view(self, view: View) -> None:
        self.take(self.console_app.shown)
        if self.operations_moved():
            self._load_log()

    def _load_log(self) -> None:
        self.run_worker(self._read_log(), exclusive=True)

    async def _read_log(self) -> None:
        """Read the audit log, off the loop."""
        if (gate := self.desk.gate) is not None:
            self._log = await asyncio.to_thread(gate.log)
            self.take(self.console_app.shown)

    def _with_operations(self, view: WorkerView) -> WorkerView:
        """``view`` with what is done to the worker, and was."""
        operations = self.desk.view
        return replace(
            view,
            drain=operations.drain_of(self.key),
            readmission=next((r for r in operations.readmissions if r.worker == self.key), None),
            events=tuple(log_lines.about(self._log, self.key, view.worker.name)),
        )

    def _view_of(self, snapshot: Snapshot) -> WorkerView:
        app, known = self.console_app, self._view
        order = walk(snapshot)
        worker = snapshot.worker(self.key)
        if worker is None:
            last = known.worker if known is not None else Worker(self.key, self.key, Role.UNKNOWN, None)
            series = known.series if known is not None else {}
            interval_s = known.interval_s if known is not None else snapshot.interval_s
            return WorkerView(last, snapshot, app.options, series, interval_s, None, gone=True)
        self._place = order.index(self.key)
        if known is not None and known.snapshot is snapshot and known.worker is worker:
            return known  # the past of a paused picture stands still too
        history = app.source.history(self.key)
        return WorkerView(
            worker,
            snapshot,
            app.options,
            history.series if history is not None else worker.trends,
            history.interval_s if history is not None else snapshot.interval_s,
            self._place,
        )

    def action_step(self, step: int) -> None:
        """To the previous or next worker."""
        key = neighbour(walk(self.console_app.shown), self.key, self._place, step)
        if key is not None and key != self.key:
            self.key, self._view = key, None
            self.take(self.console_app.shown)

    def action_raw(self) -> None:
        name = self._view.worker.name if self._view is not None else self.key
        self.app.push_screen(RawSeriesScreen(self.look, self.key, name))
