"""The series of a metrics page as rows: name, labels, value at the right; only rows in sight are parsed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from pdtop.tui import text
from pdtop.tui.lines import to_strip
from pdtop.tui.palette import Look
from pdtop.tui.tones import Line, Tone
from pdtop.tui.worker_raw import RawPage, SeriesLine, parsed

#: Cells of the value; longer ones keep their digits and take room from the labels.
VALUE_WIDTH = 12


class SeriesList(ScrollView, can_focus=True):
    """Rows of series with a cursor that stays in its row of the page while values change."""

    DEFAULT_CSS = """
    SeriesList {
        height: 1fr;
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0;
        overflow-x: hidden;
        background: $background;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "cursor(-1)", "Up", show=False, id="series.up", tooltip="Previous series"),
        Binding("down,j", "cursor(1)", "Down", show=False, id="series.down", tooltip="Next series"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="series.page_up", tooltip="One page up"),
        Binding(
            "pagedown", "page(1)", "Page down", show=False, id="series.page_down", tooltip="One page down"
        ),
        Binding("home,g", "edge(0)", "First", show=False, id="series.first", tooltip="First series"),
        Binding("end,G", "edge(-1)", "Last", show=False, id="series.last", tooltip="Last series"),
    ]

    @dataclass
    class CursorMoved(Message):
        """The cursor went to another series."""

    def __init__(self, look: Look, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._look = look
        self._page = RawPage("")
        self._rows: Sequence[int] = ()
        self._cursor = 0

    @property
    def selected(self) -> SeriesLine | None:
        """The series under the cursor."""
        return self._series(self._cursor)

    def show(self, page: RawPage, rows: Sequence[int], *, top: bool = False) -> None:
        """Show ``rows`` of ``page``; ``top``: another search, so start at its first row."""
        unchanged = not top and rows == self._rows
        before = [self._line(y) for y in range(self.size.height)] if unchanged else []
        self._page, self._rows = page, rows
        self._cursor = 0 if top else max(0, min(self._cursor, len(rows) - 1))
        size = Size(self.size.width, len(rows))
        if size != self.virtual_size:
            self.virtual_size = size
        if top:
            self.scroll_to(y=0, animate=False, force=True)
        if unchanged:
            changed = [y for y, line in enumerate(before) if line != self._line(y)]
            if changed:
                self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))
        else:
            self.refresh()

    def _series(self, row: int) -> SeriesLine | None:
        return parsed(self._page.line(self._rows[row])) if 0 <= row < len(self._rows) else None

    def _line(self, y: int) -> Line:
        series = self._series(y + self.scroll_offset.y)
        return series_line(series, self.scrollable_content_region.width) if series is not None else ()

    def render_line(self, y: int) -> Strip:
        base = self.rich_style
        cursor = y + self.scroll_offset.y == self._cursor and bool(self._rows)
        line = self._line(y)
        if cursor:
            base += self._look.palette[Tone.CURSOR]
            line = (("▌", Tone.STRONG), (line[0][0][1:], line[0][1]), *line[1:])
        return to_strip(line, self._look.palette, self.size.width, base)

    # Cursor ------------------------------------------------------------------------------------------

    def _move(self, row: int) -> None:
        if not self._rows:
            return
        old, self._cursor = self._cursor, max(0, min(len(self._rows) - 1, row))
        top, height = self.scroll_offset.y, self.size.height
        self.refresh(
            *(Region(0, r - top, self.size.width, 1) for r in {old, self._cursor} if 0 <= r - top < height)
        )
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False, force=True)
        elif self._cursor >= top + height:
            self.scroll_to(y=self._cursor - height + 1, animate=False, force=True)
        self.post_message(self.CursorMoved())

    def action_cursor(self, step: int) -> None:
        self._move(self._cursor + step)

    def action_page(self, step: int) -> None:
        self._move(self._cursor + step * max(1, self.size.height - 1))

    def action_edge(self, row: int) -> None:
        self._move(row % max(1, len(self._rows)))

    def on_click(self, event: events.Click) -> None:
        self._move(event.y + self.scroll_offset.y)

    def on_resize(self) -> None:
        self.virtual_size = Size(self.size.width, len(self._rows))


def series_line(series: SeriesLine, width: int) -> Line:
    """One series in exactly ``width`` cells; what is cut are the labels, never the value."""
    if series.bad:
        return (
            ("  ▲ not readable  ", Tone.WARNING),
            (text.fit(series.labels, max(0, width - 19)), Tone.MUTED),
        )
    value = text.fit(series.value, max(VALUE_WIDTH, cell_len(series.value) + 1), "right")
    room = max(0, width - cell_len(value) - 5)
    name = series.name if cell_len(series.name) <= room else text.middle(series.name, room)
    labels = text.fit(series.labels, max(0, room - cell_len(name)))
    return (
        (f"  {name}  ", Tone.TEXT),
        (labels, Tone.MUTED),
        (value, Tone.STRONG),
        (" ", Tone.TEXT),
    )
