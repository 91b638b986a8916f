"""The first screen: findings in words, the two pools as tables."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from pdtop.cluster.model import Role, Snapshot, Worker
from pdtop.tui import columns
from pdtop.tui.headline import findings_strip, pool_line
from pdtop.tui.layout import plan
from pdtop.tui.palette import Look
from pdtop.tui.pool_view import pool_view
from pdtop.tui.screens.base import ConsoleScreen
from pdtop.tui.widgets.line_view import LineView
from pdtop.tui.widgets.worker_table import WorkerTable

#: The pools in the order of the screen; the last one holds what is neither.
ROLES = (Role.PREFILL, Role.DECODE, Role.UNIFIED)


class PoolPane(Vertical):
    """One pool: its summary line and its table."""

    def __init__(self, role: Role, look: Look) -> None:
        super().__init__(id=f"pool-{role.value}")
        self.role = role
        self.summary = LineView(look)
        self.table = WorkerTable(look, id=f"table-{role.value}")

    def compose(self) -> ComposeResult:
        yield self.summary
        yield self.table


def members(snapshot: Snapshot, role: Role) -> tuple[Worker, ...]:
    """The workers of one pane; whoever is neither prefill nor decode is in the last one."""
    if role in (Role.PREFILL, Role.DECODE):
        return snapshot.pool_workers(role)
    return tuple(w for w in snapshot.workers if w.role not in (Role.PREFILL, Role.DECODE))


class OverviewScreen(ConsoleScreen):
    """Header, findings strip, pool tables."""

    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, look: Look) -> None:
        super().__init__(look)
        self._strip = LineView(look, id="strip")
        self.panes = tuple(PoolPane(role, look) for role in ROLES)

    def body(self) -> ComposeResult:
        yield self._strip
        yield from self.panes

    def on_mount(self) -> None:
        self.panes[0].table.focus()

    def take(self, snapshot: Snapshot) -> None:
        width, height = self.size
        if not width:
            return
        rows = [len(members(snapshot, pane.role)) for pane in self.panes]
        shape = plan(width, height, rows)
        self._strip.styles.height = shape.strip
        self._strip.show(findings_strip(snapshot, shape.strip, width))
        for pane, table_height in zip(self.panes, shape.tables, strict=True):
            pane.display = table_height > 0
            if table_height:
                pane.table.styles.height = table_height
                pane.styles.height = table_height + 1
                pane.styles.margin = (shape.gap, 0, 0, 0)
                self._fill(pane, snapshot, width)

    def _fill(self, pane: PoolPane, snapshot: Snapshot, width: int) -> None:
        options = self.console_app.options
        workers = members(snapshot, pane.role)
        pool = {Role.PREFILL: snapshot.prefill, Role.DECODE: snapshot.decode}.get(pane.role)
        pane.summary.show([pool_line(pool, width) if pool else ()])
        preset = columns.preset_for(width)
        chosen = columns.chosen(pane.role, preset, options.columns.get(pane.role.value, ()))
        name = columns.name_width((w.name for w in snapshot.workers), preset)
        pane.table.show(
            pool_view(snapshot, pane.role, workers, options),
            columns.laid_out(chosen, width, name),
            keep_order=self.app.screen is not self,
        )

    @on(WorkerTable.LeftBy)
    def _to_neighbour(self, event: WorkerTable.LeftBy) -> None:
        """Up and down walk through all pools as through one list."""
        tables = [p.table for p in self.panes if p.display]
        place = tables.index(event.table) + event.direction
        if 0 <= place < len(tables):
            tables[place].focus()
            tables[place].move_cursor(0 if event.direction > 0 else len(tables[place].keys) - 1)
