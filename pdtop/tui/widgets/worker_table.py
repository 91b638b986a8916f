"""The table of one pool: fixed columns, repaints changed cells only, the cursor belongs to a worker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from pdtop.cluster.model import Worker
from pdtop.tui import text
from pdtop.tui.columns import GUTTER, NAME, Column, pad
from pdtop.tui.lines import diff, line_width, to_strip
from pdtop.tui.palette import Look
from pdtop.tui.pool_view import PoolView
from pdtop.tui.sorting import Sort, frozen, ordered
from pdtop.tui.tones import Line, Tone

#: Changed cells of a row above which one region for the whole row is cheaper than one a cell.
ROW_REFRESH_SHARE = 0.25

#: Tones that fade when the numbers are old.
_FADES = frozenset({Tone.TEXT, Tone.MUTED, Tone.TREND, Tone.BAR, Tone.OK, Tone.WARNING, Tone.CRITICAL})


class WorkerTable(ScrollView, can_focus=True):
    """Rows of workers under a line of column titles."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "worker", id="table.open", tooltip="Open the worker under the cursor"),
        Binding("up,k", "cursor(-1)", "Up", show=False, id="table.up", tooltip="Previous worker"),
        Binding("down,j", "cursor(1)", "Down", show=False, id="table.down", tooltip="Next worker"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="table.page_up", tooltip="One page up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="table.page_down",
                tooltip="One page down"),
        Binding("home,g", "edge(-1)", "First", show=False, id="table.first", tooltip="First worker"),
        Binding("end,G", "edge(1)", "Last", show=False, id="table.last", tooltip="Last worker"),
        Binding("left,h", "columns(-1)", "Left", show=False, id="table.left",
                tooltip="Columns further left"),
        Binding("right", "columns(1)", "Right", show=False, id="table.right",
                tooltip="Columns further right"),
        Binding("m", "mark", "Mark", show=False, id="table.mark", tooltip="Mark or unmark the worker"),
        Binding("M", "unmark_all", "Unmark", show=False, id="table.unmark_all", tooltip="Remove all marks"),
        Binding("S", "turn", "Turn sort", show=False, id="table.turn_sort",
                tooltip="Sort the other way round"),
        Binding("less_than_sign", "sort_step(-1)", "Sort left", show=False, id="table.sort_left",
                tooltip="Sort by the column to the left"),
        Binding("greater_than_sign", "sort_step(1)", "Sort right", show=False, id="table.sort_right",
                tooltip="Sort by the column to the right"),
    ]  # fmt: skip

    @dataclass
    class Opened(Message):
        """A worker was chosen."""

        key: str

    @dataclass
    class CursorMoved(Message):
        """The cursor went to another worker."""

        key: str | None

    @dataclass
    class LeftBy(Message):
        """The cursor wanted to go beyond the first (-1) or last (1) row."""

        table: WorkerTable
        direction: int

    @dataclass
    class SortChanged(Message):
        """The operator chose another order."""

        table: WorkerTable

    def __init__(self, look: Look, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._look = look
        self._view: PoolView | None = None
        self._columns: tuple[Column, ...] = ()
        self._rows: list[Worker] = []
        self._first_column = 0  # how many columns after the name are scrolled away
        self._painted: dict[int, Line] = {}  # by screen line
        self._ghost: Worker | None = None  # the worker under the cursor, when it has vanished
        self.sort = Sort()
        self.cursor_key: str | None = None
        self.marked: set[str] = set()

    # What is shown -----------------------------------------------------------------------------------

    @property
    def columns(self) -> tuple[Column, ...]:
        return self._columns

    @property
    def keys(self) -> list[str]:
        """Worker keys from top to bottom."""
        return [w.key for w in self._rows]

    @property
    def cursor_row(self) -> int | None:
        return next((i for i, w in enumerate(self._rows) if w.key == self.cursor_key), None)

    @property
    def cursor_worker(self) -> Worker | None:
        """The worker under the cursor; a vanished one is None."""
        row = self.cursor_row
        return None if row is None or self._rows[row] is self._ghost else self._rows[row]

    def is_gone(self, key: str) -> bool:
        """Whether ``key`` is shown although the cluster no longer has it."""
        return self._ghost is not None and self._ghost.key == key

    def show(self, view: PoolView, columns: tuple[Column, ...], *, keep_order: bool = False) -> None:
        """Show ``view``; ``keep_order`` while the operator is being asked something."""
        followed = self._cursor_visible()
        previous = self.keys
        known = {w.key: w for w in self._rows}
        rows = frozen(previous, view.workers) if keep_order else ordered(view.workers, self.sort, view)
        self._ghost = None
        if self.cursor_key is not None and self.cursor_key in known:
            if all(w.key != self.cursor_key for w in rows):
                self._ghost = known[self.cursor_key]
                rows.insert(min(previous.index(self.cursor_key), len(rows)), self._ghost)
        elif rows and self.cursor_key is None:
            self.cursor_key = rows[0].key
        columns_changed = columns != self._columns
        self._view, self._columns, self._rows = view, columns, rows
        size = Size(self.size.width, len(rows) + 1)
        if size != self.virtual_size:
            self.virtual_size = size
        if columns_changed:
            self.refresh()
            return
        if followed and previous != self.keys:
            self._scroll_to_cursor()
        self._refresh_changes()

    def _refresh_changes(self) -> None:
        regions: list[Region] = []
        for y in range(self.size.height):
            before, after = self._painted.get(y), self._line(y)
            if before is not None and before != after:
                regions.extend(self._changed(before, after, y))
        if regions:
            self.refresh(*regions)

    def _changed(self, before: Line, after: Line, y: int) -> Iterable[Region]:
        """What to repaint of one line. Lines of one table have a run for each piece of each cell."""
        span = diff(before, after)
        if span is None:
            return
        cells = self._cell_spans()
        changed = []
        for start, end in cells:
            part = diff(_slice(before, start, end), _slice(after, start, end))
            if part is not None:
                changed.append((start + part[0], start + part[1]))
        if len(changed) > ROW_REFRESH_SHARE * len(cells):
            changed = [span]
        for start, end in changed:
            yield Region(start, y, end - start, 1)

    def _visible_columns(self) -> tuple[Column, ...]:
        return (*self._columns[:1], *self._columns[1 + self._first_column :])

    def _cell_spans(self) -> list[tuple[int, int]]:
        spans, x = [(0, GUTTER)], GUTTER
        for column in self._visible_columns():
            spans.append((x, x + column.width))
            x += column.width + 1
        return spans

    # Lines -------------------------------------------------------------------------------------------

    def _line(self, y: int) -> Line:
        """What screen line ``y`` says; line 0 has the titles."""
        if not self._columns or self._view is None:
            return ()
        if y == 0:
            return self._titles()
        index = y - 1 + self.scroll_offset.y
        if index < len(self._rows):
            return self._row(self._rows[index], self._view)
        # An empty table says why: no worker in the pool, or none that passes the filter.
        members = self._view.pool.total if self._view.pool else 0
        words = "no worker passes the filter" if members else "no workers"
        return ((" " * GUTTER + words, Tone.MUTED),) if index == 0 else ()

    def _titles(self) -> Line:
        runs: list[tuple[str, Tone]] = [(" " * GUTTER, Tone.COLUMN)]
        for column in self._visible_columns():
            sorting = self.sort.column is not None and self.sort.column.id == column.id
            arrow = ("▾" if self.sort.largest_first else "▴") if sorting else ""
            title = text.fit(column.title_in(column.width - len(arrow)) + arrow, column.width, column.align)
            runs += [(title, Tone.SORTED if sorting else Tone.COLUMN), (" ", Tone.COLUMN)]
        if self._first_column:
            runs[0] = ("◂ ", Tone.COLUMN)
        width = self.scrollable_content_region.width
        line = tuple(runs)
        if line_width(line) - 1 > width:
            return (*pad(line, width - 1, "left"), ("▸", Tone.COLUMN))
        return line

    def _row(self, worker: Worker, view: PoolView) -> Line:
        gone = worker is self._ghost
        sign = "▌" if self._is_cursor(worker) else " "
        mark = "●" if worker.key in self.marked else " "
        runs: list[tuple[str, Tone]] = [(sign, Tone.STRONG), (mark, Tone.MARK)]
        age_shown = False
        for column in self._visible_columns():
            if gone and column.id == "state":
                cell: Line = pad((("gone", Tone.STALE),), column.width, column.align)
            elif worker.stale and column.stretch:
                # An old sparkline would look alive: its place says how old the numbers are.
                age = "" if age_shown or worker.age_s is None else text.age(worker.age_s)
                age += " ago" if age and len(age) + 4 <= column.width else ""
                cell, age_shown = pad(((age, Tone.STALE),), column.width, "left"), True
            else:
                cell = column.cell(worker, view)
                if gone or (worker.stale and column.id not in ("name", "state")):
                    cell = tuple((w, Tone.STALE if gone or t in _FADES else t) for w, t in cell)
            runs += [*cell, (" ", Tone.TEXT)]
        return tuple(runs)

    def render_line(self, y: int) -> Strip:
        line = self._line(y)
        self._painted[y] = line
        palette = self._look.palette
        base = self.rich_style
        row = y - 1 + self.scroll_offset.y
        if y > 0 and row < len(self._rows) and self._is_cursor(self._rows[row]):
            base += palette[Tone.CURSOR]
        return to_strip(line, palette, self.size.width, base)

    def _is_cursor(self, worker: Worker) -> bool:
        """Of the pools' tables only the one with the focus shows its cursor: there is one cursor."""
        return self.has_focus and worker.key == self.cursor_key

    # Cursor ------------------------------------------------------------------------------------------

    def move_cursor(self, row: int) -> None:
        """Put the cursor on the worker in ``row`` (clamped)."""
        if not self._rows:
            return
        old = self.cursor_row
        new = max(0, min(len(self._rows) - 1, row))
        key = self._rows[new].key
        if key == self.cursor_key:
            self._scroll_to_cursor()
            return
        self.cursor_key = key
        if self._ghost is not None and self._view is not None:
            self.show(self._view, self._columns, keep_order=True)  # the vanished row goes when it is left
            self.refresh()
        else:
            self._refresh_rows(old, new)
        self._scroll_to_cursor()
        self.post_message(self.CursorMoved(key))

    def select(self, key: str) -> bool:
        """Put the cursor on the worker ``key``; False if it is not in the table."""
        row = next((i for i, w in enumerate(self._rows) if w.key == key), None)
        if row is None:
            return False
        self.move_cursor(row)
        return True

    def _refresh_rows(self, *rows: int | None) -> None:
        top = self.scroll_offset.y
        regions = [Region(0, r - top + 1, self.size.width, 1) for r in rows if r is not None and r >= top]
        if regions:
            self.refresh(*regions)

    def _page(self) -> int:
        return max(1, self.scrollable_content_region.height - 1)

    def _cursor_visible(self) -> bool:
        row = self.cursor_row
        return row is not None and 0 <= row - self.scroll_offset.y < self._page()

    def _scroll_to_cursor(self) -> None:
        row = self.cursor_row
        if row is None:
            return
        top, page = self.scroll_offset.y, self._page()
        if row < top:
            self.scroll_to(y=row, animate=False, force=True)
        elif row >= top + page:
            self.scroll_to(y=row - page + 1, animate=False, force=True)

    def on_focus(self) -> None:
        self._refresh_rows(self.cursor_row)

    def on_blur(self) -> None:
        self._refresh_rows(self.cursor_row)

    # Keys and mouse ----------------------------------------------------------------------------------

    def action_cursor(self, step: int) -> None:
        row = self.cursor_row
        if row is None:
            self.move_cursor(0)
        elif 0 <= row + step < len(self._rows):
            self.move_cursor(row + step)
        else:
            self.post_message(self.LeftBy(self, step))

    def action_page(self, step: int) -> None:
        self.move_cursor((self.cursor_row or 0) + step * (self._page() - 1 or 1))

    def action_edge(self, direction: int) -> None:
        self.move_cursor(0 if direction < 0 else len(self._rows) - 1)

    def action_open(self) -> None:
        if (worker := self.cursor_worker) is not None:
            self.post_message(self.Opened(worker.key))

    def action_columns(self, step: int) -> None:
        width = self.scrollable_content_region.width
        needed = GUTTER + sum(c.width + 1 for c in self._visible_columns()) - 1
        if (step > 0 and needed > width) or (step < 0 and self._first_column > 0):
            self._first_column += step
            self.refresh()

    def action_mark(self) -> None:
        if (worker := self.cursor_worker) is not None:
            self.marked ^= {worker.key}
            self._refresh_rows(self.cursor_row)
            self.action_cursor(1)

    def action_unmark_all(self) -> None:
        self.marked.clear()
        self.refresh()

    def action_turn(self) -> None:
        self.sort_by(self.sort.turned())

    def action_sort_step(self, step: int) -> None:
        ids = [c.id for c in self._columns]
        now = self.sort.column.id if self.sort.column is not None else NAME.id
        place = ids.index(now) if now in ids else 0
        self.sort_by(Sort().by(self._columns[(place + step) % len(ids)]))

    def sort_by(self, sort: Sort) -> None:
        """Take another order; the cursor stays on its worker."""
        self.sort = sort
        if self._view is not None:
            self.show(self._view, self._columns)
            self._scroll_to_cursor()
        self.refresh()
        self.post_message(self.SortChanged(self))

    def on_click(self, event: events.Click) -> None:
        if event.y == 0:
            spans = self._cell_spans()[1:]
            for (start, end), column in zip(spans, self._visible_columns(), strict=True):
                if start <= event.x <= end:
                    self.sort_by(self.sort.by(column))
                    return
            return
        row = event.y - 1 + self.scroll_offset.y
        if row < len(self._rows):
            self.move_cursor(row)
            if event.chain == 2:
                self.action_open()

    def on_resize(self) -> None:
        self._painted.clear()
        self.virtual_size = Size(self.size.width, len(self._rows) + 1)


def _slice(line: Line, start: int, end: int) -> Line:
    """Cells ``start`` to ``end`` of a line whose cells are each a whole number of runs or parts of one."""
    out: list[tuple[str, Tone]] = []
    x = 0
    for words, tone in line:
        width = line_width(((words, tone),))
        if x >= end:
            break
        if x >= start and x + width <= end:
            out.append((words, tone))
        x += width
    return tuple(out)
