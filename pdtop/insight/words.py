"""Shares and counts as sentences spell them: more exact than the columns of ``cluster.words``."""

from __future__ import annotations


def percent(share: float) -> str:
    """0.604 → ``60 %``; small shares keep a decimal (0.004 → ``0.4 %``)."""
    value = share * 100
    return f"{value:.1f} %" if 0 < value < 1 else f"{value:.0f} %"


def count(number: float) -> str:
    """A number of things: ``12``, ``4.5`` where a fraction means something, ``41.2k``."""
    if abs(number) >= 10_000:
        return f"{number / 1000:.1f}k"
    return f"{number:.0f}" if number == int(number) else f"{number:.1f}"


def several(number: float, one: str, many: str | None = None) -> str:
    """``1 worker``, ``3 workers``."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"
