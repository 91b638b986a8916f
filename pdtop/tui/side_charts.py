"""The overview's charts of the worker under the cursor, beside the tables or below them; pure."""

from __future__ import annotations

from pdtop.tui import text
from pdtop.tui.headline import clip
from pdtop.tui.tones import Line, Tone
from pdtop.tui.widgets.chart import chart_lines
from pdtop.tui.worker_lines import BLANK, columns
from pdtop.tui.worker_page import charts_of
from pdtop.tui.worker_view import WorkerView

#: Lines of a chart that are not its plot: title and time axis.
FRAME = 2

#: Least cells of one chart when they stand side by side, and least lines of a plot.
LEAST_WIDTH = 36
LEAST_PLOT = 4

#: Between charts side by side, cells.
GAP = 3


def below(view: WorkerView, width: int, height: int) -> list[Line]:
    """As many charts as fit side by side, under a line that says whose they are."""
    inner = width - 2
    across = max(1, (inner + GAP) // (LEAST_WIDTH + GAP))
    charts = charts_of(view)[:across]
    each = (inner - GAP * (len(charts) - 1)) // len(charts)
    plot = min(8, height - 1 - FRAME)
    drawn = [_drawn(view, index, each, plot) for index in range(len(charts))]
    return [_heading(view, inner), *_indented(columns(drawn, each, gap=GAP))]


def beside(view: WorkerView, width: int, height: int) -> list[Line]:
    """As many charts as fit below each other."""
    inner = width - 2
    charts = charts_of(view)
    count = max(1, min(len(charts), (height - 1) // (LEAST_PLOT + FRAME + 1)))
    plot = min(9, (height - 1) // count - FRAME - 1)
    out = [_heading(view, inner)]
    for index in range(count):
        out += [*_indented(_drawn(view, index, inner, plot)), BLANK]
    return out[:height]


def _drawn(view: WorkerView, index: int, width: int, plot: int) -> list[Line]:
    chart = charts_of(view)[index]
    return chart_lines(
        chart, width, plot, tick=view.snapshot.number, interval_s=view.interval_s, stale=view.stale
    )


def _heading(view: WorkerView, width: int) -> Line:
    return clip(((" ", Tone.TEXT), (text.clean(view.worker.name), Tone.STRONG)), width)


def _indented(lines: list[Line]) -> list[Line]:
    return [((" ", Tone.TEXT), *line) if line else BLANK for line in lines]
