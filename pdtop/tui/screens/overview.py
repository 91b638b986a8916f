"""The first screen: findings in words, the two pools as tables."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical

from pdtop.cluster.model import Role, Snapshot, Worker
from pdtop.operations.model import DrainState
from pdtop.tui import columns, operation_lines, side_charts, text
from pdtop.tui.headline import findings_strip, pool_line
from pdtop.tui.layout import Plan, plan
from pdtop.tui.palette import Look
from pdtop.tui.pool_view import Scales, findings_by_worker, pool_view
from pdtop.tui.screens.choice import ChoiceScreen
from pdtop.tui.screens.operating import OperatingScreen
from pdtop.tui.sorting import Sort
from pdtop.tui.tones import Line, Tone
from pdtop.tui.widgets.filter_bar import FilterBar
from pdtop.tui.widgets.key_bar import KeyBar
from pdtop.tui.widgets.line_view import LineView
from pdtop.tui.widgets.worker_table import WorkerTable
from pdtop.tui.worker_view import WorkerView

#: The pools in the order of the screen; the last one holds what is neither.
ROLES = (Role.PREFILL, Role.DECODE, Role.UNIFIED)


class PoolPane(Vertical):
    """One pool: its summary line and its table."""

    def __init__(self, role: Role, look: Look) -> None:
        super().__init__(id=f"pool-{role.value}")
        self.role = role
        self.summary = LineView(look)
        self.table = WorkerTable(look, id=f"table-{role.value}")
        self.scales = Scales()

    def compose(self) -> ComposeResult:
        yield self.summary
        yield self.table


def members(snapshot: Snapshot, role: Role) -> tuple[Worker, ...]:
    """The workers of one pane; whoever is neither prefill nor decode is in the last one."""
    if role in (Role.PREFILL, Role.DECODE):
        return snapshot.pool_workers(role)
    return tuple(w for w in snapshot.workers if w.role not in (Role.PREFILL, Role.DECODE))


class OverviewScreen(OperatingScreen):
    """Header, findings strip, pool tables."""

    ABOUT_WORKERS = True

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", id="overview.filter", tooltip="Show only some workers"),
        Binding("escape", "clear_filter", "Show all", show=False, id="overview.clear_filter",
                tooltip="Remove the filter"),
        Binding("s", "sort", "sort", id="overview.sort", tooltip="Choose the column to sort by"),
        Binding("tab", "next_pool", "Next pool", show=False, id="overview.next_pool",
                tooltip="Go to the other pool"),
    ]  # fmt: skip

    def __init__(self, look: Look) -> None:
        super().__init__(look)
        self._strip = LineView(look, id="strip")
        self._operations = LineView(look, id="operations")
        self._filter = FilterBar(look)
        self._charts = LineView(look, id="charts")
        self._shape = Plan(1, 0, ())
        self.panes = tuple(PoolPane(role, look) for role in ROLES)

    def body(self) -> ComposeResult:
        yield self._strip
        yield self._operations
        with Container(id="middle"):
            with Vertical(id="pools"):
                yield from self.panes
            yield self._charts
        yield self._filter

    def on_mount(self) -> None:
        self.panes[0].table.focus()

    @property
    def table(self) -> WorkerTable:
        """The table that has the focus, or had it last."""
        shown = [p.table for p in self.panes if p.display]
        return next(
            (t for t in shown if t.has_focus), next((t for t in shown if t is self._last_table), shown[0])
        )

    _last_table: WorkerTable | None = None

    def selected_worker(self) -> Worker | None:
        return self.table.cursor_worker

    # Showing -----------------------------------------------------------------------------------------

    def take(self, snapshot: Snapshot) -> None:
        width, height = self.size
        if not width or not self.panes[0].is_running:
            return  # not there yet, or on its way out
        options = self.console_app.options
        found = findings_by_worker(snapshot)
        wanted = self._filter.filter
        everyone = [members(snapshot, pane.role) for pane in self.panes]
        kept = [tuple(w for w in ws if wanted.matches(w, found.get(w.key, ()))) for ws in everyone]
        # Prefill and decode are always there, also without a worker: that is worth seeing.
        rows = [max(len(ws), 1) if all_ or pane.role is not Role.UNIFIED else 0
                for ws, all_, pane in zip(kept, everyone, self.panes, strict=True)]  # fmt: skip
        room = height - (1 if self._filter.display else 0) - self._show_operations(snapshot)
        notes = self._notes(snapshot, width)
        with_notes = [n + sum(w.key in notes for w in ws) for n, ws in zip(rows, kept, strict=True)]
        shape = plan(width, room, with_notes)
        if sum(with_notes) > sum(max(0, table - 1) for table in shape.tables):
            notes, shape = {}, plan(width, room, rows)  # workers go before words about them
        self._shape = shape
        width -= shape.charts_beside
        self._strip.styles.height = shape.strip
        self._strip.show(findings_strip(snapshot, shape.strip, self.size.width))
        drained = frozenset(d.worker for d in self.desk.view.drains if d.state is DrainState.DRAINED)
        preset = self.console_app.columns_preset or columns.preset_for(width)
        name = columns.name_width((w.name for w in snapshot.workers), preset)
        for pane, pool, shown, table_height in zip(self.panes, everyone, kept, shape.tables, strict=True):
            pane.display = table_height > 0
            if not table_height:
                continue
            pane.table.styles.height = table_height
            pane.styles.height = table_height + 1
            pane.styles.margin = (shape.gap, 0, 0, 0)
            view = pool_view(snapshot, pane.role, pool, shown, found, options, pane.scales, drained)
            pane.summary.show([pool_line(view.pool, width) if view.pool else ((" OTHER", Tone.STRONG),)])
            chosen = columns.chosen(pane.role, preset, options.columns.get(pane.role.value, ()))
            scrollbar = 1 if len(shown) + sum(w.key in notes for w in shown) >= table_height else 0
            table_columns = columns.laid_out(chosen, width - scrollbar, name)
            pane.table.show(view, table_columns, keep_order=self.app.screen is not self, notes=notes)
        self._show_charts(snapshot)
        if self._filter.display:
            visible = {w.key for shown in kept for w in shown}
            marks = {key for pane in self.panes for key in pane.table.marked}
            hidden_marks = marks & {w.key for w in snapshot.workers} - visible
            self._filter.describe(len(visible), len(snapshot.workers), len(hidden_marks))

    def _show_operations(self, snapshot: Snapshot) -> int:
        """Operations between findings and tables; gives the lines that they take."""
        view = self.desk.view
        lines = operation_lines.strip_height(view, self.size.height)
        self._operations.display = lines > 0
        if lines:
            self._operations.styles.height = lines
            self._operations.show(operation_lines.operations_strip(view, lines, self.size.width, snapshot.at))
        return lines

    def _notes(self, snapshot: Snapshot, width: int) -> dict[str, Line]:
        """How far the drains are, by worker."""
        return {
            drain.worker: operation_lines.drain_note(drain, width, snapshot.at)
            for drain in self.desk.view.drains
        }

    def _show_charts(self, snapshot: Snapshot) -> None:
        """Charts of the worker under the cursor, where the terminal has room for them."""
        shape, worker = self._shape, self.selected_worker()
        lines = operation_lines.strip_height(self.desk.view, self.size.height)
        room = shape.charts_beside or shape.charts_below
        self._charts.display = bool(room) and worker is not None
        self.query_one("#middle").set_class(shape.charts_beside > 0, "-beside")
        if not room or worker is None:
            return
        history = self.console_app.source.history(worker.key)
        view = WorkerView(
            worker,
            snapshot,
            self.console_app.options,
            history.series if history is not None else worker.trends,
            history.interval_s if history is not None else snapshot.interval_s,
        )
        if shape.charts_beside:
            height = self.size.height - 2 - shape.strip - shape.gap - self._filter.display - lines
            self._charts.styles.width, self._charts.styles.height = shape.charts_beside, height
            self._charts.show(side_charts.beside(view, shape.charts_beside, height))
        else:
            self._charts.styles.width, self._charts.styles.height = "100%", shape.charts_below
            self._charts.show(side_charts.below(view, self.size.width, shape.charts_below))
        self._charts.styles.margin = (shape.gap, 0, 0, 0)

    # Marks -------------------------------------------------------------------------------------------

    def chosen_workers(self) -> tuple[str, ...]:
        """The marked workers in the order of the screen, else the one under the cursor."""
        snapshot = self.console_app.shown
        marked = tuple(
            w.key for pane in self.panes for w in members(snapshot, pane.role) if w.key in pane.table.marked
        )
        return marked or super().chosen_workers()

    def done_with_choice(self) -> None:
        for pane in self.panes:
            if pane.table.marked:
                pane.table.unmark()

    @on(WorkerTable.Marked)
    def _marks_changed(self) -> None:
        self.query_one(KeyBar).show_keys()

    def key_note(self) -> str:
        count = sum(len(pane.table.marked) for pane in self.panes)
        return f"{count} marked" if count else ""

    @on(WorkerTable.CursorMoved)
    def _other_worker(self) -> None:
        self._show_charts(self.console_app.shown)

    # Keys --------------------------------------------------------------------------------------------

    @on(WorkerTable.LeftBy)
    def _to_neighbour(self, event: WorkerTable.LeftBy) -> None:
        """Up and down walk through all pools as through one list."""
        tables = [p.table for p in self.panes if p.display]
        place = tables.index(event.table) + event.direction
        if 0 <= place < len(tables):
            self.set_focus(tables[place])
            tables[place].move_cursor(0 if event.direction > 0 else len(tables[place].keys) - 1)

    @on(WorkerTable.Opened)
    def _open(self, event: WorkerTable.Opened) -> None:
        self.console_app.open_worker(event.key)

    @on(FilterBar.Changed)
    def _filtered(self, event: FilterBar.Changed) -> None:
        self.retake()
        if event.done:
            shown = [p.table for p in self.panes if p.display]
            table = next((t for t in (self.table, *shown) if t.keys), self.table)
            self.set_focus(table)
            if table.cursor_row is None:
                table.move_cursor(0)
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While a filter is typed its letters are no keys; without one there is nothing to remove."""
        if action == "filter":
            return not self._filter.typing
        if action == "clear_filter":
            return bool(self._filter.filter)
        return super().check_action(action, parameters)

    def action_filter(self) -> None:
        self._last_table = self.table
        self._filter.open()
        self.retake()
        self.refresh_bindings()

    def action_clear_filter(self) -> None:
        self._filter.clear()

    def action_next_pool(self) -> None:
        tables = [p.table for p in self.panes if p.display]
        self.set_focus(tables[(tables.index(self.table) + 1) % len(tables)])

    def action_sort(self) -> None:
        table = self.table
        entries = [("", "as in the config")]
        entries += [(c.id, text.fit(f"{c.title:<12} {c.help}", 66)) for c in table.columns]
        now = table.sort.column.id if table.sort.column else ""

        def chosen(answer: str | None) -> None:
            if answer is not None:
                table.sort_by(table.sort.by(columns.COLUMNS[answer]) if answer else Sort())

        self.app.push_screen(ChoiceScreen("Sort by", entries, current=now), chosen)
