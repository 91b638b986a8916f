"""Lines of runs: what changed between two of them, and how they become strips or content."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.style import Style as ContentStyle

from pdtop.tui.palette import Palette
from pdtop.tui.tones import Line, Tone


def diff(old: Line, new: Line) -> tuple[int, int] | None:
    """First and last-plus-one cell in which two lines of equal width differ; None if they look the same."""
    if old == new:
        return None
    start = end = None
    for position, (a, b) in enumerate(zip_longest(_cells(old), _cells(new))):
        if a != b:
            start = position if start is None else start
            end = position + 1
    return None if start is None or end is None else (start, end)


def changed_regions(old: Sequence[Line], new: Sequence[Line], top: int, height: int) -> Iterator[Region]:
    """What to repaint of a scrolled page of ``height`` lines whose first in sight is ``top``."""
    for y in range(height):
        before = old[top + y] if top + y < len(old) else ()
        after = new[top + y] if top + y < len(new) else ()
        if span := diff(before, after):
            yield Region(span[0], y, span[1] - span[0], 1)


def _cells(line: Line) -> list[tuple[str, Tone]]:
    """One entry a terminal cell; the second cell of a wide character is marked so."""
    out: list[tuple[str, Tone]] = []
    for words, tone in line:
        if words.isascii():
            out.extend((c, tone) for c in words)
            continue
        for c in words:
            size = cell_len(c)
            if size == 0 and out:
                out[-1] = (out[-1][0] + c, tone)
            else:
                out.append((c, tone))
                out.extend([("", tone)] * (size - 1))
    return out


def to_strip(line: Line, palette: Palette, width: int, base: Style | None = None) -> Strip:
    """``line`` as a strip of exactly ``width`` cells; ``base`` (with a background) lies under every run."""
    styles = palette.on(base or Style.null())
    segments = [Segment(words, styles[tone]) for words, tone in line if words]
    return Strip(segments).adjust_cell_length(width, styles[Tone.TEXT]).crop(0, width)


def line_width(line: Line) -> int:
    """Cells a line takes."""
    return sum(cell_len(words) for words, _ in line)


def to_content(line: Line, palette: Palette) -> Content:
    """``line`` as content for Textual's own widgets."""
    return Content.assemble(*((words, ContentStyle.from_rich_style(palette[tone])) for words, tone in line))
