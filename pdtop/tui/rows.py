"""Lines of a pool table, cell by cell: titles, workers, what stands in an empty table; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pdtop.cluster.model import Worker
from pdtop.tui import text
from pdtop.tui.columns import GUTTER, NAME, Column, pad
from pdtop.tui.lines import diff
from pdtop.tui.pool_view import PoolView
from pdtop.tui.sorting import Sort
from pdtop.tui.tones import Line, Tone

#: The cells of one line: the gutter, then one a column. Between columns stands one blank.
Cells = tuple[Line, ...]

#: Changed cells of a row above which one region for the whole row is cheaper than one a cell.
ROW_SHARE = 0.25

#: Tones that fade when the numbers are old.
_FADES = frozenset({Tone.TEXT, Tone.MUTED, Tone.TREND, Tone.BAR, Tone.OK, Tone.WARNING, Tone.CRITICAL})


def spans(columns: Sequence[Column]) -> list[tuple[int, int]]:
    """First and last-plus-one cell of the gutter and of each column."""
    out, x = [(0, GUTTER)], GUTTER
    for column in columns:
        out.append((x, x + column.width))
        x += column.width + 1
    return out


def width_of(columns: Sequence[Column]) -> int:
    """Cells that ``columns`` take with the gutter."""
    return spans(columns)[-1][1]


def titles(columns: Sequence[Column], sort: Sort, scrolled: int) -> Cells:
    """The titles; ``scrolled`` is how many columns are hidden at the left."""
    out: list[Line] = [(("◂ " if scrolled else " " * GUTTER, Tone.COLUMN),)]
    for column in columns:
        sorting = sort.column is not None and sort.column.id == column.id
        arrow = ("▾" if sort.largest_first else "▴") if sorting else ""
        words = text.fit(column.title_in(column.width - len(arrow)) + arrow, column.width, column.align)
        out.append(((words, Tone.SORTED if sorting else Tone.COLUMN),))
    return tuple(out)


def row(
    worker: Worker,
    view: PoolView,
    columns: Sequence[Column],
    *,
    cursor: bool = False,
    marked: bool = False,
    gone: bool = False,
) -> Cells:
    """One worker. Old numbers fade, and their age stands where the sparkline was; ``gone`` greys it all."""
    out: list[Line] = [(("▌" if cursor else " ", Tone.STRONG), ("●" if marked else " ", Tone.MARK))]
    age = text.age(worker.age_s) if worker.stale and worker.age_s is not None else ""
    for column in columns:
        if gone and column.id == "state":
            out.append(pad((("gone", Tone.STALE),), column.width, column.align))
        elif worker.stale and column.stretch:
            # An old sparkline would look alive.
            words = age + " ago" if age and len(age) + 4 <= column.width else age
            out.append(pad(((words, Tone.STALE),), column.width, "left"))
            age = ""
        else:
            cell = column.cell(worker, view)
            if gone or (worker.stale and column.id not in (NAME.id, "state")):
                cell = tuple((w, Tone.STALE if gone or t in _FADES else t) for w, t in cell)
            out.append(cell)
    return tuple(out)


def nobody(view: PoolView) -> Cells:
    """The line of an empty table: why it is empty."""
    words = "no worker passes the filter" if view.everyone else "no workers"
    return (((" " * GUTTER + words, Tone.MUTED),),)


def note(words: Line) -> Cells:
    """A line of its own under a worker's row."""
    return (words,)


def line(cells: Cells) -> Line:
    """``cells`` as one line."""
    out = list(cells[0]) if cells else []
    gap = ""
    for cell in cells[1:]:
        # The gap joins the filling of a right-aligned cell: fewer pieces make a faster strip.
        if cell and cell[0][1] is Tone.TEXT:
            out.append((gap + cell[0][0], Tone.TEXT))
            out += cell[1:]
        else:
            if gap:
                out.append((gap, Tone.TEXT))
            out += cell
        gap = " "
    return tuple(out)


def changed(before: Cells, after: Cells, columns: Sequence[Column]) -> Iterable[tuple[int, int]]:
    """The cells in which two lines differ, as few spans as are cheap to write."""
    if before == after:
        return []
    places = spans(columns)
    if len(before) == len(after) == 1:
        return [part] if (part := diff(before[0], after[0])) is not None else []
    if len(before) != len(after) or len(after) != len(places):
        return [(0, places[-1][1])]
    out: list[tuple[int, int]] = []
    for (start, _), old, new in zip(places, before, after, strict=True):
        if old != new and (part := diff(old, new)) is not None:
            out.append((start + part[0], start + part[1]))
    if len(out) > ROW_SHARE * len(places):
        return [(out[0][0], out[-1][1])]
    return out
