"""A page of lines that scrolls, and repaints only the cells that changed and are in sight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from pdtop.tui.lines import changed_regions, to_strip
from pdtop.tui.palette import Look
from pdtop.tui.tones import Line


class LinePage(ScrollView, can_focus=True):
    """Shows lines given to :meth:`show`; what is too wide is cut, what is too long scrolls."""

    DEFAULT_CSS = """
    LinePage {
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0;
        overflow-x: hidden;
        background: $background;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "Up", show=False, id="page.up", tooltip="One line up"),
        Binding("down,j", "scroll_down", "Down", show=False, id="page.down", tooltip="One line down"),
        Binding("pageup", "page_up", "Page up", show=False, id="page.page_up", tooltip="One page up"),
        Binding(
            "pagedown", "page_down", "Page down", show=False, id="page.page_down", tooltip="One page down"
        ),
        Binding("home,g", "scroll_home", "Top", show=False, id="page.first", tooltip="To the top"),
        Binding("end,G", "scroll_end", "End", show=False, id="page.last", tooltip="To the end"),
    ]

    def __init__(self, look: Look, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._look = look
        self._lines: tuple[Line, ...] = ()

    @property
    def lines(self) -> tuple[Line, ...]:
        """The whole page."""
        return self._lines

    def show(self, lines: Sequence[Line]) -> None:
        """Show ``lines`` and repaint where they differ from the ones before; the place on the page stays."""
        old, self._lines = self._lines, tuple(lines)
        size = Size(self.size.width, len(self._lines))
        if size != self.virtual_size:
            self.virtual_size = size
        if regions := list(changed_regions(old, self._lines, self.scroll_offset.y, self.size.height)):
            self.refresh(*regions)

    def render_line(self, y: int) -> Strip:
        index = y + self.scroll_offset.y
        line = self._lines[index] if index < len(self._lines) else ()
        return to_strip(line, self._look.palette, self.size.width, self.rich_style)

    def on_resize(self) -> None:
        self.virtual_size = Size(self.size.width, len(self._lines))

    def action_scroll_up(self) -> None:
        self.scroll_relative(y=-1, animate=False)

    def action_scroll_down(self) -> None:
        self.scroll_relative(y=1, animate=False)

    def action_page_up(self) -> None:
        self.scroll_relative(y=1 - self.size.height, animate=False)

    def action_page_down(self) -> None:
        self.scroll_relative(y=self.size.height - 1, animate=False)

    def action_scroll_home(self) -> None:
        self.scroll_to(y=0, animate=False)

    def action_scroll_end(self) -> None:
        self.scroll_to(y=self.max_scroll_y, animate=False)
