"""Numbers and outside text as printed output writes them: unknown is ``–``, what is only bounded says so."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from math import isfinite

from pdtop.cluster.model import Finding, Latency, Severity
from pdtop.metrics.distribution import Quantile

UNKNOWN = "–"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

#: Control, format, surrogate, private, unassigned and separator characters: they move cursors or hide text.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})

_SEVERITIES = tuple(Severity)


def clean(text: str) -> str:
    """Outside text in one harmless line: white space is a space, other control characters are replaced."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        " " if c in "\t\n\r" else REPLACEMENT if unicodedata.category(c) in _UNSAFE else c for c in text
    )


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """By severity; within one severity the order is kept."""
    return sorted(findings, key=lambda finding: _SEVERITIES.index(finding.severity))


def count(value: float | None) -> str:
    """A number of things or a rate: ``0.4``, ``12``, ``1.3k``, ``41.2k``, ``1.1M``."""
    if value is None or not isfinite(value):
        return UNKNOWN
    if abs(value) < 9.95:
        return f"{value:.1f}".removesuffix(".0")
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 999.5 * factor / 1e3:
            scaled = value / factor
            return f"{scaled:.1f}{unit}" if abs(scaled) < 99.95 else f"{scaled:.0f}{unit}"
    return f"{value:.0f}"


def percent(ratio: float | None) -> str:
    """A ratio 0..1: ``61 %``; ``<1 %`` keeps "a little" apart from "none"."""
    if ratio is None or not isfinite(ratio):
        return UNKNOWN
    return "<1 %" if 0 < ratio < 0.005 else f"{ratio * 100:.0f} %"


def span(seconds: float | None) -> str:
    """How long ago or for how long: ``9 s``, ``2m10s``, ``3h05m``."""
    if seconds is None or not isfinite(seconds):
        return UNKNOWN
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def duration(seconds: float | None) -> str:
    """A measured time: ``0.42 ms``, ``214 ms``, ``1.92 s``, ``61 s``."""
    if seconds is None or not isfinite(seconds):
        return UNKNOWN
    ms = seconds * 1000
    if ms < 0.995:
        return f"{ms:.2f} ms" if ms else "0 ms"
    if ms < 9.95:
        return f"{ms:.1f} ms"
    if ms < 999.5:
        return f"{ms:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.0f} s"


def observed(latency: Latency, q: float) -> Quantile | None:
    """The ``q`` quantile; None also where a count is no number, which no reading of ours should hold."""
    if latency.distribution is not None and not all(map(isfinite, latency.distribution.counts)):
        return None
    return latency.quantile(q)


def quantile(latency: Latency | None, q: float) -> str:
    """``214 ms``; ``≥ 60 s`` beyond the last bucket, ``< 100 ms`` in the first; ``~``: the exporter's own."""
    found = observed(latency, q) if latency is not None else None
    if latency is None or found is None:
        return UNKNOWN
    if found.at_least:
        return _bound("≥", found.value)
    if found.below is not None:
        return _bound("<", found.below)
    words = duration(found.value)
    return f"~{words}" if latency.approximate and words != UNKNOWN else words


def _bound(sign: str, seconds: float) -> str:
    """A bucket's bound as it was exported, without decimals that it does not have."""
    if not isfinite(seconds):
        return UNKNOWN
    return f"{sign} {seconds * 1000:g} ms" if seconds < 1 else f"{sign} {seconds:g} s"
