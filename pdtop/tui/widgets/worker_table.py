"""The table of one pool: fixed columns, repaints changed cells only, the cursor belongs to a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from pdtop.cluster.model import Worker
from pdtop.tui.columns import NAME, Column
from pdtop.tui.lines import to_strip
from pdtop.tui.palette import Look
from pdtop.tui.pool_view import PoolView
from pdtop.tui.rows import Cells, changed, line, nobody, note, row, spans, titles, width_of
from pdtop.tui.sorting import Sort, frozen, ordered
from pdtop.tui.tones import Line, Tone


class WorkerTable(ScrollView, can_focus=True):
    """Rows of workers under a line of column titles."""

    DEFAULT_CSS = """
    WorkerTable {
        overflow-x: hidden;
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0;
    }
    """

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
        Binding("m", "mark", "mark", id="table.mark", tooltip="Mark or unmark the worker"),
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

    class Marked(Message):
        """Marks came or went."""

    def __init__(self, look: Look, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._look = look
        self._view: PoolView | None = None
        self._columns: tuple[Column, ...] = ()
        self._rows: list[Worker] = []
        self._notes: Mapping[str, Line] = {}
        self._lines: list[tuple[Worker, Line | None]] = []  # below the titles: a worker, or a note about it
        self._first_column = 0  # how many columns after the name are scrolled away
        self._cells: dict[int, Cells] = {}  # by screen line, as they are to be
        self._painted: dict[int, Cells] = {}  # by screen line, as they were painted last
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

    def show(
        self,
        view: PoolView,
        columns: tuple[Column, ...],
        *,
        keep_order: bool = False,
        notes: Mapping[str, Line] | None = None,
    ) -> None:
        """Show ``view``; ``keep_order`` while the operator is being asked something.

        ``notes`` are lines of their own under the rows of the workers with these keys; None: as before.
        """
        followed = self._cursor_visible()
        previous = self.keys
        known = {w.key: w for w in self._rows}
        rows = frozen(previous, view.workers) if keep_order else ordered(view.workers, self.sort, view)
        self._ghost = None
        if self.cursor_key is None:
            self.cursor_key = rows[0].key if rows else None
        elif self.cursor_key in known and all(w.key != self.cursor_key for w in view.everyone):
            self._ghost = known[self.cursor_key]
            rows.insert(min(previous.index(self.cursor_key), len(rows)), self._ghost)
        columns_changed = columns != self._columns
        lines_before = len(self._lines)
        self.marked &= {w.key for w in view.everyone}
        self._view, self._columns, self._rows = view, columns, rows
        self._notes = self._notes if notes is None else notes
        self._lines = []
        for worker in rows:
            self._lines.append((worker, None))
            if worker.key in self._notes and worker is not self._ghost:
                self._lines.append((worker, self._notes[worker.key]))
        size = Size(self.size.width, len(self._lines) + 1)
        if size != self.virtual_size:
            self.virtual_size = size
        if columns_changed:
            self._repaint()
            return
        if followed and (previous != self.keys or lines_before != len(self._lines)):
            self._scroll_to_cursor()
        self._refresh_changes()

    def _refresh_changes(self) -> None:
        """Repaint the cells that are not as they were painted last."""
        self._cells = {}
        columns = self._visible_columns()
        regions = []
        for y in range(self.size.height):
            before, after = self._painted.get(y), self._cells_of(y)
            # Not known to be painted: whatever is there may be old. Another gutter: the ground of the
            # cursor comes or goes, under every cell.
            if before is None or before[:1] != after[:1] or len(before) != len(after):
                regions.append(Region(0, y, self.size.width, 1))
            else:
                regions += [Region(x, y, end - x, 1) for x, end in changed(before, after, columns)]
        if regions:
            self.refresh(*regions)

    def _visible_columns(self) -> tuple[Column, ...]:
        return (*self._columns[:1], *self._columns[1 + self._first_column :])

    # Lines -------------------------------------------------------------------------------------------

    def _cells_of(self, y: int) -> Cells:
        """What screen line ``y`` says; line 0 has the titles."""
        cells = self._cells.get(y)
        if cells is None:
            cells = self._cells[y] = self._new_cells(y)
        return cells

    def _new_cells(self, y: int) -> Cells:
        if not self._columns or self._view is None:
            return ()
        columns = self._visible_columns()
        if y == 0:
            return titles(columns, self.sort, self._first_column)
        index = y - 1 + self.scroll_offset.y
        if index >= len(self._lines):
            return nobody(self._view) if index == 0 else ()
        worker, words = self._lines[index]
        if words is not None:
            return note(words)
        return row(
            worker,
            self._view,
            columns,
            cursor=self._is_cursor(worker),
            marked=worker.key in self.marked,
            gone=worker is self._ghost,
        )

    def render_line(self, y: int) -> Strip:
        cells = self._painted[y] = self._cells_of(y)
        palette = self._look.palette
        base = self.rich_style
        index = y - 1 + self.scroll_offset.y
        if y > 0 and index < len(self._lines):
            worker, words = self._lines[index]
            if words is None and self._is_cursor(worker):
                base += palette[Tone.CURSOR]
        width = self.size.width
        strip = to_strip(line(cells), palette, width, base)
        if y == 0 and self._columns and width_of(self._visible_columns()) > width:
            more = to_strip((("▸", Tone.COLUMN),), palette, 1, base)
            return Strip.join([strip.crop(0, width - 1), more])
        return strip

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
            self._repaint()
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

    def _repaint(self) -> None:
        """Repaint everything."""
        self._cells = {}
        self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        self._cells = {}
        super().watch_scroll_y(old_value, new_value)

    def _line_of(self, row: int) -> int:
        """Which line below the titles a row is, notes counted."""
        worker = self._rows[row]
        return next((i for i, (w, words) in enumerate(self._lines) if w is worker and words is None), row)

    def _refresh_rows(self, *rows: int | None) -> None:
        self._cells = {}
        top = self.scroll_offset.y
        lines = [self._line_of(r) for r in rows if r is not None]
        regions = [Region(0, at - top + 1, self.size.width, 1) for at in lines if at >= top]
        if regions:
            self.refresh(*regions)

    def _page(self) -> int:
        return max(1, self.scrollable_content_region.height - 1)

    def _cursor_visible(self) -> bool:
        row = self.cursor_row
        return row is not None and 0 <= self._line_of(row) - self.scroll_offset.y < self._page()

    def _scroll_to_cursor(self) -> None:
        row = self.cursor_row
        if row is None:
            return
        top, page, at = self.scroll_offset.y, self._page(), self._line_of(row)
        if at < top:
            self.scroll_to(y=at, animate=False, force=True)
        elif at >= top + page:
            self.scroll_to(y=at - page + 1, animate=False, force=True)

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
        if (step > 0 and width_of(self._visible_columns()) > width) or (step < 0 and self._first_column > 0):
            self._first_column += step
            self._repaint()

    def action_mark(self) -> None:
        if (worker := self.cursor_worker) is not None:
            self.marked ^= {worker.key}
            self.post_message(self.Marked())
            self._refresh_rows(self.cursor_row)
            self.action_cursor(1)

    def action_unmark_all(self) -> None:
        self.unmark()

    def unmark(self) -> None:
        """Remove all marks."""
        self.marked.clear()
        self._repaint()
        self.post_message(self.Marked())

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
        self._repaint()
        self.post_message(self.SortChanged(self))

    def on_click(self, event: events.Click) -> None:
        if event.y == 0:
            columns = self._visible_columns()
            for (start, end), column in zip(spans(columns)[1:], columns, strict=True):
                if start <= event.x <= end:
                    self.sort_by(self.sort.by(column))
                    return
            return
        index = event.y - 1 + self.scroll_offset.y
        if index < len(self._lines):
            self.select(self._lines[index][0].key)
            if event.chain == 2:
                self.action_open()

    def on_resize(self) -> None:
        # The lines may have been painted in the new size before this is told: paint them again.
        self._painted = {}
        self.virtual_size = Size(self.size.width, len(self._lines) + 1)
        self._repaint()
