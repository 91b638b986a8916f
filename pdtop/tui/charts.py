"""Many ticks folded into few columns: for sparklines and charts."""

from __future__ import annotations

Points = tuple[float | None, ...]


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
