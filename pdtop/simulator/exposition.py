"""A small metric registry that writes Prometheus text as cheaply as a benchmark farm needs.

Not a general client: no locks, no global registry. Label sets are turned into text once, an unchanged
histogram is not written twice, and a family without samples is absent, as under Prometheus' multiprocess
mode. Values are written the way prometheus-client writes them (``1e+06``, ``NaN``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Family:
    """Name, type and help of a metric family; ``bounds`` are the finite bucket bounds of a histogram."""

    name: str
    kind: str  # counter, gauge, histogram
    help: str
    bounds: tuple[float, ...] = ()


def label_text(labels: Mapping[str, str]) -> str:
    """``a="x",b="y"`` in the order of the label names, values escaped."""
    return ",".join(f'{name}="{escape(labels[name])}"' for name in sorted(labels))


def number(value: float) -> str:
    """As prometheus-client writes it: exponents from a million up, as Go does."""
    if value != value:
        return "NaN"
    if value in (inf, -inf):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+0{dot - 1}"
    return text


def escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class Value:
    """One counter or gauge series."""

    __slots__ = ("head", "value")

    def __init__(self, name: str, labels: Mapping[str, str]) -> None:
        text = label_text(labels)
        self.head = f"{name}{{{text}}} " if text else f"{name} "
        self.value = 0.0

    def write(self, out: list[str]) -> None:
        out.append(self.head + number(self.value))


class Histogram:
    """One histogram series set; ``counts`` are per bucket, the last one is beyond all bounds."""

    __slots__ = ("_heads", "_text", "bounds", "count", "counts", "sum")

    def __init__(self, family: Family, labels: Mapping[str, str]) -> None:
        self.bounds = family.bounds
        self.counts = [0] * (len(family.bounds) + 1)
        self.count = 0
        self.sum = 0.0
        bounds = [number(b) for b in family.bounds] + ["+Inf"]
        self._heads = [f"{family.name}_bucket{{{label_text({**labels, 'le': b})}}} " for b in bounds]
        text = label_text(labels)
        self._heads.insert(0, f"{family.name}_sum{{{text}}} ")
        self._heads.append(f"{family.name}_count{{{text}}} ")
        self._text: str | None = None

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.count += times
        self.sum += value * times
        self._text = None

    def write(self, out: list[str]) -> None:
        if self._text is None:
            lines = [self._heads[0] + number(self.sum)]
            total = 0
            for head, count in zip(self._heads[1:-1], self.counts, strict=True):
                total += count
                lines.append(head + number(total))
            lines.append(self._heads[-1] + number(total))
            self._text = "\n".join(lines)
        out.append(self._text)


class Registry:
    """The families of one worker. Asking for a series creates it; families appear in order of first use."""

    def __init__(self, families: Mapping[str, Family]) -> None:
        self._known = families
        self._values: dict[str, dict[tuple[tuple[str, str], ...], Value]] = {}
        self._histograms: dict[str, dict[tuple[tuple[str, str], ...], Histogram]] = {}

    def value(self, name: str, labels: Mapping[str, str]) -> Value:
        series = self._values.setdefault(name, {})
        key = tuple(labels.items())
        found = series.get(key)
        if found is None:
            found = series[key] = Value(self._known[name].name, labels)
        return found

    def histogram(self, name: str, labels: Mapping[str, str]) -> Histogram:
        series = self._histograms.setdefault(name, {})
        key = tuple(labels.items())
        found = series.get(key)
        if found is None:
            found = series[key] = Histogram(self._known[name], labels)
        return found

    def render(self, openmetrics: bool = False) -> bytes:
        """The page, as text format 0.0.4 or as OpenMetrics 1.0."""
        out: list[str] = []
        for name, values in self._values.items():
            self._head(name, openmetrics, out)
            for value in values.values():
                value.write(out)
        for name, histograms in self._histograms.items():
            self._head(name, openmetrics, out)
            for histogram in histograms.values():
                histogram.write(out)
        if openmetrics:
            out.append("# EOF")
        return ("\n".join(out) + "\n").encode()

    def _head(self, name: str, openmetrics: bool, out: list[str]) -> None:
        family = self._known[name]
        shown = family.name.removesuffix("_total") if openmetrics else family.name
        out.append(f"# HELP {shown} {family.help}\n# TYPE {shown} {family.kind}")
