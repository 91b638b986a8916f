"""A few lines of text that repaint only the cells that changed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from pdtop.tui.lines import changed_regions, to_strip
from pdtop.tui.palette import Look
from pdtop.tui.tones import Line, Tone


class LineView(Widget):
    """Shows lines given to :meth:`show`; what does not fit is cut off."""

    DEFAULT_CSS = "LineView { height: 1; }"

    def __init__(self, look: Look, *, ground: Tone | None = None, id: str | None = None) -> None:
        """``ground`` is the tone that lies under the whole widget."""
        super().__init__(id=id)
        self._look = look
        self._ground = ground
        self._lines: tuple[Line, ...] = ()

    @property
    def lines(self) -> tuple[Line, ...]:
        """What is shown."""
        return self._lines

    def show(self, lines: Sequence[Line]) -> None:
        """Show ``lines`` and repaint where they differ from the ones before."""
        old, self._lines = self._lines, tuple(lines)
        height = max(len(old), len(self._lines))
        if regions := list(changed_regions(old, self._lines, 0, height)):
            self.refresh(*regions)

    def render_line(self, y: int) -> Strip:
        line = self._lines[y] if y < len(self._lines) else ()
        palette = self._look.palette
        base = self.rich_style + (palette[self._ground] if self._ground else Style.null())
        return to_strip(line, palette, self.size.width, base)
