"""One worker: charts, queues, latencies, stages, ranks, the router's view, identity, raw series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from pdtop.cluster.model import Role, Snapshot, Worker
from pdtop.tui import charts, text, worker_text
from pdtop.tui.charts import Chart
from pdtop.tui.palette import Look
from pdtop.tui.screens.base import ConsoleScreen
from pdtop.tui.screens.raw import RawScreen
from pdtop.tui.tones import Tone
from pdtop.tui.widgets.line_view import LineView
from pdtop.tui.widgets.lines_scroll import LinesScroll

#: Least cells of one chart; as many charts as fit are shown.
CHART_LEAST = 36


class WorkerScreen(ConsoleScreen):
    """Everything about one worker, whose key it holds."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "app.back", "back", id="worker.back", tooltip="Back to the overview"),
        Binding("r", "raw", "raw series", id="worker.raw", tooltip="Search the worker's own metrics page"),
        Binding("n,right_square_bracket", "neighbour(1)", "next", id="worker.next", tooltip="Next worker"),
        Binding("p,left_square_bracket", "neighbour(-1)", "previous", id="worker.previous",
                tooltip="Previous worker"),
    ]  # fmt: skip

    def __init__(self, look: Look, key: str) -> None:
        super().__init__(look)
        self.key = key
        self._title = LineView(look, id="worker-title")
        self._charts = tuple(LineView(look) for _ in range(4))
        self._sections = LinesScroll(look, id="worker-sections")
        self._last: Worker | None = None

    def body(self) -> ComposeResult:
        yield self._title
        with Horizontal(id="worker-charts"):
            yield from self._charts
        yield self._sections

    def on_mount(self) -> None:
        self._sections.focus()

    def selected_worker(self) -> Worker | None:
        return self.console_app.shown.worker(self.key)

    def take(self, snapshot: Snapshot) -> None:
        width, height = self.size
        worker = snapshot.worker(self.key) or self._last
        if worker is None or not width:
            return
        gone = snapshot.worker(self.key) is None
        self._last = worker
        findings = tuple(f for f in snapshot.findings if f.worker == self.key)
        lines = worker_text.title_lines(worker, findings)
        if gone:
            lines[-1] = ((" ✖ no longer in the cluster; these are its last numbers", Tone.CRITICAL),)
        self._title.show(lines)
        self._show_charts(worker, snapshot, width, 5 if height < 30 else 8)
        self._sections.show(worker_text.sections(worker, findings, self.console_app.options))

    def _show_charts(self, worker: Worker, snapshot: Snapshot, width: int, height: int) -> None:
        history = self.console_app.source.history(self.key)
        series = history.series if history is not None else worker.trends
        interval = history.interval_s if history is not None else snapshot.interval_s
        shown = charts_of(worker, series, snapshot)[: max(1, min(4, width // CHART_LEAST))]
        each = width // len(shown) - 1
        for index, view in enumerate(self._charts):
            view.display = index < len(shown)
            if index < len(shown):
                view.styles.width = each + 1
                view.styles.height = height
                lines = charts.lines(shown[index], snapshot.number, each - 1, height, interval)
                view.show([((" ", Tone.TEXT), *line) for line in lines])

    def action_raw(self) -> None:
        worker = self.selected_worker() or self._last
        name = worker.name if worker else self.key
        self.app.push_screen(RawScreen(self.look, self.key, name))

    def action_neighbour(self, step: int) -> None:
        keys = [w.key for w in self.console_app.shown.workers]
        if keys:
            place = keys.index(self.key) + step if self.key in keys else 0
            self.console_app.open_worker(keys[place % len(keys)])


def charts_of(worker: Worker, series: Mapping[str, charts.Points], snapshot: Snapshot) -> list[Chart]:
    """The charts that matter for the worker's role, most important first."""
    goodput = snapshot.goodput
    backlog = Chart("backlog", series.get("backlog", ()), text.count, 5.0)
    tokens = Chart("tok/s", series.get("tokens", ()), text.si, 1000.0, mean=True)
    kv = Chart("KV", series.get("kv", ()), text.percent, 1.0, mean=True, full=1.0)
    if worker.role is Role.PREFILL:
        return [Chart("queue", series.get("queue_time", ()), text.seconds, 0.1), backlog, tokens, kv]
    ttft = Chart(
        "TTFT", series.get("ttft", ()), text.seconds, 0.5, limit=goodput.ttft_target_s if goodput else None
    )
    tpot = Chart(
        "TPOT", series.get("tpot", ()), text.seconds, 0.05, limit=goodput.tpot_target_s if goodput else None
    )
    return [ttft, tpot, backlog, kv]
