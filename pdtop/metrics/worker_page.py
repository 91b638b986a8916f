"""A worker's metrics page as numbers by concept, ranks aggregated (see :mod:`pdtop.metrics.plan`)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, nan
from operator import le
from types import MappingProxyType
from weakref import WeakKeyDictionary

from pdtop.metrics.catalogue import ENGINE_PREFIXES, WORKER, WORKER_FAMILIES, Across
from pdtop.metrics.distribution import Distribution, merge
from pdtop.metrics.exposition import Layout, PageReader, sublayout
from pdtop.metrics.growth import Growth
from pdtop.metrics.plan import Buckets, Plan, Value, make_plan, worth_keeping

#: A value beyond this says nothing but that its exporter is broken; without it no sum or mean overflows.
LARGEST = 1e18
_NO_VALUES: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class WorkerNumbers:
    """One read of a worker's page. Concepts are those of :mod:`pdtop.metrics.catalogue`.

    ``at`` is the reader's clock (seconds). ``engine_series`` counts the engine's series on the page, wanted
    or not; 0 means that it is no engine's page. ``complete``: nothing of the page was lost. ``pids`` are the
    process ids on it; all others than before mean a restart. Numbers are None where the page has none.
    """

    at: float
    lines: int
    bad_lines: int
    duplicates: int
    size: int
    engine_series: int
    complete: bool
    pids: frozenset[str]
    layout: Layout
    values: Sequence[float]
    plan: Plan

    @property
    def model_name(self) -> str:
        """The served model's name, "" if the page has none."""
        return self.plan.model_name

    @property
    def engine_type(self) -> str:
        """``prefill``, ``decode``, ``unified``, ``dynamic`` or "". Always ``unified`` before 0.5.7."""
        return self.plan.engine_type

    @property
    def ranks(self) -> tuple[str, ...]:
        """The DP ranks' label texts in order; ``("",)`` if the worker has none."""
        return self.plan.ranks

    def gauge_by_rank(self, concept: str) -> Mapping[str, float]:
        """The value of each DP rank that has one."""
        found = self.plan.values.get(concept)
        if found is None:
            return _NO_VALUES
        return _by_rank(self.values, found, WORKER[concept].across)

    def gauge(self, concept: str) -> float | None:
        """Over all DP ranks by the concept's own rule: sum, highest or mean."""
        return self._total(self.plan.values.get(concept), WORKER[concept].across)

    def gauge_mean(self, concept: str) -> float | None:
        """Mean over the DP ranks that have a value."""
        return _over(Across.MEAN, self.gauge_by_rank(concept).values())

    def gauge_max(self, concept: str) -> float | None:
        """Of the DP rank with the highest value."""
        return _over(Across.MAX, self.gauge_by_rank(concept).values())

    def counter(self, concept: str) -> float | None:
        """The counter as it stands, all DP ranks and other labels added."""
        return self._total(self.plan.values.get(concept), Across.SUM)

    def counter_by_rank(self, concept: str) -> Mapping[str, float]:
        """The counter of each DP rank; one entry "" if only the whole worker is counted."""
        found = self.plan.values.get(concept)
        return _NO_VALUES if found is None else _by_rank(self.values, found, Across.SUM)

    def named_counter(self, name: str) -> float | None:
        """Any counter of the engine by its exported name without prefix, also one outside the catalogue."""
        return self._total(self.plan.counters.get(name), Across.SUM)

    def histogram(self, concept: str) -> Distribution | None:
        """Everything added, since the worker's start; None if absent, of mixed bounds or with buckets that
        are negative or fall (prefill workers before 0.5.22 export such)."""
        return self._merged(self.plan.histograms.get(concept, ()))

    def histogram_split(self, concept: str) -> Mapping[str, Distribution]:
        """By ``is_streaming`` ("true", "false"); empty before 0.5.17."""
        return self.histograms_by(concept, "is_streaming")

    def histograms_by(self, concept: str, label: str = "stage") -> Mapping[str, Distribution]:
        """By the values of ``label``; unusable ones are left out."""
        groups: dict[str, list[Buckets]] = {}
        for buckets in self.plan.histograms.get(concept, ()):
            value = next((text for name, text in buckets.labels if name == label), None)
            if value is not None:
                groups.setdefault(value, []).append(buckets)
        merged = {value: self._merged(group) for value, group in groups.items()}
        return {value: one for value, one in merged.items() if one is not None}

    def with_values(self, values: Sequence[float]) -> WorkerNumbers:
        """The same page holding other values, e.g. what each series grew by."""
        return replace(self, values=values)

    def trusts(self, concept: str) -> bool:
        """Whether the page has the histogram, and every part of it makes sense."""
        histograms = self.plan.histograms.get(concept, ())
        return bool(histograms) and all(counts_of(self.values, one) is not None for one in histograms)

    def _total(self, found: tuple[Value, ...] | None, across: Across) -> float | None:
        if found is None:
            return None
        if across is Across.MEAN:  # of the ranks, whatever else tells their values apart
            return _over(across, _by_rank(self.values, found, across).values())
        return _over(across, [value for _, value in _usable(self.values, found)])

    def _merged(self, histograms: Iterable[Buckets]) -> Distribution | None:
        parts: list[Distribution] = []
        for buckets in histograms:
            part = distribution(self.values, buckets)
            if part is None:
                return None
            parts.append(part)
        return merge(parts)


class WorkerPageReader:
    """Reads the metrics pages of one worker, or of a router that passes on those of its workers."""

    __slots__ = ("_reader",)

    def __init__(self) -> None:
        self._reader = PageReader(
            WORKER_FAMILIES,
            prefixes=ENGINE_PREFIXES,
            counters_of=ENGINE_PREFIXES,
            ordinal="pid",
            prune=worth_keeping,
        )

    def read(self, body: bytes, at: float, *, truncated: bool = False) -> WorkerNumbers:
        """Read a page of one worker; never raises."""
        page = self._reader.read(body, truncated=truncated)
        return WorkerNumbers(
            at=at,
            lines=page.lines,
            bad_lines=page.bad_lines,
            duplicates=page.duplicates,
            size=page.size,
            engine_series=sum(page.named[:-1]),
            complete=not truncated and not page.bad_lines,
            pids=page.ordinals,
            layout=page.layout,
            values=page.values,
            plan=_plan(page.layout),
        )

    def read_aggregate(self, body: bytes, at: float, *, truncated: bool = False) -> dict[str, WorkerNumbers]:
        """Read a router's page of all its workers' metrics: numbers by ``worker_addr``, as the page has it.

        Lines that are bad or repeated, and the size, are those of the whole page; process ids are not told
        apart and left out.
        """
        whole = self.read(body, at, truncated=truncated)
        return {
            address: replace(
                whole,
                engine_series=len(indexes),
                pids=frozenset(),
                layout=layout,
                values=array("d", map(whole.values.__getitem__, indexes)),
                plan=_plan(layout),
            )
            for address, indexes, layout in _by_worker(whole.layout)
        }


def counts_of(values: Sequence[float], buckets: Buckets) -> tuple[float, ...] | None:
    """A histogram's cumulative buckets out of a page's values; None if one is unusable, negative or falls."""
    counts = values.take(buckets.pick) if isinstance(values, Growth) else buckets.pick(values)
    if not counts or not counts[0] >= 0 or not counts[-1] <= LARGEST or not all(map(le, counts, counts[1:])):
        return None
    return counts


def distribution(values: Sequence[float], buckets: Buckets) -> Distribution | None:
    """A histogram out of a page's values; None as in :func:`counts_of`."""
    counts = counts_of(values, buckets)
    if counts is None:
        return None
    bounds = buckets.bounds
    if isfinite(bounds[-1]):  # no +Inf bucket and no count: nothing is known beyond the last bound
        bounds, counts = (*bounds, inf), (*counts, counts[-1])
    total = values[buckets.sum_at] if buckets.sum_at >= 0 else nan
    return Distribution(bounds, counts, total if -LARGEST <= total <= LARGEST else nan)


def _usable(values: Sequence[float], found: Iterable[Value]) -> list[tuple[str, float]]:
    """(DP rank, value) where there is a usable one: of positions that repeat a value, the largest."""
    usable: list[tuple[str, float]] = []
    for one in found:
        at = one.at
        value = values[at[0]]
        if len(at) > 1:
            value = max([values[i] for i in at if -LARGEST <= values[i] <= LARGEST], default=nan)
        if -LARGEST <= value <= LARGEST:
            usable.append((one.dp_rank, value))
    return usable


def _by_rank(values: Sequence[float], found: Iterable[Value], across: Across) -> dict[str, float]:
    usable = _usable(values, found)
    by_rank = dict(usable)
    if len(by_rank) == len(usable):  # nearly always
        return by_rank
    numbers: dict[str, list[float]] = {}
    for rank, value in usable:
        numbers.setdefault(rank, []).append(value)
    return {rank: total for rank, some in numbers.items() if (total := _over(across, some)) is not None}


def _over(across: Across, numbers: Iterable[float]) -> float | None:
    known = list(numbers)
    if not known:
        return None
    if across is Across.MAX:
        return max(known)
    return sum(known) / len(known) if across is Across.MEAN else sum(known)


_plans: WeakKeyDictionary[Layout, Plan] = WeakKeyDictionary()
_splits: WeakKeyDictionary[Layout, list[tuple[str, list[int], Layout]]] = WeakKeyDictionary()


def _plan(layout: Layout) -> Plan:
    plan = _plans.get(layout)
    if plan is None:
        plan = _plans[layout] = make_plan(layout)
    return plan


def _by_worker(layout: Layout) -> list[tuple[str, list[int], Layout]]:
    split = _splits.get(layout)
    if split is None:
        indexes: dict[str, list[int]] = {}
        for index, series in enumerate(layout.series):
            address = next((value for name, value in series.labels if name == "worker_addr"), "")
            if address:
                indexes.setdefault(address, []).append(index)
        split = _splits[layout] = [(address, own, sublayout(layout, own)) for address, own in indexes.items()]
    return split
