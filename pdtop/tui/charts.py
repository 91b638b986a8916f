"""Charts as lines of block glyphs: pure, one colour, newest at the right, gaps as spaces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pdtop.tui import text
from pdtop.tui.text import BLOCKS
from pdtop.tui.tones import Line, Run, Tone

Points = tuple[float | None, ...]

#: How many points one column may stand for; the smallest that gets everything in is taken.
FOLDS = (1, 2, 5, 10, 15, 30, 60)


def fold(points: Points, tick: int, per: int, columns: int, *, mean: bool) -> Points:
    """``points`` (newest last, the last one of tick ``tick``), ``per`` to a column, at most ``columns``.

    Columns are anchored to the tick number, so finished ones never change; the newest one still grows.
    """
    out: list[float | None] = []
    end = len(points)
    size = tick % per + 1
    while end > 0 and len(out) < columns:
        known = [v for v in points[max(0, end - size) : end] if v is not None]
        out.append(None if not known else sum(known) / len(known) if mean else max(known))
        end -= size
        size = per
    return tuple(reversed(out))


@dataclass(frozen=True, slots=True)
class Chart:
    """What one chart shows. ``floor``: smallest full scale; ``mean``: columns are averages, else maxima."""

    title: str
    points: Points
    words: Callable[[float | None], str]
    floor: float
    mean: bool = False
    tone: Tone = Tone.TREND
    full: float | None = None  # a fixed scale


def lines(chart: Chart, tick: int, width: int, height: int, interval_s: float) -> list[Line]:
    """``chart`` in ``height`` lines of ``width`` cells: a line of words, then the columns and their scale."""
    scale_width = 7
    columns = max(1, width - scale_width)
    per = next((f for f in FOLDS if len(chart.points) <= f * columns), FOLDS[-1])
    folded = fold(chart.points, tick, per, columns, mean=chart.mean)
    known = [v for v in folded if v is not None]
    full = chart.full or text.nice_ceiling(max(known, default=0.0), chart.floor)
    span = text.age(columns * per * interval_s) if interval_s else ""
    newest = next((v for v in reversed(chart.points) if v is not None), None)
    title: list[Run] = [(chart.title, Tone.STRONG), (" " + chart.words(newest), Tone.TEXT)]
    if known:
        title.append((f"  max {chart.words(max(known))}", Tone.MUTED))
    title.append((f"  {span}", Tone.MUTED))
    rows = max(1, height - 1)
    out: list[Line] = [tuple(title)]
    for row in range(rows):
        low, high = (rows - 1 - row) / rows * full, (rows - row) / rows * full
        glyphs = "".join(_glyph(v, low, high, bottom=row == rows - 1) for v in folded).rjust(columns)
        scale = chart.words(full) if row == 0 else chart.words(0.0) if row == rows - 1 and rows > 1 else ""
        out.append(((glyphs, chart.tone), (" " + scale, Tone.MUTED)))
    return out


def _glyph(value: float | None, low: float, high: float, *, bottom: bool) -> str:
    """The glyph of one column in the row that stands for ``low``..``high``."""
    if value is None:
        return " "
    eighths = round((value - low) / (high - low) * 8)
    if eighths <= 0:
        return BLOCKS[0] if bottom else " "
    return BLOCKS[min(8, eighths) - 1]
