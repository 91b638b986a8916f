"""A text of any length that scrolls; repaints only the cells that changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from pdtop.tui.lines import diff, line_width, to_strip
from pdtop.tui.palette import Look
from pdtop.tui.tones import Line


class LinesScroll(ScrollView, can_focus=True):
    """Shows lines given to :meth:`show`, from where the operator has scrolled to."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "Up", show=False, id="text.up", tooltip="One line up"),
        Binding("down,j", "scroll_down", "Down", show=False, id="text.down", tooltip="One line down"),
        Binding("pageup", "page_up", "Page up", show=False, id="text.page_up", tooltip="One page up"),
        Binding(
            "pagedown", "page_down", "Page down", show=False, id="text.page_down", tooltip="One page down"
        ),
        Binding("home,g", "scroll_home", "Top", show=False, id="text.top", tooltip="To the first line"),
        Binding("end,G", "scroll_end", "End", show=False, id="text.end", tooltip="To the last line"),
    ]

    def __init__(self, look: Look, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._look = look
        self._lines: tuple[Line, ...] = ()

    @property
    def lines(self) -> tuple[Line, ...]:
        return self._lines

    def show(self, lines: Sequence[Line]) -> None:
        """Show ``lines`` and repaint where the ones in sight differ from before."""
        old, self._lines = self._lines, tuple(lines)
        size = Size(max((line_width(line) for line in self._lines), default=0), len(self._lines))
        if size != self.virtual_size:
            self.virtual_size = size
        top = self.scroll_offset.y
        regions = []
        for y in range(self.size.height):
            index = top + y
            before = old[index] if index < len(old) else ()
            after = self._lines[index] if index < len(self._lines) else ()
            if span := diff(before, after):
                regions.append(Region(span[0] - self.scroll_offset.x, y, span[1] - span[0], 1))
        if regions:
            self.refresh(*regions)

    def render_line(self, y: int) -> Strip:
        x, top = self.scroll_offset
        index = top + y
        line = self._lines[index] if index < len(self._lines) else ()
        width = self.size.width
        return to_strip(line, self._look.palette, x + width, self.rich_style).crop(x, x + width)
