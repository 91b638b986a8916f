"""A chart of one number over time in block glyphs: title, newest value, scale, gaps as gaps, time axis.

Drawn as lines, so that charts can stand beside each other and beside tables on one page that repaints only
the cells that changed. Ticks are folded into columns that are anchored to the tick number: a finished column
never changes, the picture moves left only when a new column begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pdtop.tui import text
from pdtop.tui.charts import Points, fold
from pdtop.tui.judge import by_level
from pdtop.tui.options import Level
from pdtop.tui.tones import Line, Run, Tone

#: Cells left of the plot: a scale label and the axis.
GUTTER = 7

#: Spans the time axis may have, seconds; the shortest that holds all points is taken.
SPANS = (120.0, 300.0, 900.0, 3600.0)

#: Distances between labels of the time axis, seconds.
_STEPS = (10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0)
_LABEL_ROOM = 10  # cells from one label of the time axis to the next, at least


@dataclass(frozen=True, slots=True)
class Chart:
    """What one chart shows. ``points``: newest last, one a tick, None a gap.

    ``floor``: the smallest full scale, so that calm values stay low. ``full``: a fixed scale instead.
    ``mean``: a column of several ticks shows their mean; else their highest, where the worst is what counts.
    ``level``: from which values on the newest one is marked.
    """

    title: str
    points: Points
    words: Callable[[float | None], str]
    floor: float = 1.0
    full: float | None = None
    mean: bool = False
    unit: str = ""
    level: Level = (None, None)


def chart_lines(
    chart: Chart, width: int, rows: int, *, tick: int, interval_s: float, stale: bool = False
) -> list[Line]:
    """``chart`` in ``rows`` + 2 lines of ``width`` cells. ``tick`` is the number of the newest point."""
    cells = max(1, width - GUTTER)
    size = ticks_per_column(len(chart.points), cells, interval_s)
    folded = fold(chart.points, tick, size, cells, mean=chart.mean)
    columns = (*[None] * (cells - len(folded)), *folded)
    top = chart.full or scale(columns, chart.floor)
    return [
        _title(chart, width, stale),
        *_plot(chart, columns, top, cells, rows, Tone.STALE if stale else Tone.TREND),
        _axis(cells, size, tick, interval_s),
    ]


def scale(columns: Points, floor: float) -> float:
    """The value at the top of the plot."""
    return text.nice_ceiling(max((v for v in columns if v is not None), default=0.0), floor)


def ticks_per_column(points: int, cells: int, interval_s: float) -> int:
    """How many ticks one column stands for, so that the kept past fits ``cells`` columns."""
    span = next((s for s in SPANS if s >= points * interval_s), points * interval_s)
    return max(1, -(-round(span / interval_s) // cells))


def _title(chart: Chart, width: int, stale: bool) -> Line:
    newest = chart.points[-1] if chart.points else None
    tone = by_level(newest, chart.level, Tone.STRONG)
    sign = {Tone.WARNING: "▲ ", Tone.CRITICAL: "✖ "}.get(tone, "")
    unit = f" {chart.unit}" if chart.unit else ""
    value = sign + chart.words(newest)
    title = text.fit(chart.title, max(0, width - len(value) - len(unit)))
    return ((title, Tone.TEXT), (value, Tone.STALE if stale else tone), (unit, Tone.MUTED))


def _plot(chart: Chart, columns: Points, top: float, cells: int, rows: int, tone: Tone) -> list[Line]:
    levels = [None if v is None else max(1, min(rows * 8, round(v / top * rows * 8))) for v in columns]
    empty = all(level is None for level in levels)
    lines: list[Line] = []
    for row in range(rows):
        base = (rows - 1 - row) * 8
        glyphs = "".join(" " if v is None or v <= base else text.BLOCKS[min(8, v - base) - 1] for v in levels)
        label = _label(chart, top, rows, row)
        run: Run = (glyphs, tone)
        if empty and row == rows // 2:
            run = ("no data yet" if not chart.points else "no data").center(cells)[:cells], Tone.MUTED
        lines.append(
            ((text.fit(label, GUTTER - 1, "right"), Tone.MUTED), ("┤" if label else "│", Tone.MUTED), run)
        )
    return lines


def _label(chart: Chart, top: float, rows: int, row: int) -> str:
    """Scale labels stand in the row whose upper edge they name: the top, and the middle of a tall plot."""
    if row == 0:
        return chart.words(top)
    if rows >= 6 and rows % 2 == 0 and row == rows // 2:
        return chart.words(top / 2)
    return ""


def _axis(cells: int, size: int, tick: int, interval_s: float) -> Line:
    """The line below: ``0┼`` and how long ago, at round distances."""
    seconds = size * interval_s
    step = next((s for s in _STEPS if s / seconds >= _LABEL_ROOM), None)
    line = ["─"] * cells
    place = cells
    number = 0
    while place > 0:
        words = "now" if number == 0 else text.age(number * (step or 0.0)).removesuffix("00s")
        start = cells - len(words) if number == 0 else place - 1 - len(words) // 2
        if start >= 0:
            line[start : start + len(words)] = words
        if step is None:
            break
        number += 1
        place = cells - round(number * step / seconds)
    return ((text.fit("0", GUTTER - 1, "right"), Tone.MUTED), ("┴", Tone.MUTED), ("".join(line), Tone.MUTED))
