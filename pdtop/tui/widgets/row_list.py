"""A list of lines with a cursor that belongs to a key, not a line; headings are passed over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from pdtop.tui.lines import changed_regions, to_strip
from pdtop.tui.palette import Look
from pdtop.tui.tones import Line, Tone

#: A line and its key; "" is a heading.
Row = tuple[str, Line]


class RowList(ScrollView, can_focus=True):
    """Shows rows given to :meth:`show`; the first cell of each is left for the cursor's sign."""

    DEFAULT_CSS = """
    RowList {
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0;
        overflow-x: hidden;
        background: $background;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "cursor(-1)", "Up", show=False, id="rows.up", tooltip="Previous row"),
        Binding("down,j", "cursor(1)", "Down", show=False, id="rows.down", tooltip="Next row"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="rows.page_up", tooltip="One page up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="rows.page_down",
                tooltip="One page down"),
        Binding("home,g", "edge(0)", "First", show=False, id="rows.first", tooltip="First row"),
        Binding("end,G", "edge(-1)", "Last", show=False, id="rows.last", tooltip="Last row"),
    ]  # fmt: skip

    @dataclass
    class Moved(Message):
        """The cursor went to another row."""

        key: str

    def __init__(self, look: Look, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._look = look
        self._rows: tuple[Row, ...] = ()
        self.cursor_key = ""

    @property
    def lines(self) -> tuple[Line, ...]:
        return tuple(line for _, line in self._rows)

    @property
    def keys(self) -> list[str]:
        """Keys that the cursor can go to."""
        return [key for key, _ in self._rows if key]

    def show(self, rows: Sequence[Row]) -> None:
        """Show ``rows``; the cursor stays on its key, or near where that was."""
        old, place = self._rows, self._place()
        self._rows = tuple(rows)
        keys = self.keys
        if self.cursor_key not in keys:
            left = [key for key, _ in self._rows[: (place or 0) + 1] if key]
            self.cursor_key = left[-1] if left else keys[0] if keys else ""
        size = Size(self.size.width, len(self._rows))
        if size != self.virtual_size:
            self.virtual_size = size
        if place != self._place():
            self.refresh()
            return
        before = [line for _, line in old]
        if regions := list(changed_regions(before, self.lines, self.scroll_offset.y, self.size.height)):
            self.refresh(*regions)

    def _place(self) -> int | None:
        return next((i for i, (key, _) in enumerate(self._rows) if key and key == self.cursor_key), None)

    def render_line(self, y: int) -> Strip:
        index = y + self.scroll_offset.y
        key, line = self._rows[index] if index < len(self._rows) else ("", ())
        palette, base = self._look.palette, self.rich_style
        if key and key == self.cursor_key:
            base += palette[Tone.CURSOR]
            line = (("▌", Tone.STRONG), *_without_first_cell(line))
        return to_strip(line, palette, self.size.width, base)

    def move_to(self, key: str) -> None:
        """Put the cursor on ``key``, if it is there."""
        if key not in self.keys or key == self.cursor_key:
            return
        before = self._place()
        self.cursor_key = key
        after = self._place()
        top, height = self.scroll_offset.y, self.size.height
        lines = [at - top for at in (before, after) if at is not None]
        self.refresh(*(Region(0, y, self.size.width, 1) for y in lines if 0 <= y < height))
        if after is not None:
            # The heading above the first row of a group comes into sight with it.
            heading = 1 if after and not self._rows[after - 1][0] else 0
            if after - heading < top:
                self.scroll_to(y=after - heading, animate=False, force=True)
            elif after >= top + height:
                self.scroll_to(y=after - height + 1, animate=False, force=True)
        self.post_message(self.Moved(key))

    def action_cursor(self, step: int) -> None:
        keys = self.keys
        if self.cursor_key in keys:
            self.move_to(keys[max(0, min(len(keys) - 1, keys.index(self.cursor_key) + step))])

    def action_page(self, step: int) -> None:
        self.action_cursor(step * max(1, self.size.height - 1))

    def action_edge(self, place: int) -> None:
        if keys := self.keys:
            self.move_to(keys[place])

    def on_click(self, event: events.Click) -> None:
        index = event.y + self.scroll_offset.y
        if index < len(self._rows):
            self.move_to(self._rows[index][0])

    def on_resize(self) -> None:
        self.virtual_size = Size(self.size.width, len(self._rows))


def _without_first_cell(line: Line) -> Line:
    """``line`` less the blank that it begins with."""
    if not line:
        return line
    (words, tone), *rest = line
    return ((words[1:], tone), *rest)
