"""How the overview's lines are shared out: pure arithmetic from the terminal's size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: From this width on charts stand beside the tables.
CHARTS_FROM = 180
CHART_WIDTH = 58

#: From this many spare lines on charts stand below the tables instead, this many at most.
CHARTS_LEAST, CHARTS_MOST = 9, 12

#: From this height on there is room for empty lines between the parts.
AIRY_FROM = 30

#: A pool keeps at least this many rows in sight, as long as the terminal has them.
LEAST_ROWS = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of the overview's parts. A table's height includes its line of titles; 0: not shown."""

    strip: int
    gap: int
    tables: tuple[int, ...]
    charts_beside: int = 0  # cells
    charts_below: int = 0  # lines


def plan(width: int, height: int, rows: Sequence[int]) -> Plan:
    """The plan for pools of ``rows`` workers each (0: the pool is not shown)."""
    gap = 1 if height >= AIRY_FROM else 0
    pools = sum(1 for r in rows if r)
    strip = 2 if height < AIRY_FROM else 4 if height < 50 else 6
    # Top line and key line, the strip, and for each pool the gap, a summary and the titles.
    room = height - 2 - strip - pools * (2 + gap)
    while room < sum(rows) and strip > 2:
        strip, room = strip - 1, room + 1
    tables = tuple(r + 1 if r else 0 for r in share(room, rows))
    if width >= CHARTS_FROM:
        return Plan(strip, gap, tables, charts_beside=CHART_WIDTH)
    spare = room - sum(rows) - gap
    return Plan(strip, gap, tables, charts_below=min(CHARTS_MOST, spare) if spare >= CHARTS_LEAST else 0)


def share(room: int, rows: Sequence[int]) -> tuple[int, ...]:
    """``room`` lines for pools that want ``rows``: all if there is room, else in proportion to their size."""
    room = max(room, sum(1 for r in rows if r))
    if sum(rows) <= room:
        return tuple(rows)
    given = [min(r, LEAST_ROWS) for r in rows]
    while sum(given) > room:
        given[given.index(max(given))] -= 1
    total = sum(rows)
    while sum(given) < room:
        # The next line goes to the pool that is furthest below its proportion.
        short = [(r / total) * room - g if g < r else float("-inf") for r, g in zip(rows, given, strict=True)]
        given[short.index(max(short))] += 1
    return tuple(given)
