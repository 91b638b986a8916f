"""Numbers and outside text as the screen writes them: short, steady in width, never invented.

Columns are narrower than the lines of ``cluster.words``: ``214ms`` instead of ``214 ms``.
``None`` is always ``UNKNOWN``. Widths are terminal cells (``cell_len``), not characters.
"""

from __future__ import annotations

import math
import unicodedata
from functools import lru_cache
from typing import Literal

from rich.cells import cell_len, set_cell_size

from pdtop.cluster import words
from pdtop.metrics.distribution import Distribution, Quantile

UNKNOWN = words.UNKNOWN
ELLIPSIS = "…"

#: Sparkline and bar glyphs, lowest first. Block elements are one cell wide in every terminal we know.
BLOCKS = "▁▂▃▄▅▆▇█"
BAR_EIGHTHS = "▏▎▍▌▋▊▉█"

Align = Literal["left", "right"]


@lru_cache(4096)
def clean(text: str, limit: int = 400) -> str:
    """``text`` from outside made harmless: control characters replaced, length capped."""
    out = words.clean(unicodedata.normalize("NFC", text[:limit]))
    return out if len(text) <= limit else out[:-1] + ELLIPSIS


def fit(text: str, width: int, align: Align = "left") -> str:
    """``text`` in exactly ``width`` cells; what is cut off is marked."""
    length = cell_len(text)
    if length > width:
        return set_cell_size(set_cell_size(text, max(0, width - 1)) + ELLIPSIS, width) if width > 0 else ""
    pad = " " * (width - length)
    return text + pad if align == "left" else pad + text


def middle(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells with the middle left out: host names differ at both ends."""
    if cell_len(text) <= width:
        return text
    if width < 5:
        return fit(text, width)
    tail_width = width // 2
    head = set_cell_size(text, width - tail_width - 1).rstrip()
    tail = text[-tail_width:]
    while cell_len(tail) > tail_width:
        tail = tail[1:]
    return head + ELLIPSIS + tail


def count(value: float | None) -> str:
    """A number of requests, tokens or rows: ``9``, ``1.2k``, ``3.4M``."""
    if value is None:
        return UNKNOWN
    return str(round(value)) if abs(value) < 1000 else si(value)


def si(value: float | None) -> str:
    """A rate in three digits at most: ``0.4``, ``9.0``, ``41``, ``1.3k``, ``41.2k``, ``1.1M``."""
    if value is None:
        return UNKNOWN
    size = abs(value)
    if size < 9.95:
        return f"{value:.1f}" if round(value, 1) % 1 else f"{value:.0f}"
    if size < 999.5:
        return f"{value:.0f}"
    for factor, unit in ((1e3, "k"), (1e6, "M"), (1e9, "G")):
        scaled = size / factor
        if scaled < 999.5 or unit == "G":
            sign = "-" if value < 0 else ""
            return f"{sign}{scaled:.1f}{unit}" if scaled < 99.95 else f"{sign}{scaled:.0f}{unit}"
    raise AssertionError("unreachable")


def percent(ratio: float | None, sign: str = "%") -> str:
    """A ratio 0..1 in whole percent; ``<1`` keeps "a little" apart from "none"."""
    if ratio is None:
        return UNKNOWN
    value = ratio * 100
    if 0 < value < 0.5:
        return f"<1{sign}"
    return f"{value:.0f}{sign}"


def percent1(ratio: float | None) -> str:
    """A ratio in percent with one decimal, never rounded up to 100 %: ``97.2%``."""
    if ratio is None:
        return UNKNOWN
    if ratio < 1 and ratio >= 0.9995:
        return ">99.9%"
    return "100%" if ratio >= 1 else f"{ratio * 100:.1f}%"


def seconds(value: float | None) -> str:
    """A latency: ``4.2ms``, ``214ms``, ``1.92s``, ``14.3s``, ``134s``, ``12m``."""
    if value is None:
        return UNKNOWN
    if value < 0.00995:
        return f"{value * 1000:.1f}ms" if value > 0 else "0ms"
    if value < 0.9995:
        return f"{value * 1000:.0f}ms"
    if value < 9.995:
        return f"{value:.2f}s"
    if value < 99.95:
        return f"{value:.1f}s"
    return f"{value:.0f}s" if value < 999.5 else f"{value / 60:.0f}m"


def _bound(value: float) -> str:
    """A bucket bound: exact, without invented decimals."""
    if value < 1:
        return f"{value * 1000:g}ms"
    return f"{value:g}s"


def quantile(value: Quantile | None) -> str:
    """A quantile with its honesty: ``≥60s`` beyond the last bound, ``<100ms`` inside the first bucket."""
    if value is None:
        return UNKNOWN
    if value.at_least:
        return "≥" + _bound(value.value)
    if value.below is not None:
        return "<" + _bound(value.below)
    return seconds(value.value)


def p(distribution: Distribution | None, q: float) -> Quantile | None:
    """The ``q`` quantile of what may not be there."""
    return None if distribution is None else distribution.quantile(q)


def age(value: float | None) -> str:
    """How long ago or for how long: ``1s``, ``2m10s``, ``3h05m``, ``2d``."""
    if value is None:
        return UNKNOWN
    whole = max(0, int(value))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def interval(value: float) -> str:
    """A polling interval: ``0.5s``, ``2s``."""
    return f"{value:g}s"


def nice_ceiling(value: float, floor: float) -> float:
    """The next 1, 2 or 5 times a power of ten at or above ``value``, at least ``floor``.

    A scale that moves in such steps repaints its bars and sparklines rarely.
    """
    if value <= floor:
        return floor
    decade = 10.0 ** math.floor(math.log10(value))
    return next(decade * step for step in (1, 2, 5, 10, 20) if decade * step >= value)


def bar(value: float | None, full: float, width: int) -> str:
    """A horizontal bar of eighths; anything above nothing is visible."""
    if value is None or value <= 0 or full <= 0:
        return " " * width
    eighths = max(1, min(width * 8, round(value / full * width * 8)))
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (BAR_EIGHTHS[rest - 1] if rest else "")).ljust(width)


def sparkline(points: tuple[float | None, ...], full: float, width: int) -> str:
    """``points`` (newest last) as block glyphs against 0..``full``; a gap is a space."""
    if full <= 0:
        full = 1.0
    shown = points[-width:]
    glyphs = "".join(" " if v is None else BLOCKS[max(0, min(7, round(v / full * 8) - 1))] for v in shown)
    return glyphs.rjust(width)
